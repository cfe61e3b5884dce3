"""When does evicting raise memory? Pages against fan-out, where forks share one prompt.

Two rows of panels per (planes, positions), one column per compaction. The upper row counts pages:
physical ones (held_pages), logical ones (a shared page once per table that names it), and as a pale
line what the forks would hold had nothing been evicted. The lower row is held_fraction; on the
tinted side of 1 evicting raised memory, because a write to a shared page copies it. Fan-out is the
number of tables of one prompt: its forks and itself. Axes are logarithmic.

Policy h2o by token and by page, shared sets and sequence scope, at one budget, where those occur.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kvsim.errors import FigureError
from kvsim.figures import _rows

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NAME = "cow_fanout"
DRAWN = ("forks", "held_pages", "logical_pages", "dense_pages", "held_fraction")
MEASURED = DRAWN[1:]
COLUMNS = (*_rows.IDENTITY, *MEASURED, "fan_out")

PREFER = (("policy", "h2o"), ("sets", "shared"), ("scope", "sequence"), ("budget_fraction", 0.5))
FREE = (
    "compaction",
    "compaction_unit",
    "positions",
    "planes",
    "forks",
    "forks_evict",
    "tokens",
)
SHOWN = ("token", "page")
COLORS = {
    "token": "#0173b2",
    "page": "#de8f05",
    "window": "#029e73",
    "page_completion": "#cc78bc",
}
WIDE = {"token": {"linewidth": 2.0, "markersize": 4.5}}
"""Token lies wide beneath the others, so that lines that coincide are seen as two."""
MARKERS = {True: "o", False: "^"}
RAISED = "#f9ebe8"


def select(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Completed rows of one policy, budget, sets and scope, over the fan-outs."""
    found = _rows.select(NAME, rows, DRAWN, free=FREE, prefer=PREFER)
    if any(row["granularity"] in SHOWN for row in found):
        found = [row for row in found if row["granularity"] in SHOWN]
    # Tokens follow from the prompt and its forks: one prompt is one value at each fan-out.
    alike: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for row in found:
        alike.setdefault((row["forks"], row.get("forks_evict")), []).append(row)
    found = sorted((row for group in alike.values() for row in _prompt(group)), key=_rows.order)
    forks = sorted({row["forks"] for row in found})
    if len(forks) < 2:
        raise FigureError(
            f"{NAME} needs rows of more than one number of forks, and all {len(found)} that it"
            f" could show have forks = {forks[0]}"
        )
    return _rows.flat(found, MEASURED, fan_out=lambda row: row["forks"] + 1)


