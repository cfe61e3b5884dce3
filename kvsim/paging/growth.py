"""The verbs by which a ledger grows and ends: open, append, advance, fork, free.

Each checks, then acts: an answer other than OK means that nothing was changed but NEED and
GROW_WHAT. Arrays are grown by the Python face, which then calls again.
"""

from __future__ import annotations

import numpy as np

from kvsim.paging.fields import (
    APPENDED_TOTAL,
    ARENA_TOP,
    BYTES,
    CAPACITY,
    CEILING,
    CEILING_HIT,
    COPIED_BYTES_TOTAL,
    COPIED_ROWS_TOTAL,
    COW_TOTAL,
    CURSOR,
    DEAD,
    DEAD_IN,
    ENTRIES,
    EXTRA_PEAK,
    FINISHED_TOTAL,
    FREED_TOTAL,
    GROW,
    GROW_ARENA,
    GROW_PAGES,
    GROW_PLAN,
    GROW_TABLES,
    GROW_WHAT,
    HELD,
    MEMBER,
    NAMED,
    NEED,
    NEXT_FREE,
    NEXT_POSITION,
    OK,
    PAGE,
    PAGE_TOKENS,
    PAGES,
    PER_SET,
    PLAN,
    POSITION,
    REFCOUNT,
    ROOM,
    ROOT,
    ROWS,
    SCOPE,
    SCOPE_OF,
    SEQUENCE,
    SEQUENCE_FREE,
    SEQUENCE_TOP,
    SET_COLUMNS,
    SET_OF,
    SETS,
    SOURCE,
    START,
    STEP,
    TABLE_FIELDS,
    TARGET,
    UNITS,
)
from kvsim.paging.jit import kernel
from kvsim.paging.pool import allocate, let_go
from kvsim.paging.segments import copy_segment, give_back, missing, reserve


@kernel
def rows_of(scalars, scopes, scope, column):
    """Return the units (ROWS) or bytes (BYTES) of one token's rows in a scope unit."""
    total = np.int64(0)
    for member in range(scalars[SETS]):
        total += scopes[scope, SET_COLUMNS + PER_SET * member + column]
    return total


@kernel
def plan_move(scalars, plan, source, target, position, scope, member):
    """Append one move to the plan. The caller has checked that there is room."""
    at = scalars[PLAN]
    plan[SOURCE, at] = source
    plan[TARGET, at] = target
    plan[POSITION, at] = position
    plan[SCOPE_OF, at] = scope
    plan[SET_OF, at] = member
    scalars[PLAN] = at + 1


@kernel
def refuse_or_grow(scalars, entries, plan, pages, segments, moves):
    """Answer for a verb that needs this many pages, arena entries and moves of the plan.

    The ceiling answers first, so that a refused verb has grown nothing.
    """
    if scalars[HELD] + pages > scalars[CEILING]:
        scalars[NEED] = pages
        return CEILING_HIT
    if scalars[HELD] + pages > scalars[PAGES]:
        scalars[GROW_WHAT] = GROW_PAGES
        scalars[NEED] = pages
        return GROW
    if scalars[ARENA_TOP] + segments > entries.shape[1]:
        scalars[GROW_WHAT] = GROW_ARENA
        scalars[NEED] = segments
        return GROW
    if scalars[PLAN] + moves > plan.shape[1]:
        scalars[GROW_WHAT] = GROW_PLAN
        scalars[NEED] = moves
        return GROW
    return OK


@kernel
def open_sequence(arrays):
    """Take a sequence number and set up its empty tables. The number is left in MEMBER."""
    scalars, tables, _, _, _, _, _, _, _ = arrays
    units = scalars[UNITS]
    sequence = scalars[SEQUENCE_FREE]
    if sequence < 0:
        sequence = scalars[SEQUENCE_TOP]
        if (sequence + 1) * units > tables.shape[0]:
            scalars[GROW_WHAT] = GROW_TABLES
            scalars[NEED] = sequence + 1
            return GROW
        scalars[SEQUENCE_TOP] = sequence + 1
    else:
        scalars[SEQUENCE_FREE] = tables[sequence * units, NEXT_FREE]
    for scope in range(units):
        table = sequence * units + scope
        for field in range(TABLE_FIELDS):
            tables[table, field] = 0
        tables[table, SEQUENCE] = sequence
        tables[table, SCOPE] = scope
        tables[table, ROOT] = sequence
    scalars[MEMBER] = sequence
    return OK


