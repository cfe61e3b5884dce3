"""A run's requests, exported and replayed: every integer and every latency is the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvsim.errors import KvsimError
from kvsim.lab import reading
from kvsim.lab.run import run
from kvsim.lab.studies.serving_export import export_requests

SCENARIO = Path(__file__).parents[2] / "scenarios" / "serving-pressure.toml"
MOONCAKE = Path(__file__).parents[3] / "shared/traces/mooncake/conversation_trace.jsonl"
# What says where the requests came from, and what is about the ids of the first file alone.
ORIGIN = {"run_id", "workload", "skipped_requests", "caveat", "series", "rounding_lost_tokens"}


def _row(changes: dict[str, Any]) -> dict[str, Any]:
    row = run(reading.load(SCENARIO, changes))
    return {name: value for name, value in row.items() if name not in ORIGIN}


def _export(changes: dict[str, Any], out: Path) -> dict[str, Any]:
    export_requests(reading.load(SCENARIO, changes), out)
    return {**changes, "workload.kind": "trace", "workload.path": str(out)}


def _records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def _replaced(path: Path, number: int, **changes: Any) -> None:
    records = _records(path)
    records[number] |= changes
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


POISSON = {"workload.requests": 120, "pool.ceiling_pages": 160}


@pytest.mark.parametrize(
    "changes",
    [
        # 72 shared tokens are no whole number of pages; times in the scenario are not scaled.
        {"serving.shared_prefix_tokens": 72, "serving.time_scale": 0.3},
        {"serving.samples": 3, "serving.shared_prefix_tokens": 64, "pool.ceiling_pages": 300},
        {
            "budget.fraction": 0.5,
            "serving.pressure": "evict",
            "policy.name": "random",
            "serving.samples": 2,
            "pool.ceiling_pages": 300,
        },
        {"prefix.cache": "none", "serving.preemption": "swap"},
        {"pages.tokens": 48, "serving.admission": "priority"},
    ],
    ids=["prefix", "samples", "evicted", "uncached", "pages"],
)
def test_poisson(tmp_path: Path, changes: dict[str, Any]) -> None:
    asked = {**POISSON, **changes}
    first = _row(asked)
    assert first["outcome"] == "completed"
    out = tmp_path / "run.jsonl"
    replay = _export(asked, out)
    assert _row(replay) == first
    # The control: one request of 120 generates one token more.
    _replaced(out, 60, output_length=129)
    assert _row(replay) != first


def test_pools_that_are_short_were_tested(tmp_path: Path) -> None:
    # Without preemptions the tests above would compare easy runs only.
    row = _row({**POISSON, "serving.shared_prefix_tokens": 72})
    assert row["preemptions_total"] > 0
    assert row["hit_tokens_total"] > 0


# The last pool is so large that what little is shared at 1,024 tokens is still there.
@pytest.mark.parametrize(
    ("page_tokens", "pool_tokens"), [(512, 400_000), (16, 400_000), (1024, 3_000_000)]
)
def test_a_slice_of_mooncake(tmp_path: Path, page_tokens: int, pool_tokens: int) -> None:
    if not MOONCAKE.exists():
        pytest.skip("the recorded trace of Mooncake is not here: shared/traces is absent")
    asked = {
        "workload.kind": "trace",
        "workload.path": str(MOONCAKE),
        "serving.limit": 150,
        "serving.time_scale": 0.7,
        "pages.tokens": page_tokens,
        "pool.ceiling_pages": pool_tokens // page_tokens,
    }
    first = _row(asked)
    assert first["outcome"] == "completed"
    assert first["hit_tokens_total"] > 0
    out = tmp_path / "run.jsonl"
    replay = _export(asked, out)
    assert _row(replay) == first
    # The control: a prompt that begins like an earlier one begins with a page of its own.
    prompts = [record["hash_ids"] for record in _records(out)]
    shared = next(
        number
        for number, ids in enumerate(prompts)
        if ids and any(ids[0] in earlier for earlier in prompts[:number])
    )
    ids = prompts[shared]
    _replaced(out, shared, hash_ids=[2**31 - 2, *ids[1:]])
    assert _row(replay) != first


def test_an_export_of_a_replay_is_the_same_file(tmp_path: Path) -> None:
    first, second = tmp_path / "first.jsonl", tmp_path / "second.jsonl"
    asked = {**POISSON, "serving.shared_prefix_tokens": 72, "serving.time_scale": 0.3}
    _export(_export(asked, first), second)
    mine, other = _records(first), _records(second)
    for one, two in zip(mine, other, strict=True):
        ids, numbers = one.pop("hash_ids"), two.pop("hash_ids")
        assert (one, len(ids)) == (two, len(numbers))
    packed = tmp_path / "first.jsonl.gz"
    _export(asked, packed)
    assert packed.read_bytes()[:2] == b"\x1f\x8b"


def test_refusals(tmp_path: Path) -> None:
    out = tmp_path / "run.jsonl"
    with pytest.raises(KvsimError, match=r"workload.kind: .* not those of recorded"):
        export_requests(reading.load(SCENARIO, {"workload.kind": "recorded"}), out)
    out.write_text("")
    with pytest.raises(KvsimError, match="nothing is overwritten"):
        export_requests(reading.load(SCENARIO), out)
    assert out.read_text() == ""
