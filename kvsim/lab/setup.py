"""From a scenario to what runs it: layout, ledger, policy, loop and requests.

Everything that can be refused is refused here, before the first token.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from kvsim.engine import Engine, Request, When
from kvsim.errors import MemoryRefused, NotApplicable, ScenarioError, WorkloadError
from kvsim.eviction import EvictionLoop, Rules
from kvsim.eviction.state import Signals
from kvsim.lab import physical
from kvsim.lab.scenario import Scenario
from kvsim.layout import KVLayout, load_layout
from kvsim.paging import Geometry, Ledger, Order, geometry, single
from kvsim.paging.physical import Extents
from kvsim.policies import Attention, Policy, build, short_name
from kvsim.seeds import stream
from kvsim.tensors.array_store import ArrayStore
from kvsim.tensors.mapped import MappedMemory
from kvsim.tensors.row_source import SeededRows
from kvsim.tensors.shape import shape_of_layout
from kvsim.workload import arrivals
from kvsim.workload.recorded import RecordedSignals, load
from kvsim.workload.synthetic import SyntheticSignals

MOST_NUMBERS = 1 << 31  # Tokens times units of one synthetic sequence; some 16 bytes each.


@dataclass(frozen=True)
class Parts:
    """A scenario, understood: everything that does not change while it runs.

    Attributes
    ----------
    policy : Policy
    whole, layout : KVLayout
        The model's layout, and the part of it that the workload covers.
    shape : Geometry
    unit_shape : tuple of int
        (layers, kv_heads).
    ceiling_pages : int
    """

    policy: Policy
    whole: KVLayout
    layout: KVLayout
    shape: Geometry
    unit_shape: tuple[int, int]
    ceiling_pages: int


def _full_attention(layout: KVLayout) -> tuple[int, int]:
    """Return (layers, kv_heads) of a layout that the synthetic process can stand for."""
    layers = layout.layers()
    kinds = sorted({layer.kind for layer in layers} - {"full"})
    heads = {layer.kv_heads for layer in layers}
    if kinds or len(heads) != 1:
        what = f"layers of kind {kinds[0]}" if kinds else "layers with different KV heads"
        raise WorkloadError(f"{layout.name} has {what}; synthetic runs need full attention alike")
    return len(layers), heads.pop()


def _ceiling(scenario: Scenario, shape: Geometry) -> int:
    """Return the pool's ceiling in pages, 0 for none; the tighter of the two that may be set."""
    pages, held_bytes = scenario.pool.ceiling_pages, scenario.pool.ceiling_bytes
    if held_bytes:
        widths = set(shape.page_row_bytes().tolist())
        if len(widths) != 1:
            raise ScenarioError("pool.ceiling_bytes: pages of this scope differ in bytes")
        page_bytes = widths.pop() * scenario.pages.tokens
        if held_bytes < page_bytes:
            raise ScenarioError(
                f"pool.ceiling_bytes: {held_bytes} is below one page of {page_bytes} bytes"
            )
        pages = min(pages or held_bytes, held_bytes // page_bytes)
    return pages


def _check_together(scenario: Scenario, prompt: int | None) -> None:
    """Refuse keys that contradict each other."""
    budget, workload = scenario.budget, scenario.workload
    if workload.kind == "recorded" and budget.when != "prefill_end":
        raise ScenarioError(
            f"budget.when: {budget.when} needs decode steps or chunks; a recorded workload has "
            "only prefill_end"
        )
    if workload.kind == "recorded" and workload.decode_tokens:
        raise ScenarioError("workload.decode_tokens: a recorded workload has no decode steps")
    if budget.when == "chunk" and not budget.chunk_tokens:
        raise ScenarioError("budget.chunk_tokens: must be at least 1 when budget.when is chunk")
    if budget.when == "chunk" and prompt is not None and budget.chunk_tokens > prompt:
        raise ScenarioError(
            f"budget.chunk_tokens: {budget.chunk_tokens} is longer than the prompt of {prompt}"
        )
    renumbers = scenario.compaction.positions == "renumber"
    if renumbers and scenario.store.planes == "kv":
        raise ScenarioError(
            "compaction.positions: renumber needs the pre-RoPE key, which planes kv do not keep; "
            "set store.planes to kv_raw or raw_only"
        )


def understand(scenario: Scenario) -> Parts:
    """Return the parts of a scenario.

    Raises
    ------
    KvsimError
        If the scenario, a file that it names or its policy cannot be used.
    """
    policy = build(scenario.policy.name, dict(scenario.policy.parameters))
    whole = load_layout(scenario.layout)
    workload = scenario.workload
    if workload.kind == "recorded":
        recording = load(workload.path)
        layout, unit_shape = recording.fit(whole, workload.path), recording.unit_shape
        prompt: int | None = recording.tokens
    else:
        layout, unit_shape = whole, _full_attention(whole)
        prompt = workload.tokens if workload.kind == "synthetic" else None
        numbers = unit_shape[0] * unit_shape[1] * (workload.tokens + workload.decode_tokens)
        if numbers > MOST_NUMBERS:
            raise ScenarioError(
                f"workload.tokens: {workload.tokens} tokens of {layout.name} are too many for the "
                "synthetic process, which keeps every signal in memory"
            )
    _check_together(scenario, prompt)
    if workload.kind == "requests":
        arrivals.read_lengths(workload.path)
    if scenario.store.kind == "array":
        # Refuses now what has no real rows, before anything runs.
        shape_of_layout(layout, scenario.store.planes, 1)
    shape = geometry(
        layout,
        scenario.pages.scope,
        scenario.selection.sets,
        scenario.store.planes,
        scenario.store.element_bytes,
    )
    physical.check(scenario, layout, shape)
    return Parts(policy, whole, layout, shape, unit_shape, _ceiling(scenario, shape))


def applicable(scenario: Scenario, policy: Policy) -> None:
    """Raise NotApplicable, naming the reason, where a policy cannot be run like this."""
    name = short_name(scenario.policy.name)
    recorded = scenario.workload.kind == "recorded"
    provides = RecordedSignals.provides if recorded else SyntheticSignals.provides
    missing = [signal for signal in policy.signals if signal not in provides]
    if missing:
        raise NotApplicable(f"{name} needs {missing[0]}, which the workload does not have")
    sets = scenario.selection.sets
    if sets not in policy.sets:
        raise NotApplicable(
            f"{name} keeps the same tokens in every head by its own definition: "
            f"sets must be {' or '.join(policy.sets)}, not {sets}"
        )
    if scenario.selection.granularity not in policy.granularities:
        raise NotApplicable(f"{name} does not work at granularity {scenario.selection.granularity}")
    if policy.before_paging:
        if scenario.budget.when == "chunk":
            raise NotApplicable(f"{name} chooses from the whole prompt, which comes in chunks")
        if scenario.compaction.algorithm != "none":
            raise NotApplicable(f"{name} leaves no holes in the prompt to compact")


def _ordering(scenario: Scenario, policy: Policy) -> Order:
    return Order(
        append=scenario.pages.append,
        compaction=scenario.compaction.algorithm,
        unit=scenario.compaction.unit,
        positions=scenario.compaction.positions,
        scattered=policy.before_paging and scenario.compaction.positions == "keep",
        renumber_writes=scenario.store.planes == "kv_raw",
    )


def make_memory(scenario: Scenario, parts: Parts) -> MappedMemory | None:
    """Return the mapped memory of a run's planes, or None where they lie in NumPy's.

    Raises
    ------
    MemoryRefused
        If the pool's planes are more than the memory that is available.
    """
    if scenario.store.memory != "mapped":
        return None
    extents = _extents(scenario, parts)
    assert extents is not None, "mapped memory always has a physical model"
    try:
        return MappedMemory(extents)
    except MemoryRefused as refusal:
        raise MemoryRefused(f"{refusal}; pool.ceiling_pages makes the pool smaller") from None


def _extents(scenario: Scenario, parts: Parts) -> Extents | None:
    """Return the extents under a pool that never has to grow, if there is a physical model."""
    pages = physical.pool_pages(scenario, parts.shape, parts.ceiling_pages, _arrivals(scenario))
    return physical.make_extents(scenario, parts.layout, parts.shape, pages)


def make_loop(scenario: Scenario, parts: Parts, memory: MappedMemory | None = None) -> EvictionLoop:
    """Return an eviction loop with nothing in it.

    Parameters
    ----------
    scenario : Scenario
    parts : Parts
    memory : MappedMemory, optional
        What `make_memory` returned, for a caller who wants to look at it and close it.
    """
    memory = memory or make_memory(scenario, parts)
    extents = memory.extents if memory else _extents(scenario, parts)
    sets = {
        "shared": (1, 1),
        "layer": (parts.unit_shape[0], 1),
        "head": parts.unit_shape,
    }[scenario.selection.sets]
    page_tokens = scenario.pages.tokens
    store: ArrayStore | None = None
    rows: SeededRows | None = None
    if scenario.store.kind == "array":
        planes = shape_of_layout(parts.layout, scenario.store.planes, _longest(scenario))
        store = ArrayStore(
            planes,
            parts.shape,
            page_tokens,
            layout=scenario.store.plane_layout,
            memory=memory,
        )
        rows = SeededRows(store, scenario.seed)
    return EvictionLoop(
        ledger=Ledger(
            parts.shape,
            page_tokens,
            ceiling_pages=parts.ceiling_pages,
            order=scenario.pool.order,
            ordering=_ordering(scenario, parts.policy),
            store=store,
            physical_model=extents,
            **({} if extents is None else {"room_pages": extents.pages}),
        ),
        dense=Ledger(single(sum(parts.shape.unit_row_bytes)), page_tokens),
        policy=parts.policy,
        name=short_name(scenario.policy.name),
        rules=Rules(
            granularity=scenario.selection.granularity,
            window_tokens=scenario.selection.window_tokens,
            protect_recent=scenario.selection.protect_recent,
            protect_sinks=scenario.selection.protect_sinks,
            fraction=scenario.budget.fraction,
            tokens=scenario.budget.tokens,
        ),
        set_shape=sets,
        unit_shape=parts.unit_shape,
        rng=stream(scenario.seed, "policy"),
        row_source=rows,
        # Steps that leap take no orders in between, and would count other extents as returned.
        leaps=extents is None,
    )


def _signals(scenario: Scenario, parts: Parts, number: int) -> Signals:
    """Return the signals of sequence `number`; forks number themselves after all of these."""
    if scenario.workload.kind == "recorded":
        return RecordedSignals(load(scenario.workload.path), Attention)
    return SyntheticSignals(
        scenario.process,
        parts.unit_shape,
        scenario.seed,
        number,
        Attention,
        needs=tuple(dict.fromkeys(("attention", *parts.policy.signals))),
    )


def _arrivals(scenario: Scenario) -> list[arrivals.Arrival]:
    """Return when each request arrives, and its tokens."""
    workload = scenario.workload
    if workload.kind == "requests":
        return arrivals.poisson(
            workload.rate_per_s,
            arrivals.read_lengths(workload.path),
            workload.requests,
            stream(scenario.seed, "arrivals"),
        )
    prompt = workload.tokens
    if workload.kind == "recorded":
        prompt = load(workload.path).tokens
    return [arrivals.Arrival(0, prompt, workload.decode_tokens)] * workload.sequences


def _longest(scenario: Scenario) -> int:
    """Return the tokens of the longest request: no position of a run lies past them."""
    return max(prompt + decode for _, prompt, decode in _arrivals(scenario))


def requests(scenario: Scenario, parts: Parts) -> list[Request]:
    """Return what arrives."""
    workload = scenario.workload
    return [
        Request(
            arrival_ns=arrival_ns,
            prompt_tokens=prompt,
            decode_tokens=decode,
            forks=workload.forks,
            signals=_signals(scenario, parts, number),
            forks_evict=workload.forks_evict,
            leaves=workload.kind == "requests",
        )
        for number, (arrival_ns, prompt, decode) in enumerate(_arrivals(scenario))
    ]


def make_engine(scenario: Scenario, parts: Parts, loop: EvictionLoop, before_finish: Any) -> Engine:
    """Return the engine that runs the scenario's requests on a loop."""
    return Engine(
        loop,
        requests(scenario, parts),
        before_finish=before_finish,
        when=When(scenario.budget.when, scenario.budget.chunk_tokens),
    )


def parameters(policy: Policy) -> dict[str, Any]:
    """Return a policy's parameters, those left at their defaults included."""
    return {field.name: getattr(policy, field.name) for field in dataclasses.fields(policy)}
