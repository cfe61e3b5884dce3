"""A recorded run of vLLM 0.19 on an RTX 4090, with the specification sheet and nothing tuned."""

from __future__ import annotations

import csv
import functools
import json
from pathlib import Path

import numpy as np
import pytest

from kvsim.engine.costs.settings import Cost, cost_model
from kvsim.engine.serving import fields as s
from kvsim.engine.serving.drive import Drive
from kvsim.engine.serving.engine import ServingEngine
from kvsim.engine.serving.settings import Settings
from kvsim.layout import load_layout
from kvsim.paging import geometry
from kvsim.workload.requests import Requests
from kvsim.workload.traces.chains import Chains

TRACES = Path(__file__).parents[3] / "shared" / "traces"
RUN = TRACES / "llmservingsim-vllm-timeseries" / "RTX4090_Llama-3.1-8B"
PROMPTS = TRACES / "llmservingsim-sharegpt" / "sharegpt300_prefixhash16.jsonl"
PAGES = 2588 - 1  # The first block of vLLM's pool is null.

pytestmark = pytest.mark.skipif(
    not PROMPTS.is_file(), reason="../shared/traces with the recorded run is absent"
)


@functools.cache
def _recorded() -> tuple[Requests, np.ndarray, dict[str, np.ndarray]]:
    """Return the requests, when each had its last token, and the series by column."""
    with RUN.with_name(RUN.name + ".requests.jsonl").open() as file:
        records = [json.loads(line) for line in file]
    with PROMPTS.open() as file:
        prompts = [json.loads(line) for line in file]
    for record, prompt in zip(records, prompts, strict=True):
        record["hash_ids"] = prompt["hash_ids"]
        assert record["input_toks"] == prompt["input_length"]
    records.sort(key=lambda record: record["queued_ts"])
    begin = records[0]["queued_ts"]
    chains = Chains()
    keys, start = [], [0]
    for record in records:
        full = record["input_toks"] // 16
        keys.append(chains(np.array(record["hash_ids"], np.int64)[:full]))
        start.append(start[-1] + full)
    count = len(records)
    requests = Requests(
        page_tokens=16,
        arrival_ns=np.array([int((r["queued_ts"] - begin) * 1e9) for r in records]),
        input_tokens=np.array([r["input_toks"] for r in records]),
        output_tokens=np.array([r["output_toks"] for r in records]),
        priority=np.zeros(count, np.int64),
        samples=np.ones(count, np.int64),
        keys=np.concatenate(keys).astype(np.int32),
        key_start=np.array(start),
        given_keys=chains.count,
    )
    with RUN.with_name(RUN.name + ".timeseries.csv").open() as file:
        rows = list(csv.DictReader(file))
    series = {name: np.array([float(row[name]) for row in rows]) for name in rows[0]}
    return requests, np.array([r["last_token_ts"] - begin for r in records]), series


@functools.cache
def _simulated(pages: int, efficiency: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """Return (time, generated tokens, held percent, running) of every step, and last tokens."""
    requests, _, _ = _recorded()
    layout = load_layout("Llama-3.1-8B")
    cost = Cost(device="RTX-4090", memory_efficiency=efficiency, compute_efficiency=efficiency)
    engine = ServingEngine(
        requests,
        # 2,048 tokens a step: the record shows a prompt cut where its step reached them.
        Settings(ceiling_pages=pages, prefix="blocks", step_tokens=2048, max_running=256),
        cost_model(layout, cost)[0].coefficients(),
        geometry(layout, "sequence", "shared"),
    )
    seen = []

    def watch(engine: ServingEngine) -> None:
        state = engine.state
        held = 100 * engine.ledger.held_pages / pages
        seen.append((state[s.NOW] / 1e9, state[s.GENERATED_TOTAL], held, state[s.RUNNING]))

    Drive(engine, every_steps=1, watch=watch).run()
    return np.array(seen, np.float64), engine.rows[:, s.LAST_NS] / 1e9


def _errors(pages: int) -> tuple[float, float]:
    """Return mean absolute errors at equal generated tokens: cache percent, and running."""
    _, _, series = _recorded()
    tokens = np.cumsum(series["gen_throughput"])
    seen, _ = _simulated(pages)
    held = np.interp(tokens, seen[:, 1], seen[:, 2])
    running = np.interp(tokens, seen[:, 1], seen[:, 3])
    return (
        float(np.abs(held - series["kv_cache_pct"]).mean()),
        float(np.abs(running - series["running"]).mean()),
    )


def test_occupancy_at_equal_generated_tokens() -> None:
    held, running = _errors(PAGES)
    assert held <= 2.5
    assert running <= 1.5


@pytest.mark.parametrize("share", [0.9, 1.1])
def test_another_pool_is_noticed(share: float) -> None:
    _, running = _errors(int(PAGES * share))
    assert running > 3


def _time_errors(efficiency: float) -> tuple[float, float]:
    _, _, series = _recorded()
    seen, _ = _simulated(PAGES, efficiency)
    late = series["t"] > 60
    held = np.interp(series["t"], seen[:, 0], seen[:, 2])
    running = np.interp(series["t"], seen[:, 0], seen[:, 3])
    return (
        float(np.abs(held - series["kv_cache_pct"])[late].mean()),
        float(np.abs(running - series["running"])[late].mean()),
    )


def test_one_efficiency_fitted_on_the_first_minute_holds_after_it() -> None:
    _, last, _ = _recorded()
    early = last < 60
    grid = np.arange(0.6, 1.0001, 0.0125)

    def misfit(efficiency: float) -> float:
        return float(np.abs(_simulated(PAGES, efficiency)[1] - last)[early].mean())

    fitted = float(min(grid, key=lambda value: misfit(float(value))))
    held, running = _time_errors(fitted)
    untuned, _ = _time_errors(1.0)
    print(f"efficiency {fitted}: {held:.2f} points, {running:.2f} running; untuned {untuned:.2f}")
    assert held <= 3.9
    assert running <= 2.5
    assert untuned > held
