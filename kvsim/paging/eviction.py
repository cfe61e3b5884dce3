"""The verb `evict`: sets drop slots; a slot that no set retains dies; an empty page is let go.

Evicting is not freeing: a page is freed when its last live slot has died in every table.
"""

from __future__ import annotations

import numpy as np

from kvsim.paging.fields import (
    BAD_VICTIM,
    BYTES,
    CURSOR,
    DEAD,
    DEAD_IN,
    ENTRIES,
    EVICTED_BYTES_TOTAL,
    EVICTED_ROWS_TOTAL,
    FREED_TOTAL,
    LIST,
    NAMED,
    NEED,
    OK,
    PAGE,
    PAGE_TOKENS,
    PER_SET,
    ROOM,
    ROWS,
    SET_COLUMNS,
    SETS,
    START,
    UNITS,
)
from kvsim.paging.jit import kernel
from kvsim.paging.pool import let_go


@kernel
def bad_victim(scalars, tables, dead, holders, table, member, victims, first, last):
    """Return the index of the first victim that is not a retained slot, or -1.

    Victims must ascend, so that a duplicate shows as a victim that does not.
    """
    base = tables[table, START] * scalars[PAGE_TOKENS]
    cursor = tables[table, CURSOR]
    before = np.int64(-1)
    for at in range(first, last):
        slot = victims[at]
        if slot <= before or slot >= cursor or dead[base + slot]:
            return np.int64(at)
        if holders.shape[0] and not holders[member, base + slot]:
            return np.int64(at)
        before = slot
    return np.int64(-1)


@kernel
def still_held(holders, at):
    """Tell whether any set retains the slot at this place of the arena."""
    row = 0
    while row < holders.shape[0] and not holders[row, at]:
        row += 1
    return row < holders.shape[0]


@kernel
def drop(
    scalars,
    tables,
    pages,
    entries,
    dead,
    holders,
    scopes,
    table,
    scope,
    member,
    victims,
    first,
    last,
):
    """Let one set drop its victims; slots that nobody retains die, and empty pages are let go."""
    page_tokens = scalars[PAGE_TOKENS]
    start = tables[table, START]
    base = start * page_tokens
    cursor = tables[table, CURSOR]
    shared = holders.shape[0] > 0
    died = np.int64(0)
    entry = start
    end = page_tokens
    written = min(page_tokens, cursor)
    for at in range(first, last):
        slot = victims[at]
        if shared:
            holders[member, base + slot] = 0
            if still_held(holders, base + slot):
                continue
        if slot >= end:
            inner = slot // page_tokens
            entry = start + inner
            end = (inner + 1) * page_tokens
            written = min(page_tokens, cursor - inner * page_tokens)
        dead[base + slot] = 1
        gone = np.int64(entries[DEAD_IN, entry]) + 1
        entries[DEAD_IN, entry] = gone
        died += 1
        if gone == written:
            page = np.int64(entries[PAGE, entry])
            entries[PAGE, entry] = -1
            tables[table, NAMED] -= 1
            let_go(scalars, pages, scopes, scope, page, FREED_TOTAL)
    tables[table, DEAD] += died


@kernel
def rewind(scalars, tables, entries, dead, table):
    """Set the cursor to one past the last live slot; what lies behind it is tail again."""
    page_tokens = scalars[PAGE_TOKENS]
    start = tables[table, START]
    base = start * page_tokens
    cursor = tables[table, CURSOR]
    before = cursor
    while cursor > 0 and dead[base + cursor - 1]:
        cursor -= 1
        dead[base + cursor] = 0
        entry = start + cursor // page_tokens
        if entries[PAGE, entry] >= 0:
            entries[DEAD_IN, entry] -= 1
    tables[table, DEAD] -= before - cursor
    tables[table, ROOM] = 0
    tables[table, CURSOR] = cursor
    tables[table, ENTRIES] = (cursor + page_tokens - 1) // page_tokens


@kernel
def evict(arrays, sequence, starts, victims):
    """Evict from every table of a sequence.

    `victims` holds ascending slot numbers, one list after the other; `starts` says where each
    list begins. Which list a set follows stands in `scopes`. A bad victim is named by its index
    in NEED, and nothing is changed.
    """
    scalars, tables, pages, entries, dead, holders, _, scopes, _ = arrays
    units = scalars[UNITS]
    sets = scalars[SETS]
    for scope in range(units):
        table = sequence * units + scope
        for member in range(sets):
            which = scopes[scope, SET_COLUMNS + PER_SET * member + LIST]
            bad = bad_victim(
                scalars,
                tables,
                dead,
                holders,
                table,
                member,
                victims,
                starts[which],
                starts[which + 1],
            )
            if bad >= 0:
                scalars[NEED] = bad
                return BAD_VICTIM
    for scope in range(units):
        table = sequence * units + scope
        for member in range(sets):
            column = SET_COLUMNS + PER_SET * member
            which = scopes[scope, column + LIST]
            first = starts[which]
            last = starts[which + 1]
            drop(
                scalars,
                tables,
                pages,
                entries,
                dead,
                holders,
                scopes,
                table,
                scope,
                member,
                victims,
                first,
                last,
            )
            scalars[EVICTED_ROWS_TOTAL] += (last - first) * scopes[scope, column + ROWS]
            scalars[EVICTED_BYTES_TOTAL] += (last - first) * scopes[scope, column + BYTES]
        rewind(scalars, tables, entries, dead, table)
    return OK
