"""Moves, copies on write and the answers to a verb that needs room: what all verbs share."""

from __future__ import annotations

import numpy as np

from kvsim.jit import kernel
from kvsim.paging import fields as f
from kvsim.paging.pool import allocate, let_go


@kernel
def rows_of(scalars, scopes, scope, column):
    """Sum ROWS, BYTES or TURNS of one token over the sets of a scope unit."""
    total = np.int64(0)
    for member in range(scalars[f.SETS]):
        total += scopes[scope, f.SET_COLUMNS + f.PER_SET * member + column]
    return total


@kernel
def renumber_copies(scalars, scopes, scope):
    """Tell whether renumbering copies the shared pages of a scope unit where positions change.

    It does where a stored key turns. Where holes are reused it does in every table: a hole in a
    shared page is skipped, so tables of one set stay in step only if they share alike.
    """
    if scalars[f.RENUMBER_WRITES] == 0:
        return False
    return rows_of(scalars, scopes, scope, f.TURNS) > 0 or scalars[f.REUSE] == 1


@kernel
def plan_move(scalars, plan, source, target, position, scope, member):
    """Append one move to the plan. The caller has checked that there is room."""
    at = scalars[f.PLAN]
    plan[f.SOURCE, at] = source
    plan[f.TARGET, at] = target
    plan[f.POSITION, at] = position
    plan[f.SCOPE_OF, at] = scope
    plan[f.SET_OF, at] = member
    scalars[f.PLAN] = at + 1


@kernel
def refuse_or_grow(scalars, entries, plan, pages, segments, moves):
    """Answer for a verb that needs this many pages, arena entries and moves of the plan.

    The ceiling answers first, so that a refused verb has grown nothing.
    """
    if scalars[f.HELD] + pages > scalars[f.CEILING]:
        scalars[f.NEED] = pages
        return f.CEILING_HIT
    if scalars[f.HELD] + pages > scalars[f.PAGES]:
        scalars[f.GROW_WHAT] = f.GROW_PAGES
        scalars[f.NEED] = pages
        return f.GROW
    if scalars[f.ARENA_TOP] + segments > entries.shape[1]:
        scalars[f.GROW_WHAT] = f.GROW_ARENA
        scalars[f.NEED] = segments
        return f.GROW
    if scalars[f.PLAN] + moves > plan.shape[1]:
        scalars[f.GROW_WHAT] = f.GROW_PLAN
        scalars[f.NEED] = moves
        return f.GROW
    return f.OK


@kernel
def copy_on_write(scalars, tables, pages, entries, scopes, plan, table, entry, rows):
    """Give a table its own copy of a shared page, of which it uses the first `rows` slots."""
    page_tokens = scalars[f.PAGE_TOKENS]
    scope = tables[table, f.SCOPE]
    at = tables[table, f.START] + entry
    shared = np.int64(entries[f.PAGE, at])
    own = allocate(scalars, pages, scopes, scope)
    for slot in range(rows):
        plan_move(
            scalars, plan, shared * page_tokens + slot, own * page_tokens + slot, -1, scope, -1
        )
    let_go(scalars, pages, scopes, scope, shared, f.FREED_TOTAL)
    entries[f.PAGE, at] = own
    scalars[f.COW_TOTAL] += 1
    scalars[f.COPIED_ROWS_TOTAL] += rows * rows_of(scalars, scopes, scope, f.ROWS)
    scalars[f.COPIED_BYTES_TOTAL] += rows * rows_of(scalars, scopes, scope, f.BYTES)
