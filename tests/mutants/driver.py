"""A process that runs named tests on copies of the package, each copy in a fork of its own.

Reads [[name, folder, tests]] as JSON from stdin and writes {name: {test: outcome}}. The libraries
are imported once, before the forks; kvsim never is, so that each fork takes the copy it is told.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
MOST_SECONDS = 30
LIBRARIES = ("numpy", "numba", "hypothesis", "_hypothesis_pytestplugin", "scipy.signal", "simpy")


class Probe:
    """A plugin that notes how each test ended, and by what kind of error if it failed."""

    def __init__(self, tests: list[str]) -> None:
        self.outcomes = {test: not_run("not collected") for test in tests}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: Any, call: Any) -> Any:
        """Keep the first phase that failed, or else that the call passed."""
        report = yield
        outcome = self.outcomes[report.nodeid]
        if report.failed and not outcome.get("seen"):
            outcome.update(phase=report.when, passed=False, error=str(call.excinfo.value)[:300])
            outcome["seen"] = report.when == "call" and was_noticed(call.excinfo.type)
        elif report.when == "call" and report.passed:
            outcome.update(phase="call", passed=True, error="")
        return report


def not_run(why: str) -> dict[str, Any]:
    """Return the outcome of a test that was never called."""
    return {"phase": "collect", "passed": False, "seen": False, "error": why}


def was_noticed(kind: type) -> bool:
    """Tell whether an error says that the package is wrong, and not that it cannot run."""
    ours = importlib.import_module("kvsim.errors").KvsimError
    return issubclass(kind, (AssertionError, pytest.fail.Exception, ours))


def run(folder: str, tests: list[str]) -> dict[str, dict[str, Any]]:
    """Run tests on one copy; to be called in a fork."""
    sys.path.insert(0, folder)
    os.environ["PYTHONPATH"] = folder
    os.chdir(ROOT)
    probe = Probe(tests)
    # The project's own options would start workers, which are other processes.
    pytest.main([*tests, "-q", "-o", "addopts=", "-p", "no:cacheprovider"], plugins=[probe])
    used = getattr(sys.modules.get("kvsim"), "__file__", None) or ""
    if not used.startswith(folder):
        return {test: not_run(f"kvsim came from {used!r}") for test in tests}
    return probe.outcomes


def in_a_fork(folder: str, tests: list[str]) -> dict[str, dict[str, Any]]:
    """Run tests in a fork and return their outcomes; a fork that hangs or dies is told of."""
    with tempfile.TemporaryFile("w+") as answer, tempfile.TemporaryFile() as output:
        child = os.fork()
        if child == 0:
            try:
                signal.alarm(MOST_SECONDS)
                os.dup2(output.fileno(), 1)
                os.dup2(output.fileno(), 2)
                json.dump(run(folder, tests), answer)
                answer.flush()
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        answer.seek(0)
        text = answer.read()
        if text:
            return json.loads(text)
        output.seek(0)
        said = output.read().decode(errors="replace")[-2000:]
        return {test: not_run(f"the process died: {said}") for test in tests}


def main() -> None:
    """Run every job of stdin."""
    for library in LIBRARIES:
        importlib.import_module(library)
    jobs = json.load(sys.stdin)
    json.dump({name: in_a_fork(folder, tests) for name, folder, tests in jobs}, sys.stdout)


if __name__ == "__main__":
    main()
