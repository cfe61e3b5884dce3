"""Leaf LRU over the prefix tree: of the leaves, the one whose last request is oldest goes.

One list keeps the cached nodes by their last request, and within a request from its end to its
beginning. Whoever touches a node touches its ancestors too, so behind a node stand its
ancestors, and the head is always a leaf: the least recently used one, since two leaves never
have the same last request. So no heap and no counting of children is needed.
"""

from __future__ import annotations

import numpy as np

from kvsim.jit import kernel
from kvsim.workload.replay.flat import grown
from kvsim.workload.replay.lists import insert_before, unlink
from kvsim.workload.replay.trie import CACHED, FILLED, REQUESTS, Numbered, Trie, count


@kernel
def run(nodes, starts, sizes, present, links, scalars, pages, measured_from):
    """Replay requests. Node n is entry n + 1 of the list; 0 is the sentinel."""
    for r in range(starts.size - 1):
        begin, end = starts[r], starts[r + 1]
        hit = begin
        while hit < end and present[nodes[hit]]:
            hit += 1
        early = scalars[REQUESTS] + r < measured_from
        if not early:
            count(sizes, begin, end, hit - begin, scalars)
        for i in range(hit - 1, begin - 1, -1):
            entry = np.int64(nodes[i]) + 1
            unlink(links, entry)
            insert_before(links, entry, 0)
        # The deepest cached node of this path; what is inserted stands before it.
        deepest = np.int64(nodes[hit - 1]) + 1 if hit > begin else np.int64(0)
        for i in range(hit, end):
            if scalars[CACHED] == pages:
                victim = np.int64(links[0, 1])
                own = victim == deepest
                if own and i == hit:
                    # Nothing is cached but the blocks that this request hit.
                    break
                unlink(links, victim)
                present[victim - 1] = 0
                scalars[CACHED] -= 1
                if own:
                    # The path alone fills the cache: the block inserted last went, and what
                    # would follow it has lost its parent.
                    break
            entry = np.int64(nodes[i]) + 1
            insert_before(links, entry, deepest)
            present[entry - 1] = 1
            deepest = entry
            scalars[CACHED] += 1
            if scalars[CACHED] == pages and early:
                scalars[FILLED] = 1


class TrieLru(Trie):
    """Leaf LRU over prefixes."""

    def __init__(self, pages: int, measured_from: int = 0) -> None:
        super().__init__(pages, measured_from)
        self._present = np.zeros(0, dtype=np.uint8)
        self._links = np.zeros((1, 2), dtype=np.int32)

    def replay(self, trace: Numbered) -> None:
        """Replay requests numbered beforehand, which caches of several sizes may share.

        Use it instead of `add` and `feed`, not beside them: those number prefixes themselves.
        """
        self._replay(*trace)
        self._scalars[REQUESTS] += trace.starts.size - 1

    def _replay(self, nodes: np.ndarray, starts: np.ndarray, sizes: np.ndarray, count: int) -> None:
        self._present = grown(self._present, count, 0)
        self._links = grown(self._links, count + 1, 0)
        run(
            nodes,
            starts,
            sizes,
            self._present,
            self._links,
            self._scalars,
            self.pages,
            self.measured_from,
        )
