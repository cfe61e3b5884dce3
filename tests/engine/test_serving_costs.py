"""The roofline and the latencies, against numbers worked out by hand."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from kvsim.engine.costs.devices import catalogue, load_device
from kvsim.engine.costs.latency import latencies
from kvsim.engine.costs.roofline import CostModel, step_ns
from kvsim.engine.costs.settings import Cost, cost_model, pair_flops
from kvsim.errors import ScenarioError
from kvsim.layout import load_layout

# 1 byte and 1 operation a nanosecond, so that a time is a count.
UNIT = CostModel(
    weights_bytes=1000,
    parameters=10,
    row_bytes=3,
    pair_flops=2,
    bandwidth_bytes_per_s=1e9,
    flops_per_s=1e9,
    host_bytes_per_s=1e9,
)


def test_memory_decides_where_it_takes_longer() -> None:
    # 1,000 of weights and 3 bytes for each of 50 slots read and 2 rows written; 2 * 10 * 2 + 2 * 50
    # operations are less.
    assert step_ns(UNIT.coefficients(), 2, 50, 0, 0, 0, 0, 0) == 1000 + 3 * 52


def test_compute_decides_where_it_takes_longer() -> None:
    # 100 tokens: 2 * 10 * 100 and 2 * 5,050 operations, against 1,000 + 3 * 200 bytes.
    assert step_ns(UNIT.coefficients(), 0, 0, 100, 100, 5050, 0, 0) == 2000 + 10_100


def test_moved_bytes_are_memory_and_host_bytes_are_added() -> None:
    assert step_ns(UNIT.coefficients(), 1, 1, 0, 0, 0, 7, 11) == 1000 + 3 * 2 + 7 + 11


def test_efficiencies_and_overhead() -> None:
    half = CostModel(
        **{**UNIT.__dict__, "memory_efficiency": 0.5, "step_overhead_ns": 9}
    ).coefficients()
    assert step_ns(half, 1, 1, 0, 0, 0, 0, 0) == 2 * 1006 + 9


def test_pairs_of_a_model() -> None:
    # 32 layers of 32 query heads of 128: 2 for the product and 2 for the weighted sum.
    assert pair_flops(load_layout("Llama-3.1-8B"), 0) == 32 * 32 * 128 * 4


def test_the_same_nanoseconds_without_compilation() -> None:
    program = """
import json, numpy as np
from kvsim.engine.costs.roofline import CostModel, step_ns
rng = np.random.default_rng(5)
made = CostModel(16_060_522_496, 8_030_261_248, 131072, 524288, 1.008e12, 1.652e14, 3.2e10, .87)
print(json.dumps([int(step_ns(made.coefficients(), *counts.tolist()))
                  for counts in rng.integers(0, 10**6, (500, 7))]))
"""
    found = [
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "NUMBA_DISABLE_JIT": without},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for without in ("0", "1")
    ]
    assert found[0] == found[1]
    assert len(set(json.loads(found[0]))) > 400


def test_every_device_has_a_source_and_can_be_read_from_a_file(tmp_path: Path) -> None:
    for device in catalogue():
        assert device.source
        file = tmp_path / f"{device.name}.json"
        file.write_text(json.dumps(device.__dict__))
        assert load_device(str(file)) == device


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("{", "mine.json"),
        ('{"name": "x"}', "a device has the keys"),
        ("[]", "a device has the keys"),
    ],
)
def test_a_file_that_is_no_device_is_refused(tmp_path: Path, text: str, named: str) -> None:
    file = tmp_path / "mine.json"
    file.write_text(text)
    with pytest.raises(ScenarioError, match=named):
        load_device(str(file))


def test_a_figure_that_is_no_number_is_refused(tmp_path: Path) -> None:
    entry = {**catalogue()[0].__dict__, "flops_per_s": "fast"}
    file = tmp_path / "mine.json"
    file.write_text(json.dumps(entry))
    with pytest.raises(ScenarioError, match="flops_per_s cannot be 'fast'"):
        load_device(str(file))


def test_a_model_of_unknown_size_names_the_key() -> None:
    with pytest.raises(ScenarioError, match=r"cost\.parameters"):
        cost_model(load_layout("gpt-oss-20b"), Cost())
    made, _ = cost_model(load_layout("gpt-oss-20b"), Cost(parameters=3_600_000_000))
    assert made.weights_bytes == 7_200_000_000


def test_latencies_of_three_requests() -> None:
    ms = 1_000_000
    found = latencies(
        np.array([0, 0, 0]),
        np.array([10, 20, 30]) * ms,
        np.array([10, 60, 130]) * ms,
        np.array([1, 5, 11]),
        slo_ttft_ms=25,
        slo_tpot_ms=10,
        span_ns=2_000_000_000,
    )
    # Times to first token 10, 20, 30; per token 40 / 4 and 100 / 10; the third is late.
    assert found["ttft_p50_ms"] == 20
    assert found["tpot_p50_ms"] == 10
    assert found["e2e_p50_ms"] == 60
    assert found["good_fraction"] == pytest.approx(2 / 3, abs=0)
    assert found["goodput_requests_per_s"] == 1.0
    assert found["goodput_tokens_per_s"] == 3.0


def test_no_token_is_no_latency() -> None:
    none = np.zeros(0, np.int64)
    found = latencies(none, none, none, none, slo_ttft_ms=1, slo_tpot_ms=1, span_ns=0)
    assert all(value is None for value in found.values())
