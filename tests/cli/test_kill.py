"""A sweep that is killed or interrupted: nothing lost, nothing twice, nobody left behind."""

from __future__ import annotations

import fcntl
import json
import os
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest

from cli.command import policy, quick, start, sweep_of

RUNS = 24
# Each run takes a little while, so that a kill can fall into every part of a sweep.
SLOW = "import time; time.sleep(0.02); return view.positions % 7 + view.attention.last"


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """A folder with a sweep of 24 runs, and in `whole` what it gives when nobody disturbs it."""
    folder = tmp_path_factory.mktemp("kill")
    seeds = ", ".join(map(str, range(RUNS // 2)))
    sweep_of(folder, f"seed = [{seeds}]", "budget.fraction = [0.5, 0.25]")
    policy(folder, SLOW, "slow")
    assert quick(*words("whole", 1), cwd=folder).code == 0
    assert (folder / "whole" / "rows.jsonl").read_bytes().count(b"\n") == RUNS
    return folder


def words(out: str, jobs: int, *more: object) -> tuple[object, ...]:
    sweep = ("sweep", "sweep.toml", "--policy", "slow.py", "--no-figures", "--json")
    return (*sweep, "--out", out, "--jobs", jobs, *more)


def parents() -> dict[int, int]:
    """Every process that still runs, with its parent's id."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = path.read_text().rpartition(")")[2].split()[:2]
        except (OSError, ValueError):
            continue
        if state != "Z":
            found[int(path.parent.name)] = int(parent)
    return found


def children(process: int) -> set[int]:
    return {child for child, parent in parents().items() if parent == process}


def gone(processes: set[int], seconds: float) -> bool:
    """Whether all of these processes end within some seconds."""
    until = time.monotonic() + seconds
    while processes & set(parents()):
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True


def lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def wait_for_lines(child: subprocess.Popen[str], path: Path, count: int) -> None:
    while lines(path) < count and child.poll() is None:
        time.sleep(0.001)


def lock_is_free(folder: Path) -> bool:
    with open(folder / ".lock", "r+") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_sweep_killed_at_random_moments_ends_with_the_same_rows(whole, jobs):
    rng = random.Random(20240601 + jobs)
    out = f"killed-{jobs}"
    rows = whole / out / "rows.jsonl"
    # A blind kill falls into start-up, as a rule; the others wait for a few more rows.
    targets = [*[0] * (jobs - 1), *sorted(rng.sample(range(1, RUNS - 4), 3))]
    partial = 0
    for target in targets:
        child = start(*words(out, jobs), cwd=whole)
        wait_for_lines(child, rows, target)
        time.sleep(rng.random() * (0.04 if target else 1))
        workers = children(child.pid)
        os.kill(child.pid, signal.SIGKILL)
        assert child.wait(30) in (-signal.SIGKILL, 0)
        assert gone(workers, 3), "a worker outlived its killed parent"
        assert not rows.exists() or lock_is_free(whole / out)
        partial += 0 < lines(rows) < RUNS
        assert (
            (whole / "whole" / "rows.jsonl")
            .read_bytes()
            .startswith(
                b"".join(rows.read_bytes().splitlines(True)[: lines(rows)])
                if rows.exists()
                else b""
            )
        )
        child.communicate()
    # Were every kill too early or too late, the test would show nothing.
    assert partial >= 2
    before = lines(rows)
    answer = quick(*words(out, jobs), cwd=whole)
    assert (answer.code, answer.err) == (0, "")
    summary = json.loads(answer.out)
    assert (summary["rows"], summary["run"], summary["skipped"]) == (RUNS, RUNS - before, before)
    for name in ("rows.jsonl", "measured.jsonl"):
        assert lines(whole / out / name) == RUNS
    assert rows.read_bytes() == (whole / "whole" / "rows.jsonl").read_bytes()
    assert lock_is_free(whole / out)


def test_a_worker_that_is_killed_ends_the_sweep_with_one_line_and_not_in_a_wait(whole):
    """The kernel kills the largest process when memory runs out; the parent must notice."""
    rows = whole / "worker" / "rows.jsonl"
    child = start(*words("worker", 2), cwd=whole)
    wait_for_lines(child, rows, 2)
    workers = children(child.pid)
    assert len(workers) == 2
    os.kill(min(workers), signal.SIGKILL)
    out, err = child.communicate(timeout=30)
    assert (child.returncode, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("kvsim: a worker process died in the middle of a run")
    assert gone(workers, 3)
    assert quick(*words("worker", 2), cwd=whole).code == 0
    assert rows.read_bytes() == (whole / "whole" / "rows.jsonl").read_bytes()


@pytest.mark.parametrize("jobs", [pytest.param(1, marks=pytest.mark.nightly), 2])
def test_an_interrupted_sweep_ends_at_once_with_one_line(whole, jobs):
    """Ctrl-C reaches the whole process group; workers must neither print nor stay."""
    out = f"interrupted-{jobs}"
    rows = whole / out / "rows.jsonl"
    child = start(*words(out, jobs), cwd=whole)
    wait_for_lines(child, rows, 3)
    workers = children(child.pid)
    os.killpg(child.pid, signal.SIGINT)
    printed, err = child.communicate(timeout=30)
    assert (child.returncode, printed, err) == (130, "", "kvsim: interrupted\n")
    assert gone(workers, 3)
    assert 3 <= lines(rows) < RUNS
    assert quick(*words(out, jobs), cwd=whole).code == 0
    assert rows.read_bytes() == (whole / "whole" / "rows.jsonl").read_bytes()


def test_an_interrupt_reaches_idle_and_busy_workers_in_silence(whole):
    """One worker waits for work, where an interrupt would print, and one is busy for long."""
    body = "import time; time.sleep(self.seconds); return view.positions"
    text = policy(whole, body, "waits").read_text()
    (whole / "waits.py").write_text(
        text.replace("    signals", "    seconds: int = 0\n    signals")
    )
    scenario = (whole / "scenario.toml").read_text()
    (whole / "two.toml").write_text(
        scenario + 'policy.name = "waits.py"\n[[axes]]\npolicy.seconds = [0, 60]\n'
    )
    sweep = ("sweep", "two.toml", "--no-figures", "--out", "idle", "--jobs", 2)
    child = start(*sweep, cwd=whole)
    wait_for_lines(child, whole / "idle" / "rows.jsonl", 1)
    workers = children(child.pid)
    os.killpg(child.pid, signal.SIGINT)
    printed, err = child.communicate(timeout=30)
    assert (child.returncode, printed, err) == (130, "", "kvsim: interrupted\n")
    assert gone(workers, 3)


def test_a_refusal_does_not_wait_for_the_long_run_beside_it(whole):
    """Nor at the interpreter's end, which would wait for the workers of a pool left open."""
    body = "import time; time.sleep(self.seconds); return view.positions * float('nan')"
    text = policy(whole, body, "late").read_text()
    parameter = "    seconds: int = 0\n    signals"
    (whole / "late.py").write_text(text.replace("    signals", parameter))
    (whole / "late.toml").write_text(
        (whole / "scenario.toml").read_text()
        + 'policy.name = "late.py"\n[[axes]]\npolicy.seconds = [0, 60]\n'
    )
    words = ("sweep", "late.toml", "--no-figures", "--out", "late", "--jobs", 2)
    printed, err = start(*words, cwd=whole).communicate(timeout=30)
    assert (printed, err.count("\n")) == ("", 1)
    assert "policy late: scores contain a number that is not finite" in err


def test_a_policy_that_ends_its_process_is_one_line_and_no_wait(whole):
    policy(whole, "import os; os._exit(3)", "ends")
    sweep = ("sweep", "sweep.toml", "--policy", "ends.py", "--no-figures", "--jobs", 2)
    answer = quick(*sweep, "--out", "ends", cwd=whole)
    assert (answer.code, answer.out, answer.err.count("\n")) == (2, "", 1)
    assert "a worker process died" in answer.err
    assert "--jobs 1" in answer.err
