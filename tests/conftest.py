"""What every test shares: one BLAS thread, the folder beside the repository, and Hypothesis."""

from __future__ import annotations

import os
from pathlib import Path

# Before NumPy is imported: a matrix product must not depend on how many cores a machine has.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import pytest
from hypothesis import settings

SHARED = Path(__file__).parents[2] / "shared"

# Derandomized, so that a run on one machine says what a run on another will say. No deadline,
# because the first call of a kernel compiles it.
settings.register_profile("default", derandomize=True, deadline=None, print_blob=True)
settings.register_profile("shrink", settings.get_profile("default"))
settings.load_profile("default")


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of measurements beside the repository; a checkout alone does not have it."""
    if not SHARED.is_dir():
        pytest.skip(f"{SHARED} is absent: it lies beside the repository, not in it")
    return SHARED
