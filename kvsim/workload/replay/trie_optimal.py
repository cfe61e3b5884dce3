"""Belady's rule over the leaves of the prefix tree, which may also refuse to insert.

Of the cached leaves the one whose prefix is requested farthest ahead goes (of equals, the one
that came up later in the trace), unless the new block's prefix is requested no earlier: then
this and the rest of the request are not cached. Leaves of the request's own hits are safe.
kvcache-simulator calls it optimal; for trees it is a strong rule, not a proved bound.
"""

from __future__ import annotations

import numpy as np

from kvsim.errors import WorkloadError
from kvsim.jit import kernel
from kvsim.workload.replay.heaps import above, push, remove, sift_up
from kvsim.workload.replay.trie import CACHED, FILLED, NEVER, OWN, Trie, count


@kernel
def next_requests(nodes, starts, upcoming, following):
    """Write for each block the next request that has its prefix; NEVER if there is none."""
    for r in range(starts.size - 2, -1, -1):
        for i in range(starts[r], starts[r + 1]):
            following[i] = upcoming[nodes[i]]
            upcoming[nodes[i]] = r


@kernel
def drop_leaf(heap, place_of, keys, parents, children, present, safe, key, scalars):
    """Evict the leaf that is needed last, if that is after `key`; say whether one went."""
    size = scalars[OWN]
    place = np.int64(0)
    if size and safe[heap[0]]:
        # At most one leaf lies on the request's own path, so the next best is a child of it.
        place = np.int64(1)
        if size > 2 and above(keys, heap[2], heap[1]):
            place = np.int64(2)
    if place >= size or keys[heap[place]] <= key:
        return False
    victim = np.int64(heap[place])
    scalars[OWN] = remove(heap, place_of, keys, place, size)
    present[victim] = 0
    scalars[CACHED] -= 1
    parent = parents[victim]
    if parent >= 0:
        children[parent] -= 1
        if children[parent] == 0:
            scalars[OWN] = push(heap, place_of, keys, parent, scalars[OWN])
    return True


@kernel
def run(
    nodes, starts, sizes, following, parents, children, present, safe, heap, place_of, keys,
    scalars, pages, measured_from,
):  # fmt: skip
    """Replay requests. `scalars[OWN]` is the size of the heap, which holds the leaves."""
    for r in range(starts.size - 1):
        begin, end = starts[r], starts[r + 1]
        hit = begin
        while hit < end and present[nodes[hit]]:
            node = nodes[hit]
            keys[node] = following[hit]
            safe[node] = 1
            if place_of[node] >= 0:
                # Its next use was this one, so the new one is later.
                sift_up(heap, place_of, keys, np.int64(place_of[node]))
            hit += 1
        early = r < measured_from
        if not early:
            count(sizes, begin, end, hit - begin, scalars)
        for i in range(hit, end):
            node = nodes[i]
            parent = parents[node]
            if scalars[CACHED] >= pages and not drop_leaf(
                heap, place_of, keys, parents, children, present, safe, following[i], scalars
            ):
                break
            if parent >= 0:
                if not present[parent]:
                    break
                children[parent] += 1
                if place_of[parent] >= 0:
                    scalars[OWN] = remove(
                        heap, place_of, keys, np.int64(place_of[parent]), scalars[OWN]
                    )
            present[node] = 1
            keys[node] = following[i]
            scalars[OWN] = push(heap, place_of, keys, node, scalars[OWN])
            scalars[CACHED] += 1
            if scalars[CACHED] == pages and early:
                scalars[FILLED] = 1
        for i in range(begin, hit):
            safe[nodes[i]] = 0


class TrieOptimal(Trie):
    """Belady's rule over prefixes: it must know the whole trace."""

    def __init__(self, pages: int, measured_from: int = 0) -> None:
        super().__init__(pages, measured_from)
        self._pieces: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []

    def _replay(self, nodes: np.ndarray, starts: np.ndarray, sizes: np.ndarray, count: int) -> None:
        self._pieces.append((nodes, np.diff(starts), sizes.astype(np.int32)))

    def finish(self) -> None:
        """Replay the trace, now that its end is known."""
        if not self._pieces:
            return
        nodes, blocks, sizes = (np.concatenate(part) for part in zip(*self._pieces, strict=True))
        self._pieces = []
        starts = np.zeros(blocks.size + 1, dtype=np.int64)
        np.cumsum(blocks, out=starts[1:])
        if blocks.size >= NEVER:
            raise WorkloadError(f"more than {NEVER} requests")
        prefixes = self._chains.count
        keys = np.full(prefixes, NEVER, dtype=np.int32)
        following = np.empty(nodes.size, dtype=np.int32)
        next_requests(nodes, starts, keys, following)
        run(
            nodes,
            starts,
            sizes,
            following,
            self._chains.parents(),
            np.zeros(prefixes, dtype=np.int32),
            np.zeros(prefixes, dtype=np.uint8),
            np.zeros(prefixes, dtype=np.uint8),
            np.zeros(prefixes, dtype=np.int32),
            np.full(prefixes, -1, dtype=np.int32),
            keys,
            self._scalars,
            self.pages,
            self.measured_from,
        )
