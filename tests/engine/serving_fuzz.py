"""Random serving scenarios: tiny pools, absurd mixes, ceilings that change, requests that leave."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from kvsim.engine.costs.roofline import CostModel
from kvsim.engine.serving import fields as s
from kvsim.engine.serving.drive import Drive, Foreign
from kvsim.engine.serving.engine import ServingEngine
from kvsim.engine.serving.settings import Eviction, Settings
from kvsim.errors import Infeasible
from kvsim.paging import fields as f
from kvsim.paging import single
from kvsim.workload.requests import Requests

COST = CostModel(10**9, 10**9, 65536, 4096, 2e12, 5e14, 3e10).coefficients()
STATE = (
    s.NOW,
    s.STEP,
    s.GENERATED_TOTAL,
    s.PREFILLED_TOTAL,
    s.HIT_TOKENS_TOTAL,
    s.PREEMPTIONS_TOTAL,
    s.SWAPPED_PAGES_TOTAL,
    s.FINISHED,
    s.CANCELLED,
    s.PAGE_INTEGRAL,
    s.READS_TOTAL,
    s.EVICTED_TOTAL,
    s.MOST_RUNNING,
    s.CUTS_TOTAL,
    s.EVICTED_LEAVES_TOTAL,
)
LEDGER = (
    f.ALLOCATED_TOTAL,
    f.COW_TOTAL,
    f.COPIED_ROWS_TOTAL,
    f.FREED_TOTAL,
    f.REVIVED_TOTAL,
    f.RECLAIMED_TOTAL,
    f.APPENDED_TOTAL,
    f.HELD_PEAK,
    f.HELD,
    f.CACHED,
    f.PARKED,
)


@dataclass(frozen=True)
class Case:
    """One random scenario."""

    requests: Requests
    settings: Settings
    ceilings: tuple[tuple[int, int], ...]
    cancelled: tuple[tuple[int, int], ...]


def draw(rng: np.random.Generator, *, foreign: bool = True) -> Case:
    """Draw a scenario."""
    page_tokens = int(rng.choice([1, 2, 3, 4, 8, 16]))
    count = int(rng.integers(1, 25))
    inputs = rng.integers(1, 60, count)
    outputs = rng.integers(0, 40, count)
    samples = np.where(rng.random(count) < 0.2, rng.integers(1, 5, count), 1)
    templates = int(rng.integers(1, 4))
    keys, start = [], [0]
    for tokens in inputs.tolist():
        pages = int(rng.integers(0, tokens // page_tokens + 1)) if rng.random() < 0.6 else 0
        keys.append(np.arange(pages) + 64 * int(rng.integers(templates)))
        start.append(start[-1] + pages)
    span = int(rng.choice([1, 10**7, 10**9]))
    arrivals = np.sort(rng.integers(0, span, count))
    requests = Requests(
        page_tokens=page_tokens,
        arrival_ns=arrivals,
        input_tokens=inputs,
        output_tokens=outputs,
        priority=rng.integers(0, 3, count),
        samples=samples.astype(np.int64),
        keys=np.concatenate(keys).astype(np.int32),
        key_start=np.array(start, np.int64),
        given_keys=64 * templates,
    )
    seats = int(rng.integers(1, 12))
    eviction = Eviction(
        order=str(rng.choice(["none", "oldest", "random"])),
        when=str(rng.choice(["prefill_end", "step", "pressure"])),
        fraction=float(rng.choice([0.1, 0.3, 0.5, 0.9])),
        tokens=int(rng.choice([0, 0, 5, 20])),
        run_tokens=int(rng.choice([1, 1, 2, page_tokens, 16])),
        sinks=int(rng.integers(0, 4)),
        recent=int(rng.integers(0, 6)),
        seed=3,
    )
    pages = int(rng.choice([0, rng.integers(1, 30), rng.integers(20, 120)]))
    prefix = str(rng.choice(["none", "blocks", "radix"]))
    settings = Settings(
        step_tokens=seats + int(rng.integers(0, 60)),
        max_running=seats,
        chunked=bool(rng.random() < 0.7),
        ceiling_pages=pages,
        watermark=float(rng.choice([0, 0, 0.1])),
        admission=str(rng.choice(["fcfs", "priority"])),
        preemption=str(rng.choice(["recompute", "swap"])),
        prefix=prefix,
        publish=str(rng.choice(["all", "prompt"])),
        unhashed=str(rng.choice(["head", "tail"])) if prefix != "radix" else "head",
        eviction=eviction if prefix != "radix" else Eviction(),
    )
    ceilings: list[tuple[int, int]] = []
    cancelled: list[tuple[int, int]] = []
    if foreign and pages:
        for _ in range(int(rng.integers(0, 4))):
            ceilings.append((int(rng.integers(0, 2 * 10**8)), int(rng.integers(1, 2 * pages + 1))))
    if foreign:
        for _ in range(int(rng.integers(0, 4))):
            cancelled.append((int(rng.integers(0, 2 * 10**8)), int(rng.integers(count))))
    return Case(requests, settings, tuple(ceilings), tuple(cancelled))


def play(case: Case, *, leaping: bool, checking: bool) -> tuple[str, list[int], np.ndarray]:
    """Run a scenario; return its outcome, its totals, and what each request went through."""
    engine = ServingEngine(case.requests, case.settings, COST, single())

    def foreign_event(at_ns: int, act: Callable[[ServingEngine], object]) -> Foreign:
        def happen(engine: ServingEngine) -> None:
            act(engine)
            if checking:
                engine.check()

        return Foreign(at_ns, happen)

    foreign = [
        foreign_event(at_ns, lambda e, pages=pages: e.set_ceiling(pages))  # type: ignore[misc]
        for at_ns, pages in case.ceilings
    ] + [
        foreign_event(at_ns, lambda e, request=request: e.cancel(request))  # type: ignore[misc]
        for at_ns, request in case.cancelled
    ]
    watch = (lambda e: e.check()) if checking else None
    outcome = "completed"
    try:
        Drive(
            engine, tuple(foreign), leaping=leaping, every_steps=1 if checking else 0, watch=watch
        ).run()
    except Infeasible as refusal:
        outcome = str(refusal)
    engine.check()
    scalars = engine.ledger.arrays.scalars
    totals = [int(engine.state[field]) for field in STATE] + [int(scalars[x]) for x in LEDGER]
    columns = [s.STATUS, s.FIRST_NS, s.LAST_NS, s.PREEMPTIONS, s.HIT_TOKENS, s.EVICTED]
    return outcome, totals, engine.rows[:, columns].copy()
