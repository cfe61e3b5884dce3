"""Least recently used: a hit becomes the newest; the oldest use is evicted.

State is by cached slot and not by id, so that what is touched stays as small as the cache.
"""

from __future__ import annotations

import numpy as np

from kvsim.jit import kernel
from kvsim.workload.replay.flat import Flat, grown
from kvsim.workload.replay.lists import insert_before, unlink


@kernel
def run(ids, slot_of, block_of, links, scalars):
    """Replay ids. Slots are 1 to pages, 0 the list's sentinel and "not cached".

    Scalars: hits, cached.
    """
    hits, cached = scalars[0], scalars[1]
    pages = block_of.size - 1
    for i in range(ids.size):
        one = ids[i]
        slot = np.int64(slot_of[one])
        if slot:
            hits += 1
            if links[slot, 1] == 0:
                continue
            unlink(links, slot)
        elif cached == pages:
            slot = np.int64(links[0, 1])
            unlink(links, slot)
            slot_of[block_of[slot]] = 0
            slot_of[one] = slot
            block_of[slot] = one
        else:
            cached += 1
            slot = cached
            slot_of[one] = slot
            block_of[slot] = one
        insert_before(links, slot, 0)
    scalars[0], scalars[1] = hits, cached


class Lru(Flat):
    """LRU over blocks of one size."""

    def __init__(self, pages: int) -> None:
        super().__init__(pages)
        self._slot_of = np.zeros(0, dtype=np.int32)
        self._block_of = np.zeros(pages + 1, dtype=np.int32)
        self._links = np.zeros((pages + 1, 2), dtype=np.int32)

    def _replay(self, ids: np.ndarray, size: int) -> None:
        self._slot_of = grown(self._slot_of, size, 0)
        run(ids, self._slot_of, self._block_of, self._links, self._scalars)
