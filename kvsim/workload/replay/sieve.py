"""SIEVE (Zhang et al., NSDI 2024): a queue that is never reordered, and a hand that moves over it.

A hit marks its block. The hand goes from the oldest to the newest, takes marks away, and evicts
the first block without one; it stays where it was, and begins again at the oldest.
"""

from __future__ import annotations

import numpy as np

from kvsim.jit import kernel
from kvsim.workload.replay.flat import Flat, grown
from kvsim.workload.replay.lists import insert_before, unlink


@kernel
def run(ids, slot_of, block_of, marked, links, scalars):
    """Replay ids. Slots are 1 to pages, from the oldest to the newest behind sentinel 0.

    Scalars: hits, cached, the hand's slot (0: at the oldest).
    """
    hits, cached, hand = scalars[0], scalars[1], scalars[2]
    pages = block_of.size - 1
    for i in range(ids.size):
        one = ids[i]
        slot = np.int64(slot_of[one])
        if slot:
            hits += 1
            marked[slot] = 1
            continue
        if cached == pages:
            if hand == 0:
                hand = np.int64(links[0, 1])
            while marked[hand]:
                marked[hand] = 0
                hand = np.int64(links[hand, 1])
                if hand == 0:
                    hand = np.int64(links[0, 1])
            slot = hand
            hand = np.int64(links[slot, 1])
            unlink(links, slot)
            slot_of[block_of[slot]] = 0
        else:
            cached += 1
            slot = cached
        slot_of[one] = slot
        block_of[slot] = one
        marked[slot] = 0
        insert_before(links, slot, 0)
    scalars[0], scalars[1], scalars[2] = hits, cached, hand


class Sieve(Flat):
    """SIEVE over blocks of one size."""

    def __init__(self, pages: int) -> None:
        super().__init__(pages)
        self._slot_of = np.zeros(0, dtype=np.int32)
        self._block_of = np.zeros(pages + 1, dtype=np.int32)
        self._marked = np.zeros(pages + 1, dtype=np.uint8)
        self._links = np.zeros((pages + 1, 2), dtype=np.int32)

    def _replay(self, ids: np.ndarray, size: int) -> None:
        self._slot_of = grown(self._slot_of, size, 0)
        run(ids, self._slot_of, self._block_of, self._marked, self._links, self._scalars)
