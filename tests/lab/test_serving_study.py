"""Serving scenarios as rows: allocators, policies asked in Python, refusals."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvsim.engine.serving.engine import ServingEngine
from kvsim.errors import KvsimError
from kvsim.lab import reading
from kvsim.lab.run import run
from kvsim.lab.studies.serving_columns import MEASURED

SCENARIO = Path(__file__).parents[2] / "scenarios" / "serving-pressure.toml"


def _row(**changes: Any) -> dict[str, Any]:
    extra = {key.replace("__", "."): value for key, value in changes.items()}
    return run(reading.load(SCENARIO, {"workload.requests": 40, **extra}))


@pytest.mark.parametrize(
    "model",
    ["fixed_pool", "extents", "kvcached", "slab", "caching_allocator", "async_pool", "contiguous"],
)
def test_an_allocator_under_the_pool_changes_no_other_column(model: str) -> None:
    without, beside = _row(), _row(memory__model=model)
    same = set(without) - {"run_id", "memory_model", "series"}
    assert {k: without[k] for k in same} == {k: beside[k] for k in same}
    assert beside["memory_mapped_bytes_peak"] > 0


@pytest.mark.parametrize("granularity", ["token", "window", "page"])
def test_the_kernel_and_python_choose_the_same_oldest_tokens(granularity: str) -> None:
    # An ordering that may compact lets Python choose; what it compacts is nothing here, because
    # both are asked for the same victims and the flows of eviction are compared.
    # The pool is large: under pressure the compacted one would preempt less.
    asked = {
        "budget__fraction": 0.5,
        "policy__name": "streaming_llm",
        "pool__ceiling_pages": 20_000,
    }
    kernel = _row(**asked, selection__granularity=granularity, prefix__cache="none")
    python = _row(
        **asked,
        selection__granularity=granularity,
        prefix__cache="none",
        compaction__algorithm="forward",
    )
    assert kernel["evicted_tokens_total"] == python["evicted_tokens_total"] > 0
    assert kernel["outcome"] == python["outcome"] == "completed"


def test_a_policy_that_needs_attention_is_not_applicable() -> None:
    row = _row(budget__fraction=0.5)
    assert row["outcome"] == "not_applicable"
    assert "attention" in row["outcome_reason"]


def test_a_pool_that_no_request_fits_is_infeasible() -> None:
    row = _row(pool__ceiling_pages=8)
    assert row["outcome"] == "infeasible"
    assert "pages needed" in row["outcome_reason"]
    # Its measurements are null, not missing and not 0.
    completed = _row()
    assert list(row) == list(completed)
    assert {row[name] for name in (*MEASURED, "steps", "tokens", "freed_pages_total")} == {None}


@pytest.mark.parametrize(
    ("key", "value", "named"),
    [
        ("cost.device", "RTX-4080", "did you mean RTX-4090"),
        ("pages.scope", "layer", "pages.scope"),
        ("pages.append", "reuse_holes", "pages.append"),
        ("store.kind", "array", "store.kind"),
        ("budget.when", "chunk", "budget.when"),
        ("serving.step_tokens", 8, "serving.step_tokens"),
        ("serving.pressure", "evict", "serving.pressure"),
        ("memory.model", "token_pool", "memory.model"),
        ("layout", "gpt-oss-20b", "cost.parameters"),
    ],
)
def test_refusals_name_the_key(key: str, value: Any, named: str) -> None:
    scenario = reading.load(SCENARIO, {key: value})
    with pytest.raises(KvsimError, match=named):
        run(scenario)


def test_the_run_is_a_function_of_its_scenario() -> None:
    scenario = reading.load(SCENARIO, {"workload.requests": 30})
    assert run(scenario) == run(scenario)
    other = run(replace(scenario, seed=8))
    assert other["run_id"] != run(scenario)["run_id"]


def test_branches_share_pages_and_pull_backs_copy_them() -> None:
    row = _row(
        branches__per_request=2,
        branches__after_ms=500.0,
        branches__pull_back=0.5,
        pool__ceiling_pages=20_000,
    )
    assert row["shared_branches"] + row["queued_branches"] == 80
    assert row["shared_branches"] > 10
    assert row["finished_requests"] == 120
    assert row["cow_pages_total"] > 10
    # Every branch generates 64 tokens and every request 128.
    assert row["generated_tokens_total"] == 40 * 128 + 80 * 64
    assert row == _row(
        branches__per_request=2,
        branches__after_ms=500.0,
        branches__pull_back=0.5,
        pool__ceiling_pages=20_000,
    )


def test_samples_become_beams() -> None:
    samples = {"serving__samples": 3, "pool__ceiling_pages": 20_000, "prefix__publish": "prompt"}
    apart, beams = _row(**samples), _row(**samples, branches__beam_steps=16)
    assert apart["replaced_beams"] is None
    assert beams["replaced_beams"] > 40
    # Beams share what they have generated, so they hold less and copy more.
    assert beams["held_pages_mean"] < apart["held_pages_mean"]
    assert beams["cow_pages_total"] > apart["cow_pages_total"]
    assert beams["generated_tokens_total"] == apart["generated_tokens_total"] == 40 * 3 * 128


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"serving__samples": 1, "prefix__publish": "prompt"}, "serving.samples"),
        ({"serving__samples": 2}, "prefix.publish"),
        ({"serving__samples": 2, "prefix__cache": "radix"}, "prefix.publish"),
    ],
)
def test_beams_that_cannot_be(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(KvsimError, match=named):
        _row(branches__beam_steps=4, **changes)


def test_a_run_is_recounted_at_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    checks = []
    original = ServingEngine.check
    monkeypatch.setattr(
        ServingEngine, "check", lambda engine: (checks.append(engine.now_ns), original(engine))
    )
    row = _row(serving__sample_ms=100.0)
    samples = int(row["makespan_s"] * 10) + 1
    # At samples 1, 2, 4, 8 and so on, and at the end.
    assert len(checks) == samples.bit_length() + 1 > 5
