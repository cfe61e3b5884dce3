"""The kernel against the process-per-request engine, which shares no code with it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from kvsim.bench import engine_leap, engine_process
from kvsim.bench.engine_report import StaticEviction, Terms
from kvsim.engine.costs.roofline import step_ns
from kvsim.engine.serving.settings import Eviction, Settings
from tests.engine.serving_fuzz import COST, draw

CASES = 150


def _terms(settings: Settings) -> Terms:
    eviction = None
    kinds = {"oldest": "streaming", "random": "random"}
    if settings.eviction.order in kinds:
        of = settings.eviction
        eviction = StaticEviction(
            kinds[of.order], of.tokens, of.fraction, of.sinks, of.recent, of.when, of.seed
        )
    return Terms(
        settings.step_tokens,
        settings.max_running,
        settings.ceiling_pages,
        settings.chunked,
        settings.watermark,
        settings.admission,
        settings.prefix,
        settings.publish,
        settings.unhashed,
        1,
        eviction,
    )


def _step_ns(*counts: int) -> int:
    return int(step_ns(COST, *counts))


@pytest.mark.parametrize("prefix", ["none", "blocks"])
@pytest.mark.parametrize("order", ["none", "oldest", "random"])
def test_reports_are_those_of_a_process_for_each_request(prefix: str, order: str) -> None:
    compared = 0
    for seed in range(CASES):
        case = draw(np.random.default_rng(seed), foreign=False)
        of = case.settings.eviction
        when = "step" if of.when == "pressure" else of.when
        eviction = replace(of, order=order, when=when, run_tokens=1)
        settings = replace(
            case.settings,
            preemption="recompute",
            prefix=prefix,
            eviction=Eviction() if order == "none" else eviction,
        )
        terms = _terms(settings)
        theirs = engine_process.serve(case.requests, terms, _step_ns)
        if theirs.outcome != "completed":
            continue
        compared += 1
        ours = engine_leap.serve(case.requests, terms, COST)
        assert ours.differences(theirs) == [], (seed, settings)
    assert compared > CASES // 4
