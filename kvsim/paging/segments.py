"""Segments of the arena: where each block table's entries, flags and positions lie.

A segment holds a power of two of entries; freed ones wait in a list per size, whose links are
kept in the entries themselves. Knows nothing about pages.
"""

from __future__ import annotations

import numpy as np

from kvsim.jit import kernel
from kvsim.paging import fields as f


@kernel
def size_class(entries):
    """Return the least k with 2**k >= entries."""
    k = 0
    while (np.int64(1) << k) < entries:
        k += 1
    return k


@kernel
def missing(capacity, entries):
    """Return how many entries of the arena a table needs at most to reach `entries`."""
    if entries <= capacity:
        return np.int64(0)
    return np.int64(1) << size_class(entries)


@kernel
def take(scalars, entries, k):
    """Return the start of a segment of 2**k entries. The caller has checked that one fits."""
    start = scalars[f.CLASS + k]
    if start >= 0:
        scalars[f.CLASS + k] = np.int64(entries[f.PAGE, start])
        return start
    start = scalars[f.ARENA_TOP]
    scalars[f.ARENA_TOP] = start + (np.int64(1) << k)
    return start


@kernel
def give_back(scalars, tables, entries, table):
    """Put a table's segment into the free list of its size."""
    if tables[table, f.CAPACITY] > 0:
        k = size_class(tables[table, f.CAPACITY])
        entries[f.PAGE, tables[table, f.START]] = scalars[f.CLASS + k]
        scalars[f.CLASS + k] = tables[table, f.START]
        tables[table, f.CAPACITY] = 0


@kernel
def copy_segment(entries, dead, holders, position, source, target, count, slots, page_tokens):
    """Copy a table's entries and per-slot flags to another segment. They never overlap.

    Written as loops: a slice assignment compiles ten times longer and runs no faster.
    """
    for entry in range(count):
        entries[f.PAGE, target + entry] = entries[f.PAGE, source + entry]
        entries[f.DEAD_IN, target + entry] = entries[f.DEAD_IN, source + entry]
    old = source * page_tokens
    new = target * page_tokens
    for slot in range(slots):
        dead[new + slot] = dead[old + slot]
    for row in range(holders.shape[0]):
        for slot in range(slots):
            holders[row, new + slot] = holders[row, old + slot]
    for row in range(position.shape[0]):
        for slot in range(slots):
            position[row, new + slot] = position[row, old + slot]


@kernel
def reserve(scalars, tables, entries, dead, holders, position, table, needed):
    """Move a table to a segment that can hold `needed` entries, if its own cannot."""
    if needed <= tables[table, f.CAPACITY]:
        return
    k = size_class(needed)
    start = take(scalars, entries, k)
    page_tokens = scalars[f.PAGE_TOKENS]
    # No flag of an earlier use may stand behind the cursor: append relies on it.
    for slot in range(start * page_tokens, (start + (np.int64(1) << k)) * page_tokens):
        dead[slot] = 0
    copy_segment(
        entries,
        dead,
        holders,
        position,
        tables[table, f.START],
        start,
        tables[table, f.ENTRIES],
        tables[table, f.CURSOR],
        page_tokens,
    )
    give_back(scalars, tables, entries, table)
    tables[table, f.START] = start
    tables[table, f.CAPACITY] = np.int64(1) << k
