"""Settings of a scenario that move, reuse, renumber, chunk, draw and record: taken or refused."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli.command import quick
from recordings import row_of, scenario
from watching import Watch, synthetic

from kvsim.errors import KvsimError, LayoutError, LedgerError, ScenarioError, WorkloadError
from kvsim.lab import reading
from kvsim.lab.execute import execute
from kvsim.lab.identity import run_id
from kvsim.lab.run import check
from kvsim.lab.scenario import Scenario
from kvsim.paging import fields as f
from kvsim.tensors.array_store import ArrayStore
from kvsim.workload.synthetic_process import Process

# Key, a value that is accepted now, and one that is not.
SETTABLE: dict[str, tuple[Any, Any]] = {
    "pages.append": ("reuse_holes", "reuse"),
    "pool.order": ("lifo", "random"),
    "budget.when": ("step", "steps"),
    "budget.chunk_tokens": (5, -1),
    "compaction.algorithm": ("hole_fill", "holefill"),
    "compaction.unit": ("row", "rows"),
    "compaction.positions": ("renumber", "rank"),
    "workload.kind": ("synthetic", "azure"),
    "workload.tokens": (9, 0),
    "workload.requests": (3, 0),
    "workload.rate_per_s": (0.5, 0.0),
    "workload.forks_evict": (False, 1),
    "store.kind": ("array", "arrays"),
    "store.planes": ("raw_only", "raw"),
    "store.element_bytes": (4, 0),
    "record.page_map": (True, "yes"),
}
# Parameters of the process, each with another value that it can be run with.
PARAMETERS = {field.name: field.default for field in dataclasses.fields(Process)}
OTHER = {
    name: value + 1 if type(value) is int else value * 0.9 for name, value in PARAMETERS.items()
}
OTHER["value_norm_salience"] = 0.1


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    return synthetic(tmp_path_factory.mktemp("settings"))


def flat(text: str, folder: Path) -> dict[str, Any]:
    """Return the keys of a scenario file with this text."""
    path = folder / "scenario.toml"
    path.write_text(text)
    return reading.load(path).flat()


def toml(value: Any) -> str:
    """Return a value as TOML writes it."""
    return json.dumps(value)


@pytest.mark.parametrize("key", SETTABLE)
def test_a_setting_is_read_from_the_file_and_the_command_line(key, tmp_path):
    value, wrong = SETTABLE[key]
    default = Scenario().flat()
    assert default[key] != value
    assert flat(f"{key} = {toml(value)}", tmp_path) == default | {key: value}
    assert reading.overrides([f"{key}={toml(value)}"]) == {key: value}
    with pytest.raises(ScenarioError, match=key.replace(".", r"\.")):
        flat(f"{key} = {toml(wrong)}", tmp_path)


@pytest.mark.parametrize("key", [key for key in SETTABLE if not key.startswith("workload.")])
def test_a_setting_is_part_of_the_key_of_its_run(key):
    assert run_id(reading.build({key: SETTABLE[key][0]}, "test")) != run_id(Scenario())


@pytest.mark.parametrize("key", ["requests", "rate_per_s", "tokens", "forks_evict"])
def test_what_only_some_workloads_read_is_part_of_their_key(key, keys):
    value = SETTABLE[f"workload.{key}"][0]
    assert run_id(scenario(keys | {f"workload.{key}": value})) != run_id(scenario(keys))


# Renumbering


@pytest.mark.parametrize("algorithm", ["none", "rebuild", "forward", "hole_fill"])
def test_renumbering_without_the_keys_it_needs_is_refused_with_the_remedy(keys, algorithm):
    given = scenario(
        keys,
        compaction__algorithm=algorithm,
        compaction__positions="renumber",
        store__planes="kv",
    )
    with pytest.raises(ScenarioError, match=r"set store\.planes to kv_raw or raw_only") as refusal:
        check(given)
    assert str(refusal.value).startswith("compaction.positions: renumber needs the pre-RoPE key")


def test_the_command_refuses_it_in_one_line_with_exit_code_2(keys, tmp_path):
    text = "".join(f"{key} = {toml(value)}\n" for key, value in keys.items())
    (tmp_path / "scenario.toml").write_text(text)
    words = ["run", "scenario.toml", "--json", "--set", "compaction.positions=renumber"]
    answer = quick(*words, cwd=tmp_path)
    assert (answer.code, answer.out, answer.err.count("\n")) == (2, "", 1)
    assert "compaction.positions" in answer.err
    assert "kv_raw or raw_only" in answer.err
    # And with the remedy it runs.
    answer = quick(*words, "--set", "store.planes=raw_only", cwd=tmp_path)
    assert (answer.code, answer.err) == (0, "")
    assert json.loads(answer.out)["positions"] == "renumber"


@pytest.mark.parametrize("planes", ["kv_raw", "raw_only"])
def test_the_array_store_renumbers_and_verifies_its_rows(keys, planes):
    given = {"compaction__positions": "renumber", "store__planes": planes}
    for algorithm in ("none", "rebuild", "forward", "hole_fill"):
        rows = [
            row_of(keys, **given, compaction__algorithm=algorithm, workload__forks=1, store__kind=k)
            for k in ("counting", "array")
        ]
        assert {name for name in rows[0] if rows[0][name] != rows[1][name]} == {"run_id", "store"}
        assert rows[0]["evicted_tokens_total"] > 0


def test_a_key_rotated_to_another_position_would_be_noticed(keys, monkeypatch):
    monkeypatch.setattr(ArrayStore, "apply", off_by_one(ArrayStore.apply))
    given = {"compaction__positions": "renumber", "compaction__algorithm": "forward"}
    with pytest.raises(LedgerError, match="rows differ"):
        row_of(keys, **given, store__planes="kv_raw", store__kind="array")


def off_by_one(apply):
    """Return an `apply` that rotates every key to the position after its own."""

    def wrong(store, plan):
        plan = plan.copy()
        plan[f.POSITION, plan[f.POSITION] >= 0] += 1
        apply(store, plan)

    return wrong


def test_a_layout_that_does_not_say_how_keys_rotate_has_no_array_store(keys, tmp_path):
    layout = json.loads(Path(keys["layout"]).read_text())
    del layout["rope"]
    (tmp_path / "bare.json").write_text(json.dumps(layout))
    given = scenario(keys | {"layout": str(tmp_path / "bare.json")}, store__kind="array")
    with pytest.raises(LayoutError, match="does not say how keys are rotated: rope"):
        check(given)


def test_planes_decide_what_renumbering_writes_and_what_a_row_weighs(keys):
    rows = {
        planes: row_of(keys, compaction__positions="renumber", store__planes=planes)
        for planes in ("kv_raw", "raw_only")
    }
    assert rows["kv_raw"]["rotated_rows_total"] > 0 == rows["raw_only"]["rotated_rows_total"]
    # K, V and the pre-RoPE K: half as many bytes again.
    assert rows["kv_raw"]["held_bytes"] * 2 == rows["raw_only"]["held_bytes"] * 3
    assert rows["kv_raw"]["held_pages"] == rows["raw_only"]["held_pages"]


@pytest.mark.parametrize("compaction", ["none", "rebuild", "forward", "hole_fill"])
@pytest.mark.parametrize("unit", ["slot", "row"])
@pytest.mark.parametrize("append", ["tail", "reuse_holes"])
def test_both_stores_give_one_row(keys, compaction, unit, append):
    rows = [
        row_of(
            keys,
            policy__name="random",
            selection__sets="head",
            compaction__algorithm=compaction,
            compaction__unit=unit,
            pages__append=append,
            budget__when="chunk",
            budget__chunk_tokens=12,
            workload__forks=1,
            store__kind=kind,
        )
        for kind in ("counting", "array")
    ]
    differing = {name for name in rows[0] if rows[0][name] != rows[1][name]}
    assert differing == {"run_id", "store"}
    assert (rows[0]["copied_rows_total"] > 0) or compaction == "none"


# The process


@pytest.mark.parametrize("name", PARAMETERS)
def test_a_parameter_of_the_process_is_settable_and_makes_another_run(keys, name, tmp_path):
    key, value = f"process.{name}", OTHER[name]
    assert flat(f"[process]\n{name} = {value}", tmp_path)[key] == value
    given = scenario(keys | {key: value})
    assert getattr(given.process, name) == value
    assert run_id(given) != run_id(scenario(keys))
    check(given)


def test_a_parameter_that_shapes_attention_changes_the_row(keys):
    masses = {row_of(keys, process__spread=spread)["retained_mass"] for spread in (0.2, 0.88, 2.0)}
    assert len(masses) == 3


def test_a_recording_leaves_the_process_nothing_to_say():
    plain = reading.build({}, "test")
    assert run_id(reading.build({"process.spread": 0.3}, "test")) == run_id(plain)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"spread": 9.0}, r"process\.spread: must be from 0 to 4, not 9\.0"),
        ({"spread": -0.1}, r"process\.spread"),
        ({"sinks": -1}, r"process\.sinks: must be from 0"),
        ({"sinks": 2.5}, r"process\.sinks must be int, not float"),
        ({"sinks": True}, r"process\.sinks must be int, not bool"),
        ({"sink_share": 0.0}, r"process\.sink_share: sinks without attention; set sinks = 0"),
        ({"sink_share": 1.0}, r"process\.sink_share"),
        ({"shared": 0.6, "layer": 0.5}, r"process\.shared: with process\.layer"),
        ({"recency_short": 0.6, "recency_long": 0.5}, r"process\.recency_short: with process\."),
        ({"long_tokens": 0.0}, r"process\.long_tokens"),
        ({"neighbour": 1.0}, r"process\.neighbour"),
        ({"dim": 0}, r"process\.dim"),
        ({"context": 0}, r"process\.context"),
        ({"key_norm": float("nan")}, r"process\.key_norm: must be finite"),
        ({"key_norm": float("inf")}, r"process\.key_norm: must be finite"),
        ({"sread": 0.5}, r"unknown key process\.sread; the nearest valid key is process\.spread"),
    ],
    ids=str,
)
def test_a_parameter_out_of_its_range_is_refused_by_name(keys, given, says):
    with pytest.raises(KvsimError, match=says):
        check(scenario(keys | {f"process.{name}": value for name, value in given.items()}))


def test_layers_that_the_process_cannot_stand_for_are_refused(keys):
    with pytest.raises(WorkloadError, match="layers of kind sliding"):
        check(scenario(keys | {"layout": "gpt-oss-20b"}))


# One workload for every policy

DENSE = ("tokens", "dense_pages", "dense_bytes", "page_bytes", "steps")
POLICIES = ["h2o", "tova", "snapkv", "knorm", "keydiff", "chunkkv", "random", "streaming_llm"]


@pytest.mark.parametrize("when", ["prefill_end", "step"])
def test_every_policy_sees_one_workload(keys, when):
    """A policy that drew from the workload's stream, or asked first, would change what comes."""
    rows = []
    queries = []
    for policy in POLICIES:
        watch = Watch(
            keys,
            policy__name=policy,
            budget__when=when,
            budget__tokens=12,
            workload__forks=1,
            workload__sequences=2,
        )
        rows.append(watch.row)
        queries.append(watch.queries)
    for name in DENSE:
        assert len({row[name] for row in rows}) == 1, name
    for other in queries[1:]:
        assert [row.tobytes() for row in other] == [row.tobytes() for row in queries[0]]
    # Sequences and forks differ, each from the others; and so do the policies.
    assert len({row.tobytes() for row in queries[0]}) == 4
    assert len({row["retained_mass"] for row in rows}) == len(POLICIES)


