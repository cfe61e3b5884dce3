"""Renumbering inside evict: every survivor behind the first dead slot gets its rank as position.

Used with compaction `none`; with an algorithm, the positions change as part of its plan. Where a
changed position rewrites a stored key, shared pages are copied first.
"""

from __future__ import annotations

import numpy as np

from kvsim.jit import kernel
from kvsim.paging import fields as f
from kvsim.paging.moves import plan_move, renumber_copies, rows_of
from kvsim.paging.pool import allocate, let_go


@kernel
def first_death(scalars, tables, dead, position, scopes, table, scope, starts, victims):
    """Return the lowest position of a slot that died among these victims, or a huge number."""
    base = tables[table, f.START] * scalars[f.PAGE_TOKENS]
    lowest = np.int64(1) << 62
    for member in range(scalars[f.SETS]):
        which = scopes[scope, f.SET_COLUMNS + f.PER_SET * member + f.LIST]
        for at in range(starts[which], starts[which + 1]):
            if dead[base + victims[at]]:
                where = victims[at]
                if position.shape[0]:
                    where = np.int64(position[0, base + victims[at]])
                lowest = min(lowest, where)
    return lowest


@kernel
def position_of(position, base, slot):
    """Return what orders a slot: its stored position, or its place in the table."""
    if position.shape[0]:
        return np.int64(position[0, base + slot])
    return np.int64(slot)


@kernel
def renumber_need(scalars, tables, pages, entries, dead, holders, position, table, death):
    """Return (pages to copy, moves at most) of renumbering what lies behind `death`."""
    page_tokens = scalars[f.PAGE_TOKENS]
    start = tables[table, f.START]
    cursor = tables[table, f.CURSOR]
    copies = np.int64(0)
    moves = np.int64(0)
    for entry in range(tables[table, f.ENTRIES]):
        page = np.int64(entries[f.PAGE, start + entry])
        if page < 0:
            continue
        first = entry * page_tokens
        live = np.int64(0)
        changed = np.int64(0)
        for slot in range(first, min(first + page_tokens, cursor)):
            if not dead[start * page_tokens + slot]:
                live += 1
                if position_of(position, start * page_tokens, slot) > death:
                    changed += 1
        if changed:
            moves += live
            if pages[f.REFCOUNT, page] > 1:
                copies += 1
    return copies, moves * max(1, holders.shape[0])


@kernel
def plan_rows(scalars, scopes, plan, holders, at, source, target, where, rotates, scope):
    """Plan one slot's retained rows: a rotation to position `where`, or a plain copy."""
    sets = holders.shape[0]
    for member in range(max(1, sets)):
        units = rows_of(scalars, scopes, scope, f.ROWS)
        width = rows_of(scalars, scopes, scope, f.BYTES)
        turns = rows_of(scalars, scopes, scope, f.TURNS)
        if sets:
            if not holders[member, at]:
                continue
            units = scopes[scope, f.SET_COLUMNS + f.PER_SET * member + f.ROWS]
            width = scopes[scope, f.SET_COLUMNS + f.PER_SET * member + f.BYTES]
            turns = scopes[scope, f.SET_COLUMNS + f.PER_SET * member + f.TURNS]
        which = member if sets else -1
        turned = rotates and turns > 0
        if not turned and source == target:
            continue
        plan_move(scalars, plan, source, target, where if turned else -1, scope, which)
        if turned:
            scalars[f.ROTATED_ROWS_TOTAL] += turns
        if source != target:
            scalars[f.COPIED_ROWS_TOTAL] += units
            scalars[f.COPIED_BYTES_TOTAL] += width


@kernel
def rank_positions(tables, dead, position, base, table, scratch):
    """Set scratch[p] to how many live slots lie below position p. Returns their number."""
    for slot in range(tables[table, f.CURSOR]):
        if not dead[base + slot]:
            scratch[position[0, base + slot]] = 1
    before = np.int64(0)
    for where in range(tables[table, f.NEXT_POSITION]):
        here = scratch[where]
        scratch[where] = before
        before += here
    return before


@kernel
def renumber_table(
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
):
    """Give the survivors of one table their ranks. Everything that can fail has been checked."""
    page_tokens = scalars[f.PAGE_TOKENS]
    start = tables[table, f.START]
    base = start * page_tokens
    cursor = tables[table, f.CURSOR]
    scope = tables[table, f.SCOPE]
    stored = position.shape[0] > 0
    writes = renumber_copies(scalars, scopes, scope)
    live = np.int64(0)
    if stored:
        for where in range(tables[table, f.NEXT_POSITION]):
            scratch[where] = 0
        live = rank_positions(tables, dead, position, base, table, scratch)
    elif not writes:
        # The rank is read off the table, and no stored key depends on it.
        return
    rank = np.int64(0)
    for entry in range(tables[table, f.ENTRIES]):
        page = np.int64(entries[f.PAGE, start + entry])
        if page < 0:
            continue
        first = entry * page_tokens
        last = min(first + page_tokens, cursor)
        changed = False
        for slot in range(first, last):
            if not dead[base + slot] and position_of(position, base, slot) > death:
                changed = True
        target = page
        if changed and writes and pages[f.REFCOUNT, page] > 1:
            target = allocate(scalars, pages, scopes, scope)
            entries[f.PAGE, start + entry] = target
            scalars[f.COW_TOTAL] += 1
        for slot in range(first, last):
            if dead[base + slot]:
                continue
            new = np.int64(scratch[position[0, base + slot]]) if stored else rank
            rotates = position_of(position, base, slot) > death
            if stored:
                position[0, base + slot] = new
            rank += 1
            if writes and (rotates or target != page):
                plan_rows(
                    scalars,
                    scopes,
                    plan,
                    holders,
                    base + slot,
                    page * page_tokens + slot - first,
                    target * page_tokens + slot - first,
                    new,
                    rotates,
                    scope,
                )
        if target != page:
            let_go(scalars, pages, scopes, scope, page, f.FREED_TOTAL)
    tables[table, f.ROOM] = 0
    if stored:
        tables[table, f.NEXT_POSITION] = live


@kernel
def newest_gone(scalars, tables, dead, position, scopes, table, scope, starts, victims):
    """Tell whether a slot with the table's newest stored position died among these victims."""
    base = tables[table, f.START] * scalars[f.PAGE_TOKENS]
    rows = position.shape[0]
    for member in range(scalars[f.SETS]):
        which = scopes[scope, f.SET_COLUMNS + f.PER_SET * member + f.LIST]
        row = member if rows > 1 else 0
        for at in range(starts[which], starts[which + 1]):
            place = base + victims[at]
            if position[row, place] + 1 == tables[table, f.NEXT_POSITION + row] and (
                rows > 1 or dead[place]
            ):
                return True
    return False


@kernel
def next_after_eviction(scalars, tables, dead, holders, position, table):
    """Let the next stored position follow the highest live one, as the cursor does for slots."""
    base = tables[table, f.START] * scalars[f.PAGE_TOKENS]
    highest = np.int64(-1)
    rows = position.shape[0]
    for row in range(rows):
        for slot in range(tables[table, f.CURSOR]):
            if dead[base + slot] or (rows > 1 and not holders[row, base + slot]):
                continue
            highest = max(highest, np.int64(position[row, base + slot]))
    for row in range(position.shape[0]):
        tables[table, f.NEXT_POSITION + row] = highest + 1
