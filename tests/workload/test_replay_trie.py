"""Prefix replays against caches written for reading, and the counts by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import event, example, given
from hypothesis import strategies as st
from oracles import prefixes

from kvsim.errors import WorkloadError
from kvsim.workload.replay.hits import TRIE
from kvsim.workload.replay.trie import numbered
from kvsim.workload.replay.trie_lru import TrieLru

REQUESTS = st.lists(st.lists(st.integers(0, 2), max_size=7), max_size=25)
ORACLES = {
    "trie_fifo": prefixes.fifo,
    "trie_lru": prefixes.lru,
    "trie_optimal": prefixes.optimal,
}


def replayed(policy, pages, requests, measured_from=0, cut=0, weight=1):
    cache = TRIE[policy](pages, measured_from)
    for part in (requests[:cut], requests[cut:]):
        sizes = []
        for one in part:
            cache.add(np.array(one, dtype=np.int64))
            sizes += [weight + depth for depth in range(len(one))]
        cache.feed(np.array(sizes, dtype=np.int64))
    cache.finish()
    return cache


@pytest.mark.parametrize("policy", TRIE)
@example(requests=[[0, 1, 2, 0]] * 3, pages=3)  # One path larger than the cache.
@example(requests=[[0, 1], [0, 1, 2, 2], [0, 1]], pages=2)
@given(requests=REQUESTS, pages=st.integers(1, 12))
def test_hits_are_those_of_the_readable_cache(policy, requests, pages):
    want = ORACLES[policy](requests, pages)
    assert replayed(policy, pages, requests).hits == sum(want)
    # Each request by itself, as the difference of two counts.
    for number in range(len(requests)):
        cache = replayed(policy, pages, requests, measured_from=number)
        assert cache.hits == sum(want[number:])
    distinct = {prefix for path in prefixes.paths(requests) for prefix in path}
    event(f"evicts: {len(distinct) > pages}")
    event(f"a path fills the cache: {any(len(one) > pages for one in requests)}")


@pytest.mark.parametrize("policy", TRIE)
@given(
    requests=REQUESTS, pages=st.integers(1, 12), cut=st.integers(0, 25), first=st.integers(0, 25)
)
def test_pieces_tokens_and_the_counted_part(policy, requests, pages, cut, first):
    cache = replayed(policy, pages, requests, first, cut, weight=5)
    want = ORACLES[policy](requests, pages)
    counted = list(zip(requests, want, strict=True))[first:]
    assert cache.accesses == sum(len(one) for one, _ in counted)
    assert cache.total_tokens == sum(5 + d for one, _ in counted for d in range(len(one)))
    assert cache.hit_tokens == sum(5 + d for _, hit in counted for d in range(hit))
    whole = replayed(policy, pages, requests, first)
    assert (cache.hits, cache.filled) == (whole.hits, whole.filled)


@given(requests=REQUESTS, pages=st.integers(1, 12), first=st.integers(0, 25))
def test_numbers_given_once_serve_every_size(requests, pages, first):
    sizes = np.array([5 + depth for one in requests for depth in range(len(one))], dtype=np.int64)
    trace = numbered([np.array(one, dtype=np.int64) for one in requests], sizes)
    for size, times in ((pages, 1), (pages + 3, 1), (pages, 2)):
        cache = TrieLru(size, first)
        for _ in range(times):
            cache.replay(trace)
        want = replayed("trie_lru", size, requests * times, first, weight=5)
        for name in ("hits", "accesses", "hit_tokens", "total_tokens", "filled"):
            assert getattr(cache, name) == getattr(want, name)


def test_sizes_of_other_blocks_are_refused():
    blocks = [np.arange(3)]
    with pytest.raises(WorkloadError, match="2 sizes for 3 blocks"):
        numbered(blocks, np.ones(2, dtype=np.int64))
    cache = TrieLru(4)
    cache.add(blocks[0])
    with pytest.raises(WorkloadError, match="4 sizes for 3 blocks"):
        cache.feed(np.ones(4, dtype=np.int64))


def test_a_block_behind_a_missing_one_is_no_hit():
    # FIFO drops the first block of the path and keeps those behind it.
    cache = replayed("trie_fifo", 2, [[0, 1], [5], [0, 1]])
    assert cache.hits == 0
    assert replayed("trie_lru", 2, [[0, 1], [5], [0, 1]]).hits == 1


def test_filled_says_whether_counting_began_under_pressure():
    requests = [[0], [1], [2], [0]]
    assert [replayed("trie_lru", 2, requests, first).filled for first in (0, 1, 2, 3)] == [
        False,
        False,
        True,
        True,
    ]


def test_a_cache_of_no_size_is_refused():
    for policy in TRIE.values():
        with pytest.raises(WorkloadError, match="not 0"):
            policy(0)
