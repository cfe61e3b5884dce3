"""`kvsim bench evict`: evicting a middle span from the real float32 paged cache, against memory.

What is evicted is appended again, untimed, so that every repetition finds as many tokens. Tables
are shuffled: the pool's free pages lie in a random order when the sequence takes them.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from kvsim.bench.contiguous_numpy import ContiguousNumpy
from kvsim.bench.ratios import Pair, seconds
from kvsim.errors import KvsimError
from kvsim.layout.families import dense
from kvsim.seeds import stream
from kvsim.tensors.paged_cache import PagedCache
from kvsim.tensors.rope import Rope, tables
from kvsim.tensors.shape import CacheShape

HEADS = 8
HEAD_DIM = 64
REPETITIONS = 7
PART = 4096


class Bench:
    """A paged cache with one sequence of `tokens` tokens whose pages lie in random order.

    Parameters
    ----------
    tokens, layers, page_tokens : int
    aligned : bool
        Whether the span begins and ends at page boundaries.
    shared : bool
        Whether each eviction is a fork's, which shares every page.
    """

    def __init__(
        self,
        tokens: int,
        layers: int,
        page_tokens: int,
        *,
        aligned: bool = False,
        shared: bool = False,
    ) -> None:
        self.rng = stream(7, "test")
        self.tokens = tokens
        self.shared = shared
        self.traffic_bytes = 0
        self.first = tokens // 8 + (0 if aligned else 5)
        self.count = self.first
        pages = -(-tokens // page_tokens) * (2 if shared else 1) + 2
        self.shape = CacheShape(
            dense([HEADS] * layers, HEAD_DIM, HEAD_DIM),
            (Rope(HEAD_DIM, 10000.0),),
            "kv_raw",
            tokens,
        )
        self.cache = PagedCache(
            self.shape, page_tokens, compaction="forward", positions="renumber", pages=pages
        )
        # Touch every page first: the operating system hands out memory at its first use.
        for planes in self.cache.store.planes:
            for plane in planes.values():
                plane.fill(0)
        self._shuffle(pages)
        width = self.shape.elements(0, "K")
        self._drawn = {
            name: self.rng.standard_normal((PART, width), dtype=np.float32) for name in ("k", "v")
        }
        self.sequence = self.cache.open()
        self.append(tokens)

    def _shuffle(self, pages: int) -> None:
        """Let the pool's free pages wait in a random order."""
        ledger = self.cache.ledger
        taken = [ledger.open() for _ in range(pages)]
        for sequence in taken:
            ledger.append(sequence, 1)
        for sequence in self.rng.permutation(taken).tolist():
            ledger.free(sequence)

    def rows(self, tokens: int) -> dict[str, np.ndarray]:
        """Return rows of new tokens. They repeat after PART tokens: a kernel reads no values."""
        return {name: rows[:tokens] for name, rows in self._drawn.items()}

    def append(self, tokens: int) -> None:
        """Append tokens, part by part."""
        for begin in range(0, tokens, PART):
            self.cache.append(self.sequence, [self.rows(min(PART, tokens - begin))])

    def evict(self) -> float:
        """Evict the span once, and return the seconds that it took."""
        if self.shared:
            child = self.cache.fork(self.sequence)
            taken = seconds(lambda: self._evict(child))
            self.cache.free(child)
            return taken
        taken = seconds(lambda: self._evict(self.sequence))
        self.append(self.count)
        return taken

    def _evict(self, sequence: int) -> None:
        receipt = self.cache.evict_span(sequence, self.first, self.count)
        if receipt.evicted_tokens != self.count:
            raise KvsimError("the benchmark evicted another number of tokens than it times")
        # A rotated row is one read of k_raw and one write of K; a row that moves as well adds a
        # write of k_raw, and a read and a write of V.
        rows = 2 * receipt.survivors_rotated_rows + 3 * receipt.copied_rows
        self.traffic_bytes = rows * 4 * HEAD_DIM


