"""Samples of a ledger: the census of slots and the packed floors, as plain numbers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kvsim.paging import fields as f
from kvsim.paging.arrays import Arrays
from kvsim.paging.census import DEAD_SLOT, LIVE_SLOT, distinct_slots, mark_slots
from kvsim.paging.geometry import Geometry


@dataclass(frozen=True)
class Slots:
    """Physical slots of the held pages, each counted once, summed over scope units."""

    live: int
    dead: int
    tail: int


@dataclass(frozen=True)
class Floors:
    """Fewest pages, and their bytes, that could hold what is retained.

    Attributes
    ----------
    row_pages : int
        When rows may move on their own: the longest unit of each table decides.
    slot_pages : int
        When only whole slots may move: the union over the table's units decides.
    live_row_bytes : int
        Bytes of the distinct rows that are retained.
    """

    row_pages: int
    slot_pages: int
    live_row_bytes: int


NOT_HELD = 3


def slot_states(arrays: Arrays) -> np.ndarray:
    """Return what each physical slot is, uint8 [pages, page_tokens]; NOT_HELD in free pages."""
    page_tokens = int(arrays.scalars[f.PAGE_TOKENS])
    pages = int(arrays.scalars[f.PAGES])
    marks = np.zeros(pages * page_tokens, np.uint8)
    mark_slots(arrays, marks)
    states = marks.reshape(pages, page_tokens)
    states[arrays.pages[f.REFCOUNT, :pages] == 0] = NOT_HELD
    return states


def count_slots(arrays: Arrays) -> Slots:
    """Take the census of the physical slots of held pages."""
    return _count(slot_states(arrays))


def occupancy(arrays: Arrays) -> tuple[Slots, np.ndarray]:
    """Take the census, and count held pages by their live slots.

    Returns
    -------
    Slots
    pages : int64 [page_tokens + 1]
        How many held pages have 0, 1, ... page_tokens live slots.
    """
    states = slot_states(arrays)
    held = states[states[:, 0] != NOT_HELD]
    live = np.count_nonzero(held == LIVE_SLOT, axis=1)
    return _count(states), np.bincount(live, minlength=states.shape[1] + 1)


def _count(states: np.ndarray) -> Slots:
    counts = np.bincount(states.ravel(), minlength=NOT_HELD + 1)
    return Slots(live=int(counts[LIVE_SLOT]), dead=int(counts[DEAD_SLOT]), tail=int(counts[0]))


def floors(arrays: Arrays, geometry: Geometry) -> Floors:
    """Count the packed floors: forks of one ancestor count as one table."""
    tables = arrays.tables
    page_tokens = int(arrays.scalars[f.PAGE_TOKENS])
    members = np.flatnonzero(tables[:, f.SEQUENCE] >= 0)
    if members.size == 0:
        return Floors(0, 0, 0)
    label = tables[members, f.ROOT] * geometry.scope_units + tables[members, f.SCOPE]
    members = members[np.argsort(label, kind="stable")]
    label = np.sort(label)
    _, first, family = np.unique(label, return_index=True, return_inverse=True)
    sets = len(geometry.inner_sets[0])
    counts = np.zeros((first.size, sets), np.int64)
    union = np.zeros(first.size, np.int64)
    stamps = np.full(int(arrays.scalars[f.PAGES]) * page_tokens, -1, np.int64)
    distinct_slots(arrays, members, family.astype(np.int64), stamps, counts, union)
    scopes = arrays.scopes[tables[members[first], f.SCOPE]]
    row_bytes = scopes[:, f.SET_COLUMNS + f.BYTES :: f.PER_SET]
    return Floors(
        row_pages=int((-(-counts.max(axis=1) // page_tokens)).sum()),
        slot_pages=int((-(-union // page_tokens)).sum()),
        live_row_bytes=int((counts * row_bytes).sum()),
    )
