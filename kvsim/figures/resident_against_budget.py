"""Is what the accounting calls mapped what the machine has in memory, at every budget?

One column of panels per granularity, one row per plane layout and size of an extent, one colour per
compaction. Everything is a share of the dense bytes. Lines are accounting: dotted what is held in
pages, drawn through what is mapped, since an extent stays mapped while it overlaps one held page.
Rings are the operating system's answer, mincore over the planes' buffers, of the same run at the
same moment; a ring on its line says that the accounting is what the machine sees. The space between
a drawn line and its dotted one is memory that eviction freed and the process still has.

Reads what was measured from the results folder. Policy h2o, shared sets and sequence scope, where
those occur.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvsim.errors import FigureError
from kvsim.figures import _measured, _rows

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NAME = "resident_against_budget"
NEEDS_FOLDER = True
NUMBERS = (
    "held_bytes",
    "mapped_bytes",
    "empty_mapped_bytes",
    "returned_extents_total",
    "dense_bytes",
    "copied_bytes_total",
    "resident_bytes",
)
COLUMNS = (*_rows.IDENTITY, *NUMBERS, "held_share", "mapped_share", "resident_share")

PREFER = (("policy", "h2o"), ("sets", "shared"), ("scope", "sequence"))
FREE = ("compaction", "compaction_unit", "plane_layout", "extent_bytes")
COLORS = {"none": "#0173b2", "forward": "#de8f05", "hole_fill": "#cc78bc", "rebuild": "#029e73"}
SIZES = {"none": 7.0, "forward": 5.5, "hole_fill": 4.0, "rebuild": 2.5}
"""Rings of different widths, so that those in one place are all seen."""
KIB, MIB = 2**10, 2**20


def select(rows: Sequence[Mapping[str, Any]], folder: Path) -> list[dict[str, Any]]:
    """Completed rows with a physical model, each with what was resident in the same run."""
    seen = _measured.load(NAME, folder)
    both = [
        {**row, "resident_bytes": seen.get(row.get("run_id", ""), {}).get("resident_bytes")}
        for row in rows
    ]
    found = _rows.select(NAME, both, NUMBERS, free=FREE, prefer=PREFER)
    unknown = sorted({str(row["compaction"]) for row in found} - set(COLORS))
    if unknown:
        raise FigureError(f"{NAME} has no colour for compaction {unknown[0]}")
    return _rows.flat(
        found,
        NUMBERS,
        held_share=lambda row: _rows.share(row, row["held_bytes"], row["dense_bytes"]),
        mapped_share=lambda row: _rows.share(row, row["mapped_bytes"], row["dense_bytes"]),
        resident_share=lambda row: _rows.share(row, row["resident_bytes"], row["dense_bytes"]),
    )


def draw(data: Sequence[Mapping[str, Any]]) -> Figure:
    """Grid of granularities by (extents, plane layout), with the ideal line y = x."""
    from kvsim.figures import style

    columns = _rows.granularities(data)
    lines = sorted({(-row["extent_bytes"], row["plane_layout"]) for row in data})
    shares = [row[name] for row in data for name in ("held_share", "mapped_share")]
    budgets = [row["budget_fraction"] for row in data]
    figure, axes = style.grid(len(lines), len(columns), 1.45, budgets, [0.0, 1.0, *shares])
    for i, (size, layout) in enumerate(lines):
        for j, granularity in enumerate(columns):
            panel = _rows.where(
                data, extent_bytes=-size, plane_layout=layout, granularity=granularity
            )
            style.ideal_line(axes[i][j])
            _panel(axes[i][j], panel)
            if not panel:
                style.empty(axes[i][j])
        style.row_label(axes[i][-1], f"{layout},\nextents of {_size(-size)}")
    for j, granularity in enumerate(columns):
        window = {row["window_tokens"] for row in data}
        said = f"window of {min(window)}" if granularity == "window" else granularity
        axes[0][j].set_title(said)
    figure.supylabel("Fraction of dense bytes")
    style.x_title(figure, "Budget, fraction of the dense footprint", _caption(data))
    style.finish(figure, _handles(data))
    return figure


def _panel(axes: Axes, panel: Sequence[Mapping[str, Any]]) -> None:
    from kvsim.figures import style

    for compaction in _compactions(panel):
        rows = _rows.where(panel, compaction=compaction)
        look = style.Look(COLORS[compaction], "")
        held = _rows.points(rows, "budget_fraction", "held_share")
        style.series(axes, held, look, linestyle=(0, (1, 1.2)), linewidth=1.2)
        mapped = _rows.points(rows, "budget_fraction", "mapped_share")
        style.series(axes, mapped, look)
        resident = _rows.points(rows, "budget_fraction", "resident_share")
        style.series(axes, resident, look, **_ring(compaction))


def _ring(compaction: str) -> dict[str, Any]:
    return {
        "linestyle": "",
        "marker": "o",
        "markerfacecolor": "none",
        "markersize": SIZES[compaction],
        "markeredgewidth": 0.8,
        "zorder": 4,
    }


def _compactions(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    return sorted({row["compaction"] for row in rows}, key=_rows.COMPACTIONS.index)


def _size(extent_bytes: int) -> str:
    if extent_bytes % MIB == 0:
        return f"{extent_bytes // MIB} MiB"
    return f"{extent_bytes / KIB:g} KiB"


def _handles(data: Sequence[Mapping[str, Any]]) -> list[Any]:
    from matplotlib.lines import Line2D

    from kvsim.figures import style

    ink = style.INK
    handles = [
        Line2D([], [], color=COLORS[c], linewidth=3.0, label="no compaction" if c == "none" else c)
        for c in _compactions(data)
    ]
    ring = {**_ring("none"), "color": ink, "label": "resident: the machine (mincore)"}
    return [
        *handles,
        Line2D([], [], color=ink, linestyle=(0, (1, 1.2)), label="held: accounting"),
        Line2D([], [], color=ink, label="mapped: accounting"),
        Line2D([], [], **ring),
        style.ideal_handle("ideal: the budget itself"),
    ]


def _caption(data: Sequence[Mapping[str, Any]]) -> str:
    row = data[0]
    equal = sum(row["resident_bytes"] == row["mapped_bytes"] for row in data)
    said = f"{row['policy']}, {row['sets']} sets, {row['scope']} scope, "
    said += _rows.settings(data, omit=(*FREE, "window_tokens"))
    return f"{said}; resident = mapped to the byte in {equal:,} of {len(data):,} runs"
