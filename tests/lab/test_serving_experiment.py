"""Experiment 04: its tables are its CSVs, and its CSVs are what new runs give."""

from __future__ import annotations

from pathlib import Path

import pytest
import serving_tables

from kvsim.engine.costs.settings import Cost
from kvsim.errors import WorkloadError
from kvsim.figures import serving_cliff
from kvsim.lab import sweep, vllm_runs
from kvsim.lab.identity import run_id
from kvsim.lab.run import run

TRACES = Path(__file__).parents[3] / "shared" / "traces"
FILES = {
    "mooncake": TRACES / "mooncake" / "conversation_trace.jsonl",
    "agent": TRACES / "kv-cache-tester" / "kvct_710_rle.jsonl.gz",
}


def test_tables_are_what_the_csvs_say() -> None:
    blocks = serving_tables.blocks()
    assert [name for name, _ in blocks] == list(serving_tables.TABLES)
    for name, text in blocks:
        assert text == serving_tables.TABLES[name](), name


def _same(scenario, line: dict[str, str]) -> None:
    row = run(scenario, {})
    shown = {c: row.get(c) for c in serving_cliff.MEASURED} | {"outcome": row["outcome"]}
    assert {c: "" if v is None else str(v) for c, v in shown.items()} == {
        column: line[column] for column in shown
    }


def test_the_sweep_gives_its_csv() -> None:
    lines = {line["run_id"]: line for line in serving_tables.read("serving_cliff")}
    found = [s for s in sweep.read(serving_tables.EXPERIMENT).scenarios if run_id(s) in lines]
    assert len(found) == len(lines) == 756
    for scenario in found[::47]:
        _same(scenario, lines[run_id(scenario)])


@pytest.mark.parametrize("name", FILES)
def test_a_trace_gives_its_csv(name: str) -> None:
    if not FILES[name].is_file():
        pytest.skip(f"../shared/traces without {FILES[name].name}")
    lines = {line["run_id"]: line for line in serving_tables.read(f"{name}/serving_cliff")}
    file = serving_tables.EXPERIMENT / f"{name}.toml"
    found = sweep.read(file, {"workload.path": str(FILES[name])}).scenarios
    assert {run_id(s) for s in found} == set(lines)
    for scenario in found[4::41]:
        _same(scenario, lines[run_id(scenario)])


def test_a_recorded_run_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match="cannot be read"):
        vllm_runs.load(tmp_path, "x", None)
    (tmp_path / "x.requests.jsonl").write_text('{"input_toks": 3}\n')
    with pytest.raises(WorkloadError, match=r"x\.requests\.jsonl:1: needs"):
        vllm_runs.load(tmp_path, "x", None)
    (tmp_path / "x.requests.jsonl").write_text("no\n")
    with pytest.raises(WorkloadError, match=r"x\.requests\.jsonl:1: the line is not valid JSON"):
        vllm_runs.load(tmp_path, "x", None)


def test_the_recorded_run_gives_its_csv() -> None:
    series = TRACES / "llmservingsim-vllm-timeseries"
    prompts = TRACES / "llmservingsim-sharegpt" / "sharegpt300_prefixhash16.jsonl"
    if not prompts.is_file():
        pytest.skip("../shared/traces without the recorded run of vLLM")
    machine = vllm_runs.Machine(
        "RTX4090_Llama-3.1-8B", "Llama-3.1-8B", Cost(device="RTX-4090"), 2587, 256
    )
    rows = vllm_runs.compare(machine, vllm_runs.load(series, machine.run, prompts))
    lines = serving_tables.pick(
        serving_tables.read("serving_vllm"), run=machine.run, pool_share=1.0, efficiency=1.0
    )
    assert [{k: str(v) for k, v in row.items()} for row in rows] == lines