@kernel
def copy_on_write(scalars, tables, pages, entries, scopes, plan, table, entry, rows):
    """Give a table its own copy of a shared page, of which it uses the first `rows` slots."""
    page_tokens = scalars[PAGE_TOKENS]
    scope = tables[table, SCOPE]
    at = tables[table, START] + entry
    shared = np.int64(entries[PAGE, at])
    own = allocate(scalars, pages, scopes, scope)
    for slot in range(rows):
        plan_move(
            scalars, plan, shared * page_tokens + slot, own * page_tokens + slot, -1, scope, -1
        )
    let_go(scalars, pages, scopes, scope, shared, FREED_TOTAL)
    entries[PAGE, at] = own
    scalars[COW_TOTAL] += 1
    scalars[COPIED_ROWS_TOTAL] += rows * rows_of(scalars, scopes, scope, ROWS)
    scalars[COPIED_BYTES_TOTAL] += rows * rows_of(scalars, scopes, scope, BYTES)


@kernel
def append_table(
    scalars, tables, pages, entries, dead, holders, position, scopes, plan, table, tokens
):
    """Append to one table. Everything that can fail has been checked."""
    page_tokens = scalars[PAGE_TOKENS]
    cursor = tables[table, CURSOR]
    used = (cursor + page_tokens - 1) // page_tokens
    wanted = (cursor + tokens + page_tokens - 1) // page_tokens
    reserve(scalars, tables, entries, dead, holders, position, table, wanted)
    start = tables[table, START]
    offset = cursor % page_tokens
    if offset and pages[REFCOUNT, entries[PAGE, start + used - 1]] > 1:
        copy_on_write(scalars, tables, pages, entries, scopes, plan, table, used - 1, offset)
    for entry in range(used, wanted):
        entries[PAGE, start + entry] = allocate(scalars, pages, scopes, tables[table, SCOPE])
        entries[DEAD_IN, start + entry] = 0
    first = start * page_tokens + cursor
    for row in range(holders.shape[0]):
        for slot in range(first, first + tokens):
            holders[row, slot] = 1
    for row in range(position.shape[0]):
        for ahead in range(tokens):
            position[row, first + ahead] = tables[table, NEXT_POSITION] + ahead
    if position.shape[0]:
        tables[table, NEXT_POSITION] += tokens
    tables[table, CURSOR] = cursor + tokens
    tables[table, ENTRIES] = wanted
    tables[table, NAMED] += wanted - used
    if tokens > 0:
        # The last page is this table's own now, so the rest of it can be filled unseen.
        tables[table, ROOM] = wanted * page_tokens - cursor - tokens
    scalars[APPENDED_TOTAL] += tokens


@kernel
def append_need(scalars, tables, pages, entries, table, tokens):
    """Return (pages, arena entries, moves) that an append to one table needs at most."""
    page_tokens = scalars[PAGE_TOKENS]
    cursor = tables[table, CURSOR]
    used = (cursor + page_tokens - 1) // page_tokens
    wanted = (cursor + tokens + page_tokens - 1) // page_tokens
    need = wanted - used
    moves = np.int64(0)
    offset = cursor % page_tokens
    if offset and tokens > 0:
        page = np.int64(entries[PAGE, tables[table, START] + used - 1])
        if pages[REFCOUNT, page] > 1:
            need += 1
            moves = offset
    return need, missing(tables[table, CAPACITY], wanted), moves


@kernel
def append(arrays, sequence, tokens):
    """Append `tokens` slots to every table of a sequence, or to none."""
    scalars, tables, pages, entries, dead, holders, position, scopes, plan = arrays
    units = scalars[UNITS]
    need = np.int64(0)
    segments = np.int64(0)
    moves = np.int64(0)
    for table in range(sequence * units, (sequence + 1) * units):
        more = append_need(scalars, tables, pages, entries, table, tokens)
        need += more[0]
        segments += more[1]
        moves += more[2]
    answer = refuse_or_grow(scalars, entries, plan, need, segments, moves)
    if answer != OK:
        return answer
    before = scalars[HELD]
    for table in range(sequence * units, (sequence + 1) * units):
        append_table(
            scalars, tables, pages, entries, dead, holders, position, scopes, plan, table, tokens
        )
    scalars[EXTRA_PEAK] = max(scalars[EXTRA_PEAK], scalars[HELD] - before)
    return OK


