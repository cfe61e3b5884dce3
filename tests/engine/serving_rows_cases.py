"""Random scenarios in which pages are shared, lost, reused and written over; and how one runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from kvsim.engine.costs.roofline import CostModel
from kvsim.engine.serving.asking import Asking
from kvsim.engine.serving.drive import Drive, Foreign
from kvsim.engine.serving.engine import ServingEngine
from kvsim.engine.serving.settings import Eviction, Settings
from kvsim.errors import Infeasible
from kvsim.eviction import Rules
from kvsim.paging import Order
from kvsim.policies import build
from kvsim.seeds import stream
from kvsim.workload.requests import Requests
from tests.engine.serving_rows import GEOMETRY, Shadow
from tests.engine.serving_steps import called_inside

COST = CostModel(10**9, 10**9, 65536, 4096, 2e12, 5e14, 3e10).coefficients()
TEMPLATES = 3
TEMPLATE_PAGES = 16
MOVES = ("none", "none", "none", "rebuild", "forward", "hole_fill")
Watch = Callable[[ServingEngine], None]


@dataclass(frozen=True)
class Case:
    """A scenario; `ordering` other than the usual one has victims chosen by Python."""

    requests: Requests
    settings: Settings
    ordering: Order = field(default_factory=Order)
    ceilings: tuple[tuple[int, int], ...] = ()
    cancelled: tuple[tuple[int, int], ...] = ()
    cost: np.ndarray = field(default_factory=lambda: COST)


def draw(rng: np.random.Generator) -> Case:
    """Draw a scenario: few seats, a pool that is mostly too small, prompts that begin alike."""
    size = int(rng.choice([1, 2, 3, 4]))
    count = int(rng.integers(2, 11))
    inputs = rng.integers(1, 26, count)
    outputs = rng.integers(0, 20, count)
    keys, start = [], [0]
    for tokens, more in zip(inputs.tolist(), outputs.tolist(), strict=True):
        # Given keys may reach into the output: then a conversation goes on where it ended.
        most = min((tokens + more) // size, TEMPLATE_PAGES)
        pages = int(rng.integers(0, most + 1)) if rng.random() < 0.8 else 0
        keys.append(np.arange(pages) + TEMPLATE_PAGES * int(rng.integers(TEMPLATES)))
        start.append(start[-1] + pages)
    span = int(rng.choice([1, 10**7, 10**8]))
    requests = Requests(
        page_tokens=size,
        arrival_ns=np.sort(rng.integers(0, span, count)),
        input_tokens=inputs,
        output_tokens=outputs,
        priority=rng.integers(0, 3, count),
        samples=np.where(rng.random(count) < 0.2, rng.integers(1, 4, count), 1).astype(np.int64),
        keys=np.concatenate(keys).astype(np.int32),
        key_start=np.array(start, np.int64),
        given_keys=TEMPLATE_PAGES * TEMPLATES,
    )
    seats = int(rng.integers(1, 7))
    moves = str(rng.choice(MOVES))
    positions = str(rng.choice(["keep", "renumber"])) if rng.random() < 0.3 else "keep"
    asks = moves != "none" or positions != "keep"
    orders = ["ask"] if asks else ["none", "oldest", "random", "random"]
    moments = ["prefill_end", "step"] if asks else ["prefill_end", "step", "pressure"]
    eviction = Eviction(
        order=str(rng.choice(orders)),
        when=str(rng.choice(moments)),
        fraction=float(rng.choice([0.3, 0.5, 0.8])),
        tokens=int(rng.choice([0, 0, 5, 12])),
        run_tokens=int(rng.choice([1, 1, 2, size, 5])),
        sinks=int(rng.integers(0, 3)),
        recent=int(rng.integers(0, 3)),
        seed=3,
    )
    # Room for the longest request, and often for little more.
    longest = int((-(-(inputs + outputs) // size)).max())
    pages = int(rng.choice([0, longest + rng.integers(3), longest + rng.integers(longest + 3)]))
    chunked = bool(rng.random() < 0.7)
    settings = Settings(
        step_tokens=seats + int(rng.integers(0, 24) if chunked else longest * size),
        max_running=seats,
        chunked=chunked,
        ceiling_pages=pages,
        admission=str(rng.choice(["fcfs", "priority"])),
        preemption=str(rng.choice(["recompute", "swap"])),
        prefix="blocks",
        publish=str(rng.choice(["all", "all", "prompt"])),
        unhashed=str(rng.choice(["head", "tail"])),
        eviction=eviction,
    )
    times = rng.integers(0, 10**7, 6).tolist()
    ceilings = [(times[at], int(rng.integers(longest, 2 * pages + 1))) for at in range(3) if pages]
    cancelled = [(times[3 + at], int(rng.integers(count))) for at in range(3)]
    return Case(
        requests,
        settings,
        Order(compaction=moves, positions=positions),
        tuple(ceilings) if rng.random() < 0.4 else (),
        tuple(cancelled) if rng.random() < 0.4 else (),
    )


def make(case: Case) -> ServingEngine:
    """Return the engine of a case."""
    ask, eviction = None, case.settings.eviction
    if eviction.order == "ask":
        rules = Rules(
            granularity="token",
            window_tokens=16,
            protect_recent=eviction.recent,
            protect_sinks=eviction.sinks,
            fraction=eviction.fraction,
            tokens=eviction.tokens,
        )
        rng = stream(3, "policy")
        ask = Asking(build("random", {}), "random", rules, (1, 1), (2, 1), rng)
    return ServingEngine(
        case.requests, case.settings, case.cost, GEOMETRY, ordering=case.ordering, ask=ask
    )


def drive(engine: ServingEngine, case: Case, watch: Watch | None) -> str:
    """Run an engine; return its outcome."""
    foreign = [
        Foreign(at_ns, lambda e, pages=pages: e.set_ceiling(pages))  # type: ignore[misc]
        for at_ns, pages in case.ceilings
    ] + [
        Foreign(at_ns, lambda e, request=request: e.cancel(request))  # type: ignore[misc]
        for at_ns, request in case.cancelled
    ]
    try:
        Drive(engine, tuple(foreign), every_steps=1 if watch is not None else 0, watch=watch).run()
    except Infeasible as refusal:
        return str(refusal)
    return "completed"


def play(
    case: Case, *, audits: bool = True, watch: Watch | None = None
) -> tuple[str, ServingEngine, Shadow]:
    """Run a case with rows; raise WrongBytes where they differ."""
    engine = make(case)
    shadow = Shadow(engine, case.requests, audits=audits)
    with called_inside(shadow):
        outcome = drive(engine, case, watch or (lambda e: e.check()))
    return outcome, engine, shadow
