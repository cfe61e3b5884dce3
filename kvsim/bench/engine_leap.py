"""The serving engine under the terms of its baselines, and its run as their report."""

from __future__ import annotations

import numpy as np

from kvsim.bench.engine_report import Report, Terms
from kvsim.engine.serving import fields as s
from kvsim.engine.serving.drive import Drive
from kvsim.engine.serving.engine import ServingEngine
from kvsim.engine.serving.settings import Eviction, Settings
from kvsim.errors import Infeasible
from kvsim.paging import fields as f
from kvsim.paging import single
from kvsim.workload.requests import Requests

ORDERS = {"streaming": "oldest", "random": "random"}


def settings_of(terms: Terms) -> Settings:
    """Return the engine's settings for a baseline's terms."""
    of = terms.eviction
    eviction = Eviction()
    if of is not None:
        eviction = Eviction(
            ORDERS[of.policy],
            when=of.when,
            fraction=of.fraction,
            tokens=of.tokens,
            sinks=of.sinks,
            recent=of.recent,
            seed=of.seed,
        )
    return Settings(
        step_tokens=terms.step_tokens,
        max_running=terms.max_running,
        chunked=terms.chunked,
        ceiling_pages=terms.ceiling_pages,
        watermark=terms.watermark,
        admission=terms.order,
        prefix=terms.cache,
        publish=terms.publish,
        unhashed=terms.unhashed,
        eviction=eviction,
    )


def serve(requests: Requests, terms: Terms, cost: np.ndarray) -> Report:
    """Serve requests with the compiled engine, which leaps as far as it can.

    Parameters
    ----------
    requests : Requests
    terms : Terms
    cost : float64
        Coefficients of the cost model, whose `step_ns` the baselines call.

    Returns
    -------
    Report
    """
    engine = ServingEngine(requests, settings_of(terms), cost, single(terms.row_bytes))
    outcome = "completed"
    try:
        Drive(engine).run()
    except Infeasible as reason:
        outcome = f"infeasible: {reason}"
    return report(engine, outcome)


def report(engine: ServingEngine, outcome: str) -> Report:
    """Return what an engine did, its forks counted with the requests that they come from."""
    state, scalars, rows = engine.state, engine.ledger.arrays.scalars, engine.rows
    forked = rows[:, s.PARENT]
    parent = np.where(forked < 0, np.arange(rows.shape[0]), forked)
    last, preemptions, first = (np.zeros(engine.arrived, np.int64) for _ in range(3))
    last -= 1
    # A request that generates nothing ends with its prefill, and has no last token.
    np.maximum.at(last, parent, np.where(rows[:, s.OUTPUT] > 0, rows[:, s.LAST_NS], -1))
    np.add.at(preemptions, parent, rows[:, s.PREEMPTIONS])
    first[:] = rows[: engine.arrived, s.FIRST_NS]
    return Report(
        steps=int(state[s.STEP]),
        end_ns=int(state[s.NOW]),
        generated_tokens_total=int(state[s.GENERATED_TOTAL]),
        prefilled_tokens_total=int(state[s.PREFILLED_TOTAL]),
        hit_tokens_total=int(state[s.HIT_TOKENS_TOTAL]),
        allocated_pages_total=int(scalars[f.ALLOCATED_TOTAL]),
        cow_pages_total=int(scalars[f.COW_TOTAL]),
        copied_rows_total=int(scalars[f.COPIED_ROWS_TOTAL]),
        preemptions_total=int(state[s.PREEMPTIONS_TOTAL]),
        freed_pages_total=int(scalars[f.FREED_TOTAL]),
        evicted_tokens_total=int(state[s.EVICTED_TOTAL]),
        held_pages_peak=int(scalars[f.HELD_PEAK]),
        page_integral=int(state[s.PAGE_INTEGRAL]),
        finished=int(state[s.FINISHED]),
        outcome=outcome,
        first_token_ns=first,
        last_token_ns=last,
        request_preemptions=preemptions,
        hit_tokens=rows[: engine.arrived, s.HIT_TOKENS],
    )
