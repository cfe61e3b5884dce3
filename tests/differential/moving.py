"""The lockstep of ledgers that move rows: a ledger with a store, a twin that counts, two oracles.

Where keys are never rewritten the store is kvsim's own ArrayStore and rows are real float32
numbers; where they are, a store of integers that keeps with each row the position of its key.
"""

from __future__ import annotations

import hashlib

import numpy as np
from oracles.compaction import MovingPages
from oracles.contiguous import Contiguous

from differential.agreement import agree
from differential.cases import CUTS, UNIT_BYTES, geometry_of
from differential.lockstep import Lockstep, Refusal
from differential.paths import Paths
from differential.rowstore import RowStore, digest
from kvsim.errors import CeilingExceeded
from kvsim.layout.families import dense
from kvsim.paging import Ledger, Order
from kvsim.tensors.array_store import ArrayStore
from kvsim.tensors.rope import Rope
from kvsim.tensors.shape import CacheShape

ELEMENTS = 2
PLANES = ("K", "V")
ALGORITHMS = ("rebuild", "forward", "hole_fill")


def float_rows(rows, plane):
    """Return the float32 rows [row, element] that a row's number stands for, of any bit pattern.

    NaNs and denormals are among them: a store must carry bits, not numbers.
    """
    number = np.asarray(rows, np.uint64).reshape(-1, 1) * np.uint64(len(PLANES) * ELEMENTS)
    number = number + np.uint64(PLANES.index(plane) * ELEMENTS) + np.arange(ELEMENTS, dtype="u8")
    return (number * np.uint64(2654435761) % np.uint64(2**32)).astype(np.uint32).view(np.float32)


def plain_shape(units):
    """Return the shape of rows that never rotate, one for each unit."""
    return CacheShape(dense([units], ELEMENTS, ELEMENTS, 0), (Rope(0),), "kv")


class KeyedStore(RowStore):
    """A RowStore that keeps with each row the position that its stored key was rotated to."""

    def __init__(self, unit_scope, unit_set, page_tokens):
        super().__init__(unit_scope, unit_set, page_tokens)
        self.keys = self.rows.copy()

    def resize(self, pages):
        super().resize(pages)
        wider = np.full(self.rows.shape, -1, np.int64)
        wider[:, : self.keys.shape[1]] = self.keys
        self.keys = wider

    def write(self, scope, slots, rows):
        """Write `rows` [(row, position), unit of the scope, slot]."""
        super().write(scope, slots, rows[0])
        self.keys[np.ix_(self.unit_scope == scope, slots)] = rows[1]

    def apply(self, plan):
        """Carry out the moves one by one; the key comes along unless a move rotates it."""
        for move in plan.T:
            super().apply(move[:, None])
            source, target, position, scope, which = move.tolist()
            units = self.moved_by(scope, which)
            self.keys[units, target] = self.keys[units, source] if position < 0 else position


