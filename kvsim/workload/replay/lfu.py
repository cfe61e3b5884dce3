"""Least frequently used: uses since insertion are counted, and forgotten with the block.

A tie goes to the block that was least recently moved: inserted, or counted up. One list for each
count keeps that order, so a victim is found at once.
"""

from __future__ import annotations

import numpy as np

from kvsim.jit import kernel
from kvsim.workload.replay.flat import Flat, grown
from kvsim.workload.replay.lists import insert_before, unlink


@kernel
def run(ids, slot_of, block_of, uses, links, scalars):
    """Replay ids. Slots are 1 to pages; the list of count c has the sentinel pages + c.

    Scalars: hits, cached, lowest count of a cached block.
    """
    hits, cached, lowest = scalars[0], scalars[1], scalars[2]
    pages = block_of.size - 1
    for i in range(ids.size):
        one = ids[i]
        slot = np.int64(slot_of[one])
        if slot:
            hits += 1
            count = np.int64(uses[slot])
            unlink(links, slot)
            if count == lowest and links[pages + count, 1] == pages + count:
                lowest += 1
            uses[slot] = count + 1
            insert_before(links, slot, pages + count + 1)
            continue
        if cached == pages:
            slot = np.int64(links[pages + lowest, 1])
            unlink(links, slot)
            slot_of[block_of[slot]] = 0
        else:
            cached += 1
            slot = cached
        slot_of[one] = slot
        block_of[slot] = one
        uses[slot] = 1
        lowest = np.int64(1)
        insert_before(links, slot, pages + 1)
    scalars[0], scalars[1], scalars[2] = hits, cached, lowest


class Lfu(Flat):
    """LFU over blocks of one size."""

    def __init__(self, pages: int) -> None:
        super().__init__(pages)
        self._slot_of = np.zeros(0, dtype=np.int32)
        self._block_of = np.zeros(pages + 1, dtype=np.int32)
        self._uses = np.zeros(pages + 1, dtype=np.int64)
        self._links = np.zeros((pages + 1, 2), dtype=np.int64)

    def _replay(self, ids: np.ndarray, size: int) -> None:
        self._slot_of = grown(self._slot_of, size, 0)
        # A count grows by one with an access at most; new lists are empty.
        begun = self._links.shape[0]
        most = int(self._uses.max(initial=0)) + ids.size + 1
        self._links = grown(self._links, self.pages + most + 1, 0)
        fresh = np.arange(begun, self._links.shape[0])
        self._links[fresh] = fresh[:, None]
        run(ids, self._slot_of, self._block_of, self._uses, self._links, self._scalars)
