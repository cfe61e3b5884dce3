"""Belady's MIN: evict the block whose next use lies farthest ahead. It must know the whole stream.

A miss is always inserted. Cached blocks stand in a heap by next use, the farthest on top; blocks
that never come again tie, and which of them goes first changes no count.
"""

from __future__ import annotations

import numpy as np

from kvsim.jit import kernel
from kvsim.workload.replay.flat import Flat
from kvsim.workload.replay.heaps import push, sift_down, sift_up


@kernel
def next_uses(ids, upcoming, following):
    """Write for each access where its block comes next; `ids.size` if never."""
    for i in range(ids.size - 1, -1, -1):
        following[i] = upcoming[ids[i]]
        upcoming[ids[i]] = i


@kernel
def run(ids, following, heap, place_of, keys, counted_from):
    """Replay ids and return the hits from an access on."""
    hits = np.int64(0)
    cached = np.int64(0)
    for i in range(ids.size):
        one = ids[i]
        keys[one] = following[i]
        place = np.int64(place_of[one])
        if place >= 0:
            # The next use of a block that is used now can only move away.
            hits += i >= counted_from
            sift_up(heap, place_of, keys, place)
        elif cached < heap.size:
            cached = push(heap, place_of, keys, one, cached)
        else:
            place_of[heap[0]] = -1
            heap[0] = one
            place_of[one] = 0
            sift_down(heap, place_of, keys, np.int64(0), cached)
    return hits


class Belady(Flat):
    """Belady's MIN over blocks of one size."""

    def __init__(self, pages: int) -> None:
        super().__init__(pages)
        self._pieces: list[np.ndarray] = []
        self._size = 0

    def _replay(self, ids: np.ndarray, size: int) -> None:
        self._pieces.append(ids.astype(np.int32))
        self._size = size

    def finish(self) -> None:
        """Replay the stream, now that its end is known."""
        ids = np.concatenate([*self._pieces, np.zeros(0, dtype=np.int32)])
        self._pieces = []
        upcoming = np.full(self._size, ids.size, dtype=np.int64)
        following = np.empty(ids.size, dtype=np.int64)
        next_uses(ids, upcoming, following)
        heap = np.zeros(min(self.pages, max(self._size, 1)), dtype=np.int32)
        place_of = np.full(self._size, -1, dtype=np.int32)
        self._scalars[0] = run(ids, following, heap, place_of, upcoming, self._uncounted)
