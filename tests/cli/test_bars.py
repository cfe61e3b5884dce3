"""Bars on a terminal, and nothing anywhere else."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest
from rich.console import Console

import kvsim.cli.bars as module
from cli.command import quick
from kvsim.cli.bars import bars

SCENARIO = Path(__file__).parents[2] / "scenarios" / "serving-pressure.toml"


class Clock:
    """A clock that stands until it is told."""

    now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(module, "time", made)
    return made


def _terminal() -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=100)


def _written(console: Console) -> str:
    file = console.file
    assert isinstance(file, io.StringIO)
    return file.getvalue()


def test_what_is_short_has_no_bar(clock: Clock) -> None:
    console = _terminal()
    with bars(console) as made:
        made.tell("reading", 1, 10)
        clock.now_s = 0.9
        made.tell("reading", 9, 10)
        made.tell("reading", 10, 10)
        # The next one's second begins anew.
        made.tell("reading", 1, 10)
        clock.now_s = 1.8
        made.tell("reading", 5, 10)
    assert _written(console) == ""


def test_what_is_long_has_one(clock: Clock) -> None:
    console = _terminal()
    with bars(console) as made:
        made.tell("reading", 1, None)
        clock.now_s = 1.1
        made.tell("reading", 5, None)
        assert "reading" in _written(console)
        made.tell("reading", 5, 5)
        made.tell("steps", 1, 9)
        assert "steps" not in _written(console)


@pytest.mark.parametrize("shown", [True, False])
def test_nothing_where_nobody_looks(clock: Clock, shown: bool) -> None:
    # A pipe; and a terminal, but the output is for a program.
    console = Console(file=io.StringIO(), force_terminal=not shown)
    with bars(console, shown) as made:
        assert not made.shown
        made.begin("runs")
        made.tell("reading", 1, 10)
        clock.now_s = 9.0
        made.tell("reading", 5, 10)
        made.tell("runs", 1, 2)
    assert _written(console) == ""


def _as_terminal() -> None:
    # Rich takes that for a terminal; a run of a moment is made worth a bar.
    os.environ["FORCE_COLOR"] = "1"
    module.PATIENCE_S = 0.0


def test_a_run_shows_how_many_requests_have_finished(tmp_path: Path) -> None:
    words = ("run", SCENARIO, "--set", "workload.requests=20")
    watched = quick(*words, cwd=tmp_path, before=_as_terminal)
    assert watched.code == 0
    assert "requests finished" in watched.err
    assert "/20" in watched.err
    for said in (
        quick(*words, "--json", cwd=tmp_path, before=_as_terminal),
        quick(*words, cwd=tmp_path),
    ):
        assert (said.code, said.err) == (0, "")


def test_a_sweep_shows_runs_and_requests(tmp_path: Path) -> None:
    text = SCENARIO.read_text() + '[[axes]]\n"workload.requests" = [20, 21]\n'
    (tmp_path / "sweep.toml").write_text(text)
    words = ("sweep", "sweep.toml", "--no-figures", "--jobs", 1, "--out")
    watched = quick(*words, "first", cwd=tmp_path, before=_as_terminal)
    assert watched.code == 0
    assert "runs" in watched.err
    assert "requests finished" in watched.err
    said = quick(*words, "second", "--json", cwd=tmp_path, before=_as_terminal)
    assert (said.code, said.err) == (0, "")