class Moving(Lockstep):
    """A ledger under an ordering, its counting twin, the pages oracle and the contiguous oracle.

    Parameters
    ----------
    case, page_tokens, ceiling, order, note
        As in Lockstep.
    ordering : dict
        Parameters of Order, all of them.
    """

    def __init__(self, case, page_tokens, ordering, ceiling=0, order="fifo", note=None):
        scope, sets = case
        self.unit_scope, self.unit_set = CUTS[scope], CUTS[sets]
        self.sets = max(self.unit_set) + 1
        self.page_tokens = page_tokens
        self.ordering = ordering
        self.rotates = ordering["positions"] == "renumber" and ordering["renumber_writes"]
        geometry = geometry_of(case)
        self.store = (
            KeyedStore(self.unit_scope, self.unit_set, page_tokens)
            if self.rotates
            else ArrayStore(plain_shape(len(self.unit_scope)), geometry, page_tokens)
        )
        options = {"ceiling_pages": ceiling, "order": order, "ordering": Order(**ordering)}
        self.ledger = Ledger(geometry, page_tokens, store=self.store, **options)
        self.twin = Ledger(geometry, page_tokens, **options)
        self.pages = MovingPages(
            self.unit_scope,
            self.unit_set,
            UNIT_BYTES,
            page_tokens,
            ordering,
            ceiling=ceiling,
            order=order,
        )
        self.cache = Contiguous(self.unit_scope, self.unit_set)
        self.note = note or (lambda path: None)
        self.paths = Paths(self, lambda path: None)
        self.tokens = 0
        self.supply()

    # Verbs

    def open(self):
        """Open a sequence everywhere."""
        self.twin.open()
        return super().open()

    def append(self, sequence, tokens):
        """Append, or see both ledgers refuse and change nothing. Returns whether it was done."""
        need = self.pages.needed(sequence, tokens)
        if not self.allowed("append", need, lambda led: led.append(sequence, tokens)):
            return False
        new = self._new_rows(tokens)
        self.ledger.append(sequence, tokens, self.blocks(sequence, new))
        self.twin.append(sequence, tokens)
        self.supply()
        self.pages.append(sequence, tokens)
        self.cache.append(sequence, new.tolist())
        self.done("append")
        return True

    def fork(self, parent):
        """Fork everywhere. Returns the child."""
        self.twin.fork(parent)
        child = super().fork(parent)
        self.note("fork")
        return child

    def free(self, sequence):
        """Free everywhere."""
        self.twin.free(sequence)
        super().free(sequence)
        self.note("free")

    def end_step(self):
        """Sample the peak of held pages everywhere."""
        self.twin.end_step()
        super().end_step()

    def evict(self, sequence, victims, shape="some"):
        """Evict, or see an eviction that renumbers refused. Returns whether it was done."""
        lists = [np.array(slots[::-1], np.int64) for slots in victims]
        need = 0
        if self.rotates and not self.pages.moves:
            need = self.pages.renumbering_need(sequence, victims)
        if not self.allowed("evict", need, lambda led: led.evict(sequence, lists)):
            return False
        gone = [self.pages.positions(sequence, which, slots) for which, slots in enumerate(victims)]
        for ledger in (self.ledger, self.twin):
            ledger.evict(sequence, lists)
        self.supply()
        self.pages.evict(sequence, victims)
        self.cache.evict(sequence, gone)
        if self.pages.renumbers and not self.pages.moves:
            self.cache.renumber(sequence, by_row=False)
        self.done(f"evict {shape}" if any(victims) else "evict nothing")
        return True

    def compact(self, sequence, algorithm):
        """Compact, or see both ledgers refuse and change nothing. Returns whether it was done."""
        need = self.pages.compact_need(sequence, algorithm)
        if not self.allowed(algorithm, need, lambda led: led.compact(sequence, algorithm)):
            return False
        live, before = self.pages.census()[0], dict(self.pages.flows)
        for ledger in (self.ledger, self.twin):
            ledger.compact(sequence, algorithm)
        self.supply()
        self.pages.compact(sequence, algorithm)
        if self.pages.renumbers:
            self.cache.renumber(sequence, self.pages.by_row)
        moved = self.pages.flows["copied_rows_total"] - before["copied_rows_total"]
        freed = self.pages.flows["freed_pages_total"] - before["freed_pages_total"]
        self.done(algorithm)
        if moved and freed and live:
            unit = "row" if self.pages.by_row else "slot"
            self.note(f"{algorithm} {unit} {self.ordering['positions']} frees pages")
        return True

    def algorithms(self):
        """Return the compactions that the ordering allows."""
        if not self.pages.moves:
            return ()
        return ALGORITHMS if self.pages.stored else ALGORITHMS[:2]

    # The inside

    def supply(self):
        """Tell the oracle how many pages the pool has by now."""
        self.pages.supply(self.ledger.refcounts().size)

    def done(self, path):
        """Note a verb and the paths that it took, and ask for agreement."""
        self.note(path)
        for reached in dict.fromkeys(self.pages.reached):
            self.note(reached)
        agree(self)
        assert digest(self.twin) == digest(self.ledger), "a ledger that only counts differs"

    def allowed(self, verb, need, call):
        """Tell whether the ceiling leaves the pages; if not, both ledgers must refuse."""
        if not self.pages.ceiling or need <= self.pages.room():
            return True
        rows = self.store_digest()
        with Refusal(self, verb, CeilingExceeded) as refusal:
            call(self.ledger)
        assert (refusal.error.needed_pages, refusal.error.free_pages) == (need, self.pages.room())
        assert self.store_digest() == rows, f"a refused {verb} changed the store"
        try:
            call(self.twin)
        except CeilingExceeded:
            assert digest(self.twin) == digest(self.ledger), f"a refused {verb} changed the twin"
        else:
            raise AssertionError(f"the twin did not refuse {verb}")
        self.note(f"{verb} refused")
        return False

    def store_digest(self):
        """Hash all rows of the store."""
        if self.rotates:
            arrays = [self.store.rows, self.store.keys]
        else:
            arrays = [plane for planes in self.store.planes for plane in planes.values()]
        return hashlib.sha256(b"".join(array.tobytes() for array in arrays)).hexdigest()

    def blocks(self, sequence, new):
        """Return the rows [unit, token] for each scope unit, in the form that the store takes."""
        blocks = []
        for scope in self.pages.scopes:
            rows = new[np.array(self.unit_scope) == scope]
            if self.rotates:
                first = self.cache.next_position(sequence, scope)
                keys = np.broadcast_to(np.arange(first, first + rows.shape[1]), rows.shape)
                blocks.append(np.stack([rows, keys]))
            else:
                shape = (*rows.T.shape, ELEMENTS)
                blocks.append({p: float_rows(rows.T.ravel(), p).reshape(shape) for p in PLANES})
        return blocks

    def agree_stored(self, unit, slots, expected):
        """Assert that physical slots hold these rows, bit by bit, with keys at these positions."""
        rows = [row for _, row in expected]
        if self.rotates:
            assert self.store.rows[unit, slots].tolist() == rows
            assert self.store.keys[unit, slots].tolist() == [position for position, _ in expected]
            return
        for plane, have in self.store.gather(slots, unit).items():
            assert np.array_equal(have.view(np.uint32), float_rows(rows, plane).view(np.uint32))
