"""One run: a scenario in, one row out. A pure function of the scenario, its files and its seed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from kvsim.errors import CeilingExceeded, Infeasible, KvsimError, NotApplicable, PolicyError
from kvsim.eviction import EvictionLoop
from kvsim.lab import physical, row, setup
from kvsim.lab.identity import run_id
from kvsim.lab.scenario import Scenario
from kvsim.lab.studies.study import Study, find
from kvsim.layout import load_layout
from kvsim.policies import build, short_name

Maps = dict[str, np.ndarray]
Measured = dict[str, Any]


@contextmanager
def _no_exit(scenario: Scenario) -> Iterator[None]:
    """Refuse a policy file that calls sys.exit, which would end kvsim without a word."""
    try:
        yield
    except SystemExit as leaving:
        name = short_name(scenario.policy.name)
        raise PolicyError(f"policy {name}: it ends the program ({leaving.code!r})") from None


def check(scenario: Scenario) -> None:
    """Refuse what `run` would refuse before the first token, so that a sweep need not begin.

    Raises
    ------
    KvsimError
        If the scenario, a file that it names or its policy cannot be used.
    """
    study = find(scenario.workload.kind)
    with _no_exit(scenario):
        if study is None:
            setup.understand(scenario)
        else:
            study.check(scenario)


def _keep(maps: Maps, stage: str, loop: EvictionLoop) -> None:
    """Keep the page map of a stage when it comes for the first time."""
    if stage not in maps:
        maps[stage] = loop.ledger.page_map()


def _measure(
    scenario: Scenario, parts: setup.Parts, maps: Maps, measured: Measured
) -> dict[str, Any]:
    """Run the engine to its end and return the row's columns; `measured` gets what is no column."""
    rss_before = physical.process_rss_bytes()
    memory = setup.make_memory(scenario, parts)
    loop = setup.make_loop(scenario, parts, memory)
    if scenario.record.page_map:
        # Of the first eviction only: later ones find the stages taken.
        loop.observe = lambda stage: _keep(maps, stage, loop)
    # How many of the model's layers these figures are about: a reduced recording has not all.
    counted = f"{len(parts.layout.layers())}/{parts.whole.num_layers}"
    columns: dict[str, Any] = {
        "layers_counted": counted,
        "plane_price": row.plane_price(parts.layout, scenario.store.planes),
    }

    def before_finish() -> None:
        # Recounted here, while there is something to recount: finishing empties the ledger.
        loop.ledger.check()
        columns.update(row.measure(loop, scenario, engine.steps))
        if loop.row_source is not None:
            # Every retained row must still be its token's row, bit for bit.
            tokens = {sequence: state.tokens for sequence, state in loop.tracked.items()}
            loop.row_source.verify(loop.ledger, tokens)
        if memory is not None:
            # Last, so that a read outside what is mapped would be seen here too.
            measured["resident_bytes"] = memory.check_resident()
            measured["process_rss_bytes"] = physical.process_rss_bytes()
            measured["process_rss_before_bytes"] = rss_before

    engine = setup.make_engine(scenario, parts, loop, before_finish)
    try:
        engine.run()
    finally:
        if memory is not None:
            # A run that was cut short has sequences left, and the next one needs their memory.
            memory.close()
    return columns


def _head(scenario: Scenario, layout: str) -> dict[str, Any]:
    policy = build(scenario.policy.name, dict(scenario.policy.parameters))
    name = short_name(scenario.policy.name)
    return {
        "run_id": run_id(scenario),
        **row.settings(scenario, name, setup.parameters(policy), layout),
    }


def run(
    scenario: Scenario, maps: Maps | None = None, measured: Measured | None = None
) -> dict[str, Any]:
    """Return the row of one scenario.

    Parameters
    ----------
    scenario : Scenario
    maps : dict, optional
        Receives the page maps that the row names, if the scenario records any.
    measured : dict, optional
        Receives what was measured and not computed: with mapped memory `resident_bytes`, by
        mincore, and the whole process before the run and at the same moment, by smaps.

    Raises
    ------
    KvsimError
        If the scenario, a file that it names or its policy cannot be used. A run that cannot
        meet its own terms is no error but a row whose outcome says so.
    """
    maps = {} if maps is None else maps
    measured = {} if measured is None else measured
    study = find(scenario.workload.kind)
    if study is not None:
        return _studied(scenario, study, measured, maps)
    with _no_exit(scenario):
        parts = setup.understand(scenario)
        head = _head(scenario, parts.whole.name)
        try:
            setup.applicable(scenario, parts.policy)
            columns: dict[str, Any] = _measure(scenario, parts, maps, measured)
            outcome, reason = "completed", ""
            columns["page_map"] = map_name(head["run_id"]) if maps else None
        except (Infeasible, CeilingExceeded) as refusal:
            columns, outcome, reason = dict.fromkeys(row.MEASURED), "infeasible", str(refusal)
        except NotApplicable as refusal:
            columns, outcome, reason = dict.fromkeys(row.MEASURED), "not_applicable", str(refusal)
    if scenario.budget.tokens:
        # With tokens given, the fraction of the scenario says nothing; this one does.
        workload = scenario.workload
        prompts = workload.sequences * (1 + workload.forks)
        appended = None if workload.kind == "requests" else columns.get("tokens")
        head["budget_fraction"] = scenario.budget.tokens * prompts / appended if appended else None
    return {**head, **columns, "outcome": outcome, "outcome_reason": reason}


def _studied(scenario: Scenario, study: Study, measured: Measured, series: Maps) -> dict[str, Any]:
    """Return the row of a run that is not a token loop."""
    with _no_exit(scenario):
        study.check(scenario)
        head = {**_head(scenario, load_layout(scenario.layout).name), **study.settings(scenario)}
        columns: dict[str, Any] = dict.fromkeys((*row.MEASURED, *study.measured))
        outcome, reason = "completed", ""
        try:
            columns |= study.run(scenario, measured, series)
            columns["series"] = series_name(head["run_id"]) if series else None
        except (Infeasible, CeilingExceeded) as refusal:
            outcome, reason = "infeasible", str(refusal)
        except NotApplicable as refusal:
            outcome, reason = "not_applicable", str(refusal)
    return {**head, **columns, "outcome": outcome, "outcome_reason": reason}


def series_name(run_id: str) -> str:
    """Return where a run's time series lie inside a results folder."""
    return f"series/{run_id}.npz"


def map_name(run_id: str) -> str:
    """Return where a run's page maps lie inside a results folder."""
    return f"maps/{run_id}.npz"


def failed_row(scenario: Scenario, error: BaseException) -> dict[str, Any]:
    """Return the row of a run that broke: a bug, not bad input, which is raised."""
    if isinstance(error, KvsimError):
        raise error
    return {
        **_head(scenario, load_layout(scenario.layout).name),
        **dict.fromkeys(row.MEASURED),
        "outcome": "failed",
        "outcome_reason": f"{type(error).__name__}: {error}",
    }
