"""A serving engine under a recorded trace, or under requests that arrive by chance."""

from __future__ import annotations

from typing import Any

import numpy as np

from kvsim.engine.costs.latency import latencies
from kvsim.engine.costs.roofline import COEFFICIENTS
from kvsim.engine.serving import fields as s
from kvsim.engine.serving.drive import Drive, Recurring
from kvsim.engine.serving.engine import ServingEngine
from kvsim.engine.serving.settings import Settings
from kvsim.lab.progress import part
from kvsim.lab.scenario import Scenario
from kvsim.lab.studies import serving_branches, serving_cache
from kvsim.lab.studies.serving_branches import Beams, Branching
from kvsim.lab.studies.serving_cache import Cap, Chains
from kvsim.lab.studies.serving_columns import MEASURED
from kvsim.lab.studies.serving_memory import Allocator
from kvsim.lab.studies.serving_series import Audit, Series
from kvsim.lab.studies.serving_setup import Parts, load_requests, make_engine, understand
from kvsim.lab.studies.study import Study
from kvsim.paging import fields as f
from kvsim.paging import single
from kvsim.workload.request_loading import Loaded
from kvsim.workload.requests import without_keys

NS = 1_000_000_000


def _check(scenario: Scenario) -> None:
    parts = understand(scenario)
    serving_cache.check(scenario, parts.layout)
    serving_branches.check(scenario)
    if scenario.memory.model != "none":
        Allocator(scenario, parts.layout, 1)


def _settings(scenario: Scenario) -> dict[str, Any]:
    serving, prefix = scenario.serving, scenario.prefix
    return {
        "sequences": None,
        "requests": None,
        "rate_per_s": scenario.workload.rate_per_s,
        "forks": None,
        "decode_tokens": None,
        "device": scenario.cost.device,
        "step_tokens": serving.step_tokens,
        "max_running": serving.max_running,
        "admission": serving.admission,
        "preemption": serving.preemption,
        "pressure": serving.pressure,
        "prefix_cache": prefix.cache,
        "prefix_cap_pages": prefix.cap_pages,
        "prefix_victims": prefix.victims if prefix.cap_pages else None,
        "prefix_trim_ms": prefix.trim_ms if prefix.cap_pages else None,
        "memory_model": scenario.memory.model,
        "slo_ttft_ms": serving.slo_ttft_ms,
        "slo_tpot_ms": serving.slo_tpot_ms,
    }


def _flows(engine: ServingEngine) -> dict[str, Any]:
    """Return stocks, flows and peaks, from the ledger and from the engine."""
    ledger, state = engine.ledger, engine.state
    steps = int(state[s.STEP])
    reads = int(state[s.READS_TOTAL])
    generated = int(state[s.GENERATED_TOTAL])
    row_bytes = int(ledger.geometry.page_row_bytes()[0])
    return {
        "steps": steps,
        "evicted_tokens_total": float(state[s.EVICTED_TOTAL]),
        "held_pages_peak": ledger.total(f.HELD_PEAK),
        "held_pages_mean": int(state[s.PAGE_INTEGRAL]) / steps if steps else None,
        "freed_pages_total": ledger.total(f.FREED_TOTAL),
        "allocated_pages_total": ledger.total(f.ALLOCATED_TOTAL),
        "reclaimed_pages_total": ledger.total(f.RECLAIMED_TOTAL),
        "cow_pages_total": ledger.total(f.COW_TOTAL),
        "copied_rows_total": ledger.total(f.COPIED_ROWS_TOTAL),
        "rotated_rows_total": ledger.total(f.ROTATED_ROWS_TOTAL),
        "copied_bytes_total": ledger.total(f.COPIED_BYTES_TOTAL),
        "extra_pages_peak": ledger.total(f.EXTRA_PEAK),
        "evicted_bytes_total": ledger.total(f.EVICTED_BYTES_TOTAL),
        "page_bytes": row_bytes * ledger.page_tokens,
        "running_mean": int(state[s.TOKEN_STEPS]) / steps if steps else None,
        "running_peak": int(state[s.MOST_RUNNING]),
        "preemptions_total": int(state[s.PREEMPTIONS_TOTAL]),
        "swapped_pages_total": int(state[s.SWAPPED_PAGES_TOTAL]),
        "generated_tokens_total": generated,
        "prefilled_tokens_total": int(state[s.PREFILLED_TOTAL]),
        "hit_tokens_total": int(state[s.HIT_TOKENS_TOTAL]),
        "read_bytes_per_token": row_bytes * reads / generated if generated else None,
        "busy_fraction": int(state[s.BUSY_NS]) / engine.now_ns if engine.now_ns else None,
    }


def _requests(engine: ServingEngine, scenario: Scenario, loaded: Loaded) -> dict[str, Any]:
    """Return what the requests went through."""
    rows = engine.rows
    done = rows[:, s.STATUS] == s.FINISHED_STATUS
    end_ns = engine.now_ns
    generated = int(engine.state[s.GENERATED_TOTAL])
    return {
        "requests": len(loaded.requests),
        "finished_requests": int(done.sum()),
        "skipped_requests": loaded.tally.skipped,
        "caveat": loaded.caveat,
        "rounding_lost_tokens": loaded.rounding_lost_tokens,
        "tokens": int(rows[:, s.INPUT].sum() + rows[:, s.OUTPUT].sum()),
        "makespan_s": end_ns / NS,
        "throughput_tokens_per_s": generated * NS / end_ns if end_ns else None,
        **latencies(
            rows[done, s.ARRIVAL_NS],
            rows[done, s.FIRST_NS],
            rows[done, s.LAST_NS],
            rows[done, s.OUTPUT],
            slo_ttft_ms=scenario.serving.slo_ttft_ms,
            slo_tpot_ms=scenario.serving.slo_tpot_ms,
            span_ns=end_ns,
        ),
    }


