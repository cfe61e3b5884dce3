"""The kernel against the process-per-request engine, which shares no code with it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from kvsim.bench import engine_process
from kvsim.bench.engine_report import Report, StaticEviction, Terms
from kvsim.engine.costs.roofline import step_ns
from kvsim.engine.serving import fields as s
from kvsim.engine.serving.engine import ServingEngine
from kvsim.engine.serving.settings import Eviction, Settings
from kvsim.paging import fields as f
from kvsim.paging import single
from kvsim.workload.requests import Requests
from tests.engine.serving_fuzz import COST, draw

CASES = 150


def _ours(requests: Requests, settings: Settings) -> dict[str, int]:
    engine = ServingEngine(requests, settings, COST, single())
    engine.run()
    state, scalars = engine.state, engine.ledger.arrays.scalars
    return {
        "steps": int(state[s.STEP]),
        "end_ns": int(state[s.NOW]),
        "generated_tokens_total": int(state[s.GENERATED_TOTAL]),
        "prefilled_tokens_total": int(state[s.PREFILLED_TOTAL]),
        "hit_tokens_total": int(state[s.HIT_TOKENS_TOTAL]),
        "allocated_pages_total": int(scalars[f.ALLOCATED_TOTAL]),
        "cow_pages_total": int(scalars[f.COW_TOTAL]),
        "preemptions_total": int(state[s.PREEMPTIONS_TOTAL]),
        "freed_pages_total": int(scalars[f.FREED_TOTAL]),
        "evicted_tokens_total": int(state[s.EVICTED_TOTAL]),
        "held_pages_peak": int(scalars[f.HELD_PEAK]),
        "page_integral": int(state[s.PAGE_INTEGRAL]),
    }


def _theirs(requests: Requests, settings: Settings) -> Report:
    eviction = None
    kinds = {"oldest": "streaming", "random": "random"}
    if settings.eviction.order in kinds:
        of = settings.eviction
        eviction = StaticEviction(
            kinds[of.order], of.tokens, of.fraction, of.sinks, of.recent, of.when, of.seed
        )
    terms = Terms(
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
    return engine_process.serve(requests, terms, lambda *counts: int(step_ns(COST, *counts)))


@pytest.mark.parametrize("prefix", ["none", "blocks"])
@pytest.mark.parametrize("order", ["none", "oldest", "random"])
def test_totals_are_those_of_a_process_for_each_request(prefix: str, order: str) -> None:
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
        theirs = _theirs(case.requests, settings)
        if theirs.outcome != "completed":
            continue
        compared += 1
        for name, value in _ours(case.requests, settings).items():
            assert value == getattr(theirs, name), (seed, name, settings)
    assert compared > CASES // 4
