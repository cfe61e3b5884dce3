"""The commands, called as a user or a program calls them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from cli.command import Answer, kvsim, quick, sweep_of, tiny

ROOT = Path(__file__).parents[2]
SCENARIOS = sorted((ROOT / "scenarios").glob("*.toml"))

# The contract's columns of a row, by the type that a reader may rely on.
TEXTS = re.findall(
    r"\w+",
    """
    run_id layout policy granularity sets scope when compaction compaction_unit positions
    append outcome outcome_reason
    """,
)
COUNTS = re.findall(
    r"\w+",
    """
    seed page_tokens ceiling_pages tokens live_slots dead_slots tail_slots held_pages
    held_pages_peak freed_pages_total packed_floor_pages dense_pages packed_floor_slot_pages
    held_bytes dense_bytes evicted_bytes_total metadata_bytes copied_rows_total
    rotated_rows_total copied_bytes_total cow_pages_total extra_pages_peak
    """,
)
NUMBERS = re.findall(
    r"\w+",
    """
    budget_fraction retained_tokens evicted_tokens_total held_fraction fragmentation
    row_fragmentation reclaim_efficiency charged_fraction retained_mass
    """,
)
LARGE_PAGES = "pages.tokens = 256\nselection.protect_recent = 64\n"
AXES = """
[[axes]]
policy.name = ["h2o", "tova", "random"]
[[axes]]
selection.sets = ["shared", "head"]
[[axes]]
budget.fraction = [0.5, 0.01]
"""


def good(answer: Answer) -> Answer:
    assert (answer.code, answer.err) == (0, "")
    assert "\x1b" not in answer.out
    return answer


def lines(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def packaged(tmp_path_factory) -> Path:
    """A sweep of 12 runs over the recording in the package, run by two processes."""
    folder = tmp_path_factory.mktemp("packaged")
    (folder / "sweep.toml").write_text(LARGE_PAGES + AXES)
    words = ("sweep", ".", "--jobs", 2, "--out", "two", "--no-figures", "--json")
    (folder / "answer.json").write_text(good(kvsim(*words, cwd=folder)).out)
    return folder


def test_a_run_prints_one_json_object_with_the_contracts_columns(tmp_path):
    (tmp_path / "s.toml").write_text(LARGE_PAGES)
    answer = good(kvsim("run", "s.toml", "--set", "budget.fraction=0.25", "--json", cwd=tmp_path))
    assert answer.out.count("\n") == 1
    row = json.loads(answer.out)
    assert {c: type(row[c]) for c in TEXTS} == dict.fromkeys(TEXTS, str)
    assert {c: type(row[c]) for c in COUNTS} == dict.fromkeys(COUNTS, int)
    assert {c: type(row[c]) for c in NUMBERS} == dict.fromkeys(NUMBERS, float)
    assert type(row["budget_met"]) is bool
    assert (row["outcome"], row["outcome_reason"]) == ("completed", "")
    assert (row["tokens"], row["page_tokens"], row["retained_tokens"]) == (4096, 256, 1024.0)
    # A run writes nothing beside its scenario.
    assert [file.name for file in tmp_path.iterdir()] == ["s.toml"]


def test_a_sweep_prints_what_it_did_and_writes_what_it_ran(packaged):
    answer = json.loads((packaged / "answer.json").read_text())
    counts = {key: answer[key] for key in ("rows", "run", "skipped", "failed")}
    assert counts == {"rows": 12, "run": 12, "skipped": 0, "failed": 0}
    rows = lines(packaged / "two")
    settings = [(row["policy"], row["sets"], row["budget_fraction"]) for row in rows]
    assert settings == [
        (policy, sets, fraction)
        for policy in ("h2o", "tova", "random")
        for sets in ("shared", "head")
        for fraction in (0.5, 0.01)
    ]
    measured = (packaged / "two" / "measured.jsonl").read_text().splitlines()
    assert [json.loads(line)["run_id"] for line in measured] == [row["run_id"] for row in rows]


def test_runs_that_cannot_be_are_rows_that_say_why_and_no_error(packaged):
    rows = lines(packaged / "two")
    outcomes = [row["outcome"] for row in rows]
    assert outcomes.count("infeasible") == 5
    assert outcomes.count("not_applicable") == 2
    for row in rows:
        if row["outcome"] != "completed":
            assert row["outcome_reason"]
            assert {row[c] for c in ("held_pages", "held_fraction", "budget_met")} == {None}
    assert {row["outcome_reason"] for row in rows if row["outcome"] == "infeasible"} == {
        "64 tokens are protected and the budget keeps 40"
    }
    tova = [row for row in rows if row["outcome"] == "not_applicable"]
    assert {(row["policy"], row["sets"]) for row in tova} == {("tova", "head")}


def test_one_process_writes_the_bytes_that_two_write(packaged):
    words = ("sweep", ".", "--jobs", 1, "--out", "one", "--no-figures", "--json")
    good(quick(*words, cwd=packaged))
    one, two = ((packaged / name / "rows.jsonl").read_bytes() for name in ("one", "two"))
    assert one == two
    assert one.count(b"\n") == 12


def test_a_run_gives_the_row_that_the_sweep_wrote(packaged):
    row = lines(packaged / "two")[0]
    (packaged / "one.toml").write_text(LARGE_PAGES)
    assert json.loads(good(quick("run", "one.toml", "--json", cwd=packaged)).out) == row


def test_a_sweep_given_again_runs_nothing_and_prints_the_table_with_its_notes(packaged):
    before = (packaged / "two" / "rows.jsonl").read_bytes()
    answer = good(kvsim("sweep", ".", "--out", "two", "--no-figures", cwd=packaged))
    assert (packaged / "two" / "rows.jsonl").read_bytes() == before
    assert "12 scenarios: 0 run now, 12 found done, 0 failed. Rows: two/rows.jsonl" in answer.out
    rows = [line for line in answer.out.splitlines() if line.startswith("│")]
    assert len(rows) == 12
    # Rows that did not complete stand in the table, with the reason once below it.
    assert sum("infeasible" in row for row in rows) == 5
    assert sum("not_applicable" in row for row in rows) == 2
    notes = answer.out[answer.out.index("└") :]
    assert "Not completed: 64 tokens are protected and the budget keeps 40" in notes
    assert "Not completed: tova keeps the same tokens in every head" in notes
    assert "Counted: 10 of the model's 30 layers" in notes
    assert "tova scores by the very attention row" in notes
    # The page size is the same everywhere: said once, above.
    assert "12 of 12 rows, page 256" in answer.out
    assert "64 tokens are protected" in (packaged / "two" / "table.md").read_text()


def test_the_table_of_the_file_chooses_what_is_printed_and_not_what_is_run(tmp_path):
    axes = ('policy.name = ["h2o", "knorm"]', "budget.fraction = [0.5, 0.25]", "seed = [1, 2]")
    path = sweep_of(tmp_path, *axes)
    chosen = '[table]\npolicy.name = ["knorm"]\nbudget.fraction = [0.25]\nworkload.kind = '
    path.write_text(path.read_text() + chosen + '["recorded"]\nstore.kind = ["counting"]\n')
    answer = good(quick("sweep", path, "--no-figures", "--jobs", 1, cwd=tmp_path))
    assert "2 of 8 rows, budget 0.25" not in answer.out
    assert "2 of 8 rows, page 4, budget 0.25" in answer.out
    assert "h2o" not in answer.out
    # Without --out the folder is named after the experiment, in the working directory.
    assert len(lines(tmp_path / "results" / f"{tmp_path.name}-sweep")) == 8


def test_a_limit_runs_that_many_and_the_next_call_goes_on(tmp_path):
    path = sweep_of(tmp_path, "seed = [1, 2, 3, 4, 5]")
    words = ("sweep", path, "--out", "out", "--jobs", 1, "--no-figures", "--json")
    done = []
    for limit in (("--limit", 0), ("--limit", 2), ("--limit", 2), ()):
        answer = json.loads(good(quick(*words, *limit, cwd=tmp_path)).out)
        done.append((answer["rows"], answer["run"], answer["skipped"]))
    assert done == [(0, 0, 0), (2, 2, 0), (4, 2, 2), (5, 1, 4)]
    assert [row["seed"] for row in lines(tmp_path / "out")] == [1, 2, 3, 4, 5]


def test_a_sweep_of_other_runs_shares_the_folder_and_reports_its_own_rows(tmp_path):
    path = sweep_of(tmp_path, "seed = [1, 2, 3]")
    words = ("sweep", path, "--out", "out", "--jobs", 1, "--no-figures", "--json")
    quick(*words, cwd=tmp_path)
    answer = json.loads(good(quick(*words, "--set", "seed=4", cwd=tmp_path)).out)
    assert (answer["rows"], answer["run"], answer["skipped"]) == (1, 1, 0)
    assert len(lines(tmp_path / "out")) == 4


@pytest.mark.nightly
def test_a_sweep_draws_its_figures_inside_its_folder(tmp_path):
    path = sweep_of(tmp_path, 'policy.name = ["h2o", "random"]', "budget.fraction = [0.5, 0.25]")
    answer = quick("sweep", path, "--out", "out", "--jobs", 1, "--json", cwd=tmp_path)
    assert answer.code == 0
    drawn = {file.suffix for file in (tmp_path / "out" / "figures").iterdir()}
    assert {".pdf", ".png", ".csv"} <= drawn


def test_the_policies_are_listed_with_what_they_read(tmp_path):
    found = json.loads(good(quick("policies", "--json", cwd=tmp_path)).out)
    wanted = {"name", "signals", "granularities", "kind", "paper", "reconstructed"}
    assert all(wanted <= set(entry) for entry in found)
    names = [entry["name"] for entry in found]
    assert names == sorted(names)
    assert {"streaming_llm", "h2o", "h2o_age", "tova", "snapkv", "knorm", "random"} <= set(names)
    assert {entry["kind"] for entry in found} <= {"evict", "merge", "encode", "summarise"}
    by_name = {entry["name"]: entry for entry in found}
    assert by_name["knorm"]["signals"] == ["key_norms"]
    assert by_name["streaming_llm"]["signals"] == []
    # The table for people may shorten texts, and never a name.
    shown = good(quick("policies", cwd=tmp_path)).out
    assert all(name in shown for name in names)


def test_a_layout_is_shown_in_bytes_and_all_are_listed(tmp_path):
    words = ("layouts", "Gemma-3-27B", "--tokens", 2000, "--json")
    entry = json.loads(good(quick(*words, cwd=tmp_path)).out)
    counts = ("tokens", "dense_bytes", "bounded_bytes", "marginal_bytes_per_token")
    assert {key: type(entry[key]) for key in counts} == dict.fromkeys(counts, int)
    assert type(entry["verified"]) is bool
    assert sum(entry["by_kind"].values()) == entry["dense_bytes"]
    assert (entry["name"], entry["tokens"]) == ("Gemma-3-27B", 2000)
    # Wider elements, and nothing else, double the bytes; below the window all layers grow.
    wide = json.loads(good(quick(*words, "--dtype", "float32", cwd=tmp_path)).out)
    assert wide["dense_bytes"] == 2 * entry["dense_bytes"]
    few = json.loads(
        good(quick("layouts", "Gemma-3-27B", "--tokens", 9, "--json", cwd=tmp_path)).out
    )
    assert few["dense_bytes"] == 9 * few["bytes_per_token_below_window"]
    listed = json.loads(good(quick("layouts", "--json", cwd=tmp_path)).out)
    assert "Gemma-3-27B" in [each["name"] for each in listed]
    assert "Gemma-3-27B" in good(quick("layouts", cwd=tmp_path)).out


def test_every_command_has_help_with_an_example_of_itself(tmp_path):
    import typer

    from kvsim.cli import app

    commands = typer.main.get_command(app).commands
    assert {"run", "sweep", "policies", "layouts", "bench"} <= set(commands)
    listed = good(quick("--help", cwd=tmp_path)).out
    for name in commands:
        words = " ".join(good(quick(name, "--help", cwd=tmp_path)).out.split())
        assert f"Example: kvsim {name}" in words
        assert f"  {name} " in listed


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_a_scenario_that_the_repository_teaches_with_runs(tmp_path, path):
    row = json.loads(good(quick("run", path, "--json", cwd=tmp_path)).out)
    # One of them shows a ceiling that cannot be met; a refusal would have been no row at all.
    assert row["outcome"] in ("completed", "infeasible")
    assert (row["outcome_reason"] == "") == (row["outcome"] == "completed")


def test_the_table_shows_names_with_brackets_and_colons_as_they_are(tmp_path):
    """rich reads [b] as bold and :key: as a picture of a key."""
    from cli.command import policy

    tiny(tmp_path)
    odd = policy(tmp_path, "return -view.positions", "my[b]:key:")
    answer = good(quick("run", "scenario.toml", "--policy", odd, cwd=tmp_path))
    assert "my[b]:key:" in answer.out


def test_a_folder_with_an_undecodable_name_and_an_ascii_terminal_are_served(tmp_path):
    """File names are bytes; Python keeps odd ones as lone surrogates, which UTF-8 refuses."""
    path = sweep_of(tmp_path, "seed = [1]")
    words = ("sweep", path, "--jobs", 1, "--no-figures", "--out", "odd-\udce9")
    assert json.loads(good(quick(*words, "--json", cwd=tmp_path)).out)["out"] == "odd-\udce9"
    answer = kvsim("sweep", path, "--no-figures", cwd=tmp_path, PYTHONIOENCODING="ascii")
    assert (answer.code, answer.err) == (0, "")
