"""The verb `evict`: sets drop slots; a slot that no set retains dies; an empty page is let go.

Evicting is not freeing: a page is freed when its last live slot has died in every table.
"""

from __future__ import annotations

import numpy as np

from kvsim.jit import kernel
from kvsim.paging import fields as f
from kvsim.paging.moves import refuse_or_grow, renumber_copies
from kvsim.paging.pool import let_go
from kvsim.paging.renumbering import (
    first_death,
    newest_gone,
    next_after_eviction,
    renumber_need,
    renumber_table,
)


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
    page_tokens = scalars[f.PAGE_TOKENS]
    cursor = tables[table, f.CURSOR]
    # Unsigned: a signed index pays for a test whether it counts from the end.
    start = np.uint64(tables[table, f.START])
    base = np.uint64(tables[table, f.START] * page_tokens)
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
        gone = np.int64(entries[f.DEAD_IN, start + inner]) + 1
        entries[f.DEAD_IN, start + inner] = gone
        died += 1
        last_page = np.int64(inner) == partial
        if gone == page_tokens or (last_page and gone == cursor - partial * page_tokens):
            full += 1
    tables[table, f.DEAD] += died
    return bad, full


@kernel
def unmark(scalars, tables, entries, dead, holders, table, member, victims, first, last):
    """Take back what `mark` did for these victims."""
    page_tokens = scalars[f.PAGE_TOKENS]
    start = tables[table, f.START]
    for at in range(first, last):
        place = start * page_tokens + victims[at]
        if holders.shape[0]:
            holders[member, place] = 1
        if dead[place]:
            dead[place] = 0
            entries[f.DEAD_IN, start + victims[at] // page_tokens] -= 1
            tables[table, f.DEAD] -= 1


@kernel
def release(scalars, tables, pages, entries, scopes, table, scope, victims, first, last):
    """Let go of each page that these victims left without a live slot."""
    page_tokens = scalars[f.PAGE_TOKENS]
    start = tables[table, f.START]
    cursor = tables[table, f.CURSOR]
    for at in range(first, last):
        inner = victims[at] // page_tokens
        page = np.int64(entries[f.PAGE, start + inner])
        written = min(page_tokens, cursor - inner * page_tokens)
        if page >= 0 and entries[f.DEAD_IN, start + inner] == written:
            entries[f.PAGE, start + inner] = -1
            tables[table, f.NAMED] -= 1
            let_go(scalars, pages, scopes, scope, page, f.FREED_TOTAL)


@kernel
def rewind(scalars, tables, entries, dead, table):
    """Set the cursor to one past the last live slot; what lies behind it is tail again."""
    page_tokens = scalars[f.PAGE_TOKENS]
    start = tables[table, f.START]
    base = start * page_tokens
    cursor = tables[table, f.CURSOR]
    before = cursor
    while cursor > 0 and dead[base + cursor - 1]:
        cursor -= 1
        dead[base + cursor] = 0
        entry = start + cursor // page_tokens
        if entries[f.PAGE, entry] >= 0:
            entries[f.DEAD_IN, entry] -= 1
    tables[table, f.DEAD] -= before - cursor
    tables[table, f.ROOM] = 0
    tables[table, f.CURSOR] = cursor
    tables[table, f.OLDEST] = min(tables[table, f.OLDEST], cursor)
    tables[table, f.ENTRIES] = (cursor + page_tokens - 1) // page_tokens


@kernel
def mark_all(scalars, tables, entries, dead, holders, scopes, sequence, starts, victims):
    """Mark the victims of every table and set; on a bad one, take everything back.

    Returns (-1, entries left without a live slot), or the bad victim's index.
    """
    units = scalars[f.UNITS]
    sets = scalars[f.SETS]
    full = np.int64(0)
    for step in range(units * sets):
        which = scopes[step // sets, f.SET_COLUMNS + f.PER_SET * (step % sets) + f.LIST]
        bad, full = mark(
            scalars,
            tables,
            entries,
            dead,
            holders,
            sequence * units + step // sets,
            step % sets,
            victims,
            starts[which],
            starts[which + 1],
            full,
        )
        if bad >= 0:
            unmark_all(
                scalars,
                tables,
                entries,
                dead,
                holders,
                scopes,
                sequence,
                starts,
                victims,
                step,
                bad,
            )
            return bad, full
    return np.int64(-1), full


@kernel
def unmark_all(
    scalars, tables, entries, dead, holders, scopes, sequence, starts, victims, step, last
):
    """Take back the marks of list `step` before victim `last`, and of all lists before it."""
    units = scalars[f.UNITS]
    sets = scalars[f.SETS]
    for back in range(step, -1, -1):
        which = scopes[back // sets, f.SET_COLUMNS + f.PER_SET * (back % sets) + f.LIST]
        if back < step:
            last = starts[which + 1]
        unmark(
            scalars,
            tables,
            entries,
            dead,
            holders,
            sequence * units + back // sets,
            back % sets,
            victims,
            starts[which],
            last,
        )


@kernel
def emptied(scalars, tables, pages, entries, table):
    """Return how many pages will be freed because this table's marks left them empty."""
    page_tokens = scalars[f.PAGE_TOKENS]
    start = tables[table, f.START]
    count = np.int64(0)
    for entry in range(tables[table, f.ENTRIES]):
        page = np.int64(entries[f.PAGE, start + entry])
        written = min(page_tokens, tables[table, f.CURSOR] - entry * page_tokens)
        if page >= 0 and entries[f.DEAD_IN, start + entry] == written:
            count += pages[f.REFCOUNT, page] == 1
    return count


@kernel
def check_renumber(arrays, sequence, starts, victims, full):
    """Answer whether the pool has the pages that renumbering after these marks needs."""
    scalars, tables, pages, entries, dead, holders, position, scopes, plan = arrays
    units = scalars[f.UNITS]
    need = np.int64(0)
    moves = np.int64(0)
    for scope in range(units):
        table = sequence * units + scope
        if renumber_copies(scalars, scopes, scope):
            death = first_death(
                scalars, tables, dead, position, scopes, table, scope, starts, victims
            )
            more = renumber_need(
                scalars, tables, pages, entries, dead, holders, position, table, death
            )
            need += more[0]
            moves += more[1]
        if full:
            # Pages that this eviction empties are freed before any copy is made.
            need -= emptied(scalars, tables, pages, entries, table)
    return refuse_or_grow(scalars, entries, plan, need, 0, moves)


@kernel
def evict(arrays, sequence, starts, victims, scratch):
    """Evict from every table of a sequence, and renumber if the ledger's evict does.

    `victims` holds ascending slot numbers, one list after the other; `starts` says where each
    list begins. Which list a set follows stands in `scopes`. A bad victim is named by its index
    in NEED, and nothing is changed. `scratch` holds a number per stored position.
    """
    scalars, tables, pages, entries, dead, holders, position, scopes, plan = arrays
    units = scalars[f.UNITS]
    sets = scalars[f.SETS]
    bad, full = mark_all(scalars, tables, entries, dead, holders, scopes, sequence, starts, victims)
    if bad >= 0:
        scalars[f.NEED] = bad
        return f.BAD_VICTIM
    if scalars[f.RENUMBER] and scalars[f.RENUMBER_WRITES]:
        answer = check_renumber(arrays, sequence, starts, victims, full)
        if answer != f.OK:
            step = units * sets - 1
            which = scopes[step // sets, f.SET_COLUMNS + f.PER_SET * (step % sets) + f.LIST]
            unmark_all(
                scalars,
                tables,
                entries,
                dead,
                holders,
                scopes,
                sequence,
                starts,
                victims,
                step,
                starts[which + 1],
            )
            return answer
    before = scalars[f.HELD]
    for scope in range(units):
        table = sequence * units + scope
        for member in range(sets):
            column = f.SET_COLUMNS + f.PER_SET * member
            which = scopes[scope, column + f.LIST]
            first = starts[which]
            last = starts[which + 1]
            if full:
                release(scalars, tables, pages, entries, scopes, table, scope, victims, first, last)
            if first < last and scalars[f.REUSE]:
                lowest = victims[first] // scalars[f.PAGE_TOKENS]
                tables[table, f.HOLE] = min(tables[table, f.HOLE], lowest)
            scalars[f.EVICTED_ROWS_TOTAL] += (last - first) * scopes[scope, column + f.ROWS]
            scalars[f.EVICTED_BYTES_TOTAL] += (last - first) * scopes[scope, column + f.BYTES]
    # Only now, when the pages of every table that emptied are free, may any table take copies.
    for scope in range(units):
        table = sequence * units + scope
        # Both look at the dead flags of victims, which the rewinding clears.
        death = np.int64(1) << 62
        newest = False
        if scalars[f.RENUMBER]:
            death = first_death(
                scalars, tables, dead, position, scopes, table, scope, starts, victims
            )
        elif position.shape[0]:
            newest = newest_gone(
                scalars, tables, dead, position, scopes, table, scope, starts, victims
            )
        rewind(scalars, tables, entries, dead, table)
        if newest:
            next_after_eviction(scalars, tables, dead, holders, position, table)
        if death < np.int64(1) << 62:
            renumber_table(
                scalars,
                tables,
                pages,
                entries,
                dead,
                holders,
                position,
                scopes,
                plan,
                table,
                death,
                scratch,
            )
    # No page is let go of in between that the copies did not replace, so the end is the most.
    scalars[f.EXTRA_PEAK] = max(scalars[f.EXTRA_PEAK], scalars[f.HELD] - before)
    return f.OK


@kernel
def evict_one(scalars, tables, pages, entries, dead, scopes, table, slot):
    """Evict one live slot below the newest one from a table of one set, without flags.

    What `evict` does with one victim, for callers that know all this: the slot below the cursor
    stays live, so nothing is rewound, and the room of the last page stays as it was.
    """
    page_tokens = scalars[f.PAGE_TOKENS]
    start = tables[table, f.START]
    at = start + slot // page_tokens
    dead[start * page_tokens + slot] = 1
    tables[table, f.DEAD] += 1
    gone = np.int64(entries[f.DEAD_IN, at]) + 1
    entries[f.DEAD_IN, at] = gone
    scalars[f.EVICTED_ROWS_TOTAL] += scopes[0, f.SET_COLUMNS + f.ROWS]
    scalars[f.EVICTED_BYTES_TOTAL] += scopes[0, f.SET_COLUMNS + f.BYTES]
    if gone == page_tokens:
        page = np.int64(entries[f.PAGE, at])
        entries[f.PAGE, at] = -1
        tables[table, f.NAMED] -= 1
        let_go(scalars, pages, scopes, 0, page, f.FREED_TOTAL)
