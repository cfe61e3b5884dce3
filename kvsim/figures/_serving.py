"""Rows of serving runs: which a figure shows, what their lines are called, and their time series.

Knows the study's column names and the arrays of its series; nothing about drawing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvsim.errors import FigureError
from kvsim.figures import _maps

if TYPE_CHECKING:
    import numpy as np

Row = dict[str, Any]
AnyRow = Mapping[str, Any]

LINES = ("none", "token", "window", "page")
COLORS = {"none": "#000000", "token": "#d55e00", "window": "#029e73", "page": "#0173b2"}
MARKERS = {"none": "P", "token": "o", "window": "^", "page": "s"}
WORDS = {
    "none": "no eviction",
    "token": "tokens evicted",
    "window": "windows evicted",
    "page": "pages evicted",
}
IDENTITY = (
    "run_id",
    "seed",
    "layout",
    "device",
    "page_tokens",
    "ceiling_pages",
    "pressure",
    "policy",
    "granularity",
    "budget_fraction",
    "preemption",
    "workload",
    "rate_per_s",
    "slo_ttft_ms",
    "slo_tpot_ms",
)
ABSENT = "-"


def serving(name: str, rows: Sequence[AnyRow], columns: Sequence[str]) -> list[Row]:
    """Rows of serving runs, completed or infeasible, each once, in a stated order.

    Runs that evict nothing say so: their policy is "-" and their granularity "none".

    Raises
    ------
    FigureError
        If there are none, or a granularity has no colour.
    """
    found: dict[str, Row] = {}
    for row in rows:
        if row.get("pressure") in ("none", "evict") and row.get("outcome") in OUTCOMES:
            shown = {column: row.get(column) for column in columns}
            if row["pressure"] == "none":
                if row["budget_fraction"] != 1.0:
                    continue
                shown |= {"policy": ABSENT, "granularity": "none"}
            found[str(row["run_id"])] = shown
    if not found:
        raise FigureError(f"{name} needs rows of serving runs, and there are none")
    strange = sorted({str(row["granularity"]) for row in found.values()} - set(LINES))
    if strange:
        raise FigureError(f"{name} has no colour for granularity {strange[0]}")
    return sorted(found.values(), key=order)


OUTCOMES = ("completed", "infeasible")


def order(row: AnyRow) -> tuple[Any, ...]:
    """Sort by page size, policy, granularity, ceiling and seed."""
    place = LINES.index(row["granularity"])
    ceiling = row["ceiling_pages"]
    return (row["page_tokens"], row["policy"], place, ceiling, row["seed"], row["run_id"])


def series(name: str, row: AnyRow, folder: Path) -> dict[str, np.ndarray]:
    """Return the arrays of the file that a row names in the column ``series``.

    Raises
    ------
    FigureError
        The file is missing, damaged, or without samples; the text names it.
    """
    import numpy as np

    path = folder / _maps.inside(name, row["series"])
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = {key: archive[key] for key in archive.files}
    except OSError as error:
        reason = error.strerror or "it is no .npz"
        raise FigureError(f"{name}: {path} cannot be read: {reason}") from None
    except _maps.DAMAGE:
        raise FigureError(f"{name}: {path} is damaged, or no .npz of a time series") from None
    for needed in ("time_ns", "pool_pages", "pages_by_live_slots"):
        if needed not in arrays or not len(arrays[needed]):
            raise FigureError(f"{name}: {path} has no samples of {needed}")
    return arrays


def with_series(name: str, rows: Sequence[AnyRow]) -> list[Row]:
    """Completed rows that name a time series and have one seed and one ceiling: the most frequent.

    Raises
    ------
    FigureError
        If no row names a time series.
    """
    named = [row for row in rows if row.get("series") and row.get("outcome") == "completed"]
    if not named:
        raise FigureError(
            f"{name} needs completed rows that name a time series, and none of {len(rows)} does"
        )
    return serving(name, named, (*IDENTITY, "outcome", "series"))


def panels(rows: Sequence[Row]) -> list[Row]:
    """The run without eviction, and with each policy and granularity, of one setting.

    Raises
    ------
    FigureError
        If two runs differ in something else than policy and granularity.
    """
    first: dict[tuple[str, str], Row] = {}
    for row in rows:
        first.setdefault((row["policy"], row["granularity"]), row)
    fixed = ("seed", "layout", "device", "page_tokens", "ceiling_pages", "rate_per_s")
    base = next(iter(first.values()))
    return [row for row in first.values() if all(row[key] == base[key] for key in fixed)]


def title(row: AnyRow) -> str:
    """Name a run in a figure."""
    if row["granularity"] == "none":
        return WORDS["none"]
    return f"{row['policy']}, {WORDS[row['granularity']]}"


def settings(row: AnyRow) -> str:
    """Say for which settings a figure holds."""
    said = {
        "poisson": f"{row['rate_per_s']:g} requests a second by chance",
        "trace": "requests of a trace",
    }
    return f"{row['layout']} on {row['device']}, {said[row['workload']]}"
