"""What a lockstep watches beside rows: that a refused verb changes nothing, and true receipts.

A receipt is held against refcounts before and after, and against the moves that the store got.
"""

from __future__ import annotations

import numpy as np
import pytest

from kvsim.errors import CeilingExceeded
from kvsim.layout.families import ROW_TYPES
from kvsim.paging import fields as f
from kvsim.paging.arrays import Arrays
from kvsim.tensors.quantized import has_scale
from kvsim.tensors.shape import key_parts

COUNTS = ("copied_rows", "copied_bytes", "survivors_rotated_rows")


class Saved:
    """The arrays of a ledger and the bytes of its planes, as they were before a verb.

    Parameters
    ----------
    step : PagedLockstep
    """

    def __init__(self, step):
        self.step = step
        self.truths = dict(step.truths)
        self.arrays = copied(step.ledger)
        self.store = step.cache.store.planes, step.cache.store._streams
        self.planes = [plane.copy() for plane in self.readable()]

    def readable(self):
        """Return the planes; of mapped ones the slots of held pages, or reading would map them."""
        step = self.step
        planes = [plane for planes in step.cache.store.planes for plane in planes.values()]
        if step.memory is None:
            return planes
        held = np.flatnonzero(step.ledger.refcounts())
        slots = (held[:, None] * step.page_tokens + np.arange(step.page_tokens)).ravel()
        owners = step.ledger._arrays.pages[f.OWNER, held].repeat(step.page_tokens)
        found = []
        for block, planes in zip(step.cache.store.blocks, step.cache.store.planes, strict=True):
            here = np.isin(owners, users(block, step.ledger.geometry))
            found += [plane[slots[here]] for plane in planes.values() if plane.size]
        return found

    def must_be_unchanged(self, verb):
        """Assert that every array and every byte is as it was."""
        for name, now in self.step.ledger._arrays._asdict().items():
            assert np.array_equal(getattr(self.arrays, name), now), f"a refused {verb}: {name}"
        for before, now in zip(self.planes, self.readable(), strict=True):
            assert np.array_equal(before.view(np.uint8), now.view(np.uint8)), f"a refused {verb}"

    def just_fits(self, refusal, call, settle):
        """Show that a page less than the verb asked for is too few, and what it asked suffices.

        Then everything is put back as it was before the verb.
        """
        step = self.step
        short = refusal.needed_pages - refusal.free_pages
        assert short > 0, "refused although it fits"
        step.ledger._scalars[f.CEILING] += short - 1
        with pytest.raises(CeilingExceeded) as again:
            call()
        assert again.value.needed_pages - again.value.free_pages == 1
        step.ledger._scalars[f.CEILING] += 1
        truths = {number: truth.fork() for number, truth in self.truths.items()}
        swapped = list(step.swapped)
        settle(call())
        step.agree()
        step.truths.clear()
        step.truths.update(truths)
        step.swapped = swapped
        step.ledger._arrays = Arrays(*(array.copy() for array in self.arrays))
        step.ledger._scalars = step.ledger._arrays.scalars
        # Planes that grew are new ones: the pool that comes back is that of the old ones.
        step.cache.store.planes, step.cache.store._streams = self.store
        for plane, before in zip(self.readable(), self.planes, strict=True):
            plane[:] = before
        step.agree()


def copied(ledger):
    """Return a copy of a ledger's arrays."""
    return Arrays(*(array.copy() for array in ledger._arrays))


def users(block, geometry):
    """Return the scope units whose pages have bytes in a block."""
    sets = len(geometry.inner_sets[0])
    starts = block.starts[::sets]
    return np.flatnonzero(starts[1:] > starts[:-1])


def row_bytes(shape, family, row, keys):
    """Return the bytes of a row in all planes: a code has one, a scale four."""
    element_bytes = ROW_TYPES[shape.families[family].dtype]
    widths = row.widths(shape.planes)
    if keys == "float32":
        return element_bytes * sum(widths.values())
    coded = widths.pop("K", 0)
    scales = len(key_parts(row)) if has_scale(keys) else 0
    return element_bytes * sum(widths.values()) + coded + 4 * scales


