"""The ledger: the thin Python face over the kernels that count slots, pages and bytes.

It knows nothing about scores, models or time. Every verb checks, then acts: a refused verb
raises and leaves every array as it was.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from kvsim.errors import CeilingExceeded, LedgerError, VictimError
from kvsim.paging import arrays as memory
from kvsim.paging import census, eviction, growth
from kvsim.paging import fields as f
from kvsim.paging.geometry import Geometry
from kvsim.paging.recount import recount
from kvsim.paging.samples import Floors, Slots, count_slots, floors
from kvsim.paging.store import CountingStore, Store

ORDERS = {"fifo": f.FIFO, "lifo": f.LIFO}
UNLIMITED = 2**31 - 2


class Ledger:
    """Block tables of many sequences over one refcounted pool of pages.

    Parameters
    ----------
    geometry : Geometry
        Which units share a table and which share a set.
    page_tokens : int
        Slots in a page, at least 1.
    ceiling_pages : int
        Most pages that may be held, counted over all scope units; 0 means unlimited.
    order : {"fifo", "lifo"}
        Which free page is taken first.
    store : Store, optional
        Where rows live; by default nowhere.

    Raises
    ------
    LedgerError
        If a size is not positive or the order is unknown.
    """

    def __init__(
        self,
        geometry: Geometry,
        page_tokens: int,
        *,
        ceiling_pages: int = 0,
        order: str = "fifo",
        store: Store | None = None,
    ) -> None:
        if page_tokens < 1:
            raise LedgerError(f"page_tokens must be at least 1, not {page_tokens}")
        if ceiling_pages < 0:
            raise LedgerError(f"ceiling_pages must not be negative, not {ceiling_pages}")
        if order not in ORDERS:
            raise LedgerError(f"order must be one of {', '.join(ORDERS)}, not {order!r}")
        self.geometry = geometry
        self.page_tokens = page_tokens
        self.store: Store = CountingStore() if store is None else store
        self._units = geometry.scope_units
        self._arrays = memory.make(
            page_tokens=page_tokens,
            scopes=geometry.scopes_array(),
            holder_sets=geometry.holder_sets,
            position_sets=0,
            ceiling=ceiling_pages or UNLIMITED,
            order=ORDERS[order],
        )
        self._scalars = self._arrays.scalars
        self.store.resize(int(self._scalars[f.PAGES]))

    # Verbs

    def open(self) -> int:
        """Return the number of a new, empty sequence."""
        self._call("open", growth.open_sequence)
        return self._taken_number()

    def append(self, sequence: int, tokens: int, rows: Iterable[object] | None = None) -> None:
        """Append `tokens` slots to every table of a sequence, copying shared pages on write.

        Parameters
        ----------
        sequence : int
        tokens : int
            At least 0.
        rows : iterable, optional
            For each scope unit, the new rows, handed to the store.

        Raises
        ------
        CeilingExceeded
            If the pages needed are more than the ceiling leaves. Nothing is changed.
        LedgerError
            If the sequence is not open or `tokens` is negative.
        """
        self._check_open(sequence)
        if tokens < 0:
            raise LedgerError(f"cannot append {tokens} tokens")
        self._call("append", growth.append, sequence, tokens)
        if rows is not None:
            for scope, block in enumerate(rows):
                self.store.write(scope, self._last_slots(sequence, scope, tokens), block)

    def advance(self, sequences: np.ndarray, steps: int = 1) -> None:
        """Append one token to each of many sequences, `steps` times, in one kernel call.

        Raises
        ------
        CeilingExceeded
            At the first append that does not fit; those before it stand, as they would have
            one by one.
        """
        sequences = np.ascontiguousarray(sequences, np.int64)
        tables = self._arrays.tables
        rows = sequences * self._units
        if sequences.size and not (
            sequences.min() >= 0
            and rows.max() < tables.shape[0]
            and (tables[rows, f.SEQUENCE] == sequences).all()
        ):
            raise LedgerError("a sequence of the batch is not open")
        try:
            self._call("advance", growth.advance, sequences, steps)
        finally:
            self._scalars[f.STEP] = self._scalars[f.MEMBER] = 0

    def fork(self, parent: int) -> int:
        """Return the number of a new sequence that shares every page of `parent`."""
        self._check_open(parent)
        self._call("fork", growth.fork, parent)
        return self._taken_number()

    def evict(self, sequence: int, victims: Iterable[np.ndarray]) -> None:
        """Let each set of a sequence drop slots; pages left without a live slot are let go.

        Parameters
        ----------
        sequence : int
        victims : iterable of int64 [n]
            One list per set of the geometry, in order: the slots that it drops.

        Raises
        ------
        VictimError
            If a list names a slot that its set does not retain, or names one twice. Nothing
            is changed.
        """
        self._check_open(sequence)
        lists = [np.ascontiguousarray(slots, np.int64) for slots in victims]
        if len(lists) != self.geometry.sets:
            raise VictimError(f"{self.geometry.sets} victim lists are needed, not {len(lists)}")
        try:
            self._evict(sequence, lists)
        except _BadVictim:
            # The kernel wants ascending lists. Most are, so they are sorted only when it balks.
            lists = [np.sort(slots) for slots in lists]
            try:
                self._evict(sequence, lists)
            except _BadVictim as refusal:
                which, slot = refusal.locate(lists)
                raise VictimError(
                    f"set {which} of sequence {sequence} does not retain slot {slot}, "
                    "or it is named twice"
                ) from None

    def _evict(self, sequence: int, lists: list[np.ndarray]) -> None:
        starts = np.zeros(len(lists) + 1, np.int64)
        for which, slots in enumerate(lists):
            starts[which + 1] = starts[which] + slots.size
        every = lists[0] if len(lists) == 1 else np.concatenate(lists)
        self._call("evict", eviction.evict, sequence, starts, every)

    def free(self, sequence: int) -> None:
        """End a sequence and let go of its pages.

        Raises
        ------
        LedgerError
            If the sequence is not open: a double free is refused, not ignored.
        """
        self._check_open(sequence)
        self._call("free", growth.free, sequence)

    def end_step(self) -> None:
        """Sample the peak that is taken at the end of a step."""
        self._scalars[f.HELD_PEAK] = max(self._scalars[f.HELD_PEAK], self._scalars[f.HELD])

    # Stocks and flows

    @property
    def held_pages(self) -> int:
        """Pages with a refcount above 0, over all scope units."""
        return int(self._scalars[f.HELD])

    @property
    def held_bytes(self) -> int:
        """Bytes of the held pages, each at its scope unit's width."""
        held = self._arrays.scopes[:, f.HELD_IN]
        return int(held @ self.geometry.page_row_bytes()) * self.page_tokens

    @property
    def free_pages(self) -> int:
        """Pages that the ceiling leaves."""
        return int(self._scalars[f.CEILING] - self._scalars[f.HELD])

    def total(self, field: int) -> int:
        """Return one of the flows named ``*_TOTAL`` or peaks named ``*_PEAK`` in `fields`."""
        return int(self._scalars[field])

    def sequences(self) -> list[int]:
        """Open sequences, ascending."""
        return np.flatnonzero(self._arrays.tables[:: self._units, f.SEQUENCE] >= 0).tolist()

    def table(self, sequence: int, scope: int, field: int) -> int:
        """Return one field of a sequence's table."""
        return int(self._arrays.tables[sequence * self._units + scope, field])

    def cursor(self, sequence: int, scope: int = 0) -> int:
        """Return the next slot that the table of a scope unit will write."""
        return self.table(sequence, scope, f.CURSOR)

    def pages_of(self, sequence: int, scope: int = 0) -> np.ndarray:
        """Return a table's pages, int64 [entries], -1 where an interior page was let go."""
        start = self.table(sequence, scope, f.START)
        entries = self.table(sequence, scope, f.ENTRIES)
        return self._arrays.entries[f.PAGE, start : start + entries].astype(np.int64)

    def refcounts(self) -> np.ndarray:
        """Return the refcount of each page, int32 [pages]."""
        return self._arrays.pages[f.REFCOUNT, :-1].copy()

    def retained(self, sequence: int, which: int, scope: int | None = None) -> np.ndarray:
        """Return which slots a set retains, bool [cursor].

        Tables of a set that spans several scope units agree; unless `scope` names one, the
        first of them answers.
        """
        if scope is None:
            scope = self.geometry.first_scope_of(which)
        kept = np.zeros(self.cursor(sequence, scope), np.bool_)
        member = self.geometry.inner_sets[scope].index(which)
        census.retained_slots(self._arrays, sequence * self._units + scope, member, kept)
        return kept

    def slots(self) -> Slots:
        """Take a census of the physical slots of all held pages."""
        return count_slots(self._arrays)

    def floors(self) -> Floors:
        """Count the fewest pages that could hold what is retained."""
        return floors(self._arrays, self.geometry)

    @property
    def logical_live_slots(self) -> int:
        """Live slots summed over tables: a shared slot counts once in each."""
        tables = self._arrays.tables[self._arrays.tables[:, f.SEQUENCE] >= 0]
        return int((tables[:, f.CURSOR] - tables[:, f.DEAD]).sum())

    @property
    def retained_rows(self) -> int:
        """(token, layer, head) rows that sets retain, summed over sequences."""
        rows = 0
        for sequence in self.sequences():
            for scope, inner in enumerate(self.geometry.inner_sets):
                for member, which in enumerate(inner):
                    units = int(
                        self._arrays.scopes[scope, f.SET_COLUMNS + f.PER_SET * member + f.ROWS]
                    )
                    rows += units * int(np.count_nonzero(self.retained(sequence, which, scope)))
        return rows

    @property
    def metadata_bytes(self) -> int:
        """Bytes of bookkeeping: 4 a table entry, 1 a slot's dead flag, 1 a (set, slot) holder
        and 4 a stored position."""
        tables = self._arrays.tables[self._arrays.tables[:, f.SEQUENCE] >= 0]
        slots = int(tables[:, f.CURSOR].sum())
        entries = int(tables[:, f.ENTRIES].sum())
        sets = self._arrays.holders.shape[0]
        return 4 * entries + slots * (1 + sets + 4 * self._arrays.position.shape[0])

    def check(self) -> None:
        """Recount everything from the raw tables; raise LedgerError on the first mismatch."""
        recount(self._arrays, self.geometry)

    # How a kernel is called

    def _call(self, verb: str, function: Any, *arguments: Any) -> None:
        scalars = self._scalars
        while True:
            answer = function(self._arrays, *arguments)
            if answer == f.OK:
                break
            need = int(scalars[f.NEED])
            what = int(scalars[f.GROW_WHAT])
            scalars[f.NEED] = scalars[f.GROW_WHAT] = 0
            if answer == f.CEILING_HIT:
                self._flush()
                raise CeilingExceeded(verb, need, self.free_pages)
            if answer == f.BAD_VICTIM:
                raise _BadVictim(need)
            self._flush()
            self._arrays = memory.grown(self._arrays, what, need)
            if what == f.GROW_PAGES:
                self.store.resize(int(scalars[f.PAGES]))
        self._flush()

    def _flush(self) -> None:
        moves = int(self._scalars[f.PLAN])
        if moves:
            self.store.apply(self._arrays.plan[:, :moves])
            self._scalars[f.PLAN] = 0

    def _taken_number(self) -> int:
        number = int(self._scalars[f.MEMBER])
        self._scalars[f.MEMBER] = 0
        return number

    def _check_open(self, sequence: int) -> None:
        tables = self._arrays.tables
        row = sequence * self._units
        if not 0 <= row < tables.shape[0] or tables[row, f.SEQUENCE] != sequence:
            raise LedgerError(f"sequence {sequence} is not open")

    def _last_slots(self, sequence: int, scope: int, tokens: int) -> np.ndarray:
        cursor = self.cursor(sequence, scope)
        slots = np.arange(cursor - tokens, cursor)
        pages = self.pages_of(sequence, scope)[slots // self.page_tokens]
        return pages * self.page_tokens + slots % self.page_tokens


class _BadVictim(Exception):
    """A kernel's answer on its way to a message that names the victim."""

    def __init__(self, index: int) -> None:
        self.index = index
        super().__init__(index)

    def locate(self, lists: list[np.ndarray]) -> tuple[int, int]:
        """Return the set and the slot that the index speaks of."""
        index = self.index
        for which, slots in enumerate(lists):
            if index < slots.size:
                return which, int(slots[index])
            index -= slots.size
        raise IndexError(self.index)
