"""What an exported file says beyond other block-hash lines: read, converted, refused."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvsim.errors import WorkloadError
from kvsim.workload.request_loading import from_trace
from kvsim.workload.requests import Requests
from kvsim.workload.traces.convert import convert
from kvsim.workload.traces.export import export

# Pages of 4. The first prompt ends inside a page and its output fills that and one more; the
# second has one page with a key and one without; the third shares the first's beginning.
REQUESTS = Requests(
    page_tokens=4,
    arrival_ns=np.array([0, 1_000_001, (1 << 57) + 1]),
    input_tokens=np.array([10, 9, 13]),
    output_tokens=np.array([7, 3, 3]),
    priority=np.array([0, -5, 7]),
    samples=np.array([1, 4, 2]),
    keys=np.array([3, 5, 8, 9, 3, 3, 5, 8, 20], np.int32),
    key_start=np.array([0, 4, 5, 9]),
    given_keys=21,
)


def _records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def _keys(requests: Requests) -> list[list[int]]:
    bounds = requests.key_start.tolist()
    return [requests.keys[a:b].tolist() for a, b in itertools.pairwise(bounds)]


def test_the_lines_by_hand(tmp_path: Path) -> None:
    out = tmp_path / "run.jsonl"
    found = export(REQUESTS, out)
    assert (found["requests"], found["pages"], found["output_pages"]) == (3, 7, 3)
    first, second, third = _records(out)
    assert (first["hash_ids"], first["output_hash_ids"]) == ([3, 5], [8, 9])
    # The page without a key gets one that no other request has.
    assert second["hash_ids"] == [3, 21]
    assert "output_hash_ids" not in second
    assert (third["hash_ids"], third["output_hash_ids"]) == ([3, 5, 8], [20])
    assert [one["priority"] for one in (first, second, third)] == [0, -5, 7]
    assert [one["samples"] for one in (first, second, third)] == [1, 4, 2]
    # In milliseconds with all digits: a double would lose some.
    assert out.read_text().splitlines()[2].startswith('{"timestamp": 144115188075.855873, ')


def test_reading_gives_the_requests_again(tmp_path: Path) -> None:
    out = tmp_path / "run.jsonl"
    export(REQUESTS, out)
    read = from_trace(out, 4, samples=9).requests
    for name in ("arrival_ns", "input_tokens", "output_tokens", "priority", "samples"):
        assert getattr(read, name).tolist() == getattr(REQUESTS, name).tolist()
    # Numbers in the order in which pages come up: 3, 5, 8 and 9, then 21, then 20.
    assert _keys(read) == [[0, 1, 2, 3], [0, 4], [0, 1, 2, 5]]
    coarser = from_trace(out, 8).requests
    first, second, third = _keys(coarser)
    assert (len(first), len(second), len(third)) == (2, 1, 2)
    assert first[0] == third[0] != second[0]
    assert first[1] != third[1]
    finer = _keys(from_trace(out, 2).requests)
    assert [len(keys) for keys in finer] == [8, 4, 8]
    assert finer[0][:6] == finer[2][:6]
    assert finer[0][6] != finer[2][6]


def test_converting_keeps_what_is_said(tmp_path: Path) -> None:
    out, other = tmp_path / "run.jsonl", tmp_path / "pages.jsonl"
    export(REQUESTS, out, time_scale=0.25)
    convert(out, other, 2)
    mine, direct = from_trace(other, 4, time_scale=0.25), from_trace(out, 4, time_scale=0.25)
    # The same pages are the same, whatever their numbers.
    numbers: dict[int, int] = {}
    pairs = zip(mine.requests.keys.tolist(), direct.requests.keys.tolist(), strict=True)
    assert all(numbers.setdefault(key, other) == other for key, other in pairs)
    assert len(numbers) == len(set(numbers.values())) == 6
    assert mine.requests.key_start.tolist() == direct.requests.key_start.tolist()
    for name in ("arrival_ns", "priority", "samples"):
        assert getattr(mine.requests, name).tolist() == getattr(REQUESTS, name).tolist()


def test_times_that_were_scaled_are_not_scaled_again(tmp_path: Path) -> None:
    out = tmp_path / "run.jsonl"
    export(REQUESTS, out, time_scale=0.1)
    assert from_trace(out, 4, time_scale=0.1).requests.arrival_ns[1] == 1_000_001
    assert from_trace(out, 4, time_scale=0.2).requests.arrival_ns[1] == 2_000_002
    # As recorded, that is before anything was multiplied.
    assert from_trace(out, 4).requests.arrival_ns[1] == 10_000_010


def test_samples_of_the_scenario_are_for_files_that_say_none(tmp_path: Path) -> None:
    plain = tmp_path / "plain.jsonl"
    plain.write_text(
        '{"timestamp": 0, "input_length": 4, "output_length": 1, "block_size": 4, "hash_ids": [1]}'
    )
    assert from_trace(plain, 4, samples=9).requests.samples.tolist() == [9]
    assert from_trace(plain, 4).requests.samples.tolist() == [1]


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"output_hash_ids": [1, 2, 3]}, "3 output hash ids, and only 2 full blocks"),
        ({"output_hash_ids": [1, 1]}, "twice"),
        ({"output_hash_ids": 5}, "output_hash_ids must be a list"),
        ({"hash_ids": [3, 5, 6], "hash_rounding": "up"}, "not full"),
        ({"samples": 0}, "samples must be from 1"),
        ({"samples": 2.0}, "samples must be a whole number"),
        ({"priority": "high"}, "priority must be a whole number"),
        ({"priority": 1 << 63}, "priority must be from"),
        ({"time_scale": 0.5}, "mixed"),
        ({"time_scale": 0}, "time_scale must be a number above 0"),
        ({"time_scale": True}, "time_scale must be a number above 0"),
    ],
)
def test_bad_lines_are_refused_with_their_number(
    tmp_path: Path, changes: dict[str, Any], named: str
) -> None:
    out = tmp_path / "run.jsonl"
    export(REQUESTS, out, time_scale=0.25)
    first, *_ = records = _records(out)
    assert from_trace(out, 4).requests.samples.tolist() == [1, 4, 2]
    records[1] = first | {"timestamp": records[1]["timestamp"]} | changes
    out.write_text("".join(json.dumps(record) + "\n" for record in records))
    with pytest.raises(WorkloadError, match=rf"run.jsonl:2: .*{named}"):
        from_trace(out, 4)


def test_a_first_line_with_a_bad_scale_is_named(tmp_path: Path) -> None:
    out = tmp_path / "run.jsonl"
    export(REQUESTS, out)
    records = _records(out)
    records[0]["time_scale"] = "fast"
    out.write_text("".join(json.dumps(record) + "\n" for record in records))
    with pytest.raises(WorkloadError, match=r"run.jsonl:1: time_scale must be a number above 0"):
        from_trace(out, 4)
