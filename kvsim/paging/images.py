"""Images of a sequence's tables: what a swap file keeps of the ledger, and how it comes back.

An image holds everything that a table says but for the pages' numbers, which are new after a
restore: holes, null entries, holders and positions survive. Knows nothing about rows or files.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kvsim.errors import SwapError
from kvsim.jit import kernel
from kvsim.paging import fields as f
from kvsim.paging.lifecycle import open_sequence
from kvsim.paging.moves import refuse_or_grow
from kvsim.paging.pool import allocate, take_ahead
from kvsim.paging.segments import missing, reserve


@dataclass(frozen=True)
class TableImage:
    """All tables of one sequence, one behind the other.

    Attributes
    ----------
    cursors, reserved : int64 [scope unit]
        Appended slots, and pages taken ahead.
    following : int64 [scope unit, position rows]
        The positions that the next token gets.
    named : uint8 [entries]
        1 where an entry names a page.
    dead : uint8 [slots]
    holders : uint8 [set, slots]
    position : int32 [position rows, slots]
    """

    cursors: np.ndarray
    reserved: np.ndarray
    following: np.ndarray
    named: np.ndarray
    dead: np.ndarray
    holders: np.ndarray
    position: np.ndarray

    def check(self, page_tokens: int) -> None:
        """Raise SwapError if no ledger could have these tables."""
        entries = -(-self.cursors // page_tokens)
        slots = int(self.cursors.sum())
        if self.named.size != int(entries.sum()) or self.dead.size != slots:
            raise SwapError("the tables' sizes contradict each other")
        if self.named.size and max(self.named.max(), self.dead.max(initial=0)) > 1:
            raise SwapError("a flag is neither 0 nor 1")
        if self.holders.size:
            if self.holders.max() > 1:
                raise SwapError("a flag is neither 0 nor 1")
            if not np.array_equal(self.holders.any(axis=0), self.dead == 0):
                raise SwapError("dead flags contradict the holders")
        at = entry = 0
        for scope, cursor in enumerate(self.cursors.tolist()):
            live = self.dead[at : at + cursor] == 0
            padded = np.zeros(int(entries[scope]) * page_tokens, np.bool_)
            padded[:cursor] = live
            named = self.named[entry : entry + int(entries[scope])] == 1
            if not np.array_equal(padded.reshape(-1, page_tokens).any(axis=1), named):
                raise SwapError("a page is named without a live slot, or lost one with")
            if cursor and not live[-1]:
                raise SwapError("a table ends in a dead slot")
            self._check_positions(scope, slice(at, at + cursor), live)
            at += cursor
            entry += int(entries[scope])

    def _check_positions(self, scope: int, where: slice, live: np.ndarray) -> None:
        for row in range(self.position.shape[0]):
            kept = live
            if self.position.shape[0] > 1:
                kept = self.holders[row, where] == 1
            found = np.sort(self.position[row, where][kept])
            if found.size and (
                found[0] < 0
                or found[-1] >= self.following[scope, row]
                or (found[1:] == found[:-1]).any()
            ):
                raise SwapError("positions are not distinct numbers below the next one")


@kernel
def restore(arrays, cursors, reserved, following, named, dead_in, holders_in, position_in, placed):
    """Open a sequence with these tables in fresh pages; its number is left in MEMBER.

    `placed`, int64 [slots], receives each slot's physical slot, or -1 where its entry is null.
    """
    scalars, tables, pages, entries, dead, holders, position, scopes, plan = arrays
    units = scalars[f.UNITS]
    page_tokens = scalars[f.PAGE_TOKENS]
    need = np.int64(0)
    segments = np.int64(0)
    for scope in range(units):
        need += reserved[scope]
        segments += missing(0, (cursors[scope] + page_tokens - 1) // page_tokens)
    for entry in range(named.shape[0]):
        need += named[entry]
    answer = refuse_or_grow(scalars, entries, plan, need, segments, 0)
    if answer != f.OK:
        return answer
    answer = open_sequence(arrays)
    if answer != f.OK:
        return answer
    sequence = scalars[f.MEMBER]
    at = np.int64(0)
    first = np.int64(0)
    for scope in range(units):
        table = sequence * units + scope
        cursor = cursors[scope]
        used = (cursor + page_tokens - 1) // page_tokens
        reserve(scalars, tables, entries, dead, holders, position, table, used)
        start = tables[table, f.START]
        for entry in range(used):
            entries[f.DEAD_IN, start + entry] = 0
            entries[f.PAGE, start + entry] = -1
            if named[first + entry]:
                entries[f.PAGE, start + entry] = allocate(scalars, pages, scopes, scope)
                tables[table, f.NAMED] += 1
        for slot in range(cursor):
            place = start * page_tokens + slot
            entry = start + slot // page_tokens
            dead[place] = dead_in[at + slot]
            entries[f.DEAD_IN, entry] += dead_in[at + slot]
            tables[table, f.DEAD] += dead_in[at + slot]
            for row in range(holders.shape[0]):
                holders[row, place] = holders_in[row, at + slot]
            for row in range(position.shape[0]):
                position[row, place] = position_in[row, at + slot]
            page = np.int64(entries[f.PAGE, entry])
            placed[at + slot] = page * page_tokens + slot % page_tokens if page >= 0 else -1
        tables[table, f.CURSOR] = cursor
        tables[table, f.ENTRIES] = used
        for row in range(position.shape[0]):
            tables[table, f.NEXT_POSITION + row] = following[scope, row]
        take_ahead(scalars, tables, pages, scopes, table, reserved[scope])
        at += cursor
        first += used
    return f.OK
