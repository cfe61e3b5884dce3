"""What replays of prefixes share: nodes of the prefix tree, token weights, and the counts.

The definition is that of kvcache-simulator 0.1.3: a request hits the longest beginning of its
blocks that is cached when it arrives; then its missing blocks are inserted in order. Only
requests from `measured_from` on are counted, in blocks and in tokens.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from kvsim.errors import WorkloadError
from kvsim.jit import kernel
from kvsim.workload.replay.flat import MOST_PAGES
from kvsim.workload.traces.chains import Chains

HITS, HIT_TOKENS, ACCESSES, TOKENS, CACHED, FILLED, REQUESTS, OWN = range(8)
NEVER = np.iinfo(np.int32).max


@kernel
def count(sizes, begin, end, hit, scalars):
    """Count a measured request: its blocks from `begin` to `end`, of which the first hit."""
    scalars[HITS] += hit
    scalars[ACCESSES] += end - begin
    for i in range(begin, end):
        scalars[TOKENS] += sizes[i]
        if i < begin + hit:
            scalars[HIT_TOKENS] += sizes[i]


class Numbered(NamedTuple):
    """Requests whose prefixes have numbers, for replays that need them more than once.

    Attributes
    ----------
    nodes : int32 [all blocks]
        The number of the prefix that each block ends.
    starts : int64 [requests + 1]
        Where each request begins in `nodes`, and the end of the last.
    sizes : int64 [all blocks]
        Tokens of each block.
    prefixes : int
        All numbers are below it.
    """

    nodes: np.ndarray
    starts: np.ndarray
    sizes: np.ndarray
    prefixes: int


def numbered(requests: Iterable[np.ndarray], sizes: np.ndarray) -> Numbered:
    """Number the prefixes of requests.

    Parameters
    ----------
    requests : iterable of int64 [blocks]
        Block ids.
    sizes : int64 [all their blocks]
        Tokens of each block.

    Raises
    ------
    WorkloadError
        If there are more sizes than blocks or fewer, or more than 2^30 distinct prefixes.
    """
    return _numbered(Chains(), list(requests), sizes)


def _numbered(chains: Chains, requests: list[np.ndarray], sizes: np.ndarray) -> Numbered:
    starts = np.zeros(len(requests) + 1, dtype=np.int64)
    np.cumsum([ids.size for ids in requests], out=starts[1:])
    ids = np.concatenate([*requests, np.zeros(0, dtype=np.int64)])
    if ids.size != sizes.size:
        raise WorkloadError(f"{sizes.size} sizes for {ids.size} blocks")
    nodes = chains.each(ids, starts)
    if chains.count > MOST_PAGES:
        raise WorkloadError(f"more than {MOST_PAGES} distinct prefixes")
    return Numbered(nodes.astype(np.int32), starts, sizes, chains.count)


class Trie(ABC):
    """A prefix policy's state.

    Parameters
    ----------
    pages : int
        Blocks that the cache holds.
    measured_from : int
        The first request, from 0, that is counted.

    Attributes
    ----------
    filled : bool
        Whether the cache was full before the first request that is counted. Where it was not,
        kvcache-simulator reports nothing for this size.
    """

    def __init__(self, pages: int, measured_from: int = 0) -> None:
        if not 1 <= pages <= MOST_PAGES:
            raise WorkloadError(f"a cache holds from 1 to {MOST_PAGES} pages, not {pages}")
        self.pages = pages
        self.measured_from = measured_from
        self._chains = Chains()
        self._scalars = np.zeros(OWN + 1, dtype=np.int64)
        self._noted: list[np.ndarray] = []

    def add(self, ids: np.ndarray) -> None:
        """Note a request's block ids, int64 [blocks]; `feed` replays what was noted."""
        self._noted.append(ids)

    def feed(self, sizes: np.ndarray) -> None:
        """Replay the requests noted since the last call.

        Parameters
        ----------
        sizes : int64 [all their blocks]
            Tokens of each block.

        Raises
        ------
        WorkloadError
            If there are more sizes than blocks or fewer, or more than 2^30 distinct prefixes.
        """
        noted, self._noted = self._noted, []
        self._replay(*_numbered(self._chains, noted, sizes))
        self._scalars[REQUESTS] += len(noted)

    def finish(self) -> None:  # noqa: B027 (most policies have nothing to end)
        """Say that the stream has ended, for a policy that must know it whole."""

    @abstractmethod
    def _replay(self, nodes: np.ndarray, starts: np.ndarray, sizes: np.ndarray, count: int) -> None:
        """Replay numbered blocks, of which there are so many, and count."""

    @property
    def hits(self) -> int:
        """Counted blocks inside a cached beginning."""
        return int(self._scalars[HITS])

    @property
    def accesses(self) -> int:
        """Counted blocks."""
        return int(self._scalars[ACCESSES])

    @property
    def hit_tokens(self) -> int:
        """Tokens of the blocks that hit."""
        return int(self._scalars[HIT_TOKENS])

    @property
    def total_tokens(self) -> int:
        """Tokens of the counted blocks."""
        return int(self._scalars[TOKENS])

    @property
    def filled(self) -> bool:
        """Whether the cache was full before the first counted request."""
        return bool(self._scalars[FILLED])