class Receipts:
    """Checks the receipts of a paged cache.

    Parameters
    ----------
    cache : PagedCache
        Its store is watched from here on.
    """

    def __init__(self, cache):
        self.cache = cache
        self.ledger = cache.ledger
        self.page_tokens = cache.ledger.page_tokens
        self.moves = np.empty((f.PLAN_FIELDS, 0), np.int64)
        geometry = cache.ledger.geometry
        # Bytes of one token's row in each unit, from the widths alone.
        self.unit_turns = np.array(
            [row.rope_dim > 0 for family in cache.shape.families for row in family.rows]
        )
        self.unit_bytes = np.array(
            [row_bytes(cache.shape, at, row, cache.keys) for at, row in cache.shape.units]
        )
        self.unit_scope = np.array(geometry.unit_scope)
        self.unit_member = np.array(
            [
                geometry.inner_sets[scope].index(which)
                for scope, which in zip(geometry.unit_scope, geometry.unit_set, strict=True)
            ]
        )
        carry_out = cache.store.apply

        def apply(plan):
            self.moves = np.hstack([self.moves, plan])
            carry_out(plan)

        cache.store.apply = apply

    def held_bytes(self):
        """Return the bytes of all held pages, each at the width of its scope unit."""
        pages = self.ledger._arrays.pages[:, :-1]
        owners = pages[f.OWNER][pages[f.REFCOUNT] > 0]
        widths = np.bincount(self.unit_scope, self.unit_bytes)
        return int(widths[owners].sum()) * self.page_tokens

    def before(self, sequence, slots):
        """Return what a receipt is held against: held pages, and those that the victims empty.

        Parameters
        ----------
        sequence : int
        slots : list of int64 [n]
            What each set drops.
        """
        self.moves = self.moves[:, :0]
        references = self.ledger.refcounts()
        emptied = 0
        for scope, inner in enumerate(self.ledger.geometry.inner_sets):
            stays = np.zeros(self.ledger.cursor(sequence, scope), np.bool_)
            for which in inner:
                kept = self.ledger.retained(sequence, which, scope)
                kept[slots[which]] = False
                stays |= kept
            pages = self.ledger.pages_of(sequence, scope)
            needed = np.unique(np.flatnonzero(stays) // self.page_tokens)
            gone = np.delete(pages, needed)
            emptied += int(np.count_nonzero(references[gone[gone >= 0]] == 1))
        return self.ledger.held_pages, emptied, self.named(sequence)

    def named(self, sequence):
        """Return the pages that a sequence's tables name."""
        scopes = range(self.ledger.geometry.scope_units)
        pages = np.concatenate([self.ledger.pages_of(sequence, scope) for scope in scopes])
        return pages[pages >= 0]

    def check(self, sequence, receipt, before, span, evicted, rotated, idle):
        """Assert that a receipt tells what happened.

        Parameters
        ----------
        sequence : int
        receipt : Receipt
        before : tuple
            As `before` returned it.
        span : (int, int)
        evicted : int
            Tokens that the sets dropped, the mean.
        rotated : int
            Rows whose position changed and whose key is stored.
        idle : bool
            Whether nothing was to be done, so that nothing was compacted either.
        """
        held, emptied, named = before
        assert (receipt.first, receipt.last) == span
        assert (receipt.evicted_tokens, receipt.survivors_rotated_rows) == (evicted, rotated)
        assert (receipt.exact, receipt.refused) == (True, "")
        assert tuple(getattr(receipt, name) for name in COUNTS) == self.carried_out()
        change = self.ledger.held_pages - held
        assert receipt.newly_held_pages - receipt.freed_pages == change
        now = self.named(sequence)
        if self.ledger.ordering.compaction == "rebuild":
            fresh = 0 if idle else now.size
            assert (receipt.cow_pages, receipt.newly_held_pages) == (0, fresh)
        else:
            assert receipt.cow_pages == receipt.newly_held_pages
        # A page that was emptied may be taken again at once.
        taken = np.setdiff1d(now, named).size
        assert taken <= receipt.newly_held_pages <= taken + emptied
        assert receipt.freed_pages >= emptied
        # Pages that the eviction empties are free before any is taken.
        assert receipt.extra_pages_peak == max(0, receipt.newly_held_pages - emptied)

    def carried_out(self):
        """Return rows and bytes copied, and rows rotated, by the moves that the store got."""
        rows = size = rotated = 0
        for source, target, position, scope, which in self.moves.T.tolist():
            units = (self.unit_scope == scope) & ((self.unit_member == which) | (which < 0))
            if source != target:
                rows += int(units.sum())
                size += int(self.unit_bytes[units].sum())
            if position >= 0:
                rotated += int((units & self.unit_turns).sum())
        return rows, size, rotated

    def paths(self, receipt):
        """Return which paths an eviction took, by name."""
        return {
            "evict copies on write": receipt.cow_pages,
            "evict rotates": receipt.survivors_rotated_rows,
            "evict moves rows": receipt.copied_rows,
            "evict frees pages": receipt.freed_pages,
            "evict holds more than before": receipt.newly_held_pages > receipt.freed_pages,
            "evict encodes anew": receipt.survivors_rotated_rows and self.cache.keys != "float32",
            "evict rotates in place": receipt.survivors_rotated_rows > receipt.copied_rows,
        }


def must_say(refusal):
    """Assert that the receipt of a refused eviction says that nothing was done, and why."""
    receipt = refusal.receipt
    assert (receipt.exact, receipt.refused) == (False, str(refusal))
    nothing = ("evicted_tokens", "copied_rows", "cow_pages", "freed_pages", "newly_held_pages")
    assert not any(getattr(receipt, name) for name in nothing)
