"""Small numbers for ids that may be any 64-bit ones; ids that are small already stay.

Ids are taken as they are while all are below a bound that grows with how many there were. After
that, those below the largest seen so far stay, and the others get the numbers behind them, from
an open-addressing table that is grown from Python.
"""

from __future__ import annotations

import numpy as np

from kvsim.jit import kernel

# A product of 32 bits and this stays inside 63 bits: the same hash with and without the JIT.
_MULTIPLIER = 0x5851F42D
_PART = 0xFFFFFFFF
_FIRST_ROWS = 1 << 12
SLACK = 1 << 20
SPREAD = 8


@kernel
def row_of(one, mask):
    """Return where the search for an id begins."""
    return ((one ^ one >> 32) & _PART) * _MULTIPLIER >> 24 & mask


@kernel
def number_all(ids, kept, table, count, numbers):
    """Write the number of each id, and return how many are in the table then.

    Parameters
    ----------
    ids : int64 [n]
    kept : int
        Ids from 0 to below this are their own numbers.
    table : int64 [power of two, 2]
        Ids and their numbers, -1 where empty; the caller keeps half of it empty.
    count : int
        Numbers in the table.
    numbers : int64 [n]
    """
    mask = np.int64(table.shape[0] - 1)
    for i in range(ids.size):
        one = ids[i]
        if 0 <= one < kept:
            numbers[i] = one
            continue
        row = row_of(one, mask)
        found = table[row, 1]
        while found >= 0 and table[row, 0] != one:
            row = row + 1 & mask
            found = table[row, 1]
        if found < 0:
            found = kept + count
            table[row, 0] = one
            table[row, 1] = found
            count += 1
        numbers[i] = found
    return count


@kernel
def refill(smaller, table):
    """Enter what one table holds into an empty, larger one."""
    mask = np.int64(table.shape[0] - 1)
    for old in range(smaller.shape[0]):
        if smaller[old, 1] >= 0:
            row = row_of(smaller[old, 0], mask)
            while table[row, 1] >= 0:
                row = row + 1 & mask
            table[row, 0] = smaller[old, 0]
            table[row, 1] = smaller[old, 1]


class Numbering:
    """Numbers of ids, the same however the ids are cut into pieces.

    Attributes
    ----------
    size : int
        All numbers given so far are below it.
    """

    def __init__(self) -> None:
        self.size = 0
        self._seen = 0
        self._kept = -1
        self._count = 0
        self._table = np.full((_FIRST_ROWS, 2), -1, dtype=np.int64)

    def __call__(self, ids: np.ndarray) -> np.ndarray:
        """Return the numbers of ids, int64 [n]; the ids themselves where they are small."""
        if not ids.size:
            return ids
        self._seen += ids.size
        if self._kept < 0:
            if ids.min() >= 0 and ids.max() < SPREAD * self._seen + SLACK:
                self.size = max(self.size, int(ids.max()) + 1)
                return ids
            self._kept = self.size
        rows = self._table.shape[0]
        while self._count + ids.size > rows // 2:
            rows *= 2
        if rows > self._table.shape[0]:
            larger = np.full((rows, 2), -1, dtype=np.int64)
            refill(self._table, larger)
            self._table = larger
        numbers = np.empty(ids.size, dtype=np.int64)
        self._count = int(number_all(ids, self._kept, self._table, self._count, numbers))
        self.size = self._kept + self._count
        return numbers
