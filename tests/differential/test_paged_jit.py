"""One script of random verbs for the paged cache, compiled and interpreted: equal bytes.

Compiled, rows of whole cache lines go through non-temporal stores where the machine has them;
interpreted, nothing does. So the two processes also compare both kernels.
"""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache
from pathlib import Path

from differential.paged_script import reach
from kvsim.tensors.streaming import STREAMS

TESTS = Path(__file__).parents[1]
CASES, VERBS, SEED = 40, 20, 3
# What may differ when it is compiled: kernels, and the paths to them.
MUST_REACH = (
    "a ceiling that just fits",
    "append copies on write",
    "clone",
    "evict copies on write",
    "evict moves rows",
    "evict rotates",
    "evict rotates in place",
    "reserve",
    "sets drop other tokens",
    "swap in",
    "the pool grows",
)


@cache
def here():
    """Play in this process, in lockstep with the contiguous caches; return (hash, paths)."""
    return reach(CASES, VERBS, SEED)


def test_compiled_and_interpreted_caches_hold_the_same_bytes():
    """A kernel that rounds, wraps or moves otherwise when it is compiled."""
    interpreted = os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0")
    # The package of this very process, which need not be the installed one.
    import kvsim

    package = Path(kvsim.__file__).parents[1]
    environment = os.environ | {
        "NUMBA_DISABLE_JIT": "0" if interpreted else "1",
        "PYTHONPATH": os.pathsep.join((str(TESTS), str(package))),
    }
    command = [sys.executable, "-W", "ignore", "-m", "differential.paged_script"]
    other = subprocess.run(
        [*command, str(CASES), str(VERBS), str(SEED)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert other.returncode == 0, other.stderr
    assert other.stdout.strip() == here()[0]


def test_script_reaches_what_may_differ():
    """A script that moves and rotates nothing would be equal for free."""
    reached = here()[1]
    wanted = (*MUST_REACH, "streams") if STREAMS else MUST_REACH
    assert not [path for path in wanted if not reached[path]]
