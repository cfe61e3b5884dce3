"""Flat replays against caches written for reading, libCacheSim's counts, and themselves."""

from __future__ import annotations

import bisect
import itertools
import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import event, example, given
from hypothesis import strategies as st
from oracles import caches

from kvsim.errors import WorkloadError
from kvsim.workload.replay import POLICIES
from kvsim.workload.replay.hits import FLAT, named
from kvsim.workload.replay.oracle_general import RECORD, read_pieces

# Hits of libCacheSim 0.3.5 on `zipf()`, by pages: LFU and SIEVE differ here, which they do not
# before SIEVE's hand has gone round once.
ZIPF_PAGES = (20, 50, 100, 200, 500)
ZIPF_HITS = {
    "fifo": (3051, 5049, 6944, 9188, 12601),
    "lru": (3572, 5891, 7936, 10164, 13538),
    "lfu": (6301, 8322, 9768, 11720, 14236),
    "sieve": (6172, 8374, 10014, 11756, 14236),
    "s3fifo": (6422, 8410, 10001, 11758, 14237),
    "belady": (8014, 10426, 12304, 14158, 16447),
}
STREAMS = st.lists(st.integers(0, 11), max_size=120)
PAGES = st.integers(1, 14)


def zipf(accesses: int = 20_000, blocks: int = 2_000, exponent: float = 0.9) -> np.ndarray:
    """A seeded Zipf stream out of the standard library, whose generator never changes."""
    rng = random.Random(7)
    weights = list(itertools.accumulate(1 / rank**exponent for rank in range(1, blocks + 1)))
    drawn = [bisect.bisect_right(weights, rng.random() * weights[-1]) for _ in range(accesses)]
    return np.array(drawn, dtype=np.int64)


def replayed(policy: str, pages: int, *pieces: np.ndarray) -> int:
    cache = FLAT[policy](pages)
    for piece in pieces:
        cache.feed(piece)
    cache.finish()
    assert cache.accesses == sum(piece.size for piece in pieces)
    return cache.hits


@pytest.mark.parametrize("policy", FLAT)
@example(ids=[], pages=1)
@example(ids=[0, 1, 2, 0, 1, 2, 3, 0], pages=3)
@given(ids=STREAMS, pages=PAGES)
def test_hits_are_those_of_the_readable_cache(policy, ids, pages):
    got = replayed(policy, pages, np.array(ids, dtype=np.int64))
    assert got == getattr(caches, policy)(ids, pages)
    event(f"evicts: {len(set(ids)) > pages}")


