"""A sweep file: a scenario plus axes. Zipped inside an axis, crossed between axes.

[[axes]]                      # two scenarios: (16, "h2o") and (32, "snapkv")
pages.tokens = [16, 32]
policy.name = ["h2o", "snapkv"]

[[grid]]                      # optional: several products in one file, one after the other;
selection.sets = "head"       # each has keys and axes of its own beside the common ones
[[grid.axes]]
budget.fraction = [0.5, 0.25]

[table]                       # optional: which rows the command prints
"pages.tokens" = [16]
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvsim.errors import ScenarioError
from kvsim.lab import reading
from kvsim.lab.scenario import Scenario

Axis = list[dict[str, Any]]


@dataclass(frozen=True)
class Sweep:
    """An experiment, read and expanded.

    Attributes
    ----------
    name : str
        `<folder>-<file stem>`: the default name of the results folder.
    scenarios : tuple of Scenario
        In the order of the file, each once.
    table : dict
        For some keys, the values whose rows are printed; empty means all rows.
    figures : tuple of str or None
        Figures to draw; None means every one that the rows can fill.
    """

    name: str
    scenarios: tuple[Scenario, ...]
    table: dict[str, list[Any]]
    figures: tuple[str, ...] | None


def _axis(table: Any, source: str) -> Axis:
    """Return the points of one axis."""
    if not isinstance(table, dict) or not table:
        raise ScenarioError(f"{source}: an axis must be a table of lists")
    flat = reading.flatten(table, source)
    for key, values in flat.items():
        reading.check_key(key, source)
        if not isinstance(values, list) or not values:
            raise ScenarioError(f"{source}: axis {key} must be a list with at least one value")
    lengths = {key: len(values) for key, values in flat.items()}
    if len(set(lengths.values())) != 1:
        text = ", ".join(f"{key} has {count}" for key, count in lengths.items())
        raise ScenarioError(f"{source}: lists of one axis must be equally long: {text}")
    return [dict(zip(flat, point, strict=True)) for point in zip(*flat.values(), strict=True)]


def _axes(tables: Any, source: str) -> list[Axis]:
    if not isinstance(tables, list):
        raise ScenarioError(f"{source}: axes are written [[axes]]")
    return [_axis(table, source) for table in tables]


def _check_distinct(axes: list[Axis], source: str) -> None:
    """Refuse a key that stands in two axes: the later one would silently win."""
    seen: set[str] = set()
    for axis in axes:
        for key in axis[0]:
            if key in seen:
                raise ScenarioError(f"{source}: key {key} stands in two axes")
            seen.add(key)


def _without(axes: list[Axis], keys: set[str]) -> list[Axis]:
    """Return the axes without overridden keys: an override replaces an axis, not a point of it."""
    kept: list[Axis] = []
    for axis in axes:
        points = [{k: v for k, v in point.items() if k not in keys} for point in axis]
        unique = [p for i, p in enumerate(points) if p and p not in points[:i]]
        if unique:
            kept.append(unique)
    return kept


def _find(experiment: Path) -> Path:
    if experiment.is_dir():
        file = experiment / "sweep.toml"
        if not file.is_file():
            raise ScenarioError(f"{experiment}: the folder has no sweep.toml")
        return file
    if not experiment.is_file():
        raise ScenarioError(f"{experiment}: there is no such experiment")
    return experiment


def _table(raw: Any, source: str) -> dict[str, list[Any]]:
    if not isinstance(raw, dict):
        raise ScenarioError(f"{source}: [table] must be a table")
    flat = reading.flatten(raw, source)
    for key, values in flat.items():
        reading.check_key(key, source)
        if not isinstance(values, list):
            raise ScenarioError(f"{source}: table key {key} must be a list of values")
        own = reading.is_policy_parameter(key) and key != "policy.name"
        if own or key == "workload.path":
            raise ScenarioError(f"{source}: [table] cannot choose by {key}: no column shows it")
    return flat


def read(experiment: Path, extra: dict[str, Any] | None = None) -> Sweep:
    """Return the sweep of a folder or a TOML file, with overrides on top.

    Raises
    ------
    ScenarioError
        Naming the file and the key at fault. Every scenario is built here, so that a sweep
        which begins has no bad scenario ahead of it.
    """
    extra = extra or {}
    file = _find(experiment)
    source = str(file)
    raw = reading.read_toml(file)
    axes = _axes(raw.pop("axes", []), source)
    grids = raw.pop("grid", [{}])
    table = _table(raw.pop("table", {}), source)
    figures = raw.pop("figures", None)
    if figures is not None and not (
        isinstance(figures, list) and all(isinstance(name, str) for name in figures)
    ):
        raise ScenarioError(f"{source}: figures must be a list of names")
    if not isinstance(grids, list) or not all(isinstance(grid, dict) for grid in grids):
        raise ScenarioError(f"{source}: grids are written [[grid]]")
    base = reading.anchor(reading.flatten(raw, source), file.parent)
    scenarios: dict[Scenario, None] = {}
    for grid in grids:
        own = dict(grid)
        product = [*axes, *_axes(own.pop("axes", []), source)]
        _check_distinct(product, source)
        keys = reading.with_overrides(
            {**base, **reading.anchor(reading.flatten(own, source), file.parent)}, extra
        )
        overridden = set(extra)
        if "policy.name" in extra:
            overridden |= {
                key
                for axis in product
                for point in axis
                for key in point
                if reading.is_policy_parameter(key) and key != "policy.name"
            }
        for points in itertools.product(*_without(product, overridden)):
            merged = dict(keys)
            for point in points:
                merged.update(reading.anchor(point, file.parent))
            scenarios[reading.build(merged, source)] = None
    # A filter by a key that the command line overrides would show nothing.
    table = {key: values for key, values in table.items() if key not in extra}
    folder = file.parent.resolve().name
    return Sweep(
        name=f"{folder}-{file.stem}",
        scenarios=tuple(scenarios),
        table=table,
        figures=None if figures is None else tuple(figures),
    )
