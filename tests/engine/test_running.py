"""Runs in which several sequences live at once: forks that decode, requests that arrive, jobs.

And the recount of the ledger every so many steps.
"""

from __future__ import annotations

import itertools

import pytest
from recordings import row_of, scenario
from watching import Watch, synthetic

from kvsim.engine import driver
from kvsim.errors import Infeasible
from kvsim.lab.execute import execute
from kvsim.paging import Ledger
from kvsim.seeds import stream
from kvsim.workload import arrivals

# What may differ between the kernel's path and Python's.
OF_THE_STORE = {"run_id", "store"}


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    return synthetic(tmp_path_factory.mktemp("when"))


@pytest.mark.parametrize("append", ["tail", "reuse_holes"])
@pytest.mark.parametrize("compaction", ["none", "hole_fill", "forward", "rebuild"])
def test_forks_that_decode_and_evict_keep_their_own_rows(keys, append, compaction):
    watch = Watch(
        keys,
        policy__name="random",
        budget__when="step",
        budget__tokens=10,
        pages__append=append,
        compaction__algorithm=compaction,
        selection__sets="head",
        workload__forks=2,
        workload__tokens=14,
        workload__decode_tokens=12,
        store__kind="array",
    )
    assert watch.samples[-1].appended == [26, 26, 26]
    assert watch.samples[-1].kept == [[10] * 4] * 3
    # Three sequences, four units, ten rows of four floats, in two planes: each compared.
    assert watch.words == 3 * 4 * 10 * 4 * 2


@pytest.fixture(scope="module")
def arriving(tmp_path_factory):
    """Requests whose lengths stand in a small file, close enough to overlap."""
    folder = tmp_path_factory.mktemp("arriving")
    lines = ["TIMESTAMP,ContextTokens,GeneratedTokens"]
    for number, lengths in enumerate(("9,5", "4,12", "17,0", "6,30")):
        lines.append(f"2023-11-16 18:15:4{number}.68,{lengths}")
    (folder / "lengths.csv").write_text("\n".join(lines) + "\n")
    return synthetic(folder) | {
        "workload.kind": "requests",
        "workload.path": str(folder / "lengths.csv"),
        "workload.requests": 10,
        "workload.rate_per_s": 8.0,
        "budget.tokens": 9,
    }


def test_requests_arrive_decode_together_and_finish(arriving):
    watch = Watch(arriving, budget__when="step")
    # More than one sequence decoded at once, and whoever ended has left before the last step.
    assert any(
        sum(b > a for a, b in zip(x.appended, y.appended, strict=False)) > 1
        for x, y in itertools.pairwise(watch.samples)
    )
    assert max(len(sample.appended) for sample in watch.samples) > 1
    assert len(watch.samples[-1].appended) < 10
    # Each kept its own budget as long as it was there.
    for sample in watch.samples:
        assert [kept[0] for kept in sample.kept] == [min(9, total) for total in sample.appended]
    # And all ten have come.
    assert watch.row["tokens"] == sum(prompt + decode for _, prompt, decode in plan_of(arriving))


def plan_of(keys):
    """The requests that these keys make arrive, worked out apart from a run."""
    workload = scenario(keys).workload
    return arrivals.poisson(
        workload.rate_per_s,
        arrivals.read_lengths(workload.path),
        workload.requests,
        stream(scenario(keys).seed, "arrivals"),
    )


@pytest.mark.parametrize("policy", ["h2o", "streaming_llm"])
@pytest.mark.parametrize("when", ["step", "chunk", "prefill_end"])
def test_requests_give_one_row_by_either_path(arriving, policy, when):
    chunk = 5 if when == "chunk" else 0
    rows = [
        row_of(
            arriving,
            policy__name=policy,
            budget__when=when,
            budget__chunk_tokens=chunk,
            store__kind=kind,
        )
        for kind in ("counting", "array")
    ]
    assert {name for name in rows[0] if rows[0][name] != rows[1][name]} == OF_THE_STORE
    assert rows[0]["outcome"] == "completed"


def test_rows_of_arriving_and_decoding_runs_do_not_depend_on_jobs(arriving, keys, tmp_path):
    scenarios = [
        scenario(given, policy__name=policy, budget__when="step", seed=seed)
        for given in (arriving, keys)
        for policy in ("h2o", "random", "streaming_llm")
        for seed in (1, 2)
    ]
    files = []
    for jobs in (1, 2, 1):
        out = tmp_path / str(len(files))
        execute(scenarios, out, jobs=jobs, command=["test"])
        files.append((out / "rows.jsonl").read_bytes())
    assert files[0] == files[1] == files[2]
    assert files[0].count(b"\n") == 12
    # Another seed is another workload, or the comparison would show nothing.
    held = {line.split(b'"retained_mass":')[1].split(b",")[0] for line in files[0].splitlines()}
    assert len(held) > 6


@pytest.mark.parametrize("path", ["python", "kernel"])
def test_the_ledger_is_recounted_every_so_many_steps(keys, path, monkeypatch):
    counted = []
    check = Ledger.check
    monkeypatch.setattr(Ledger, "check", lambda ledger: counted.append(ledger) or check(ledger))
    monkeypatch.setattr(driver, "CHECK_EVERY_STEPS", 10)
    row = row_of(
        keys,
        policy__name="random" if path == "python" else "streaming_llm",
        budget__when="step",
        budget__tokens=8,
        workload__decode_tokens=45,
    )
    assert row["steps"] == 46
    # After steps 10, 20, 30 and 40, and once at the end of the run.
    assert len(counted) == 5


def test_a_recount_that_fails_ends_the_run(keys, monkeypatch):
    # The control: a ledger that is damaged on the way does not go unnoticed.
    monkeypatch.setattr(driver, "CHECK_EVERY_STEPS", 10)
    watch_check = Ledger.check
    calls = []

    def damaged(ledger):
        calls.append(1)
        if len(calls) == 2:
            raise Infeasible("the second recount")
        watch_check(ledger)

    monkeypatch.setattr(Ledger, "check", damaged)
    row = row_of(keys, policy__name="random", budget__when="step", budget__tokens=8)
    assert row["outcome_reason"] == "the second recount"
