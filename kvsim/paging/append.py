"""The verb append: new tokens at the cursor, or into dead slots where that is allowed.

It checks, then acts: an answer other than OK means that nothing was changed but NEED and
GROW_WHAT. Arrays are grown by the Python face, which then calls again.
"""

from __future__ import annotations

import numpy as np

from kvsim.jit import kernel
from kvsim.paging import fields as f
from kvsim.paging.moves import copy_on_write, refuse_or_grow
from kvsim.paging.pool import page_for
from kvsim.paging.segments import missing, reserve


@kernel
def reusable(scalars, tables, pages, entries, table, tokens):
    """Return how many of `tokens` find a dead slot in a page that the table has to itself."""
    if not scalars[f.REUSE] or tables[table, f.DEAD] == 0:
        return np.int64(0)
    start = tables[table, f.START]
    found = np.int64(0)
    for entry in range(start + tables[table, f.HOLE], start + tables[table, f.ENTRIES]):
        page = np.int64(entries[f.PAGE, entry])
        if page >= 0 and pages[f.REFCOUNT, page] == 1:
            found += entries[f.DEAD_IN, entry]
            if found >= tokens:
                return np.int64(tokens)
    return found


@kernel
def append_need(scalars, tables, pages, entries, table, tokens):
    """Return (pages, arena entries, moves) that an append to one table needs at most."""
    page_tokens = scalars[f.PAGE_TOKENS]
    tokens -= reusable(scalars, tables, pages, entries, table, tokens)
    cursor = tables[table, f.CURSOR]
    used = (cursor + page_tokens - 1) // page_tokens
    wanted = (cursor + tokens + page_tokens - 1) // page_tokens
    need = max(np.int64(0), wanted - used - tables[table, f.RESERVED])
    moves = np.int64(0)
    offset = cursor % page_tokens
    if offset and tokens > 0:
        page = np.int64(entries[f.PAGE, tables[table, f.START] + used - 1])
        if pages[f.REFCOUNT, page] > 1:
            need += 1
            moves = offset
    return need, missing(tables[table, f.CAPACITY], wanted), moves


@kernel
def take_slot(tables, dead, holders, position, table, at, ahead):
    """Make one slot of the arena live for every set, `ahead` positions past the next one."""
    dead[at] = 0
    for row in range(holders.shape[0]):
        holders[row, at] = 1
    for row in range(position.shape[0]):
        position[row, at] = tables[table, f.NEXT_POSITION + row] + ahead


@kernel
def fill_holes(
    scalars, tables, pages, entries, dead, holders, position, table, tokens, placed, scope
):
    """Put tokens into the lowest dead slots of unshared pages; return how many found one."""
    page_tokens = scalars[f.PAGE_TOKENS]
    start = tables[table, f.START]
    done = np.int64(0)
    lowest = True
    entry = tables[table, f.HOLE]
    while done < tokens and entry < tables[table, f.ENTRIES]:
        page = np.int64(entries[f.PAGE, start + entry])
        left = np.int64(entries[f.DEAD_IN, start + entry])
        if page >= 0 and left and pages[f.REFCOUNT, page] == 1:
            first = (start + entry) * page_tokens
            at = first
            while left and done < tokens:
                if dead[at]:
                    take_slot(tables, dead, holders, position, table, at, done)
                    if placed.shape[1]:
                        placed[scope, done] = page * page_tokens + at - first
                    left -= 1
                    done += 1
                at += 1
            entries[f.DEAD_IN, start + entry] = left
        # The hint rests at the first entry that still has a dead slot in a page, shared or not.
        lowest = bool(lowest and (page < 0 or left == 0))
        entry += 1
        if lowest:
            tables[table, f.HOLE] = entry
    tables[table, f.DEAD] -= done
    if done:
        tables[table, f.OLDEST] = 0
    return done


@kernel
def append_table(
    scalars, tables, pages, entries, dead, holders, position, scopes, plan, table, tokens, placed
):
    """Append to one table. Everything that can fail has been checked."""
    page_tokens = scalars[f.PAGE_TOKENS]
    scope = tables[table, f.SCOPE]
    reused = np.int64(0)
    if scalars[f.REUSE] and tables[table, f.DEAD]:
        reused = fill_holes(
            scalars, tables, pages, entries, dead, holders, position, table, tokens, placed, scope
        )
    cursor = tables[table, f.CURSOR]
    used = (cursor + page_tokens - 1) // page_tokens
    wanted = (cursor + tokens - reused + page_tokens - 1) // page_tokens
    reserve(scalars, tables, entries, dead, holders, position, table, wanted)
    start = tables[table, f.START]
    offset = cursor % page_tokens
    if reused < tokens:
        if offset and pages[f.REFCOUNT, entries[f.PAGE, start + used - 1]] > 1:
            copy_on_write(scalars, tables, pages, entries, scopes, plan, table, used - 1, offset)
        for entry in range(used, wanted):
            entries[f.PAGE, start + entry] = page_for(scalars, tables, pages, scopes, table)
            entries[f.DEAD_IN, start + entry] = 0
        # The last page is this table's own now, so the rest of it can be filled unseen.
        tables[table, f.ROOM] = wanted * page_tokens - cursor - tokens + reused
    # Behind the cursor no slot is dead, so without flags and positions there is nothing to set.
    plain = holders.shape[0] + position.shape[0] + placed.shape[1] == 0
    for ahead in range(tokens if plain else reused, tokens):
        slot = cursor + ahead - reused
        take_slot(tables, dead, holders, position, table, start * page_tokens + slot, ahead)
        if placed.shape[1]:
            page = np.int64(entries[f.PAGE, start + slot // page_tokens])
            placed[scope, ahead] = page * page_tokens + slot % page_tokens
    for row in range(position.shape[0]):
        tables[table, f.NEXT_POSITION + row] += tokens
    tables[table, f.CURSOR] = cursor + tokens - reused
    tables[table, f.ENTRIES] = wanted
    tables[table, f.NAMED] += wanted - used
    scalars[f.APPENDED_TOTAL] += tokens


@kernel
def append_alone(
    scalars, tables, pages, entries, dead, holders, position, scopes, plan, table, tokens, placed
):
    """Append to a table that is all that its sequence has, or change nothing."""
    need, segments, moves = append_need(scalars, tables, pages, entries, table, tokens)
    answer = refuse_or_grow(scalars, entries, plan, need, segments, moves)
    if answer == f.OK:
        append_table(
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
            tokens,
            placed,
        )
    return answer


@kernel
def append(arrays, sequence, tokens, placed):
    """Append `tokens` slots to every table of a sequence, or to none.

    `placed` [scope unit, tokens] receives the physical slots, unless it has no columns.
    """
    scalars, tables, pages, entries, dead, holders, position, scopes, plan = arrays
    units = scalars[f.UNITS]
    need = np.int64(0)
    segments = np.int64(0)
    moves = np.int64(0)
    for table in range(sequence * units, (sequence + 1) * units):
        more = append_need(scalars, tables, pages, entries, table, tokens)
        need += more[0]
        segments += more[1]
        moves += more[2]
    answer = refuse_or_grow(scalars, entries, plan, need, segments, moves)
    if answer != f.OK:
        return answer
    for table in range(sequence * units, (sequence + 1) * units):
        append_table(
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
            tokens,
            placed,
        )
    return f.OK