def _hits(engine: ServingEngine) -> dict[str, Any]:
    """Return the share of the tokens of admitted requests that the prefix cache served."""
    hits = int(engine.state[s.HIT_TOKENS_TOTAL])
    needed = hits + int(engine.state[s.PREFILLED_TOTAL])
    return {"hit_fraction": hits / needed if needed else None}


def _finished(engine: ServingEngine) -> int:
    """Return how many requests have finished, forks of samples each for themselves."""
    return int(np.count_nonzero(engine.rows[:, s.STATUS] == s.FINISHED_STATUS))


def _cache(
    scenario: Scenario, parts: Parts, engine: ServingEngine
) -> tuple[Chains | None, Cap | None]:
    """Return what follows the chains of cached pages and what trims them, where they are."""
    if scenario.prefix.cache == "none":
        return None, None
    chains = Chains(engine)
    return chains, Cap(scenario, parts.layout, chains) if scenario.prefix.cap_pages else None


def _kept(engine: ServingEngine, chains: Chains | None, cap: Cap | None) -> dict[str, Any]:
    """Return what became of cached pages; null where there is no prefix cache, or no cap."""
    columns: dict[str, Any] = dict.fromkeys(
        (
            "orphan_pages",
            "orphan_pages_peak",
            "unreachable_pages",
            "trimmed_pages_total",
            "trimmed_extents_total",
        )
    )
    if chains is not None:
        columns |= chains.columns(engine)
    if cap is not None:
        columns |= cap.columns()
    return columns


def simulate(scenario: Scenario, series: dict[str, np.ndarray]) -> dict[str, Any]:
    """Run a scenario's engine to its end; return the columns, and the time series in `series`."""
    parts = understand(scenario)
    loaded = load_requests(scenario)
    engine = make_engine(scenario, parts, loaded.requests)
    longest = int((loaded.requests.input_tokens + loaded.requests.output_tokens).max())
    branches = scenario.branches
    branching = Branching(scenario, loaded.requests.arrival_ns) if branches.per_request else None
    beams = Beams(scenario) if branches.beam_steps else None
    if branching is not None:
        longest += branches.new_tokens + branches.output_tokens
    allocator = None
    if scenario.memory.model != "none":
        allocator = Allocator(scenario, parts.layout, longest)
    samples = Series(allocator)
    chains, cap = _cache(scenario, parts, engine)
    recurring: tuple[Recurring, ...] = ()
    if cap is not None:
        recurring = (Recurring(max(1, int(scenario.prefix.trim_ms * 1e6)), cap),)

    # Beams are looked at after every step, the allocator as often as it asks for.
    looks = scenario.memory.every_steps if allocator else 0

    def watch(watched: ServingEngine) -> None:
        if beams is not None:
            beams(watched)
        if allocator is not None and int(watched.state[s.STEP]) % looks == 0:
            allocator(watched)

    audit = Audit()

    def monitor(watched: ServingEngine) -> None:
        audit(watched)
        samples(watched)
        if chains is not None:
            chains(watched)

    sample_ns = int(max(0.0, scenario.serving.sample_ms) * 1e6)
    with part("requests finished", engine.rows.shape[0]) as tell:
        Drive(
            engine,
            branching.events() if branching is not None else (),
            sample_ns=sample_ns,
            monitor=monitor,
            every_steps=1 if beams is not None else looks,
            watch=watch,
            recurring=recurring,
            report=tell and (lambda engine: tell(lambda: _finished(engine))),
        ).run()
    engine.check()
    if sample_ns:
        samples(engine)
        series.update(samples.arrays())
    columns = {
        **_requests(engine, scenario, loaded),
        **_flows(engine),
        **_hits(engine),
        **_kept(engine, chains, cap),
        **serving_branches.columns(branching, beams),
    }
    if allocator is not None:
        columns |= {f"memory_{name}": value for name, value in allocator.model.counters().items()}
    return columns


def _run(
    scenario: Scenario, measured: dict[str, Any], series: dict[str, np.ndarray]
) -> dict[str, Any]:
    return simulate(scenario, series)


def _warm() -> None:
    nothing = np.zeros(1, np.int64)
    one = np.ones(1, np.int64)
    engine = ServingEngine(
        without_keys(1, nothing, one, one), Settings(), np.ones(COEFFICIENTS), single()
    )
    engine.run()
    engine.bring_up_to_date()
    engine.ledger.slots()


STUDY = Study(
    concerns=(
        "seed",
        "layout",
        "pages.",
        "pool.ceiling_pages",
        "pool.ceiling_bytes",
        "policy.",
        "selection.",
        "budget.",
        "compaction.",
        "workload.kind",
        "workload.path",
        "workload.requests",
        "workload.rate_per_s",
        "store.planes",
        "store.element_bytes",
        "store.extent_bytes",
        "serving.",
        "prefix.",
        "branches.",
        "memory.",
        "cost.",
    ),
    check=_check,
    settings=_settings,
    run=_run,
    measured=MEASURED,
    warm=_warm,
)
