"""What a run tells of itself: in order, no oftener than shown, and without a trace in its row."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvsim.lab import progress, reading
from kvsim.lab.execute import execute
from kvsim.lab.progress import part, watched_by
from kvsim.lab.run import run

SCENARIO = Path(__file__).parents[2] / "scenarios" / "serving-pressure.toml"
Told = list[tuple[str, int, int | None]]


def _listen(told: Told) -> progress.Listener:
    return lambda what, done, total: told.append((what, done, total))


def test_without_a_listener_nothing_is_counted() -> None:
    with part("steps", 5) as tell:
        assert tell is None


def test_a_part_tells_at_most_ten_times_a_second_and_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = iter([100.0, 100.05, 100.11, 100.12])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(now))
    told: Told = []
    counted: list[int] = []

    def count(value: int) -> int:
        counted.append(value)
        return value

    with watched_by(_listen(told)), part("steps", 9) as tell:
        assert tell is not None
        for value in (1, 2, 3, 4):
            tell(lambda value=value: count(value))
    assert told == [("steps", 1, 9), ("steps", 3, 9), ("steps", 9, 9)]
    assert counted == [1, 3]


def test_a_part_that_breaks_ends_too() -> None:
    told: Told = []
    with pytest.raises(ValueError, match="broken"), watched_by(_listen(told)), part("x", None):
        raise ValueError("broken")
    assert told == [("x", 0, 0)]
    assert progress.watcher() is None


def test_a_watched_run_has_the_same_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "REPORT_S", 0.0)
    trace = tmp_path / "trace.jsonl"
    trace.write_text(
        "".join(
            json.dumps(
                {
                    "timestamp": 100 * number,
                    "input_length": 320,
                    "output_length": 40,
                    "block_size": 16,
                    "hash_ids": [*range(5), *range(20 * number + 5, 20 * number + 20)],
                }
            )
            + "\n"
            for number in range(1500)
        )
    )
    changes = {"workload.kind": "trace", "workload.path": str(trace), "serving.sample_ms": 0}
    scenario = reading.load(SCENARIO, changes)
    alone = run(scenario)
    told: Told = []
    with watched_by(_listen(told)):
        assert run(scenario) == alone
    assert told[0] == ("requests read", 1024, None)
    finished = [done for what, done, _ in told if what == "requests finished"]
    assert finished == sorted(finished)
    # Without samples in between the engine leaps to its end, if it is not stopped for reports.
    assert len(finished) >= alone["steps"] // 2048 > 2
    assert 0 < finished[0] < finished[1] < 1500 == finished[-1]


@pytest.mark.parametrize(("jobs", "heard"), [(1, True), (2, False)])
def test_workers_leave_the_terminal_to_their_parent(tmp_path: Path, jobs: int, heard: bool) -> None:
    mark = tmp_path / "heard"
    changes = {"workload.requests": 20}
    scenarios = [reading.load(SCENARIO, {**changes, "seed": seed}) for seed in (1, 2)]
    with watched_by(lambda what, done, total: mark.touch()):
        execute(scenarios, tmp_path / "out", jobs=jobs, command=[])
    assert mark.exists() == heard
