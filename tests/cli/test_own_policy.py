"""A user's own policy file, and the seed: what changes a row, and what never may."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli.command import kvsim, quick, sweep_of, tiny

MINE = """\
from dataclasses import dataclass
from kvsim.policies import Policy

@dataclass(frozen=True)
class NewestOfLoudest(Policy):
    weight: float = 0.5
    signals = ("attention",)

    def score(self, view):
        loud = view.attention.cumulative / view.attention.cumulative.max()
        return self.weight * loud + (1 - self.weight) * view.positions / view.tokens
"""
AXES = ('policy.name = ["h2o", "random", "streaming_llm"]', "budget.fraction = [0.5, 0.25]")


@pytest.fixture
def folder(tmp_path) -> Path:
    sweep_of(tmp_path, *AXES)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "loudest.py").write_text(MINE)
    return tmp_path


def rows(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]


def test_a_file_of_a_dozen_lines_is_a_policy_with_its_fields_as_parameters(folder):
    assert MINE.count("\n") < 15
    words = ("run", "scenario.toml", "--policy", "mine/loudest.py", "--json")
    row = json.loads(kvsim(*words, cwd=folder).out)
    assert (row["policy"], row["outcome"], row["retained_tokens"]) == ("loudest", "completed", 32.0)
    other = json.loads(quick(*words, "--set", "policy.weight=0", cwd=folder).out)
    assert other["policy_parameters"] == "weight=0.0"
    assert other["retained_mass"] != row["retained_mass"]
    assert other["run_id"] != row["run_id"]
    # With no weight on attention it keeps the newest tokens: what streaming_llm does without sinks.
    plain = ("run", "scenario.toml", "--policy", "streaming_llm", "--set", "policy.n_sink=0")
    newest = json.loads(quick(*plain, "--json", cwd=folder).out)
    measured = ("held_pages", "freed_pages_total", "retained_mass", "live_slots")
    assert {c: other[c] for c in measured} == {c: newest[c] for c in measured}


def test_an_unknown_parameter_of_a_users_policy_is_refused(folder):
    words = ("run", "scenario.toml", "--policy", "mine/loudest.py", "--set", "policy.wait=1")
    answer = quick(*words, cwd=folder)
    assert (answer.code, answer.out) == (2, "")
    assert "policy.wait: loudest has no such parameter" in answer.err
    assert "did you mean policy.weight?" in answer.err


def test_a_sweep_takes_the_file_from_the_command_line_or_from_an_axis(folder):
    words = ("--jobs", 2, "--no-figures", "--json")
    one = quick(
        "sweep", "sweep.toml", "--policy", "mine/loudest.py", "--out", "a", *words, cwd=folder
    )
    assert json.loads(one.out)["rows"] == 2
    assert [row["policy"] for row in rows(folder / "a")] == ["loudest", "loudest"]
    axis = 'policy.name = ["h2o", "mine/loudest.py"]'
    (folder / "axis.toml").write_text((folder / "scenario.toml").read_text() + f"[[axes]]\n{axis}")
    # The path in the file is relative to the file, whatever the working directory.
    away = folder / "mine"
    assert quick("sweep", "../axis.toml", "--out", "b", *words, cwd=away).code == 0
    assert [row["policy"] for row in rows(away / "b")] == ["h2o", "loudest"]
    assert rows(away / "b")[1] == rows(folder / "a")[0]
    # Nothing in the rows says where the file lies.
    assert str(folder) not in (folder / "a" / "rows.jsonl").read_text()


def test_the_same_seed_gives_the_same_bytes_without_compiled_code(folder):
    words = ("sweep", "sweep.toml", "--jobs", 1, "--no-figures", "--json", "--out")
    assert quick(*words, "compiled", cwd=folder).code == 0
    answer = kvsim(*words, "interpreted", cwd=folder, NUMBA_DISABLE_JIT="1")
    assert (answer.code, answer.err) == (0, "")
    compiled, interpreted = (
        (folder / name / "rows.jsonl").read_bytes() for name in ("compiled", "interpreted")
    )
    assert compiled.count(b"\n") == 6
    assert compiled == interpreted


def test_another_seed_changes_what_random_does_and_nothing_else(folder):
    words = ("sweep", "sweep.toml", "--jobs", 1, "--no-figures", "--json", "--out")
    for seed in (1, 2, 3):
        assert quick(*words, f"seed-{seed}", "--set", f"seed={seed}", cwd=folder).code == 0
    without = ("run_id", "seed")
    bare = [
        [{k: v for k, v in row.items() if k not in without} for row in rows(folder / f"seed-{s}")]
        for s in (1, 2, 3)
    ]
    for same in zip(*bare, strict=True):
        assert all(one == same[0] for one in same) == (same[0]["policy"] != "random")


def test_every_policy_sees_one_random_stream_whatever_ran_before(folder):
    """A run is a function of its scenario: alone, or behind others in one process."""
    tiny(folder)
    words = ("sweep", "sweep.toml", "--jobs", 1, "--no-figures", "--out", "all")
    assert quick(*words, cwd=folder).code == 0
    alone = quick("run", "scenario.toml", "--policy", "random", "--json", cwd=folder)
    assert json.loads(alone.out) in rows(folder / "all")
