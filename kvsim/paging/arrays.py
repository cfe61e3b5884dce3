"""The ledger's arrays: how they are laid out, made and grown. Knows no verb.

Few and wide, because every array handed to a kernel costs time at each call.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from kvsim.paging import fields as f

# The sentinel is in the queue but is no page: it bears a state that no page can have.
SENTINEL_STATE = -1


class Arrays(NamedTuple):
    """Everything that the kernels read and write.

    Attributes
    ----------
    scalars : int64 [SCALARS]
        Parameters, stocks and flows of the whole ledger.
    tables : int64 [table, TABLE_FIELDS + position rows]
        One row per (sequence, scope unit).
    pages : int32 [PAGE_FIELDS, page + 1]
        Refcount, queue links, state, owner and key; the last column is the queue's sentinel.
    entries : int32 [2, arena]
        All block tables, as segments of one arena: page or -1, and dead slots.
    dead : uint8 [arena * page_tokens]
        1 where a slot below its table's cursor is retained by no set of the table.
    holders : uint8 [set, arena * page_tokens]
        1 where a set retains a slot. No rows at all unless sets are finer than the scope.
    position : int32 [0, 1 or set, arena * page_tokens]
        Positions, only where a slot's place does not tell its position: one row for whole slots,
        one per set where the rows of a slot have positions of their own.
    scopes : int64 [scope unit, 1 + 4 * set]
        Held pages; for each set its victim list, its units, the bytes of one token's rows and
        the units whose stored key depends on its position.
    plan : int64 [PLAN_FIELDS, move]
        Moves that a verb decided and a store has to carry out, in this order.
    """

    scalars: np.ndarray
    tables: np.ndarray
    pages: np.ndarray
    entries: np.ndarray
    dead: np.ndarray
    holders: np.ndarray
    position: np.ndarray
    scopes: np.ndarray
    plan: np.ndarray


def make(
    *,
    page_tokens: int,
    scopes: np.ndarray,
    holder_sets: int,
    position_sets: int,
    ceiling: int,
    order: int,
    reuse: bool = False,
    renumber: bool = False,
    renumber_writes: bool = False,
    pages: int = 64,
    arena: int = 64,
    sequences: int = 4,
    moves: int = 64,
) -> Arrays:
    """Return empty arrays with every page free, in ascending order in the queue."""
    units = scopes.shape[0]
    scalars = np.zeros(f.SCALARS, np.int64)
    scalars[f.PAGE_TOKENS] = page_tokens
    scalars[f.CEILING] = ceiling
    scalars[f.ORDER] = order
    scalars[f.REUSE] = reuse
    scalars[f.RENUMBER] = renumber
    scalars[f.RENUMBER_WRITES] = renumber_writes
    scalars[f.UNITS] = units
    scalars[f.SETS] = (scopes.shape[1] - f.SET_COLUMNS) // f.PER_SET
    scalars[f.SEQUENCE_FREE] = -1
    scalars[f.CLASS :] = -1
    tables = np.zeros((sequences * units, f.TABLE_FIELDS + position_sets), np.int64)
    tables[:, f.SEQUENCE] = -1
    empty = np.zeros((f.PAGE_FIELDS, 1), np.int32)
    slots = arena * page_tokens
    arrays = Arrays(
        scalars=scalars,
        tables=tables,
        pages=empty,
        entries=np.zeros((2, arena), np.int32),
        dead=np.zeros(slots, np.uint8),
        holders=np.zeros((holder_sets, slots), np.uint8),
        position=np.zeros((position_sets, slots), np.int32),
        scopes=scopes.astype(np.int64),
        plan=np.zeros((f.PLAN_FIELDS, moves), np.int64),
    )
    for array in (arrays.entries, arrays.dead, arrays.holders, arrays.position):
        # Touch the memory now: the operating system hands out zeroed memory at its first use,
        # which would then fall into somebody's step.
        array.fill(0)
    return arrays._replace(pages=grow_pages(arrays, pages))


def grow_pages(arrays: Arrays, pages: int) -> np.ndarray:
    """Return a pool of `pages` pages; the new ones join the queue's tail, in ascending order."""
    old = arrays.pages
    before = old.shape[1] - 1
    new = np.zeros((f.PAGE_FIELDS, pages + 1), np.int32)
    new[:, :before] = old[:, :before]
    new[f.STATE, pages] = SENTINEL_STATE
    links = new[f.PREVIOUS : f.NEXT + 1]
    if before:
        queued = np.isin(new[f.STATE, :before], (f.FREE_PAGE, f.CACHED_PAGE))
        for link in links:
            link[:before][queued & (link[:before] == before)] = pages
        first, last = int(old[f.NEXT, before]), int(old[f.PREVIOUS, before])
        first, last = (pages if end == before else end for end in (first, last))
    else:
        first, last = pages, pages
    fresh = np.arange(before, pages, dtype=np.int32)
    new[f.PREVIOUS, fresh] = np.concatenate(([last], fresh[:-1]))
    new[f.NEXT, fresh] = np.concatenate((fresh[1:], [pages]))
    if last == pages:
        first = before
    else:
        new[f.NEXT, last] = before
    new[f.NEXT, pages] = first
    new[f.PREVIOUS, pages] = pages - 1
    arrays.scalars[f.PAGES] = pages
    return new


def _wider(array: np.ndarray, columns: int) -> np.ndarray:
    new = np.zeros((*array.shape[:-1], columns), array.dtype)
    new[..., : array.shape[-1]] = array
    return new


def grown(arrays: Arrays, what: int, need: int) -> Arrays:
    """Return arrays in which `what` has room for `need` more, at least doubled.

    Parameters
    ----------
    arrays : Arrays
    what : int
        GROW_PAGES, GROW_ARENA, GROW_TABLES or GROW_PLAN.
    need : int
        Pages, entries, sequences or moves that must fit beyond those in use.
    """
    scalars = arrays.scalars
    if what == f.GROW_PAGES:
        pages = int(scalars[f.PAGES])
        most = int(scalars[f.CEILING])
        target = max(2 * pages, int(scalars[f.HELD]) + need)
        return arrays._replace(pages=grow_pages(arrays, max(min(target, most), pages)))
    if what == f.GROW_ARENA:
        arena = max(2 * arrays.entries.shape[1], int(scalars[f.ARENA_TOP]) + need)
        slots = arena * int(scalars[f.PAGE_TOKENS])
        return arrays._replace(
            entries=_wider(arrays.entries, arena),
            dead=_wider(arrays.dead, slots),
            holders=_wider(arrays.holders, slots),
            position=_wider(arrays.position, slots),
        )
    if what == f.GROW_TABLES:
        rows = max(2 * arrays.tables.shape[0], need * int(scalars[f.UNITS]))
        tables = np.zeros((rows, arrays.tables.shape[1]), np.int64)
        tables[:, f.SEQUENCE] = -1
        tables[: arrays.tables.shape[0]] = arrays.tables
        return arrays._replace(tables=tables)
    moves = max(2 * arrays.plan.shape[1], int(scalars[f.PLAN]) + need)
    return arrays._replace(plan=_wider(arrays.plan, moves))
