"""One run: a scenario in, one row out. A pure function of the scenario, its files and its seed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from kvsim.engine import Engine, Request
from kvsim.errors import (
    CeilingExceeded,
    Infeasible,
    KvsimError,
    NotApplicable,
    PolicyError,
    ScenarioError,
)
from kvsim.eviction import EvictionLoop, Rules
from kvsim.lab import row
from kvsim.lab.identity import run_id
from kvsim.lab.scenario import Scenario
from kvsim.layout import KVLayout, load_layout
from kvsim.paging import Geometry, Ledger, geometry, single
from kvsim.policies import Attention, Policy, build, short_name
from kvsim.seeds import stream
from kvsim.workload.recorded import RecordedSignals, Recording, load


@contextmanager
def _no_exit(scenario: Scenario) -> Iterator[None]:
    """Refuse a policy file that calls sys.exit, which would end kvsim without a word."""
    try:
        yield
    except SystemExit as leaving:
        name = short_name(scenario.policy.name)
        raise PolicyError(f"policy {name}: it ends the program ({leaving.code!r})") from None


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


def _applicable(policy: Policy, scenario: Scenario, provides: tuple[str, ...]) -> None:
    name = short_name(scenario.policy.name)
    missing = [signal for signal in policy.signals if signal not in provides]
    if missing:
        raise NotApplicable(f"{name} needs {missing[0]}, which the workload does not have")
    if scenario.selection.sets not in policy.sets:
        raise NotApplicable(
            f"{name} keeps the same tokens in every head by its own definition: "
            f"sets must be {' or '.join(policy.sets)}, not {scenario.selection.sets}"
        )
    if scenario.selection.granularity not in policy.granularities:
        raise NotApplicable(f"{name} does not work at granularity {scenario.selection.granularity}")


def _set_shape(sets: str, unit_shape: tuple[int, int]) -> tuple[int, int]:
    return {"shared": (1, 1), "layer": (unit_shape[0], 1), "head": unit_shape}[sets]


def _fit(scenario: Scenario, whole: KVLayout) -> tuple[Recording, KVLayout, Geometry]:
    """Return the recording, the part of the layout that it covers, and its units."""
    recording = load(scenario.workload.path)
    layout = recording.fit(whole, scenario.workload.path)
    if scenario.workload.decode_tokens:
        raise ScenarioError("workload.decode_tokens: a recorded workload has no decode steps")
    store = scenario.store
    shape = geometry(
        layout,
        scenario.pages.scope,
        scenario.selection.sets,
        store.planes,
        store.element_bytes,
    )
    return recording, layout, shape


def check(scenario: Scenario) -> None:
    """Refuse what `run` would refuse before the first token, so that a sweep need not begin.

    Raises
    ------
    KvsimError
        If the scenario, a file that it names or its policy cannot be used.
    """
    with _no_exit(scenario):
        build(scenario.policy.name, dict(scenario.policy.parameters))
    _, _, shape = _fit(scenario, load_layout(scenario.layout))
    _ceiling(scenario, shape)


def _measure(scenario: Scenario, policy: Policy, whole: KVLayout) -> dict[str, Any]:
    """Run the engine to its end and return the measured columns."""
    recording, layout, shape = _fit(scenario, whole)
    ceiling_pages = _ceiling(scenario, shape)
    _applicable(policy, scenario, RecordedSignals.provides)
    loop = EvictionLoop(
        ledger=Ledger(
            shape,
            scenario.pages.tokens,
            ceiling_pages=ceiling_pages,
            order=scenario.pool.order,
        ),
        dense=Ledger(single(sum(shape.unit_row_bytes)), scenario.pages.tokens),
        policy=policy,
        name=short_name(scenario.policy.name),
        rules=Rules(
            granularity=scenario.selection.granularity,
            window_tokens=scenario.selection.window_tokens,
            protect_recent=scenario.selection.protect_recent,
            protect_sinks=scenario.selection.protect_sinks,
            fraction=scenario.budget.fraction,
            tokens=scenario.budget.tokens,
        ),
        set_shape=_set_shape(scenario.selection.sets, recording.unit_shape),
        unit_shape=recording.unit_shape,
        rng=stream(scenario.seed, "policy"),
    )
    signals = RecordedSignals(recording, Attention)
    request = Request(0, recording.tokens, 0, scenario.workload.forks, signals)
    # How many of the model's layers these figures are about: a reduced recording has not all.
    measured: dict[str, Any] = {"layers_counted": f"{len(layout.layers())}/{whole.num_layers}"}
    engine = Engine(
        loop,
        [request] * scenario.workload.sequences,
        before_finish=lambda: measured.update(row.measure(loop, scenario, engine.steps)),
    )
    engine.run()
    loop.ledger.check()
    return measured


def run(scenario: Scenario) -> dict[str, Any]:
    """Return the row of one scenario.

    Raises
    ------
    KvsimError
        If the scenario, a file that it names or its policy cannot be used. A run that cannot
        meet its own terms is no error but a row whose outcome says so.
    """
    with _no_exit(scenario):
        policy = build(scenario.policy.name, dict(scenario.policy.parameters))
    layout = load_layout(scenario.layout)
    head = {
        "run_id": run_id(scenario),
        **row.settings(scenario, short_name(scenario.policy.name), layout.name),
    }
    try:
        with _no_exit(scenario):
            measured: dict[str, Any] = _measure(scenario, policy, layout)
        outcome, reason = "completed", ""
    except (Infeasible, CeilingExceeded) as refusal:
        measured, outcome, reason = dict.fromkeys(row.MEASURED), "infeasible", str(refusal)
    except NotApplicable as refusal:
        measured, outcome, reason = dict.fromkeys(row.MEASURED), "not_applicable", str(refusal)
    return {**head, **measured, "outcome": outcome, "outcome_reason": reason}


def failed_row(scenario: Scenario, error: Exception) -> dict[str, Any]:
    """Return the row of a run that broke: a bug, not bad input, which is raised."""
    if isinstance(error, KvsimError):
        raise error
    return {
        "run_id": run_id(scenario),
        **row.settings(
            scenario, short_name(scenario.policy.name), load_layout(scenario.layout).name
        ),
        **dict.fromkeys(row.MEASURED),
        "outcome": "failed",
        "outcome_reason": f"{type(error).__name__}: {error}",
    }
