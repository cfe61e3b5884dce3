"""The verbs open, fork, reserve, clone's copying, and free: how sequences begin and end."""

from __future__ import annotations

import numpy as np

from kvsim.jit import kernel
from kvsim.paging import fields as f
from kvsim.paging.moves import copy_on_write, refuse_or_grow
from kvsim.paging.pool import let_go, page_for, take_ahead
from kvsim.paging.segments import copy_segment, give_back, missing, reserve


@kernel
def open_tables(scalars, tables):
    """Take a sequence number and set up its empty tables. The number is left in MEMBER."""
    units = scalars[f.UNITS]
    sequence = scalars[f.SEQUENCE_FREE]
    if sequence < 0:
        sequence = scalars[f.SEQUENCE_TOP]
        if (sequence + 1) * units > tables.shape[0]:
            scalars[f.GROW_WHAT] = f.GROW_TABLES
            scalars[f.NEED] = sequence + 1
            return f.GROW
        scalars[f.SEQUENCE_TOP] = sequence + 1
    else:
        scalars[f.SEQUENCE_FREE] = tables[sequence * units, f.NEXT_FREE]
    for scope in range(units):
        table = sequence * units + scope
        for field in range(tables.shape[1]):
            tables[table, field] = 0
        tables[table, f.SEQUENCE] = sequence
        tables[table, f.SCOPE] = scope
        tables[table, f.ROOT] = scalars[f.FAMILIES]
    scalars[f.FAMILIES] += 1
    scalars[f.MEMBER] = sequence
    return f.OK


@kernel
def open_sequence(arrays):
    """Open a sequence. Its number is left in MEMBER."""
    scalars, tables, _, _, _, _, _, _, _ = arrays
    return open_tables(scalars, tables)


@kernel
def fork(arrays, parent):
    """Open a sequence that shares every page of `parent`. Its number is left in MEMBER."""
    scalars, tables, pages, entries, dead, holders, position, _, plan = arrays
    units = scalars[f.UNITS]
    page_tokens = scalars[f.PAGE_TOKENS]
    segments = np.int64(0)
    for table in range(parent * units, (parent + 1) * units):
        segments += missing(0, tables[table, f.ENTRIES])
    answer = refuse_or_grow(scalars, entries, plan, 0, segments, 0)
    if answer != f.OK:
        return answer
    answer = open_sequence(arrays)
    if answer != f.OK:
        return answer
    child = scalars[f.MEMBER]
    for scope in range(units):
        old = parent * units + scope
        new = child * units + scope
        reserve(scalars, tables, entries, dead, holders, position, new, tables[old, f.ENTRIES])
        start = tables[new, f.START]
        copy_segment(
            entries,
            dead,
            holders,
            position,
            tables[old, f.START],
            start,
            tables[old, f.ENTRIES],
            tables[old, f.CURSOR],
            page_tokens,
        )
        for field in (f.CURSOR, f.DEAD, f.ENTRIES, f.NAMED, f.ROOT, f.HOLE, f.OLDEST):
            tables[new, field] = tables[old, field]
        for row in range(position.shape[0]):
            tables[new, f.NEXT_POSITION + row] = tables[old, f.NEXT_POSITION + row]
        tables[old, f.ROOM] = 0
        for entry in range(start, start + tables[new, f.ENTRIES]):
            if entries[f.PAGE, entry] >= 0:
                pages[f.REFCOUNT, entries[f.PAGE, entry]] += 1
    return f.OK


@kernel
def reserve_ahead(arrays, sequence, tokens):
    """Take the pages that the next `tokens` tokens of a sequence need, in every table."""
    scalars, tables, pages, entries, _, _, _, scopes, plan = arrays
    page_tokens = scalars[f.PAGE_TOKENS]
    units = scalars[f.UNITS]
    need = np.int64(0)
    for table in range(sequence * units, (sequence + 1) * units):
        wanted = (tables[table, f.CURSOR] + tokens + page_tokens - 1) // page_tokens
        need += max(np.int64(0), wanted - tables[table, f.ENTRIES] - tables[table, f.RESERVED])
    answer = refuse_or_grow(scalars, entries, plan, need, 0, 0)
    if answer != f.OK:
        return answer
    for table in range(sequence * units, (sequence + 1) * units):
        wanted = (tables[table, f.CURSOR] + tokens + page_tokens - 1) // page_tokens
        more = wanted - tables[table, f.ENTRIES] - tables[table, f.RESERVED]
        if more > 0:
            take_ahead(scalars, tables, pages, scopes, table, more)
    return f.OK