@kernel
def advance(arrays, sequences, steps):
    """Append one token to each of `sequences`, `steps` times over.

    STEP and MEMBER say how far it came: after GROW or CEILING_HIT the same call goes on from
    there, and each append is either whole or not done.
    """
    scalars, tables, pages, entries, _, holders, position, scopes, _ = arrays
    units = scalars[UNITS]
    page_tokens = scalars[PAGE_TOKENS]
    plain = units == 1 and holders.shape[0] == 0 and position.shape[0] == 0
    limit = min(scalars[CEILING], scalars[PAGES])
    first = scalars[MEMBER]
    for step in range(scalars[STEP], steps):
        appended = np.int64(0)
        for member in range(first, sequences.shape[0]):
            sequence = sequences[member]
            if plain and tables[sequence, ROOM] > 0:
                # The common case: a slot in a page that the table has to itself.
                tables[sequence, ROOM] -= 1
                tables[sequence, CURSOR] += 1
                appended += 1
                continue
            if plain and scalars[HELD] < limit:
                entry = tables[sequence, ENTRIES]
                if (
                    entry < tables[sequence, CAPACITY]
                    and tables[sequence, CURSOR] == entry * page_tokens
                ):
                    # The next most common: a fresh page, and room for it everywhere.
                    at = tables[sequence, START] + entry
                    entries[PAGE, at] = allocate(scalars, pages, scopes, 0)
                    entries[DEAD_IN, at] = 0
                    tables[sequence, ENTRIES] = entry + 1
                    tables[sequence, NAMED] += 1
                    tables[sequence, ROOM] = page_tokens - 1
                    tables[sequence, CURSOR] += 1
                    appended += 1
                    scalars[EXTRA_PEAK] = max(scalars[EXTRA_PEAK], 1)
                    continue
            answer = append(arrays, sequence, 1)
            if answer != OK:
                scalars[APPENDED_TOTAL] += appended
                scalars[STEP] = step
                scalars[MEMBER] = member
                return answer
        scalars[APPENDED_TOTAL] += appended
        first = np.int64(0)
    return OK


@kernel
def fork(arrays, parent):
    """Open a sequence that shares every page of `parent`. Its number is left in MEMBER."""
    scalars, tables, pages, entries, dead, holders, position, _, plan = arrays
    units = scalars[UNITS]
    page_tokens = scalars[PAGE_TOKENS]
    segments = np.int64(0)
    for table in range(parent * units, (parent + 1) * units):
        segments += missing(0, tables[table, ENTRIES])
    answer = refuse_or_grow(scalars, entries, plan, 0, segments, 0)
    if answer != OK:
        return answer
    answer = open_sequence(arrays)
    if answer != OK:
        return answer
    child = scalars[MEMBER]
    for scope in range(units):
        old = parent * units + scope
        new = child * units + scope
        reserve(scalars, tables, entries, dead, holders, position, new, tables[old, ENTRIES])
        start = tables[new, START]
        copy_segment(
            entries,
            dead,
            holders,
            position,
            tables[old, START],
            start,
            tables[old, ENTRIES],
            tables[old, CURSOR],
            page_tokens,
        )
        for field in (CURSOR, DEAD, ENTRIES, NAMED, NEXT_POSITION, ROOT):
            tables[new, field] = tables[old, field]
        tables[old, ROOM] = 0
        for entry in range(start, start + tables[new, ENTRIES]):
            if entries[PAGE, entry] >= 0:
                pages[REFCOUNT, entries[PAGE, entry]] += 1
    return OK


@kernel
def free(arrays, sequence):
    """End a sequence: let go of all its pages. Finishing adds to no flow of eviction."""
    scalars, tables, pages, entries, _, _, _, scopes, _ = arrays
    units = scalars[UNITS]
    for scope in range(units):
        table = sequence * units + scope
        start = tables[table, START]
        # Last page first, so that a queue in FIFO order reuses a sequence's tail first.
        for entry in range(start + tables[table, ENTRIES] - 1, start - 1, -1):
            if entries[PAGE, entry] >= 0:
                let_go(
                    scalars, pages, scopes, scope, np.int64(entries[PAGE, entry]), FINISHED_TOTAL
                )
        give_back(scalars, tables, entries, table)
        for field in range(TABLE_FIELDS):
            tables[table, field] = 0
        tables[table, SEQUENCE] = -1
    tables[sequence * units, NEXT_FREE] = scalars[SEQUENCE_FREE]
    scalars[SEQUENCE_FREE] = sequence
    return OK
