"""What a workload kind that is not a token loop has to provide, and where each kind lives."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kvsim.lab.scenario import Scenario

# The module of each kind has a constant STUDY. Imported when a scenario asks for it.
MODULES = {
    "trace": "kvsim.lab.studies.serving",
    "poisson": "kvsim.lab.studies.serving",
    "extents": "kvsim.lab.studies.extents",
    "quarantine": "kvsim.lab.studies.quarantine",
}
# Tables of a scenario that a token loop does not read.
TABLES = ("branches", "serving", "prefix", "cost", "memory", "extents", "quarantine")


def _no_kernels() -> None:
    """Warm nothing."""


@dataclass(frozen=True)
class Study:
    """One kind of run.

    Attributes
    ----------
    concerns : tuple of str
        Keys, or tables with a dot behind them, that decide its rows; others never enter a run's
        identity.
    check : callable (scenario) -> None
        Refuses what `run` would refuse, before anything is computed.
    settings : callable (scenario) -> dict
        Columns that repeat the scenario, over those that every row has.
    run : callable (scenario, measured, series) -> dict
        The measured columns. May raise Infeasible, CeilingExceeded or NotApplicable. What is
        timed goes to `measured`, and arrays over time, which the row names, to `series`.
    measured : tuple of str
        Columns of its own that every completed row has; null in any other.
    warm : callable () -> None
        Compiles or loads its kernels, so that forked workers inherit them.
    """

    concerns: tuple[str, ...]
    check: Callable[[Scenario], None]
    settings: Callable[[Scenario], dict[str, Any]]
    run: Callable[[Scenario, dict[str, Any], dict[str, Any]], dict[str, Any]]
    measured: tuple[str, ...] = ()
    warm: Callable[[], None] = _no_kernels

    def keys(self, flat: dict[str, Any]) -> dict[str, Any]:
        """Return those of a scenario's keys that concern this kind."""
        tables = tuple(name for name in self.concerns if name.endswith("."))
        return {k: v for k, v in flat.items() if k in self.concerns or k.startswith(tables)}


def find(kind: str) -> Study | None:
    """Return the study of a workload kind, or None for a token loop."""
    if kind not in MODULES:
        return None
    study: Study = importlib.import_module(MODULES[kind]).STUDY
    return study
