"""What replays of single blocks share: small numbers for ids, growing arrays, and the counts.

A flat policy sees one stream of block ids of one size; prefixes mean nothing to it. Every miss is
inserted, so a victim is chosen exactly when the cache is full. Feeding the stream in pieces
gives what feeding it whole gives.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np

from kvsim.errors import WorkloadError
from kvsim.workload.traces.numbering import Numbering

MOST_PAGES = 1 << 30


def grown(array: np.ndarray, size: int, fill: int) -> np.ndarray:
    """Return the array with at least `size` rows, the new ones filled; doubled, not inched."""
    if size <= array.shape[0]:
        return array
    rows = max(size, 2 * array.shape[0])
    larger = np.full((rows, *array.shape[1:]), fill, dtype=array.dtype)
    larger[: array.shape[0]] = array
    return larger


class Flat(ABC):
    """A flat policy's state.

    Parameters
    ----------
    pages : int
        Blocks that the cache holds.

    Attributes
    ----------
    hits, accesses : int
        Since the beginning, or since `count_from_here`.

    Raises
    ------
    WorkloadError
        If the cache would hold nothing, or more than 2^30 blocks.
    """

    def __init__(self, pages: int) -> None:
        if not 1 <= pages <= MOST_PAGES:
            raise WorkloadError(f"a cache holds from 1 to {MOST_PAGES} pages, not {pages}")
        self.pages = pages
        self._accesses = self._uncounted = self._uncounted_hits = 0
        self._number = Numbering()
        # The first is hits; the others are the policy's own.
        self._scalars = np.zeros(8, dtype=np.int64)

    @property
    def hits(self) -> int:
        """Counted accesses that found their block cached."""
        return int(self._scalars[0]) - self._uncounted_hits

    @property
    def accesses(self) -> int:
        """Counted accesses."""
        return self._accesses - self._uncounted

    def count_from_here(self) -> None:
        """Leave out of the counts what was fed so far; it warmed the cache."""
        self._uncounted = self._accesses
        self._uncounted_hits = int(self._scalars[0])

    def feed(self, ids: np.ndarray) -> None:
        """Replay block ids, int64 [n], behind those fed before."""
        self._accesses += ids.size
        numbers = self._number(ids)
        if self._number.size > MOST_PAGES:
            raise WorkloadError(f"more than {MOST_PAGES} distinct blocks")
        self._replay(numbers, self._number.size)

    def finish(self) -> None:  # noqa: B027 (most policies have nothing to end)
        """Say that the stream has ended, for a policy that must know it whole."""

    @abstractmethod
    def _replay(self, ids: np.ndarray, size: int) -> None:
        """Replay numbered blocks, of which there are so many, and count."""