def _prompt(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Rows of the most frequent prompt; lengths of requests differ with every seed."""
    if rows[0].get("workload") == "requests":
        return list(rows)
    return _rows.fix(rows, "tokens")


def draw(data: Sequence[Mapping[str, Any]]) -> Figure:
    """Grid of (planes, positions), each with two rows of panels, by compaction."""
    from kvsim.figures import style

    bands = sorted({(row["planes"], row["positions"]) for row in data}, key=str)
    columns = sorted({_kind(row) for row in data}, key=_kind_order)
    fan_outs = [row["fan_out"] for row in data]
    pages = [row[column] for row in data for column in ("held_pages", "logical_pages")]
    pages += [row["dense_pages"] for row in data]
    fractions = [1.0, *(row["held_fraction"] for row in data)]
    figure, axes = style.grid(2 * len(bands), len(columns), 0.9, fan_outs, pages)
    for line in axes:
        for panel in line:
            style.log_axis(panel.xaxis, fan_outs, 2)
    for i, (planes, positions) in enumerate(bands):
        upper, lower = axes[2 * i], axes[2 * i + 1]
        for j, kind in enumerate(columns):
            style.log_axis(upper[j].yaxis, pages, 10)
            style.log_axis(lower[j].yaxis, fractions, 10 if max(fractions) > 30 else 2)
            band = _rows.where(data, planes=planes, positions=positions)
            shown = [row for row in band if _kind(row) == kind]
            _pages(upper[j], shown)
            _fractions(lower[j], shown)
            if not shown:
                style.empty(upper[j])
                style.empty(lower[j])
        text = f"{planes},\n{positions}"
        style.row_label(upper[-1], text)
        style.row_label(lower[-1], text)
        upper[0].set_ylabel("pages")
        lower[0].set_ylabel("held fraction")
    for j, kind in enumerate(columns):
        axes[0][j].set_title("\nby ".join(filter(None, kind)) if kind[1] else "no compaction")
    style.x_title(figure, "Fan-out: tables that share one prompt", _caption(data))
    style.finish(figure, _handles(data))
    return figure


def _kind(row: Mapping[str, Any]) -> tuple[str, str]:
    """Algorithm and unit; without compaction there is no unit."""
    if row["compaction"] in (None, "none"):
        return "none", ""
    return row["compaction"], row["compaction_unit"]


def _kind_order(kind: tuple[str, str]) -> tuple[Any, ...]:
    return _rows.compaction_order({"compaction": kind[0], "compaction_unit": kind[1]})


def _series(
    panel: Sequence[Mapping[str, Any]],
) -> list[tuple[Any, list[Mapping[str, Any]], dict[str, Any]]]:
    """Look, rows and widths of each series: colour by granularity, marker by who is evicted."""
    from kvsim.figures import style

    found = []
    for granularity in _rows.granularities(panel):
        for evict in sorted({row["forks_evict"] for row in panel}, key=str, reverse=True):
            rows = _rows.where(panel, granularity=granularity, forks_evict=evict)
            color = COLORS.get(granularity, style.INK)
            if rows:
                found.append(
                    (style.Look(color, MARKERS.get(evict, "o")), rows, WIDE.get(granularity, {}))
                )
    return found


def _pages(axes: Axes, panel: Sequence[Mapping[str, Any]]) -> None:
    from kvsim.figures import style

    for look, rows, wide in _series(panel):
        dense = _rows.points(rows, "fan_out", "dense_pages", "fan_out")
        axes.plot([p.x for p in dense], [p.y for p in dense], **_dense(style.PALE))
        logical = _rows.points(rows, "fan_out", "logical_pages", "fan_out")
        style.series(axes, logical, look, **{**wide, "linestyle": ":", "marker": ""})
        held = _rows.points(rows, "fan_out", "held_pages", "fan_out")
        style.series(axes, held, look, **wide)


def _fractions(axes: Axes, panel: Sequence[Mapping[str, Any]]) -> None:
    from kvsim.figures import style

    axes.axhspan(1.0, axes.get_ylim()[1], color=RAISED, linewidth=0, zorder=0)
    axes.axhline(1.0, color=style.INK, linewidth=0.6, linestyle=(0, (1, 2)), zorder=1)
    for look, rows, wide in _series(panel):
        points = _rows.points(rows, "fan_out", "held_fraction", "fan_out")
        style.series(axes, points, look, **wide)


def _dense(color: str) -> dict[str, Any]:
    return {"color": color, "linewidth": 3.0, "zorder": 1}


def _handles(data: Sequence[Mapping[str, Any]]) -> list[Any]:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    from kvsim.figures import style

    ink = style.INK
    handles: list[Any] = [
        Line2D([], [], color=COLORS.get(kind, ink), linewidth=3.0, label=f"by {kind}")
        for kind in _rows.granularities(data)
    ]
    evicted = {row["forks_evict"] for row in data}
    words = {True: "all tables evicted", False: "only the first evicted"}
    handles += [
        Line2D([], [], color=ink, marker=MARKERS[e], markerfacecolor="white", label=words[e])
        for e in (True, False)
        if e in evicted and len(evicted) > 1
    ]
    handles += [
        Line2D([], [], color=ink, label="physical (held) pages"),
        Line2D([], [], color=ink, linestyle=":", label="logical pages"),
        Line2D([], [], **_dense(style.PALE), label="dense: nothing evicted"),
        Patch(facecolor=RAISED, edgecolor=ink, linewidth=0.4, label="evicting raised memory"),
    ]
    return handles


def _caption(data: Sequence[Mapping[str, Any]]) -> str:
    row = data[0]
    said = f"{row['policy']}, {row['sets']} sets, {row['scope']} scope"
    said += f", budget {row['budget_fraction']:g}"
    evicted = {r["forks_evict"] for r in data}
    if evicted == {False}:
        said += ", only the first table evicted"
    one = [r["tokens"] for r in data if r["forks"] == 0 and r["tokens"] is not None]
    if one:
        said += f", a prompt of {one[0]:,} tokens"
    return f"{said}, {_rows.settings(data, omit=FREE)}"