def _copy(traffic_bytes: int) -> Any:
    """Return a call of numpy.copyto that reads and writes this many bytes in all."""
    source = np.ones(traffic_bytes // 2, np.uint8)
    target = np.zeros_like(source)
    return lambda: np.copyto(target, source)


def _against_copy(
    name: str, limit: float, tokens: int, layers: int, page_tokens: int, *, shared: bool = False
) -> dict[str, Any]:
    bench = Bench(tokens, layers, page_tokens, shared=shared)
    bench.evict()
    copy = _copy(bench.traffic_bytes)
    copy()
    pairs = [(bench.evict(), seconds(copy)) for _ in range(REPETITIONS)]
    ours, theirs = (statistics.median(side) for side in zip(*pairs, strict=True))
    rate = bench.traffic_bytes / 1e9
    return Pair(tuple(a for a, _ in pairs), tuple(b for _, b in pairs)).entry(
        f"evict + renumber, forward{name}: {tokens:,} tokens, {layers} layers, pages of "
        f"{page_tokens}",
        "numpy.copyto of the same traffic",
        at_most=limit,
        detail=f"{ours * 1e3:.1f} ms ({rate / ours:.1f} GB/s), copy {theirs * 1e3:.1f} ms "
        f"({rate / theirs:.1f} GB/s)",
    )


def _against_numpy(tokens: int, layers: int) -> dict[str, Any]:
    bench = Bench(tokens, layers, 16)
    given = bench.cache.rows(bench.sequence)
    turned = tables(bench.shape.ropes[0], tokens)
    contiguous = ContiguousNumpy(given["k_raw"], given["V"], layers * HEADS, turned.cos, turned.sin)

    def again() -> None:
        for begin in range(0, bench.count, PART):
            added = bench.rows(min(PART, bench.count - begin))
            contiguous.append(added["k"], added["v"], tokens - bench.count + begin)

    def theirs() -> float:
        taken = seconds(lambda: contiguous.evict(bench.first, bench.count, tokens))
        again()
        return taken

    # Both must do the same: the first eviction is compared, as integers.
    bench.cache.evict_span(bench.sequence, bench.first, bench.count)
    left = contiguous.evict(bench.first, bench.count, tokens)
    found = bench.cache.rows(bench.sequence)
    theirs_now = {
        "K": contiguous.rows(contiguous.key, left),
        "k_raw": contiguous.rows(contiguous.raw, left),
        "V": contiguous.value[:left],
    }
    for name, rows in theirs_now.items():
        if not np.array_equal(found[name].view(np.uint32), rows.view(np.uint32)):
            raise KvsimError(f"the contiguous baseline computes another {name}")
    bench.append(bench.count)
    again()
    pairs = [(bench.evict(), theirs()) for _ in range(REPETITIONS)]
    ours, baseline = (statistics.median(side) for side in zip(*pairs, strict=True))
    return Pair(tuple(a for a, _ in pairs), tuple(b for _, b in pairs)).entry(
        f"evict + renumber, forward: {tokens:,} tokens, {layers} layers, pages of 16",
        "contiguous cache in NumPy, tiled (same words)",
        at_least=3,
        detail=f"{ours * 1e3:.1f} ms, NumPy {baseline * 1e3:.1f} ms",
    )


def _aligned(tokens: int, layers: int) -> dict[str, Any]:
    aligned, unaligned = Bench(tokens, layers, 16, aligned=True), Bench(tokens, layers, 16)
    aligned.evict(), unaligned.evict()
    pairs = [(aligned.evict(), unaligned.evict()) for _ in range(REPETITIONS)]
    ours, theirs = (statistics.median(side) for side in zip(*pairs, strict=True))
    return Pair(tuple(a for a, _ in pairs), tuple(b for _, b in pairs)).entry(
        f"page-aligned span: {tokens:,} tokens, {layers} layers, pages of 16",
        "a span that is not aligned",
        at_least=2,
        detail=f"{ours * 1e3:.1f} ms, unaligned {theirs * 1e3:.1f} ms",
    )


def measurements() -> list[Callable[[], dict[str, Any]]]:
    """Return all measurements. Each makes its own cache, so that only one is alive at a time."""
    copied = (
        (1.25, 4096, 4, 16),
        (1.25, 32_768, 4, 16),
        (1.25, 131_072, 4, 16),
        (1.25, 4096, 16, 16),
        (1.25, 32_768, 16, 16),
        (1.25, 32_768, 4, 64),
        (1.25, 32_768, 4, 128),
        (1.6, 4096, 4, 1),
        (1.6, 131_072, 4, 1),
    )
    shared = ", every page copied on write"
    return [
        *(partial(_against_copy, "", *case) for case in copied),
        *(partial(_against_copy, shared, 1.35, t, 4, 16, shared=True) for t in (4096, 131_072)),
        *(partial(_against_numpy, *case) for case in ((4096, 4), (131_072, 4), (32_768, 16))),
        *(partial(_aligned, *case) for case in ((4096, 4), (131_072, 4), (32_768, 16))),
    ]
