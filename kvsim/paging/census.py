"""Counting slots afresh: the census of physical slots, and the packed floors.

Costs O(slots), so it is taken at samples and never per step.
"""

from __future__ import annotations

import numpy as np

from kvsim.jit import kernel
from kvsim.paging import fields as f

TAIL_SLOT = 0
DEAD_SLOT = 1
LIVE_SLOT = 2


@kernel
def mark_slots(arrays, marks):
    """Set `marks` [pages * page_tokens] to what each physical slot is: the most any table says.

    A slot is live if some table retains it, dead if some table wrote it and none retains it,
    and tail if none wrote it. Pages that no table names stay tail: mask them with refcounts.
    """
    scalars, tables, _, entries, dead, _, _, _, _ = arrays
    page_tokens = scalars[f.PAGE_TOKENS]
    for table in range(tables.shape[0]):
        if tables[table, f.SEQUENCE] < 0:
            continue
        start = tables[table, f.START]
        for entry in range(tables[table, f.ENTRIES]):
            page = np.int64(entries[f.PAGE, start + entry])
            if page < 0:
                continue
            written = min(page_tokens, tables[table, f.CURSOR] - entry * page_tokens)
            for offset in range(written):
                kind = DEAD_SLOT if dead[(start + entry) * page_tokens + offset] else LIVE_SLOT
                slot = page * page_tokens + offset
                if marks[slot] < kind:
                    marks[slot] = kind


@kernel
def distinct_slots(arrays, members, family, stamps, counts, union):
    """Count the distinct physical slots that each family of forks retains.

    Parameters
    ----------
    members : int64 [n]
        Tables in use, those of one family and scope unit next to each other.
    family : int64 [n]
        A number per family and scope unit, from 0 without gaps.
    stamps : int64 [pages * page_tokens]
        Scratch, all -1.
    counts : int64 [family, set]
        Result: distinct slots that each set retains (one column where sets are not finer).
    union : int64 [family]
        Result: distinct slots that any set retains.
    """
    scalars, tables, _, entries, dead, holders, _, _, _ = arrays
    page_tokens = scalars[f.PAGE_TOKENS]
    sets = counts.shape[1]
    for column in range(sets + 1):
        for index in range(members.shape[0]):
            table = members[index]
            group = family[index]
            stamp = group * (sets + 1) + column
            start = tables[table, f.START]
            for entry in range(tables[table, f.ENTRIES]):
                page = np.int64(entries[f.PAGE, start + entry])
                if page < 0:
                    continue
                written = min(page_tokens, tables[table, f.CURSOR] - entry * page_tokens)
                for offset in range(written):
                    at = (start + entry) * page_tokens + offset
                    if dead[at]:
                        continue
                    if column < sets and holders.shape[0] and not holders[column, at]:
                        continue
                    slot = page * page_tokens + offset
                    if stamps[slot] == stamp:
                        continue
                    stamps[slot] = stamp
                    if column < sets:
                        counts[group, column] += 1
                    else:
                        union[group] += 1


@kernel
def retained_slots(arrays, table, member, kept):
    """Set `kept` [cursor] to 1 where a set of a table retains a slot."""
    scalars, tables, _, _, dead, holders, _, _, _ = arrays
    base = tables[table, f.START] * scalars[f.PAGE_TOKENS]
    for slot in range(tables[table, f.CURSOR]):
        held = not dead[base + slot]
        if held and holders.shape[0]:
            held = holders[member, base + slot] == 1
        kept[slot] = held


@kernel
def stored_positions(arrays, table, member, found):
    """Set `found` [cursor] to the stored position of each slot for a set of a table."""
    scalars, tables, _, _, _, _, position, _, _ = arrays
    base = tables[table, f.START] * scalars[f.PAGE_TOKENS]
    row = member if position.shape[0] > 1 else 0
    for slot in range(tables[table, f.CURSOR]):
        found[slot] = position[row, base + slot]
