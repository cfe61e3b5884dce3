"""First in, first out: a hit changes nothing; the oldest insertion is evicted."""

from __future__ import annotations

import numpy as np

from kvsim.jit import kernel
from kvsim.workload.replay.flat import Flat, grown


@kernel
def run(ids, present, ring, scalars):
    """Replay ids. Scalars: hits, cached, place of the oldest in the ring."""
    hits, cached, oldest = scalars[0], scalars[1], scalars[2]
    pages = ring.size
    for i in range(ids.size):
        one = ids[i]
        if present[one]:
            hits += 1
            continue
        if cached == pages:
            present[ring[oldest]] = 0
        else:
            cached += 1
        # The ring fills from place 0, so a full ring's oldest is where the newest goes.
        ring[oldest] = one
        present[one] = 1
        oldest += 1
        if oldest == pages:
            oldest = 0
    scalars[0], scalars[1], scalars[2] = hits, cached, oldest


class Fifo(Flat):
    """FIFO over blocks of one size."""

    def __init__(self, pages: int) -> None:
        super().__init__(pages)
        self._present = np.zeros(0, dtype=np.uint8)
        self._ring = np.zeros(pages, dtype=np.int32)

    def _replay(self, ids: np.ndarray, size: int) -> None:
        self._present = grown(self._present, size, 0)
        run(ids, self._present, self._ring, self._scalars)