@kernel
def own_every_page(arrays, sequence):
    """Give a sequence its own copy of every page that it shares."""
    scalars, tables, pages, entries, _, _, _, scopes, plan = arrays
    page_tokens = scalars[f.PAGE_TOKENS]
    units = scalars[f.UNITS]
    need = np.int64(0)
    moves = np.int64(0)
    for table in range(sequence * units, (sequence + 1) * units):
        start = tables[table, f.START]
        for entry in range(tables[table, f.ENTRIES]):
            page = np.int64(entries[f.PAGE, start + entry])
            if page >= 0 and pages[f.REFCOUNT, page] > 1:
                need += 1
                moves += min(page_tokens, tables[table, f.CURSOR] - entry * page_tokens)
    answer = refuse_or_grow(scalars, entries, plan, need, 0, moves)
    if answer != f.OK:
        return answer
    for table in range(sequence * units, (sequence + 1) * units):
        start = tables[table, f.START]
        for entry in range(tables[table, f.ENTRIES]):
            page = np.int64(entries[f.PAGE, start + entry])
            if page >= 0 and pages[f.REFCOUNT, page] > 1:
                rows = min(page_tokens, tables[table, f.CURSOR] - entry * page_tokens)
                copy_on_write(scalars, tables, pages, entries, scopes, plan, table, entry, rows)
    return f.OK


@kernel
def clone(arrays, parent):
    """Open a sequence with its own copy of every page of `parent`, those taken ahead included.

    Everything is asked for at once, so that a clone is made or refused as a whole. The child's
    number is left in MEMBER.
    """
    scalars, tables, pages, entries, _, _, _, scopes, plan = arrays
    units = scalars[f.UNITS]
    named = np.int64(0)
    ahead = np.int64(0)
    segments = np.int64(0)
    for table in range(parent * units, (parent + 1) * units):
        named += tables[table, f.NAMED]
        ahead += tables[table, f.RESERVED]
        segments += missing(0, tables[table, f.ENTRIES])
    moves = named * scalars[f.PAGE_TOKENS]
    answer = refuse_or_grow(scalars, entries, plan, named + ahead, segments, moves)
    if answer != f.OK:
        return answer
    answer = fork(arrays, parent)
    if answer != f.OK:
        return answer
    child = scalars[f.MEMBER]
    own_every_page(arrays, child)
    for scope in range(units):
        count = tables[parent * units + scope, f.RESERVED]
        take_ahead(scalars, tables, pages, scopes, child * units + scope, count)
    return f.OK


@kernel
def free_tables(scalars, tables, pages, entries, scopes, sequence):
    """Let go of all pages of a sequence, and of its number."""
    units = scalars[f.UNITS]
    for scope in range(units):
        table = sequence * units + scope
        start = tables[table, f.START]
        # Last page first, so that a queue in FIFO order reuses a sequence's tail first.
        for entry in range(start + tables[table, f.ENTRIES] - 1, start - 1, -1):
            if entries[f.PAGE, entry] >= 0:
                let_go(
                    scalars,
                    pages,
                    scopes,
                    scope,
                    np.int64(entries[f.PAGE, entry]),
                    f.FINISHED_TOTAL,
                )
        while tables[table, f.RESERVED] > 0:
            ahead = page_for(scalars, tables, pages, scopes, table)
            let_go(scalars, pages, scopes, scope, ahead, f.FINISHED_TOTAL)
        give_back(scalars, tables, entries, table)
        for field in range(tables.shape[1]):
            tables[table, field] = 0
        tables[table, f.SEQUENCE] = -1
    tables[sequence * units, f.NEXT_FREE] = scalars[f.SEQUENCE_FREE]
    scalars[f.SEQUENCE_FREE] = sequence


@kernel
def free(arrays, sequence):
    """End a sequence: let go of all its pages. Finishing adds to no flow of eviction."""
    scalars, tables, pages, entries, _, _, _, scopes, _ = arrays
    free_tables(scalars, tables, pages, entries, scopes, sequence)
    return f.OK
