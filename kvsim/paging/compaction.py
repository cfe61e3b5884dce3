"""The verb compact: moves live rows so that pages empty. Rebuild, forward and hole_fill.

Three passes over all tables of a sequence: where does each survivor go, what does that need, and
only then act. A mover is what moves as one: whole slots, or the rows of one set.
"""

from __future__ import annotations

import numpy as np

from kvsim.jit import kernel
from kvsim.paging import fields as f
from kvsim.paging.moves import plan_move, refuse_or_grow, renumber_copies, rows_of
from kvsim.paging.pool import allocate, let_go


@kernel
def moves_live(dead, holders, by_row, member, at):
    """Tell whether a mover has a live row at this place of the arena."""
    if by_row:
        return holders[member, at] == 1
    return dead[at] == 0


@kernel
def survivors_in_order(scalars, tables, entries, dead, holders, by_row, table, member, source):
    """Rebuild and forward: survivor r, counted upwards, goes to slot r. Returns their number."""
    page_tokens = scalars[f.PAGE_TOKENS]
    start = tables[table, f.START]
    found = np.int64(0)
    for slot in range(tables[table, f.CURSOR]):
        if entries[f.PAGE, start + slot // page_tokens] < 0:
            continue
        if moves_live(dead, holders, by_row, member, start * page_tokens + slot):
            source[found] = slot
            found += 1
    return found


@kernel
def survivors_into_holes(scalars, tables, entries, dead, holders, by_row, table, member, source):
    """Hole_fill: null entries leave, then the last survivors go into the earliest holes."""
    page_tokens = scalars[f.PAGE_TOKENS]
    start = tables[table, f.START]
    cursor = tables[table, f.CURSOR]
    found = np.int64(0)
    for slot in range(cursor):
        if entries[f.PAGE, start + slot // page_tokens] >= 0:
            found += moves_live(dead, holders, by_row, member, start * page_tokens + slot)
    for target in range(found):
        source[target] = -1
    # `place` is the slot's number once the null entries have left.
    place = np.int64(0)
    for slot in range(cursor):
        if entries[f.PAGE, start + slot // page_tokens] < 0:
            continue
        if place < found and moves_live(dead, holders, by_row, member, start * page_tokens + slot):
            source[place] = slot
        place += 1
    hole = np.int64(0)
    for back in range(cursor):
        slot = cursor - 1 - back
        if entries[f.PAGE, start + slot // page_tokens] < 0:
            continue
        place -= 1
        if place < found:
            break
        if moves_live(dead, holders, by_row, member, start * page_tokens + slot):
            while source[hole] >= 0:
                hole += 1
            source[hole] = slot
    return found


@kernel
def new_positions(scalars, tables, position, renumber, table, row, source, target, count, scratch):
    """Set target[t] to the position that the row bound for slot t will have."""
    base = tables[table, f.START] * scalars[f.PAGE_TOKENS]
    stored = position.shape[0] > 0
    highest = np.int64(-1)
    for slot in range(count):
        where = np.int64(source[slot])
        if stored:
            where = np.int64(position[row, base + source[slot]])
        target[slot] = where
        highest = max(highest, where)
    if not renumber:
        return
    for rank in range(highest + 1):
        scratch[rank] = 0
    for slot in range(count):
        scratch[target[slot]] = 1
    before = np.int64(0)
    for rank in range(highest + 1):
        here = scratch[rank]
        scratch[rank] = before
        before += here
    for slot in range(count):
        target[slot] = scratch[target[slot]]


@kernel
def old_position(position, row, base, slot):
    """Return the position of a row before the verb."""
    if position.shape[0]:
        return np.int64(position[row, base + slot])
    return np.int64(slot)


@kernel
def map_table(
    arrays, table, algorithm, by_row, renumber, sources, targets, counts, names, first, scratch
):
    """First pass over one table: fill the maps of its movers and the list of its named pages.

    Returns the slots that the table will have.
    """
    scalars, tables, _, entries, dead, holders, position, _, _ = arrays
    movers = counts.shape[1]
    scope = tables[table, f.SCOPE]
    longest = np.int64(0)
    for member in range(movers):
        at = first + member
        if algorithm == f.HOLE_FILL:
            found = survivors_into_holes(
                scalars, tables, entries, dead, holders, by_row, table, member, sources[at]
            )
        else:
            found = survivors_in_order(
                scalars, tables, entries, dead, holders, by_row, table, member, sources[at]
            )
        row = member if position.shape[0] > 1 else 0
        new_positions(
            scalars,
            tables,
            position,
            renumber,
            table,
            row,
            sources[at],
            targets[at],
            found,
            scratch,
        )
        counts[scope, member] = found
        longest = max(longest, found)
    named = np.int64(0)
    start = tables[table, f.START]
    for entry in range(tables[table, f.ENTRIES]):
        if entries[f.PAGE, start + entry] >= 0:
            names[scope, named] = entries[f.PAGE, start + entry]
            named += 1
    return longest


@kernel
def writes_entry(arrays, table, entry, rotates_keys, sources, targets, counts, names, first):
    """Tell whether the plan writes any row of a page that stays: moved there, or rotated there."""
    scalars, tables, _, entries, _, _, position, scopes, _ = arrays
    page_tokens = scalars[f.PAGE_TOKENS]
    scope = tables[table, f.SCOPE]
    start = tables[table, f.START]
    for member in range(counts.shape[1]):
        row = member if position.shape[0] > 1 else 0
        copies = renumber_copies(scalars, scopes, scope)
        if counts.shape[1] > 1 and scalars[f.REUSE] == 0:
            copies = scopes[scope, f.SET_COLUMNS + f.PER_SET * member + f.TURNS] > 0
        last = min((entry + 1) * page_tokens, counts[scope, member])
        for slot in range(entry * page_tokens, last):
            source = sources[first + member, slot]
            page = np.int64(entries[f.PAGE, start + source // page_tokens])
            if page != names[scope, entry] or source % page_tokens != slot % page_tokens:
                return True
            if (
                rotates_keys
                and copies
                and targets[first + member, slot]
                != old_position(position, row, start * page_tokens, source)
            ):
                return True
    return False


@kernel
def plan_table(arrays, table, rotates_keys, sources, targets, counts, fresh, first):
    """Third pass, first half: plan every move of one table. `fresh` names its pages to be."""
    scalars, tables, _, entries, _, _, position, scopes, plan = arrays
    page_tokens = scalars[f.PAGE_TOKENS]
    scope = tables[table, f.SCOPE]
    start = tables[table, f.START]
    movers = counts.shape[1]
    for member in range(movers):
        row = member if position.shape[0] > 1 else 0
        which = member if movers > 1 else -1
        units = rows_of(scalars, scopes, scope, f.ROWS)
        width = rows_of(scalars, scopes, scope, f.BYTES)
        turns = rows_of(scalars, scopes, scope, f.TURNS)
        if movers > 1:
            units = scopes[scope, f.SET_COLUMNS + f.PER_SET * member + f.ROWS]
            width = scopes[scope, f.SET_COLUMNS + f.PER_SET * member + f.BYTES]
            turns = scopes[scope, f.SET_COLUMNS + f.PER_SET * member + f.TURNS]
        for slot in range(counts[scope, member]):
            old = sources[first + member, slot]
            page = np.int64(entries[f.PAGE, start + old // page_tokens])
            source = page * page_tokens + old % page_tokens
            target = fresh[scope, slot // page_tokens] * page_tokens + slot % page_tokens
            where = np.int64(-1)
            if (
                rotates_keys
                and turns > 0
                and targets[first + member, slot]
                != old_position(position, row, start * page_tokens, old)
            ):
                where = targets[first + member, slot]
                scalars[f.ROTATED_ROWS_TOTAL] += turns
            if source != target:
                scalars[f.COPIED_ROWS_TOTAL] += units
                scalars[f.COPIED_BYTES_TOTAL] += width
            elif where < 0:
                continue
            plan_move(scalars, plan, source, target, where, scope, which)


@kernel
def settle_flags(arrays, table, by_row, renumber, sources, targets, counts, first, length):
    """Third pass, second half: flags and positions of one table, slot by slot upwards.

    In place, because no target lies above its source once lower targets are settled.
    """
    scalars, tables, _, _, dead, holders, position, _, _ = arrays
    base = tables[table, f.START] * scalars[f.PAGE_TOKENS]
    scope = tables[table, f.SCOPE]
    for slot in range(tables[table, f.CURSOR]):
        dead[base + slot] = 0
    for row in range(holders.shape[0]):
        for slot in range(length):
            if by_row:
                holders[row, base + slot] = slot < counts[scope, row]
            else:
                holders[row, base + slot] = holders[row, base + sources[first, slot]]
    highest = np.int64(-1)
    for row in range(position.shape[0]):
        mover = row if counts.shape[1] > 1 else 0
        for slot in range(counts[scope, mover]):
            position[row, base + slot] = targets[first + mover, slot]
            highest = max(highest, targets[first + mover, slot])
    for row in range(position.shape[0]):
        # One number for all sets: a new token has one position, whoever will retain it.
        tables[table, f.NEXT_POSITION + row] = length if renumber else highest + 1
    tables[table, f.CURSOR] = length
    tables[table, f.DEAD] = 0
    tables[table, f.ROOM] = 0
    tables[table, f.HOLE] = 0
    tables[table, f.OLDEST] = 0


@kernel
def settle_pages(arrays, table, names, fresh, rebuild, length):
    """Name a table's pages to be, and let go of every old page that is not one of them."""
    scalars, tables, pages, entries, _, _, _, scopes, _ = arrays
    page_tokens = scalars[f.PAGE_TOKENS]
    scope = tables[table, f.SCOPE]
    start = tables[table, f.START]
    wanted = (length + page_tokens - 1) // page_tokens
    for entry in range(tables[table, f.NAMED]):
        if rebuild or entry >= wanted or fresh[scope, entry] != names[scope, entry]:
            let_go(scalars, pages, scopes, scope, names[scope, entry], f.FREED_TOTAL)
    for entry in range(wanted):
        entries[f.PAGE, start + entry] = fresh[scope, entry]
        entries[f.DEAD_IN, start + entry] = 0
    tables[table, f.ENTRIES] = wanted
    tables[table, f.NAMED] = wanted


@kernel
def compact(
    arrays,
    sequence,
    algorithm,
    by_row,
    renumber,
    sources,
    targets,
    counts,
    lengths,
    names,
    fresh,
    scratch,
):
    """Compact every table of a sequence, or none.

    Parameters
    ----------
    sources, targets : int64 [scope unit * mover, slots]
        Scratch: the old slot and the new position of the row bound for each slot.
    counts : int64 [scope unit, mover]
        Scratch: survivors.
    lengths : int64 [scope unit]
        Scratch: slots that each table will have.
    names, fresh : int64 [scope unit, entries]
        Scratch: pages that each table names now, without null entries, and will name.
    scratch : int64 [positions]
        Scratch for ranks.
    """
    scalars, _, pages, entries, _, _, _, scopes, plan = arrays
    units = scalars[f.UNITS]
    page_tokens = scalars[f.PAGE_TOKENS]
    movers = counts.shape[1]
    rotates_keys = renumber and scalars[f.RENUMBER_WRITES] == 1
    need = np.int64(0)
    moves = np.int64(0)
    for scope in range(units):
        table = sequence * units + scope
        first = scope * movers
        lengths[scope] = map_table(
            arrays,
            table,
            algorithm,
            by_row,
            renumber,
            sources,
            targets,
            counts,
            names,
            first,
            scratch,
        )
        wanted = (lengths[scope] + page_tokens - 1) // page_tokens
        for entry in range(wanted):
            # -1 asks for a page of the pool: a fresh one, or a copy of a shared one.
            copies = algorithm == f.REBUILD
            if not copies and pages[f.REFCOUNT, names[scope, entry]] > 1:
                copies = writes_entry(
                    arrays, table, entry, rotates_keys, sources, targets, counts, names, first
                )
            fresh[scope, entry] = -1 if copies else names[scope, entry]
            need += copies
        for member in range(movers):
            moves += counts[scope, member]
    answer = refuse_or_grow(scalars, entries, plan, need, 0, moves)
    if answer != f.OK:
        return answer
    before = scalars[f.HELD]
    for scope in range(units):
        table = sequence * units + scope
        for entry in range((lengths[scope] + page_tokens - 1) // page_tokens):
            if fresh[scope, entry] < 0:
                fresh[scope, entry] = allocate(scalars, pages, scopes, scope)
                scalars[f.COW_TOTAL] += algorithm != f.REBUILD
        plan_table(arrays, table, rotates_keys, sources, targets, counts, fresh, scope * movers)
    scalars[f.EXTRA_PEAK] = max(scalars[f.EXTRA_PEAK], scalars[f.HELD] - before)
    for scope in range(units):
        table = sequence * units + scope
        settle_flags(
            arrays,
            table,
            by_row,
            renumber,
            sources,
            targets,
            counts,
            scope * movers,
            lengths[scope],
        )
        settle_pages(arrays, table, names, fresh, algorithm == f.REBUILD, lengths[scope])
    return f.OK