def test_synthetic_rows_are_the_same_for_any_number_of_jobs(keys, tmp_path):
    scenarios = [
        scenario(keys, policy__name=policy, seed=seed, budget__when="step", workload__forks=1)
        for policy in ("h2o", "keydiff", "random")
        for seed in (3, 4)
    ]
    files = []
    for jobs in (1, 2):
        execute(scenarios, tmp_path / str(jobs), jobs=jobs, command=["test"])
        files.append((tmp_path / str(jobs) / "rows.jsonl").read_bytes())
    assert files[0] == files[1]
    rows = [json.loads(line) for line in files[0].splitlines()]
    assert len({row["retained_mass"] for row in rows}) == 6


# Page maps

STAGES = ["before", "evicted", "after"]


def recorded(keys, folder, **more):
    """Run with page maps recorded; return the row and the maps that it names."""
    given = scenario(keys, record__page_map=True, **more)
    _, (row,) = execute([given], folder, jobs=1, command=["test"])
    with np.load(folder / row["page_map"], allow_pickle=False) as archive:
        return row, {name: archive[name] for name in archive.files}


@pytest.mark.parametrize("algorithm", ["none", "rebuild", "forward", "hole_fill"])
def test_page_maps_are_written_where_the_row_says_and_agree_with_it(keys, tmp_path, algorithm):
    row, maps = recorded(
        keys,
        tmp_path,
        compaction__algorithm=algorithm,
        workload__decode_tokens=0,
        budget__tokens=10,
    )
    assert row["page_map"] == f"maps/{row['run_id']}.npz"
    assert list(maps) == STAGES
    assert {(states.dtype.name, states.shape[1]) for states in maps.values()} == {("uint8", 4)}
    # 0 tail, 1 dead, 2 live, 3 in a page that is not held.
    counts = {stage: np.bincount(states.ravel(), minlength=4) for stage, states in maps.items()}
    assert counts["before"][:3].tolist() == [0, 0, 24]
    assert counts["evicted"][2] == counts["after"][2] == row["live_slots"] == 10
    last = [row["tail_slots"], row["dead_slots"], row["live_slots"]]
    assert counts["after"][:3].tolist() == last
    assert counts["after"][:3].sum() == row["held_pages"] * 4
    held = [int((states != 3).any(axis=1).sum()) for states in maps.values()]
    assert held[0] == 6 >= held[1] >= held[2] == row["held_pages"]
    if algorithm == "none":
        assert (maps["evicted"] == maps["after"]).all()
    else:
        assert held[2] == 3


