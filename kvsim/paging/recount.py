"""The ledger's second opinion: everything counted again from the raw tables, in plain NumPy.

Shares no code with the kernels, so that a kernel's slip does not repeat itself here.
"""

from __future__ import annotations

import numpy as np

from kvsim.errors import LedgerError
from kvsim.paging import fields as f
from kvsim.paging.arrays import SENTINEL_STATE, Arrays
from kvsim.paging.geometry import Geometry
from kvsim.paging.samples import count_slots


def _must(holds: bool, what: str) -> None:
    if not holds:
        raise LedgerError(f"check failed: {what}")


def _check_table(arrays: Arrays, table: int, references: np.ndarray) -> None:
    """Check one table against its own entries and flags, and add its page references."""
    page_tokens = int(arrays.scalars[f.PAGE_TOKENS])
    row = arrays.tables[table]
    start, cursor, used = (int(row[c]) for c in (f.START, f.CURSOR, f.ENTRIES))
    _must(used == -(-cursor // page_tokens), f"table {table}: entries do not cover the cursor")
    _must(used <= int(row[f.CAPACITY]), f"table {table}: more entries than its segment holds")
    pages = arrays.entries[f.PAGE, start : start + used].astype(np.int64)
    named = pages[pages >= 0]
    _must(named.size == np.unique(named).size, f"table {table}: a page is named twice")
    _must(named.size == int(row[f.NAMED]), f"table {table}: wrong count of named pages")
    ahead = _ahead(arrays, row)
    _must(
        np.unique(ahead).size == ahead.size and not np.isin(ahead, named).any(),
        f"table {table}: a page taken ahead is named twice",
    )
    np.add.at(references, named, 1)
    np.add.at(references, ahead, 1)
    base = start * page_tokens
    dead = arrays.dead[base : base + cursor].astype(bool)
    hole = int(row[f.HOLE])
    open_holes = (pages[:hole] >= 0) & (arrays.entries[f.DEAD_IN, start : start + used][:hole] > 0)
    if arrays.scalars[f.REUSE]:
        _must(not open_holes.any(), f"table {table}: a hole lies below its hint")
    _check_positions(arrays, table, base, cursor, dead)
    if arrays.holders.shape[0]:
        held = arrays.holders[:, base : base + cursor].any(axis=0)
        _must(bool((held == ~dead).all()), f"table {table}: dead flags differ from holders")
    padded = np.zeros(used * page_tokens, bool)
    padded[:cursor] = dead
    per_entry = padded.reshape(used, page_tokens).sum(axis=1)
    _must(int(dead.sum()) == int(row[f.DEAD]), f"table {table}: wrong count of dead slots")
    counted = arrays.entries[f.DEAD_IN, start : start + used]
    _must(bool((counted == per_entry).all()), f"table {table}: an entry's dead count is wrong")
    written = np.minimum(page_tokens, cursor - np.arange(used) * page_tokens)
    _must(
        bool(((pages >= 0) == (per_entry < written)).all()),
        f"table {table}: it names a page without a live slot, or lost one with",
    )
    behind = arrays.dead[base + cursor : base + int(row[f.CAPACITY]) * page_tokens]
    _must(not behind.any(), f"table {table}: a dead flag stands behind the cursor")
    room = int(row[f.ROOM])
    _must(0 <= room <= used * page_tokens - cursor, f"table {table}: more room than its page has")
    if room:
        owned = int(arrays.pages[f.REFCOUNT, pages[-1]]) == 1
        _must(owned, f"table {table}: room in a page that it shares")
    _must(cursor == 0 or not dead[-1], f"table {table}: the slot below the cursor is dead")


def _ahead(arrays: Arrays, row: np.ndarray) -> np.ndarray:
    """Return the pages that a table has taken ahead, int64 [reserved]."""
    chain = []
    page = int(row[f.RESERVE])
    for _ in range(int(row[f.RESERVED])):
        chain.append(page)
        page = int(arrays.pages[f.NEXT, page])
    return np.array(chain, np.int64)


def _check_positions(arrays: Arrays, table: int, base: int, cursor: int, dead: np.ndarray) -> None:
    """Check that the positions which a set retains are distinct and below the next one."""
    rows = arrays.position.shape[0]
    for number in range(rows):
        kept = ~dead
        if rows > 1:
            kept = arrays.holders[number, base : base + cursor].astype(bool)
        found = np.sort(arrays.position[number, base : base + cursor][kept])
        _must(bool((found[1:] > found[:-1]).all()), f"table {table}: a position stands twice")
        following = int(arrays.tables[table, f.NEXT_POSITION + number])
        _must(
            found.size == 0 or (found[0] >= 0 and found[-1] < following),
            f"table {table}: a position is not below the next one",
        )


def _check_queue(arrays: Arrays) -> None:
    """Check that the queue is one ring through the sentinel and each free or cached page."""
    pages = int(arrays.scalars[f.PAGES])
    waiting = np.isin(arrays.pages[f.STATE], (SENTINEL_STATE, f.FREE_PAGE, f.CACHED_PAGE))
    nodes = np.flatnonzero(waiting)
    ahead = arrays.pages[f.NEXT].astype(np.int64)
    back = arrays.pages[f.PREVIOUS].astype(np.int64)
    _must(bool(waiting[ahead[nodes]].all()), "the queue leads to a page that is held")
    _must(bool((back[ahead[nodes]] == nodes).all()), "the queue's two directions disagree")
    # Both ways agree, so it is made of rings; jumps of doubled length from the sentinel reach
    # all of its ring in a logarithm of its length.
    seen = np.zeros(pages + 1, np.bool_)
    seen[pages] = True
    jump = ahead
    for _ in range(max(1, nodes.size).bit_length() + 1):
        seen[jump[seen & waiting]] = True
        jump = jump[np.where(waiting, jump, pages)]
    _must(bool((seen == waiting).all()), "a free or cached page is missing from the queue")


def _check_stocks(arrays: Arrays, held: np.ndarray) -> None:
    """Check that every page is free, held, cached or parked, and that flows add up to stocks."""
    scalars, pages = arrays.scalars, int(arrays.scalars[f.PAGES])
    state, key = arrays.pages[f.STATE, :pages], arrays.pages[f.KEY, :pages]
    _must(bool(((state == f.HELD_PAGE) == held).all()), "a page's state contradicts its refcount")
    _must(int(held.sum()) == int(scalars[f.HELD]), "wrong count of held pages")
    _must(int(scalars[f.HELD]) <= int(scalars[f.CEILING]), "more pages held than the ceiling")
    cached, parked = state == f.CACHED_PAGE, state == f.PARKED_PAGE
    _must(int(cached.sum()) == int(scalars[f.CACHED]), "wrong count of cached pages")
    _must(int(parked.sum()) == int(scalars[f.PARKED]), "wrong count of parked pages")
    _must(bool((key[cached] > 0).all()), "a cached page has no key")
    _must(not key[~held & ~cached].any(), "a page has a key and is neither held nor cached")
    keyed = key[key > 0]
    _must(np.unique(keyed).size == keyed.size, "two pages have one key")
    taken = scalars[f.ALLOCATED_TOTAL] + scalars[f.REVIVED_TOTAL]
    given_back = scalars[f.FREED_TOTAL] + scalars[f.FINISHED_TOTAL]
    _must(
        int(taken - given_back) == int(scalars[f.HELD]),
        "pages taken minus pages given back is not the pages held",
    )


def recount(arrays: Arrays, geometry: Geometry) -> None:
    """Raise LedgerError at the first number that a recount does not confirm.

    Checks that refcount[p] is the number of table entries that name p, that no table names a
    page twice, that held, free and cached pages make up the pool, that dead counts and flags
    agree, that no page is kept without a live slot, and that live + dead + tail slots make up
    the held pages.
    """
    scalars = arrays.scalars
    pages = int(scalars[f.PAGES])
    page_tokens = int(scalars[f.PAGE_TOKENS])
    references = np.zeros(pages, np.int64)
    tables = np.flatnonzero(arrays.tables[:, f.SEQUENCE] >= 0)
    held_in = np.zeros(geometry.scope_units, np.int64)
    owner = np.full(pages, -1, np.int64)
    status = np.zeros(pages * page_tokens, np.int64)
    for table in tables.tolist():
        _check_table(arrays, table, references)
        row = arrays.tables[table]
        scope = table % geometry.scope_units
        _must(int(row[f.SCOPE]) == scope, f"table {table}: wrong scope unit")
        _must(int(row[f.SEQUENCE]) == table // geometry.scope_units, f"table {table}: sequence")
        start, cursor = int(row[f.START]), int(row[f.CURSOR])
        numbers = np.arange(cursor)
        pages_here = arrays.entries[f.PAGE, start : start + int(row[f.ENTRIES])].astype(np.int64)
        named = pages_here[pages_here >= 0]
        _must(
            bool(np.isin(owner[named], (-1, scope)).all()),
            f"table {table}: one of its pages serves another scope unit",
        )
        owner[named] = scope
        owner[_ahead(arrays, row)] = scope
        page = pages_here[numbers // page_tokens]
        kind = np.where(arrays.dead[start * page_tokens + numbers], 1, 2)
        there = page >= 0
        np.maximum.at(status, (page * page_tokens + numbers % page_tokens)[there], kind[there])
    refcounts = arrays.pages[f.REFCOUNT, :pages]
    named_by = owner >= 0
    _must(
        bool((arrays.pages[f.OWNER, :pages] == owner)[named_by].all()),
        "a page's owner is not the scope unit whose tables name it",
    )
    _must(bool((refcounts == references).all()), "a refcount is not the number of its entries")
    held = refcounts > 0
    _check_stocks(arrays, held)
    np.add.at(held_in, owner[held], 1)
    _must(
        bool((held_in == arrays.scopes[:, f.HELD_IN]).all()), "wrong count of pages by scope unit"
    )
    slots = count_slots(arrays)
    in_held = status.reshape(pages, page_tokens)[held]
    _must(slots.live == int((in_held == 2).sum()), "the census of live slots is wrong")
    _must(slots.dead == int((in_held == 1).sum()), "the census of dead slots is wrong")
    _must(
        slots.live + slots.dead + slots.tail == int(held.sum()) * page_tokens,
        "live, dead and tail slots do not make up the held pages",
    )
    _check_queue(arrays)
