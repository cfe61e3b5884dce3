"""FIFO over the blocks of the prefix tree: the oldest insertion goes, leaf or not."""

from __future__ import annotations

import numpy as np

from kvsim.jit import kernel
from kvsim.workload.replay.flat import grown
from kvsim.workload.replay.trie import CACHED, FILLED, OWN, REQUESTS, Trie, count


@kernel
def run(nodes, starts, sizes, present, ring, scalars, measured_from):
    """Replay requests. `scalars[OWN]` is the place of the oldest in the ring."""
    pages = ring.size
    for r in range(starts.size - 1):
        begin, end = starts[r], starts[r + 1]
        hit = begin
        while hit < end and present[nodes[hit]]:
            hit += 1
        early = scalars[REQUESTS] + r < measured_from
        if not early:
            count(sizes, begin, end, hit - begin, scalars)
        for i in range(begin, end):
            node = nodes[i]
            if present[node]:
                continue
            if scalars[CACHED] == pages:
                present[ring[scalars[OWN]]] = 0
            else:
                scalars[CACHED] += 1
                if scalars[CACHED] == pages and early:
                    scalars[FILLED] = 1
            ring[scalars[OWN]] = node
            present[node] = 1
            scalars[OWN] += 1
            if scalars[OWN] == pages:
                scalars[OWN] = 0


class TrieFifo(Trie):
    """FIFO over prefixes."""

    def __init__(self, pages: int, measured_from: int = 0) -> None:
        super().__init__(pages, measured_from)
        self._present = np.zeros(0, dtype=np.uint8)
        self._ring = np.zeros(pages, dtype=np.int32)

    def _replay(self, nodes: np.ndarray, starts: np.ndarray, sizes: np.ndarray, count: int) -> None:
        self._present = grown(self._present, count, 0)
        run(nodes, starts, sizes, self._present, self._ring, self._scalars, self.measured_from)
