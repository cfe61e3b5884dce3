"""One script of random verbs, compiled and interpreted, with and without a store: equal bytes."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache
from pathlib import Path

from differential.paths import MINIMUM
from differential.script import play_all

TESTS = Path(__file__).parents[1]
VERBS, SEED = 40, 7


@cache
def here():
    """Play in this process: ten geometries, 40 verbs each, all in lockstep with the oracles."""
    return play_all(VERBS, SEED)


def test_compiled_and_interpreted_kernels_leave_the_same_bytes():
    """An integer that wraps in the one and grows in the other, or an order left to chance."""
    interpreted = os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0")
    # The package of this very process, which need not be the installed one.
    import kvsim

    package = Path(kvsim.__file__).parents[1]
    environment = os.environ | {
        "NUMBA_DISABLE_JIT": "0" if interpreted else "1",
        "PYTHONPATH": os.pathsep.join((str(TESTS), str(package))),
    }
    other = subprocess.run(
        [sys.executable, "-m", "differential.script", str(VERBS), str(SEED)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert other.returncode == 0, other.stderr
    assert other.stdout.strip() == here()[0]


def test_script_reaches_what_may_differ():
    """A script of nothing but appends would be equal for free."""
    reached = here()[1]
    assert not [path for path in MINIMUM if path not in reached]


def test_ledger_counts_the_same_without_a_store():
    """A counter kept in a store, or a question which store it is."""
    assert play_all(VERBS, SEED, rows=False)[0] == here()[0]
