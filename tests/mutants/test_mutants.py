"""Every planted bug is noticed by the test that is named for it; a survivor fails.

Each mutant gets a copy of the package of its own, with the kernels left uncompiled.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from mutants.catalogue import PAGING
from mutants.catalogue_lives import LIFE
from mutants.catalogue_loop import LOOP
from mutants.catalogue_moves import MOVES
from mutants.catalogue_tensors import TENSORS
from mutants.mutant import ROOT, Mutant, copy_of_package, plant

MUTANTS = [*PAGING, *MOVES, *LOOP, *TENSORS, *LIFE]
TESTS = sorted({mutant.test for mutant in MUTANTS})
WORKERS = 2
# What the runner must tell from a kill: a bug that is none, and a package that cannot be imported.
HARMLESS = Mutant("harmless", "paging/pool.py", "left == 0", "0 == left", TESTS[0])
BROKEN = Mutant("broken", "paging/pool.py", "if left == 0:", "if left == 0", TESTS[0])
CLEAN = "no bug at all"
Outcomes = dict[str, dict[str, dict[str, Any]]]


def drive(jobs: list[tuple[str, str, list[str]]], cache: Path) -> Outcomes:
    """Run (name, folder, tests) jobs in one process; return {name: {test: outcome}}."""
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("driver.py"))],
        input=json.dumps(jobs),
        env={
            **os.environ,
            "NUMBA_DISABLE_JIT": "1",
            "NUMBA_CACHE_DIR": str(cache),
            "OPENBLAS_NUM_THREADS": "1",
        },
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    """What became of every named test: on its mutants, and on the package as it is."""
    folder = tmp_path_factory.mktemp("mutants")
    jobs = [(CLEAN, str(copy_of_package(folder / "clean")), TESTS)]
    for number, mutant in enumerate([*MUTANTS, HARMLESS, BROKEN]):
        try:
            jobs.append((mutant.name, str(plant(mutant, folder / str(number))), [mutant.test]))
        except AssertionError:
            # A stale mutant must not hide the others: its own test says what is wrong.
            continue
    with ThreadPoolExecutor(WORKERS) as pool:
        parts = pool.map(lambda part: drive(jobs[part::WORKERS], folder), range(WORKERS))
        return {name: outcome for part in parts for name, outcome in part.items()}


@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.name for mutant in MUTANTS])
def test_the_named_test_kills(mutant, outcomes, tmp_path):
    if mutant.name not in outcomes:
        plant(mutant, tmp_path / "again")
    outcome = outcomes[mutant.name][mutant.test]
    assert not outcome["passed"], f"{mutant.name} survives {mutant.test}"
    # Failed in the test itself, by an assertion or a refusal, and not because nothing runs.
    assert outcome["seen"], outcome


@pytest.mark.parametrize("test", TESTS)
def test_the_named_test_passes_without_its_mutant(test, outcomes):
    assert outcomes[CLEAN][test] == {"phase": "call", "passed": True, "seen": False, "error": ""}


def test_a_survivor_and_a_package_that_cannot_be_imported_are_no_kills(outcomes):
    assert outcomes["harmless"][TESTS[0]]["passed"]
    broken = outcomes["broken"][TESTS[0]]
    assert (broken["passed"], broken["seen"]) == (False, False)


def test_there_are_enough_mutants_and_each_has_a_name():
    assert len(MUTANTS) >= 100
    assert len(TENSORS) + len(LIFE) >= 60
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
    assert all((ROOT / mutant.test.partition("::")[0]).is_file() for mutant in MUTANTS)


@pytest.mark.parametrize("old", ["no such text", "pages"], ids=["gone", "ambiguous"])
def test_a_stale_mutant_is_refused(old, tmp_path):
    with pytest.raises(AssertionError, match=r"places in paging/pool\.py"):
        plant(Mutant("stale", "paging/pool.py", old, "x", TESTS[0]), tmp_path / "stale")
