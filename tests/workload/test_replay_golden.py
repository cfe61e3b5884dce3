"""Recorded traces: every row of the golden counts, exactly. Skipped where they are absent."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from kvsim.workload.replay import hits
from kvsim.workload.replay.hits import FLAT, TRIE
from kvsim.workload.traces import Trace
from kvsim.workload.traces.reblock import weights


@pytest.fixture(scope="module")
def mooncake(shared: Path) -> list:
    return list(Trace(shared / "traces/mooncake/conversation_trace.jsonl").requests())


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_flat_rows(shared, mooncake):
    ids = np.concatenate([request.hash_ids for request in mooncake])
    wanted = {}
    for row in rows(shared / "traces/golden/flat_block_oracles.csv"):
        assert row["hits_own"] == row["hits_libcachesim"]
        wanted[row["policy"], int(row["blocks"])] = int(row["hits_own"])
    assert len(wanted) == 30
    for row in rows(shared / "traces/golden/libcachesim_flat.csv"):
        if row["policy"] != "ARC":
            key = (row["policy"], int(row["blocks"]))
            assert wanted.setdefault(key, int(row["hits"])) == int(row["hits"])
    assert len(wanted) == 36
    got = {}
    for policy, pages in wanted:
        cache = FLAT[policy.lower()](pages)
        cache.feed(ids)
        cache.finish()
        assert cache.accesses == 288_500
        got[policy, pages] = cache.hits
    assert got == wanted


def test_kvcache_simulators_rows(shared, mooncake):
    sizes = np.concatenate([weights(one, one.hash_ids.size, 512) for one in mooncake])
    found = rows(shared / "traces/golden/kvcache_simulator_0.1.3.csv")
    assert len(found) == 19
    for row in found:
        # Its ceiling is a cache that holds every block of the trace.
        name = "lru" if row["policy"] == "ceiling" else row["policy"]
        cache = TRIE[f"trie_{name}"](int(row["blocks"]), len(mooncake) // 2)
        for request in mooncake:
            cache.add(request.hash_ids)
        cache.feed(sizes)
        cache.finish()
        assert cache.hit_tokens == int(row["hit_tokens"]), row
        assert cache.total_tokens == int(row["total_tokens"])
        assert cache.filled == (row["policy"] != "ceiling")


def test_the_whole_way_from_the_file(shared):
    path = shared / "traces/mooncake/conversation_trace.jsonl"
    found = hits(path, "S3-FIFO", 8192)
    assert {key: found[key] for key in ("policy", "pages", "hits", "accesses")} == {
        "policy": "s3fifo",
        "pages": 8192,
        "hits": 51_855,
        "accesses": 288_500,
    }
    found = hits(path, "trie_optimal", 2048, count_from=0.5)
    assert (found["hit_tokens"], found["total_tokens"]) == (18_226_289, 67_915_607)
    assert (found["counted_from"], found["filled_before"]) == (6015, True)


def test_ninety_million_references_are_replayed_as_a_stream(shared):
    found = hits(shared / "traces/kv-cache-tester/kvct_710_rle.jsonl.gz", "lru", 200_000)
    assert found["accesses"] == 94_310_647
    # Within a conversation, one after another: nothing is evicted before it is of no more use.
    assert found["hits"] == 94_310_647 - 3_450_959
