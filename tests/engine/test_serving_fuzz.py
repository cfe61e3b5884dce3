"""Whatever the scenario: it ends, it checks at every step, and leaping changes nothing."""

from __future__ import annotations

import os

import numpy as np
import pytest

from tests.engine.serving_fuzz import draw, play

DAILY = 120
NIGHTLY = int(os.environ.get("KVSIM_FUZZ_SCENARIOS", "10000"))


def _both(seed: int) -> str:
    case = draw(np.random.default_rng(seed))
    stepping = play(case, leaping=False, checking=True)
    leaping = play(case, leaping=True, checking=False)
    assert leaping[0] == stepping[0], (seed, case.settings)
    assert leaping[1] == stepping[1], (seed, case.settings)
    assert (leaping[2] == stepping[2]).all(), (seed, case.settings)
    return stepping[0]


def test_some_scenarios_end_and_do_not_depend_on_leaping() -> None:
    outcomes = [_both(seed) for seed in range(DAILY)]
    finished = sum(outcome == "completed" for outcome in outcomes)
    # Both ends come up, or the drawing would test half of what it should.
    assert DAILY // 5 < finished < DAILY


def _end(last: int) -> None:
    for seed in range(last):
        # Refuses a wrong sum at the end; what an infeasible run says is a reason.
        outcome, _, _ = play(draw(np.random.default_rng(seed)), leaping=True, checking=False)
        assert outcome, seed


def test_very_many_scenarios_end() -> None:
    _end(1_000)


@pytest.mark.nightly
def test_ten_thousand_scenarios_end() -> None:
    _end(NIGHTLY)


@pytest.mark.nightly
def test_many_scenarios_end_and_do_not_depend_on_leaping() -> None:
    for seed in range(DAILY, NIGHTLY):
        _both(seed)