@pytest.mark.parametrize("policy", FLAT)
@given(
    ids=st.lists(st.integers(0, 300), min_size=200, max_size=900),
    pages=st.integers(1, 150),
    skew=st.integers(1, 4),
)
def test_longer_streams_too(policy, ids, pages, skew):
    # Powers crowd the small ids, so that blocks are used often enough to be promoted.
    ids = [one**skew // 300 ** (skew - 1) for one in ids]
    got = replayed(policy, pages, np.array(ids, dtype=np.int64))
    assert got == getattr(caches, policy)(ids, pages)


@pytest.mark.parametrize("policy", FLAT)
def test_hits_are_libcachesims_on_a_zipf_stream(policy):
    ids = zipf()
    assert tuple(replayed(policy, pages, ids) for pages in ZIPF_PAGES) == ZIPF_HITS[policy]
    assert ZIPF_HITS["lfu"] != ZIPF_HITS["sieve"]


@pytest.mark.parametrize("policy", FLAT)
@given(ids=STREAMS, pages=PAGES, cut=st.integers(0, 120), far=st.booleans())
def test_pieces_and_names_of_blocks_change_nothing(policy, ids, pages, cut, far):
    stream = np.array(ids, dtype=np.int64)
    whole = replayed(policy, pages, stream)
    # Ids no array could be indexed by, in one piece or from the second on.
    strange = stream * 0x1E3779B97F4A7C15 - 5
    parts = (stream[:cut], stream[cut:])
    assert replayed(policy, pages, *parts) == whole
    assert replayed(policy, pages, strange) == whole
    if far and cut < len(ids):
        mixed = {one: one for one in ids[:cut]}
        later = np.array([mixed.get(one, one + (1 << 60)) for one in ids], dtype=np.int64)
        assert replayed(policy, pages, later[:cut], later[cut:]) == whole


@given(ids=STREAMS, pages=st.integers(1, 13))
def test_lru_has_the_inclusion_property(ids, pages):
    stream = np.array(ids, dtype=np.int64)
    distances = caches.stack_distances(ids)
    # A hit is an access at a stack distance up to the size: so a larger cache hits those and more.
    assert replayed("lru", pages, stream) == sum(0 < one <= pages for one in distances)


def test_fifo_does_not_have_it():
    # Belady's anomaly, the control: more pages, fewer hits.
    ids = np.array([1, 2, 3, 4, 1, 2, 5, 1, 2, 3, 4, 5], dtype=np.int64)
    assert replayed("fifo", 3, ids) == 3
    assert replayed("fifo", 4, ids) == 2


@pytest.mark.parametrize("policy", FLAT)
@given(ids=STREAMS, pages=PAGES)
def test_none_beats_belady(policy, ids, pages):
    stream = np.array(ids, dtype=np.int64)
    assert replayed(policy, pages, stream) <= replayed("belady", pages, stream)


@pytest.mark.parametrize("policy", FLAT)
def test_counting_may_begin_later(policy):
    ids = zipf(4_000, 500)
    for cut in (0, 1, 1_500, 4_000):
        cache = FLAT[policy](64)
        cache.feed(ids[:cut])
        cache.count_from_here()
        cache.feed(ids[cut:])
        cache.finish()
        assert cache.accesses == 4_000 - cut
        if policy != "belady":
            assert cache.hits == replayed(policy, 64, ids) - replayed(policy, 64, ids[:cut])
        elif cut in (0, 4_000):
            assert cache.hits == (replayed(policy, 64, ids) if cut == 0 else 0)


def test_ids_at_the_edges_of_64_bits():
    low, high = np.iinfo(np.int64).min, np.iinfo(np.int64).max
    ids = np.array([low, high, 0, -1, low, high, 0, -1], dtype=np.int64)
    assert [replayed(policy, 4, ids) for policy in FLAT] == [4] * len(FLAT)


@pytest.mark.parametrize("pages", [0, -1, (1 << 30) + 1])
def test_a_cache_of_no_size_is_refused(pages):
    for policy in FLAT.values():
        with pytest.raises(WorkloadError, match=f"not {pages}"):
            policy(pages)


def test_names():
    assert [named(name) for name in ("LRU", "S3-FIFO", "S3FIFO", "Belady", "trie-lru")] == [
        "lru",
        "s3fifo",
        "s3fifo",
        "belady",
        "trie_lru",
    ]
    with pytest.raises(WorkloadError, match=r"'arc'.*fifo, lru, lfu"):
        named("arc")


def test_libcachesims_binary_format(tmp_path):
    ids = zipf(100_000, 5_000)
    records = np.zeros(ids.size, dtype=RECORD)
    records["id"], records["size"], records["next"] = ids, 1, -1
    path = tmp_path / "trace.oracleGeneral"
    records.tofile(path)
    assert np.array_equal(np.concatenate([piece.copy() for piece in read_pieces(path)]), ids)
    assert RECORD.itemsize == 24
    path.write_bytes(path.read_bytes()[:-1])
    for bad, says in ((path, "2399999 bytes"), (tmp_path / "none", "there is no file")):
        with pytest.raises(WorkloadError, match=says):
            next(read_pieces(bad))


CODE = """
import numpy as np
from kvsim.workload.replay.hits import FLAT, TRIE
rng = np.random.default_rng(3)
ids = (rng.random(3000) ** 3 * 400).astype(np.int64)
for name, policy in FLAT.items():
    for pages in (1, 7, 40, 150):
        cache = policy(pages)
        for piece in np.array_split(ids * 0x1E3779B97F4A7C15, 3):
            cache.feed(piece)
        cache.finish()
        print(name, pages, cache.hits)
for name, policy in TRIE.items():
    for pages in (1, 7, 40, 150):
        cache = policy(pages, 20)
        rng = np.random.default_rng(4)
        for piece in range(3):
            sizes = 0
            for _ in range(40):
                request = rng.integers(0, 3, rng.integers(0, 12))
                cache.add(request)
                sizes += request.size
            cache.feed(rng.integers(1, 9, sizes))
        cache.finish()
        print(name, pages, cache.hits, cache.hit_tokens, cache.total_tokens, cache.filled)
"""


def test_without_the_jit_the_counts_are_the_same():
    said = []
    for disable in ("0", "1"):
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", CODE],
            env=os.environ | {"NUMBA_DISABLE_JIT": disable},
            cwd=Path(__file__).parents[2],
            capture_output=True,
            text=True,
            check=True,
        )
        said.append(done.stdout)
    assert said[0] == said[1]
    assert len(said[0].splitlines()) == 4 * len(POLICIES)