def test_page_maps_are_of_the_first_eviction(keys, tmp_path):
    _, maps = recorded(keys, tmp_path, budget__when="step", budget__tokens=10)
    assert int((maps["before"] == 2).sum()) == 24
    assert int((maps["after"] == 2).sum()) == 10


def test_the_same_maps_are_the_same_bytes(keys, tmp_path):
    files = []
    for name in ("one", "two"):
        row, _ = recorded(keys, tmp_path / name)
        files.append((tmp_path / name / row["page_map"]).read_bytes())
    assert files[0] == files[1]


@pytest.mark.parametrize("more", [{}, {"record__page_map": True, "budget__fraction": 1.0}], ids=str)
def test_a_run_that_records_nothing_names_no_map(keys, tmp_path, more):
    _, (row,) = execute([scenario(keys, **more)], tmp_path, jobs=1, command=["test"])
    assert row["page_map"] is None
    assert not (tmp_path / "maps").exists()


def test_an_eviction_in_the_kernel_is_recorded_too(keys):
    rows = [
        row_of(
            keys,
            policy__name="streaming_llm",
            budget__when="step",
            budget__tokens=30,
            record__page_map=True,
            store__kind=kind,
        )
        for kind in ("counting", "array")
    ]
    assert rows[0]["evicted_tokens_total"] == 24
    assert [row["page_map"] is None for row in rows] == [False, False]


def test_a_row_that_is_only_printed_names_no_file(keys, tmp_path):
    text = "".join(f"{key} = {toml(value)}\n" for key, value in keys.items())
    (tmp_path / "scenario.toml").write_text(text)
    words = ("run", "scenario.toml", "--json", "--set", "record.page_map=true")
    named = json.loads(quick(*words, cwd=tmp_path).out)["page_map"]
    assert named is None or (tmp_path / named).is_file()
