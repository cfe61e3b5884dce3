"""A trace replayed through one policy: how many blocks would have hit, without any engine.

The file is read as a stream and replayed in pieces. Belady and trie_optimal, which must know
what comes, keep 12 bytes for each block reference (trie_optimal with its token weights); the
others keep a few for each distinct id.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from kvsim.errors import WorkloadError
from kvsim.workload.replay.belady import Belady
from kvsim.workload.replay.fifo import Fifo
from kvsim.workload.replay.flat import Flat
from kvsim.workload.replay.lfu import Lfu
from kvsim.workload.replay.lru import Lru
from kvsim.workload.replay.s3fifo import S3Fifo
from kvsim.workload.replay.sieve import Sieve
from kvsim.workload.replay.trie import Trie
from kvsim.workload.replay.trie_fifo import TrieFifo
from kvsim.workload.replay.trie_lru import TrieLru
from kvsim.workload.replay.trie_optimal import TrieOptimal
from kvsim.workload.traces.reading import Tally, Trace
from kvsim.workload.traces.reblock import Reblocker, weights

FLAT: dict[str, type[Flat]] = {
    "fifo": Fifo,
    "lru": Lru,
    "lfu": Lfu,
    "sieve": Sieve,
    "s3fifo": S3Fifo,
    "belady": Belady,
}
TRIE: dict[str, type[Trie]] = {
    "trie_fifo": TrieFifo,
    "trie_lru": TrieLru,
    "trie_optimal": TrieOptimal,
}
POLICIES = (*FLAT, *TRIE)
# Block references replayed at once: enough that Python's share of the work is nothing.
PIECE = 1 << 20

Piece = tuple[list[np.ndarray], np.ndarray]


def named(policy: str) -> str:
    """Return a policy's name as written here: `S3-FIFO` is `s3fifo`, `trie-lru` is `trie_lru`.

    Raises
    ------
    WorkloadError
        If there is no such policy.
    """
    plain = policy.lower().replace("-", "_")
    for name in (plain, plain.replace("_", "")):
        if name in POLICIES:
            return name
    raise WorkloadError(f"no replay policy {policy!r}: there are {', '.join(POLICIES)}")


class _Pieces:
    """A trace's page ids, in pieces of about `PIECE` of them."""

    def __init__(
        self,
        trace: Trace,
        page_tokens: int | None,
        skip_bad: bool,
        order: str,
        weighted: bool,
    ) -> None:
        if not trace.has_ids:
            raise WorkloadError(f"{trace.path.name}: {trace.format} has no block ids to replay")
        self.reblock = Reblocker(trace.block_tokens, page_tokens)
        self.tally = Tally()
        self._trace, self._skip_bad, self._order = trace, skip_bad, order
        self._weighted = weighted

    def requests(self) -> int:
        """Read the trace once to count its requests."""
        tally = Tally()
        stream = self._trace.requests(skip_bad=self._skip_bad, order=self._order, tally=tally)
        for _ in stream:
            pass
        return tally.requests

    def __call__(self, cut: int) -> Iterator[Piece]:
        """Yield the ids of each request and all their token weights; begin one at `cut`."""
        ids: list[np.ndarray] = []
        sizes: list[np.ndarray] = []
        held, size = 0, self.reblock.page_tokens or 0
        none = np.zeros(0, dtype=np.int64)
        stream = self._trace.requests(skip_bad=self._skip_bad, order=self._order, tally=self.tally)
        for number, request in enumerate(stream):
            if held >= PIECE or (held and number == cut):
                yield ids, np.concatenate([*sizes, none])
                ids, sizes, held = [], [], 0
            pages = self.reblock(request)
            ids.append(pages)
            if self._weighted:
                sizes.append(weights(request, pages.size, size))
            held += pages.size
        yield ids, np.concatenate([*sizes, none])


def hits(
    path: str | Path,
    policy: str,
    pages: int,
    page_tokens: int | None = None,
    *,
    count_from: float = 0.0,
    skip_bad: bool = False,
    order: str = "refuse",
) -> dict[str, Any]:
    """Replay a trace, and return what a cache of so many pages would have hit.

    Parameters
    ----------
    policy : str
        One of `POLICIES`. The flat ones see single blocks; the trie ones count a block only
        where everything before it in its request is cached, and add `hit_tokens`,
        `total_tokens` and `filled_before` (whether the cache was full before counting
        began; kvcache-simulator leaves out a size where it was not).
    page_tokens : int, optional
        By default the trace's own blocks or chunks.
    count_from : float
        Count requests from floor(this share of them) on; the earlier ones warm the cache.
        kvcache-simulator counts from 0.5.
    skip_bad : bool
        Leave out what is wrong, and count it under `skipped`.
    order : {"refuse", "file", "sort"}
        See `Trace.requests`.

    Raises
    ------
    WorkloadError
        Naming the policy, or the file and line.
    """
    policy = named(policy)
    if not 0 <= count_from < 1:
        raise WorkloadError(f"counting begins at a share from 0 to below 1, not {count_from}")
    pieces = _Pieces(Trace(path), page_tokens, skip_bad, order, policy in TRIE)
    cut = math.floor(pieces.requests() * count_from) if count_from else 0
    done = 0
    found: dict[str, Any] = {}
    if policy in FLAT:
        flat = FLAT[policy](pages)
        for ids, _ in pieces(cut):
            if cut and done == cut:
                flat.count_from_here()
            flat.feed(np.concatenate([*ids, np.zeros(0, dtype=np.int64)]))
            done += len(ids)
        flat.finish()
        found |= {"hits": flat.hits, "accesses": flat.accesses}
    else:
        trie = TRIE[policy](pages, cut)
        for ids, sizes in pieces(cut):
            for one in ids:
                trie.add(one)
            trie.feed(sizes)
        trie.finish()
        found |= {"hits": trie.hits, "accesses": trie.accesses}
        found |= {"hit_tokens": trie.hit_tokens, "total_tokens": trie.total_tokens}
        # Nothing can fill a cache before the very first request.
        found["filled_before"] = trie.filled if cut else None
    return {
        "policy": policy,
        "pages": pages,
        **found,
        "page_tokens": pieces.reblock.page_tokens or None,
        "requests": pieces.tally.requests,
        "counted_from": cut,
        "skipped": pieces.tally.skipped,
        "caveat": pieces.reblock.caveat,
    }
