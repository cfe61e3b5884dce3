"""Traces as requests of the serving engine: arrivals, lengths, and keys that mean equal tokens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvsim.errors import WorkloadError
from kvsim.workload.request_loading import from_trace
from kvsim.workload.requests import Requests, without_keys


def _write(folder: Path, records: list[dict[str, Any]], name: str = "trace.jsonl") -> Path:
    path = folder / name
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def _hashed(time_ms: int, tokens: int, ids: list[int], block: int = 4) -> dict[str, Any]:
    return {
        "timestamp": time_ms,
        "input_length": tokens,
        "output_length": 2,
        "block_size": block,
        "hash_ids": ids,
    }


def _keys(requests: Requests) -> list[list[int]]:
    return [
        requests.keys[first:last].tolist()
        for first, last in zip(requests.key_start[:-1], requests.key_start[1:], strict=True)
    ]


def test_keys_are_equal_where_all_tokens_before_are(tmp_path: Path) -> None:
    # The third prompt has id 8 too, but behind another beginning: its page is another one.
    trace = _write(
        tmp_path, [_hashed(0, 8, [7, 8]), _hashed(5, 12, [7, 8, 9]), _hashed(9, 8, [6, 8])]
    )
    first, second, third = _keys(from_trace(trace, 4).requests)
    assert second[:2] == first
    assert len({*second, *third}) == 5


def test_a_page_that_is_not_full_has_no_key(tmp_path: Path) -> None:
    trace = _write(tmp_path, [_hashed(0, 7, [7])])
    assert [len(keys) for keys in _keys(from_trace(trace, 4).requests)] == [1]


@pytest.mark.parametrize("seed", range(20))
def test_keys_against_prefixes_written_out(tmp_path: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    prompts = [rng.permutation(4)[: rng.integers(1, 5)].tolist() for _ in range(12)]
    trace = _write(tmp_path, [_hashed(i, 4 * len(ids), ids) for i, ids in enumerate(prompts)])
    page_tokens = int(rng.choice([2, 4, 8]))
    requests = from_trace(trace, page_tokens).requests
    meaning: dict[int, tuple[object, ...]] = {}
    found: dict[tuple[object, ...], int] = {}
    for ids, keys in zip(prompts, _keys(requests), strict=True):
        for page, key in enumerate(keys):
            end = (page + 1) * page_tokens
            # What a page stands for: the blocks up to its end, and where in the last it ends.
            prefix = (tuple(ids[: -(-end // 4)]), end)
            assert meaning.setdefault(key, prefix) == prefix
            assert found.setdefault(prefix, key) == key
    assert requests.given_keys > max(meaning, default=-1)


def test_times_are_scaled_and_the_first_requests_taken(tmp_path: Path) -> None:
    trace = _write(tmp_path, [_hashed(t, 4, [1]) for t in (0, 10, 20)])
    requests = from_trace(trace, 4, limit=2, time_scale=0.5).requests
    assert requests.arrival_ns.tolist() == [0, 5_000_000]


def test_what_a_run_refuses_is_refused_with_its_line(tmp_path: Path) -> None:
    bad = _write(tmp_path, [_hashed(0, 8, [7, 8]), _hashed(5, 12, [7])])
    with pytest.raises(WorkloadError, match=r"trace.jsonl:2: .* hash ids"):
        from_trace(bad, 4)
    loaded = from_trace(bad, 4, skip_bad=True)
    assert (len(loaded.requests), loaded.tally.skipped) == (1, 1)


def test_unsorted_times_are_refused(tmp_path: Path) -> None:
    trace = _write(tmp_path, [_hashed(9, 4, [1]), _hashed(5, 4, [2])])
    with pytest.raises(WorkloadError, match=r"trace.jsonl:2: arrives at"):
        from_trace(trace, 4)


def test_a_trace_without_times_needs_a_rate(tmp_path: Path) -> None:
    trace = tmp_path / "lengths.csv"
    trace.write_text("num_prefill_tokens,num_decode_tokens\n5,2\n6,3\n")
    with pytest.raises(WorkloadError, match="rate_per_s"):
        from_trace(trace, 4)
    rng = np.random.default_rng(1)
    requests = from_trace(trace, 4, rate_per_s=2.0, rng=rng).requests
    assert 0 < requests.arrival_ns[0] < requests.arrival_ns[1]


def test_pages_that_no_block_is_made_of_are_refused(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match="neither divides the other"):
        from_trace(_write(tmp_path, [_hashed(0, 8, [7, 8])]), 3)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"input_tokens": [0]}, "input_tokens"),
        ({"output_tokens": [-1]}, "output_tokens"),
        ({"samples": [0]}, "samples"),
        ({"arrival_ns": [-1]}, "arrivals"),
    ],
)
def test_columns_that_cannot_be_are_refused(changes: dict[str, list[int]], named: str) -> None:
    columns = {"arrival_ns": [0], "input_tokens": [4], "output_tokens": [1], "samples": [1]}
    made = {name: np.array(value, np.int64) for name, value in {**columns, **changes}.items()}
    samples = made.pop("samples")
    with pytest.raises(WorkloadError, match=named):
        without_keys(4, **made, samples=samples)
