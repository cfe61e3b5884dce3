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
def shift_of(page_tokens):
    """Return k where page_tokens = 2**k, or -1."""
    k = 0
    while (np.int64(1) << k) < page_tokens:
        k += 1
    return k if (np.int64(1) << k) == page_tokens else -1


@kernel
def still_held(holders, at):
    """Tell whether any set retains the slot at this place of the arena."""
    row = 0
    while row < holders.shape[0] and not holders[row, at]:
        row += 1
    return row < holders.shape[0]


@kernel
def mark(scalars, tables, entries, dead, holders, table, member, victims, first, last, full):
    """Let one set drop its victims; slots that no set retains any more die.

    Returns (-1, entries left without a live slot) or, at a victim that is not a retained slot
    or does not ascend, (its index, ...): what was marked before it is for `unmark` to take back.
    Checking and marking share one pass, because the flags of a long sequence miss the caches.
    """
    page_tokens = scalars[PAGE_TOKENS]
    cursor = tables[table, CURSOR]
    # Unsigned: a signed index pays for a test whether it counts from the end.
    start = np.uint64(tables[table, START])
    base = np.uint64(tables[table, START] * page_tokens)
    # A division costs more than all the rest, and pages are nearly always powers of two.
    shift = shift_of(page_tokens)
    shared = holders.shape[0] > 0
    partial = cursor // page_tokens
    died = np.int64(0)
    before = np.int64(-1)
    bad = np.int64(-1)
    for at in range(first, last):
        victim = victims[at]
        if victim <= before or victim >= cursor:
            bad = np.int64(at)
            break
        before = victim
        slot = np.uint64(victim)
        place = base + slot
        if dead[place]:
            bad = np.int64(at)
            break
        if shared:
            if not holders[member, place]:
                bad = np.int64(at)
                break
            holders[member, place] = 0
            if still_held(holders, place):
                continue
        inner = slot >> np.uint64(shift) if shift >= 0 else slot // np.uint64(page_tokens)
        dead[place] = 1
        gone = np.int64(entries[DEAD_IN, start + inner]) + 1
        entries[DEAD_IN, start + inner] = gone
        died += 1
        last_page = np.int64(inner) == partial
        if gone == page_tokens or (last_page and gone == cursor - partial * page_tokens):
            full += 1
    tables[table, DEAD] += died
    return bad, full


@kernel
def unmark(scalars, tables, entries, dead, holders, table, member, victims, first, last):
    """Take back what `mark` did for these victims."""
    page_tokens = scalars[PAGE_TOKENS]
    start = tables[table, START]
    for at in range(first, last):
        place = start * page_tokens + victims[at]
        if holders.shape[0]:
            holders[member, place] = 1
        if dead[place]:
            dead[place] = 0
            entries[DEAD_IN, start + victims[at] // page_tokens] -= 1
            tables[table, DEAD] -= 1


@kernel
def release(scalars, tables, pages, entries, scopes, table, scope, victims, first, last):
    """Let go of each page that these victims left without a live slot."""
    page_tokens = scalars[PAGE_TOKENS]
    start = tables[table, START]
    cursor = tables[table, CURSOR]
    for at in range(first, last):
        inner = victims[at] // page_tokens
        page = np.int64(entries[PAGE, start + inner])
        written = min(page_tokens, cursor - inner * page_tokens)
        if page >= 0 and entries[DEAD_IN, start + inner] == written:
            entries[PAGE, start + inner] = -1
            tables[table, NAMED] -= 1
            let_go(scalars, pages, scopes, scope, page, FREED_TOTAL)


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
    full = np.int64(0)
    for step in range(units * sets):
        scope = step // sets
        which = scopes[scope, SET_COLUMNS + PER_SET * (step % sets) + LIST]
        first = starts[which]
        bad, full = mark(
            scalars,
            tables,
            entries,
            dead,
            holders,
            sequence * units + scope,
            step % sets,
            victims,
            first,
            starts[which + 1],
            full,
        )
        if bad < 0:
            continue
        # Refused: take back this list's marks, then those of all lists before it.
        last = bad
        for back in range(step, -1, -1):
            scope = back // sets
            which = scopes[scope, SET_COLUMNS + PER_SET * (back % sets) + LIST]
            if back < step:
                last = starts[which + 1]
            unmark(
                scalars,
                tables,
                entries,
                dead,
                holders,
                sequence * units + scope,
                back % sets,
                victims,
                starts[which],
                last,
            )
        scalars[NEED] = bad
        return BAD_VICTIM
    for scope in range(units):
        table = sequence * units + scope
        for member in range(sets):
            column = SET_COLUMNS + PER_SET * member
            which = scopes[scope, column + LIST]
            first = starts[which]
            last = starts[which + 1]
            if full:
                release(scalars, tables, pages, entries, scopes, table, scope, victims, first, last)
            scalars[EVICTED_ROWS_TOTAL] += (last - first) * scopes[scope, column + ROWS]
            scalars[EVICTED_BYTES_TOTAL] += (last - first) * scopes[scope, column + BYTES]
        rewind(scalars, tables, entries, dead, table)
    return OK
