"""`kvsim bench replay`: cache replays against other simulators, with equal hits.

LRU from a file: both sides read one libCacheSim binary trace of 64-bit ids. Prefix LRU: a trace
of conversations in memory, from which kvcache-simulator and we number prefixes and then replay.
The peers are an optional dependency group; without them a row has no ratio and says so.
"""

from __future__ import annotations

import statistics
import subprocess
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from kvsim.bench.peers import PeerMissing, peer
from kvsim.bench.ratios import Pair, seconds, unmeasured
from kvsim.bench.replay_traces import BLOCK_TOKENS, conversations, write_zipf
from kvsim.errors import KvsimError
from kvsim.workload.replay.lru import Lru
from kvsim.workload.replay.oracle_general import read_pieces
from kvsim.workload.replay.trie import numbered
from kvsim.workload.replay.trie_lru import TrieLru

REPETITIONS = 7
REQUESTS = 1 << 21
OBJECTS = 100_000
BLOCKS = 911_000
PAGES = 20_000
EXTRA = 16


def same(what: str, ours: int, theirs: int) -> None:
    """Refuse to time two sides that found different things.

    Raises
    ------
    KvsimError
        If the numbers differ.
    """
    if ours != theirs:
        raise KvsimError(f"{what}: {ours} here, {theirs} at the peer; unequal work is not timed")


def lru_hits(path: Path, pages: int) -> int:
    """Replay an oracleGeneral file through LRU, reading included."""
    cache = Lru(pages)
    for ids in read_pieces(path):
        cache.feed(ids)
    return cache.hits


def against_libcachesim(requests: int, objects: int, pages: int) -> dict[str, Any]:
    """Time LRU from an oracleGeneral file, reading included, against libcachesim."""
    name = f"LRU of {pages:,} pages, {requests:,} requests of 64-bit ids, reading the file included"
    baseline = "libcachesim's process_trace"
    try:
        lcs, version = peer("libcachesim", "libcachesim")
    except PeerMissing as missing:
        return unmeasured(name, baseline, at_least=8, reason=str(missing))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "zipf.oracleGeneral"
        write_zipf(path, requests, objects)

        def theirs(**settings: int) -> float:
            # Making the cache is not timed on this side, though it is on ours.
            cache = lcs.LRU(pages, **settings)
            ratios = []

            def replay() -> None:
                reader = lcs.TraceReader(str(path), lcs.TraceType.ORACLE_GENERAL_TRACE)
                ratios.append(cache.process_trace(reader)[0])

            taken = seconds(replay)
            same("LRU hits", hits, requests - round(ratios[0] * requests))
            return taken

        hits = lru_hits(path, pages)
        fitted = {"hashpower": pages.bit_length()}
        theirs(), theirs(**fitted)
        rows = [
            (seconds(lambda: lru_hits(path, pages)), theirs(), theirs(**fitted))
            for _ in range(REPETITIONS)
        ]
    ours, default, small = zip(*rows, strict=True)
    against_fitted = statistics.median(b / a for a, b in zip(ours, small, strict=True))
    return Pair(ours, default).entry(
        name,
        f"{baseline} ({version})",
        at_least=8,
        detail=f"{statistics.median(ours) * 1e3:.0f} ms, libcachesim "
        f"{statistics.median(default) * 1e3:.0f} ms, with a hash table fitted to the cache "
        f"{statistics.median(small) * 1e3:.0f} ms ({against_fitted:.1f}x); {hits:,} hits equal",
    )


class Conversations:
    """The trace of conversations on both sides; the first half of the requests is uncounted."""

    def __init__(self, blocks: int) -> None:
        trace, self.version = peer("kvcache-simulator", "kvcache_sim.trace")
        self.requests, self.sizes = conversations(blocks)
        starts = [0]
        for one in self.requests:
            starts.append(starts[-1] + one.size)
        self.measured_from = len(self.requests) // 2
        ids = [int(i) for one in self.requests for i in one]
        tokens = self.sizes.tolist()
        self.theirs = trace.TraceData(
            ids=ids,
            tokens=tokens,
            request_starts=starts,
            block_size=BLOCK_TOKENS,
            request_count=len(self.requests),
            unique_raw_blocks=len(set(ids)),
            total_input_tokens=sum(tokens),
            average_input_tokens=sum(tokens) / len(self.requests),
            parse_errors=0,
            skipped_records=0,
        )

    def whole(self, pages: int) -> TrieLru:
        """Number prefixes and replay."""
        cache = TrieLru(pages, self.measured_from)
        for ids in self.requests:
            cache.add(ids)
        cache.feed(self.sizes)
        return cache

    def check(self, cache: TrieLru, found: Any) -> None:
        """Refuse unequal hits, and a result that the peer would not report.

        Raises
        ------
        KvsimError
            Naming what differs.
        """
        if found.measurementMode != "fixed_window" or not cache.filled:
            raise KvsimError(f"{cache.pages} pages are not full where counting begins")
        same(f"tokens hit in {cache.pages} pages", cache.hit_tokens, found.hitTokens)
        same("tokens counted", cache.total_tokens, found.totalTokens)


