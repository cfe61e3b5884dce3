"""What hits lose because they are whole pages, whatever the cache: a fact about a workload.

Of each request, the tokens of its longest beginning that an earlier request had, at the block
size of the trace; less the same in whole pages. The last token of a prompt is always computed,
so it is never part of a hit. What a block's ids cannot tell (where inside a block two prompts
part) is not counted, so the loss is a lower bound.
"""

from __future__ import annotations

from array import array

import numpy as np

from kvsim.jit import kernel


def lost_tokens(seen_tokens: int, input_tokens: int, page_tokens: int) -> int:
    """Return the tokens of a beginning that was seen before and that no whole page covers."""
    return min(seen_tokens, input_tokens - 1) % page_tokens


@kernel
def leave_marks(parents, leaves, blocks, marked, seen):
    """Write of each request how many of its leading blocks an earlier one had.

    Going up from a request's last block to the first that is marked touches every node once in
    all, however many requests share it.

    Parameters
    ----------
    parents : int64 [nodes]
        Of the tree of prefixes; negative above the first block.
    leaves, blocks : int64 [requests]
        The node of each request's last block (negative: it has none), and its blocks.
    marked : bool [nodes]
        False on entry.
    seen : int64 [requests]
    """
    for request in range(leaves.size):
        node = leaves[request]
        left = blocks[request]
        while node >= 0 and not marked[node]:
            marked[node] = True
            node = parents[node]
            left -= 1
        seen[request] = left


class Rounding:
    """The loss of requests that are told in any order.

    Parameters
    ----------
    block_tokens, page_tokens : int
        Of the trace and of a hit; the second is a multiple of the first.
    """

    def __init__(self, block_tokens: int, page_tokens: int) -> None:
        self._block_tokens = block_tokens
        self._page_tokens = page_tokens
        self._leaves = array("q")
        self._blocks = array("q")

    def add(self, nodes: np.ndarray) -> None:
        """Note a request by the numbers of its blocks in the tree of prefixes, int64 [blocks]."""
        self._leaves.append(int(nodes[-1]) if nodes.size else -1)
        self._blocks.append(nodes.size)

    def lost_tokens(self, parents: np.ndarray, input_tokens: np.ndarray, order: np.ndarray) -> int:
        """Return the tokens lost by all requests.

        Parameters
        ----------
        parents : int64 [nodes]
            Of the tree of prefixes.
        input_tokens : int64 [requests]
            As they were told.
        order : int64 [requests]
            Numbers of the requests in the order of their arrival.
        """
        leaves = np.frombuffer(self._leaves, np.int64)[order]
        blocks = np.frombuffer(self._blocks, np.int64)[order]
        seen = np.zeros(order.size, np.int64)
        leave_marks(parents, leaves, blocks, np.zeros(parents.size, np.bool_), seen)
        tokens = np.minimum(seen * self._block_tokens, input_tokens[order] - 1)
        return int((tokens % self._page_tokens).sum())
