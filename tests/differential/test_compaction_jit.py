"""One script of random verbs with compaction, compiled and interpreted: equal bytes."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache
from pathlib import Path

from differential.moving_script import play_all
from differential.test_compaction_machine import MINIMUM

TESTS = Path(__file__).parents[1]
VERBS, SEED = 60, 15


@cache
def here():
    """Play in this process: 32 ledgers, 60 verbs each, all in lockstep with the oracles."""
    return play_all(VERBS, SEED)


def test_compiled_and_interpreted_kernels_leave_the_same_bytes():
    """Scratch that is read before it is written, or an integer that wraps in the one only."""
    interpreted = os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0")
    # The package of this very process, which need not be the installed one.
    import kvsim

    package = Path(kvsim.__file__).parents[1]
    environment = os.environ | {
        "NUMBA_DISABLE_JIT": "0" if interpreted else "1",
        "PYTHONPATH": os.pathsep.join((str(TESTS), str(package))),
    }
    other = subprocess.run(
        [sys.executable, "-m", "differential.moving_script", str(VERBS), str(SEED)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert other.returncode == 0, other.stderr
    assert other.stdout.strip() == here()[0]


def test_script_reaches_what_may_differ():
    """A script that never moves a row would be equal for free."""
    reached = here()[1]
    assert not [path for path in MINIMUM if path not in reached]
