"""A serving scenario's requests as a file, from which the same run can be made again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kvsim.errors import ScenarioError
from kvsim.lab.scenario import Scenario
from kvsim.lab.studies.serving_setup import load_requests, understand
from kvsim.workload.traces.export import export


def export_requests(scenario: Scenario, out: Path) -> dict[str, Any]:
    """Write the requests of a serving scenario; see `kvsim.workload.traces.export`.

    Raises
    ------
    ScenarioError
        If the scenario is of another kind.
    KvsimError
        If it cannot be run, or OUT exists.
    """
    if scenario.workload.kind not in ("trace", "poisson"):
        raise ScenarioError(
            f"workload.kind: only the requests of kind trace or poisson can be exported, not those "
            f"of {scenario.workload.kind}"
        )
    understand(scenario)
    loaded = load_requests(scenario)
    found = export(loaded.requests, out, scenario.serving.time_scale)
    return {**found, "skipped": loaded.tally.skipped, "caveat": loaded.caveat}
