"""S3-FIFO (Yang et al., SOSP 2023): a small queue, a main queue, and a ghost queue of ids.

As libCacheSim 0.3.5 has it: the small queue holds a tenth of the cache; the ghost remembers as
many ids as nine tenths; a block used twice while it is small moves to main, any other leaves
through the ghost; a block that comes back while the ghost knows it goes to main at once; main is
a clock with two bits. Until something has been evicted, a block goes to main when small is full.
Where small would hold one block, from 10 to 19 pages, libCacheSim inserts nothing into it and
hits nothing; here it holds that one.
"""

from __future__ import annotations

import numpy as np

from kvsim.jit import kernel
from kvsim.workload.replay.flat import Flat, grown
from kvsim.workload.replay.lists import insert_before, unlink

# Which queue a block is in; also its sentinel. Block b is node b + FIRST.
NOWHERE, SMALL, MAIN, GHOST, FIRST = 0, 1, 2, 3, 4
MOVE_TO_MAIN = 2
MOST_USES = 3


@kernel
def enter(node, queue, where, links, held):
    """Put a node at the tail of a queue."""
    where[node] = queue
    held[queue] += 1
    insert_before(links, node, queue)


@kernel
def leave(node, where, links, held):
    """Take a node out of its queue."""
    held[where[node]] -= 1
    where[node] = NOWHERE
    unlink(links, node)


@kernel
def evict_main(where, uses, links, held):
    """Evict the first block of main that was not used since the hand last passed."""
    while held[MAIN] > 0:
        node = np.int64(links[MAIN, 1])
        leave(node, where, links, held)
        if uses[node] == 0:
            return
        uses[node] = np.int64(min(uses[node], MOST_USES)) - 1
        enter(node, MAIN, where, links, held)


@kernel
def evict_small(where, uses, links, held, ghost_pages):
    """Evict the first block of small that was used less than twice; move the others to main."""
    while held[SMALL] > 0:
        node = np.int64(links[SMALL, 1])
        leave(node, where, links, held)
        if uses[node] >= MOVE_TO_MAIN:
            uses[node] = 0
            enter(node, MAIN, where, links, held)
            continue
        if ghost_pages > 0:
            if held[GHOST] == ghost_pages:
                leave(np.int64(links[GHOST, 1]), where, links, held)
            enter(node, GHOST, where, links, held)
        return


@kernel
def run(ids, where, uses, links, held, sizes, scalars):
    """Replay ids. Sizes: pages, of small, of the ghost. Scalars: hits, anything evicted."""
    pages, small_pages, ghost_pages = sizes[0], sizes[1], sizes[2]
    main_pages = pages - small_pages
    hits, evicted = scalars[0], scalars[1]
    for i in range(ids.size):
        node = ids[i] + FIRST
        if where[node] == SMALL or where[node] == MAIN:
            hits += 1
            if uses[node] < MOST_USES:
                uses[node] += 1
            continue
        remembered = where[node] == GHOST
        if remembered:
            leave(node, where, links, held)
        while held[SMALL] + held[MAIN] >= pages:
            evicted = np.int64(1)
            if held[MAIN] > main_pages or held[SMALL] == 0:
                evict_main(where, uses, links, held)
            else:
                evict_small(where, uses, links, held, ghost_pages)
        uses[node] = 0
        if remembered or (evicted == 0 and held[SMALL] >= small_pages):
            enter(node, MAIN, where, links, held)
        else:
            enter(node, SMALL, where, links, held)
    scalars[0], scalars[1] = hits, evicted


class S3Fifo(Flat):
    """S3-FIFO over blocks of one size."""

    def __init__(self, pages: int) -> None:
        super().__init__(pages)
        # Products of doubles, rounded down, as there; it refuses a cache below 10 blocks.
        small_pages, ghost_pages = max(1, int(pages * 0.1)), int(pages * 0.9)
        self._sizes = np.array([pages, small_pages, ghost_pages], dtype=np.int64)
        self._where = np.zeros(FIRST, dtype=np.uint8)
        self._uses = np.zeros(FIRST, dtype=np.uint8)
        self._links = np.repeat(np.arange(FIRST, dtype=np.int32)[:, None], 2, axis=1)
        self._held = np.zeros(FIRST, dtype=np.int64)

    def _replay(self, ids: np.ndarray, size: int) -> None:
        self._where = grown(self._where, size + FIRST, NOWHERE)
        self._uses = grown(self._uses, size + FIRST, 0)
        self._links = grown(self._links, size + FIRST, 0)
        run(ids, self._where, self._uses, self._links, self._held, self._sizes, self._scalars)
