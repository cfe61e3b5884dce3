"""From a scenario to a serving engine: requests, settings, costs, and who chooses victims."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from kvsim.engine.costs.roofline import CostModel
from kvsim.engine.costs.settings import cost_model
from kvsim.engine.serving.asking import Asking
from kvsim.engine.serving.engine import ServingEngine
from kvsim.engine.serving.settings import Eviction, Settings
from kvsim.errors import ScenarioError
from kvsim.eviction import Rules
from kvsim.eviction.arrival import arrival_sinks
from kvsim.lab.progress import part
from kvsim.lab.scenario import Scenario
from kvsim.layout import PLANES, KVLayout, load_layout
from kvsim.paging import Geometry, Order, geometry
from kvsim.policies import build, short_name
from kvsim.policies.random import Random
from kvsim.seeds import stream
from kvsim.workload import arrivals
from kvsim.workload.request_loading import Loaded, from_trace
from kvsim.workload.requests import Requests, without_keys
from kvsim.workload.traces.reading import Tally


@dataclass(frozen=True)
class Parts:
    """A serving scenario, understood.

    Attributes
    ----------
    layout : KVLayout
    shape : Geometry
    cost : CostModel
    settings : Settings
    ordering : Order
    asks : bool
        Whether Python chooses victims.
    """

    layout: KVLayout
    shape: Geometry
    cost: CostModel
    settings: Settings
    ordering: Order
    asks: bool


def ceiling(scenario: Scenario, shape: Geometry) -> int:
    """Return the pool's ceiling in pages, 0 for none; the tighter of the two that may be set."""
    pages, held_bytes = scenario.pool.ceiling_pages, scenario.pool.ceiling_bytes
    if held_bytes:
        page_bytes = int(shape.page_row_bytes()[0]) * scenario.pages.tokens
        if held_bytes < page_bytes:
            raise ScenarioError(
                f"pool.ceiling_bytes: {held_bytes} is below one page of {page_bytes} bytes"
            )
        pages = min(pages or held_bytes, held_bytes // page_bytes)
    return pages


def _eviction(scenario: Scenario) -> tuple[Eviction, bool]:
    """Return what the kernel does about eviction, and whether Python chooses victims."""
    budget, selection = scenario.budget, scenario.selection
    if budget.when == "chunk":
        raise ScenarioError("budget.when: a serving engine evicts at prefill_end or step")
    when = budget.when
    if scenario.serving.pressure == "evict":
        when = "pressure"
    if not budget.tokens and budget.fraction == 1.0:
        if when == "pressure":
            raise ScenarioError("serving.pressure: evict needs a budget below 1.0")
        return Eviction(), False
    policy = build(scenario.policy.name, dict(scenario.policy.parameters))
    name = short_name(scenario.policy.name)
    sinks = arrival_sinks(policy, name)
    runs = {"token": 1, "window": selection.window_tokens, "page": scenario.pages.tokens}
    moves = scenario.compaction.algorithm != "none" or scenario.compaction.positions != "keep"
    fixed = sinks is not None or type(policy) is Random
    asks = moves or not fixed or selection.granularity not in runs or selection.sets != "shared"
    order = "ask" if asks else "random" if sinks is None else "oldest"
    return (
        Eviction(
            order=order,
            when=when,
            fraction=budget.fraction,
            tokens=budget.tokens,
            run_tokens=runs.get(selection.granularity, 1),
            sinks=max(selection.protect_sinks, sinks or 0),
            recent=selection.protect_recent,
            seed=scenario.seed,
        ),
        asks,
    )


def understand(scenario: Scenario) -> Parts:
    """Return the parts of a scenario, before anything is read from a trace.

    Raises
    ------
    KvsimError
        If the scenario cannot be run.
    """
    if scenario.pages.scope != "sequence":
        raise ScenarioError("pages.scope: the serving engine has one table a sequence")
    if scenario.store.kind != "counting":
        raise ScenarioError("store.kind: the serving engine counts; it carries no rows")
    if scenario.compaction.positions == "renumber" and scenario.store.planes == "kv":
        raise ScenarioError(
            "compaction.positions: renumber needs the pre-RoPE key, which planes kv do not keep; "
            "set store.planes to kv_raw or raw_only"
        )
    layout = load_layout(scenario.layout)
    planes = scenario.store.planes
    shape = geometry(
        layout, "sequence", scenario.selection.sets, planes, scenario.store.element_bytes
    )
    eviction, asks = _eviction(scenario)
    serving, prefix = scenario.serving, scenario.prefix
    pages = ceiling(scenario, shape)
    return Parts(
        layout=layout,
        shape=shape,
        cost=cost_model(layout, scenario.cost, planes, scenario.store.element_bytes)[0],
        settings=Settings(
            step_tokens=serving.step_tokens,
            max_running=serving.max_running,
            chunked=serving.chunked,
            ceiling_pages=pages,
            watermark=max(0.0, serving.watermark),
            admission=serving.admission,
            preemption=serving.preemption,
            prefix=prefix.cache,
            publish=prefix.publish,
            unhashed=prefix.unhashed,
            planes=len(PLANES[planes]),
            eviction=eviction,
        ),
        ordering=Order(
            append=scenario.pages.append,
            compaction=scenario.compaction.algorithm,
            unit=scenario.compaction.unit,
            positions=scenario.compaction.positions,
            renumber_writes=planes == "kv_raw",
        ),
        asks=asks,
    )


def load_requests(scenario: Scenario) -> Loaded:
    """Return the requests of a scenario's workload.

    Raises
    ------
    WorkloadError
        Naming file and line, or the key that is missing.
    """
    workload, serving = scenario.workload, scenario.serving
    rng = stream(scenario.seed, "arrivals")
    if workload.kind == "trace":
        with part("requests read", serving.limit or None) as tell:
            return from_trace(
                workload.path,
                scenario.pages.tokens,
                limit=serving.limit,
                skip_bad=serving.skip_bad,
                time_scale=serving.time_scale,
                samples=serving.samples,
                rate_per_s=workload.rate_per_s,
                rng=rng,
                progress=lambda read: tell and tell(lambda: read),
            )
    if serving.input_tokens:
        lengths = arrivals.Lengths((serving.input_tokens,), (serving.output_tokens,))
    else:
        lengths = arrivals.read_lengths(workload.path)
    drawn = arrivals.poisson(workload.rate_per_s, lengths, workload.requests, rng)
    table = np.array(drawn, np.int64)
    requests = without_keys(
        scenario.pages.tokens, table[:, 0].copy(), table[:, 1].copy(), table[:, 2].copy()
    )
    requests = _prefixed(requests, serving.shared_prefix_tokens)
    return Loaded(_sampled(requests, serving.samples), Tally(requests=len(requests)), None)


def _sampled(requests: Requests, samples: int) -> Requests:
    return _changed(requests, samples=np.full(len(requests), samples, np.int64))


def _prefixed(requests: Requests, tokens: int) -> Requests:
    """Let the first full pages of all prompts be the same."""
    pages = np.minimum(tokens, requests.input_tokens) // requests.page_tokens
    most = int(pages.max())
    start = np.concatenate([[0], np.cumsum(pages)])
    keys = np.arange(int(start[-1])) - np.repeat(start[:-1], pages)
    return _changed(requests, keys=keys.astype(np.int32), key_start=start, given_keys=most)


def _changed(requests: Requests, **columns: Any) -> Requests:
    return Requests(**{**requests.__dict__, **columns})


def make_engine(scenario: Scenario, parts: Parts, requests: Requests) -> ServingEngine:
    """Return the engine of a scenario.

    Raises
    ------
    NotApplicable
        If the policy needs what a trace does not have.
    """
    ask = None
    if parts.asks:
        selection, budget = scenario.selection, scenario.budget
        layers = parts.layout.layers()
        heads = layers[0].kv_heads
        set_shape = {"shared": (1, 1), "layer": (len(layers), 1), "head": (len(layers), heads)}
        ask = Asking(
            build(scenario.policy.name, dict(scenario.policy.parameters)),
            short_name(scenario.policy.name),
            Rules(
                granularity=selection.granularity,
                window_tokens=selection.window_tokens,
                protect_recent=selection.protect_recent,
                protect_sinks=selection.protect_sinks,
                fraction=budget.fraction,
                tokens=budget.tokens,
            ),
            set_shape[selection.sets],
            (len(layers), heads),
            stream(scenario.seed, "policy"),
        )
    return ServingEngine(
        requests,
        parts.settings,
        parts.cost.coefficients(),
        parts.shape,
        ordering=parts.ordering,
        ask=ask,
    )