def against_python(blocks: int, pages: int, whole: bool) -> dict[str, Any]:
    """Time prefix LRU against kvcache-simulator in Python, numbering prefixes or not."""
    what = "numbering prefixes included" if whole else "prefixes numbered beforehand"
    name = f"prefix LRU of {pages:,} pages, {blocks:,} blocks, {what}"
    baseline = "kvcache-simulator's Python backend"
    try:
        plans, _ = peer("kvcache-simulator", "kvcache_sim.plan")
        policies, _ = peer("kvcache-simulator", "kvcache_sim.policies")
        trace = Conversations(blocks)
    except PeerMissing as missing:
        return unmeasured(name, baseline, at_least=15, reason=str(missing))
    given, plan = numbered(trace.requests, trace.sizes), plans.build_execution_plan(trace.theirs)
    found: list[Any] = []

    def ours() -> None:
        if whole:
            cache = trace.whole(pages)
        else:
            cache = TrieLru(pages, trace.measured_from)
            cache.replay(given)
        found.append(cache)

    def theirs() -> None:
        used = plans.build_execution_plan(trace.theirs) if whole else plan
        found.append(policies.simulate_policy(used, "lru", pages))

    def pair() -> tuple[float, float]:
        found.clear()
        taken = seconds(ours), seconds(theirs)
        trace.check(*found)
        return taken

    pair()
    pairs = [pair() for _ in range(REPETITIONS)]
    ours_ms, theirs_ms = (statistics.median(side) * 1e3 for side in zip(*pairs, strict=True))
    return Pair(tuple(a for a, _ in pairs), tuple(b for _, b in pairs)).entry(
        name,
        f"{baseline} ({trace.version})",
        at_least=15,
        detail=f"{ours_ms:.0f} ms, Python {theirs_ms:.0f} ms; {found[0].hit_tokens:,} tokens hit, "
        "equal",
    )


def against_cpp(blocks: int, pages: int) -> dict[str, Any]:
    """Time one more capacity of prefix LRU against one more of kvcache-simulator in C++."""
    name = f"prefix LRU, {blocks:,} blocks: marginal time of one more capacity near {pages:,} pages"
    baseline = "kvcache-simulator's C++ backend, marginal too"
    try:
        cpp, _ = peer("kvcache-simulator", "kvcache_sim.cpp_backend")
        try:
            cpp.ensure_cpp_simulator()
        except (RuntimeError, OSError, subprocess.CalledProcessError) as error:
            raise PeerMissing(f"its C++ backend is compiled when it runs: {error}") from None
        trace = Conversations(blocks)
    except PeerMissing as missing:
        return unmeasured(name, baseline, at_least=1.2, reason=str(missing))
    given = numbered(trace.requests, trace.sizes)
    extra = [pages + 10 * number for number in range(1, EXTRA + 1)]

    def ours() -> list[TrieLru]:
        caches = [TrieLru(pages, trace.measured_from) for pages in extra]
        for cache in caches:
            cache.replay(given)
        return caches

    def theirs(capacities: list[int]) -> dict[tuple[str, int], Any]:
        return cpp.run_cpp_sweep(
            trace.theirs,
            capacities=capacities,
            policies=["lru"],
            warmup_requests=trace.measured_from,
        ).results

    found = theirs([pages, *extra])
    for cache in ours():
        trace.check(cache, found["lru", cache.pages])
    pairs = []
    for _ in range(REPETITIONS):
        # What a sweep of theirs costs apart from its capacities cancels out in the difference.
        more = seconds(lambda: theirs([pages, *extra])) - seconds(lambda: theirs([pages]))
        pairs.append((seconds(ours) / EXTRA, more / EXTRA))
    ours_ms, theirs_ms = (statistics.median(side) * 1e3 for side in zip(*pairs, strict=True))
    return Pair(tuple(a for a, _ in pairs), tuple(b for _, b in pairs)).entry(
        name,
        f"{baseline} ({trace.version})",
        at_least=1.2,
        detail=f"{ours_ms:.1f} ms, C++ {theirs_ms:.1f} ms a capacity; tokens hit are equal at "
        f"{EXTRA} capacities",
    )


def measurements() -> list[Callable[[], dict[str, Any]]]:
    """Return all measurements. Each makes its own trace, so that only one is in memory."""
    return [
        *(partial(against_libcachesim, REQUESTS, OBJECTS, OBJECTS // part) for part in (100, 10)),
        *(partial(against_python, BLOCKS, PAGES, whole) for whole in (False, True)),
        partial(against_cpp, BLOCKS, PAGES),
    ]
