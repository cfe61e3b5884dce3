"""What does compaction cost, in bytes copied, and how many pages does it recover?

One column of panels per granularity, one row per (sets, scope), one point per run: its colour is
the policy, its shape the algorithm, and it is filled where rows move on their own, open where only
whole slots may. Recovered is what compaction frees beyond eviction alone: the pages held by the run
that differs in nothing but ``compaction = none``, less the pages held, as a share of the dense
pages. A run without such a partner cannot be placed and is left out; the caption counts them.

A whisker reaches up to the packed floor of the run's unit: the most that its unit could recover. A
point without one is on its floor, and the caption counts those. Slot and row coincide where sets
are no finer than the scope: a dot in a ring. Thin lines join the budgets of one policy. Floors are
read from the partner, because a compaction by row changes what whole slots could reach afterwards.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kvsim.errors import FigureError
from kvsim.figures import _rows

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NAME = "compaction_pareto"
DRAWN = (
    "copied_bytes_total",
    "held_pages",
    "dense_pages",
    "packed_floor_pages",
    "packed_floor_slot_pages",
)
COLUMNS = (
    *_rows.IDENTITY,
    "copied_bytes_total",
    "held_pages",
    "dense_pages",
    "partner_run_id",
    "partner_held_pages",
    "floor_pages",
    "copied_mib",
    "recovered_share",
    "floor_share",
    "left_out_runs",
)
MIB = 2**20

FREE = ("compaction", "compaction_unit")
FLOORS = {"row": "packed_floor_pages", "slot": "packed_floor_slot_pages"}
MARKERS = {"none": "+", "rebuild": "s", "forward": ">", "hole_fill": "o"}
SIZES = {"": 12.0, "slot": 15.0, "row": 5.0}
"""Area of a marker by unit, in points squared; the empty unit is that of algorithm none."""
EDGE = 0.7
DENSE_POINTS = 5000
"""Points of a panel from which they are stored as an image, lest a PDF takes minutes to open."""


def select(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Completed rows, each with the run without compaction that it is compared with."""
    shown = _rows.select(NAME, rows, DRAWN, free=FREE)
    shown = [row for row in shown if row.get("compaction") in MARKERS]
    if all(row["compaction"] == "none" for row in shown):
        raise FigureError(
            f"{NAME} needs runs with compaction, and the {len(shown)} completed rows that it could"
            " show have none"
        )
    partners: dict[tuple[Any, ...], Mapping[str, Any]] = {}
    for row in shown:
        if row["compaction"] == "none":
            partners.setdefault(_settings(row), row)
    paired = [row for row in shown if _settings(row) in partners]
    if all(row["compaction"] == "none" for row in paired):
        raise FigureError(
            f"{NAME}: no completed run with compaction has a completed partner with compaction none"
            " and otherwise equal settings"
        )
    left_out = len(shown) - len(paired)
    return [_compared(row, partners[_settings(row)], left_out) for row in paired]


def _settings(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """Everything that a run and its partner have in common."""
    return tuple(row.get(column) for column in _rows.IDENTITY if column not in (*FREE, "run_id"))


def _compared(row: Mapping[str, Any], partner: Mapping[str, Any], left_out: int) -> dict[str, Any]:
    floor = None
    if row["compaction"] != "none":
        floor = partner[FLOORS.get(row["compaction_unit"], FLOORS["slot"])]
    (flat,) = _rows.flat(
        [row],
        ("copied_bytes_total", "held_pages", "dense_pages"),
        partner_run_id=lambda _: partner.get("run_id"),
        partner_held_pages=lambda _: partner["held_pages"],
        floor_pages=lambda _: floor,
        copied_mib=lambda _: row["copied_bytes_total"] / MIB,
        recovered_share=lambda _: _recovered(row, partner, row["held_pages"]),
        floor_share=lambda _: None if floor is None else _recovered(row, partner, floor),
        left_out_runs=lambda _: left_out,
    )
    return flat


def _recovered(row: Mapping[str, Any], partner: Mapping[str, Any], pages: int) -> float:
    return _rows.share(row, partner["held_pages"] - pages, row["dense_pages"])


def draw(data: Sequence[Mapping[str, Any]]) -> Figure:
    """Grid of granularities by (sets, scope)."""
    from matplotlib.lines import Line2D

    from kvsim.figures import style

    columns, pairs = _rows.granularities(data), _rows.pairs(data)
    found = style.looks(row["policy"] for row in data)
    kinds = sorted({_kind(row) for row in data}, key=_kind_order)
    shares = [row["recovered_share"] for row in data]
    shares += [row["floor_share"] for row in data if row["floor_share"] is not None]
    figure, axes = style.grid(
        len(pairs), len(columns), 1.4, [0.0, *(row["copied_mib"] for row in data)], [0.0, *shares]
    )
    for i, (sets, scope) in enumerate(pairs):
        for j, granularity in enumerate(columns):
            panel = _rows.where(data, sets=sets, scope=scope, granularity=granularity)
            _lines(axes[i][j], panel, found)
            _whiskers(axes[i][j], panel, found)
            for kind in kinds:
                _scatter(axes[i][j], [row for row in panel if _kind(row) == kind], kind, found)
            if not panel:
                style.empty(axes[i][j])
            elif not any(row["copied_bytes_total"] for row in panel):
                style.note(axes[i][j], "no run copies\nanything")
        style.row_label(axes[i][-1], f"{sets} sets,\n{scope} scope")
    for j, granularity in enumerate(columns):
        axes[0][j].set_title(granularity)
    figure.supylabel("Share of pages recovered")
    style.x_title(figure, "Bytes copied, MiB", _caption(data))
    handles: list[Any] = [
        Line2D([], [], color=look.color, linewidth=3.0, label=style.label(policy))
        for policy, look in found.items()
    ]
    handles += [
        Line2D([], [], linestyle="", label=_kind_label(kind), **_marker(kind, style.INK))
        for kind in kinds
    ]
    if any(_misses_floor(row) for row in data):
        label = "short of the packed floor"
        handles.append(
            Line2D([], [], linestyle="", marker="|", markersize=8, color=style.INK, label=label)
        )
    style.finish(figure, handles)
    return figure


def _kind(row: Mapping[str, Any]) -> tuple[str, str]:
    """Algorithm and unit; without compaction there is no unit."""
    return row["compaction"], "" if row["compaction"] == "none" else row["compaction_unit"]


def _kind_order(kind: tuple[str, str]) -> tuple[Any, ...]:
    return _rows.compaction_order({"compaction": kind[0], "compaction_unit": kind[1]})


def _kind_label(kind: tuple[str, str]) -> str:
    return " by ".join(filter(None, kind)) if kind[1] else "none"


def _marker(kind: tuple[str, str], color: str) -> dict[str, Any]:
    """Look in the legend. A ring is wider than a dot, so that both are seen in one place."""
    face = color if kind[1] == "row" else "white"
    size = SIZES[kind[1]] ** 0.5
    return {
        "marker": MARKERS[kind[0]],
        "color": color,
        "markerfacecolor": face,
        "markersize": size,
        "markeredgewidth": EDGE,
    }


def _misses_floor(row: Mapping[str, Any]) -> bool:
    return row["floor_share"] is not None and row["floor_share"] > row["recovered_share"]


def _lines(axes: Axes, panel: Sequence[Mapping[str, Any]], found: Mapping[str, Any]) -> None:
    """Draw thin lines through the budgets of one policy, algorithm and unit, under one seed."""
    from matplotlib.collections import LineCollection

    paths: dict[tuple[Any, ...], list[tuple[float, float]]] = {}
    for row in panel:
        path = paths.setdefault((row["policy"], _kind(row), row["seed"]), [])
        path.append((row["copied_mib"], row["recovered_share"]))
    colors = [found[key[0]].color for key in paths]
    axes.add_collection(
        LineCollection(list(paths.values()), colors=colors, linewidths=0.4, alpha=0.6, zorder=1.5)
    )


def _whiskers(axes: Axes, panel: Sequence[Mapping[str, Any]], found: Mapping[str, Any]) -> None:
    """Draw lines from points to the floors that they miss, with a cap."""
    short = [row for row in panel if _misses_floor(row)]
    if short:
        xs, floors = [row["copied_mib"] for row in short], [row["floor_share"] for row in short]
        colors = [found[row["policy"]].color for row in short]
        lows = [row["recovered_share"] for row in short]
        axes.vlines(xs, lows, floors, colors=colors, linewidth=0.6, zorder=2)
        axes.scatter(xs, floors, marker="_", s=14, c=colors, linewidth=0.8, zorder=2)


def _scatter(
    axes: Axes, panel: Sequence[Mapping[str, Any]], kind: tuple[str, str], found: Mapping[str, Any]
) -> None:
    """Draw all points of one algorithm and unit at once."""
    colors = [found[row["policy"]].color for row in panel]
    line: dict[str, Any] = {"edgecolors": colors, "facecolors": "none"}
    if kind[1] != "slot":
        # A cross, as a filled shape, has no edge apart from itself.
        line = {"c": colors}
    axes.scatter(
        [row["copied_mib"] for row in panel],
        [row["recovered_share"] for row in panel],
        marker=MARKERS[kind[0]],
        s=SIZES[kind[1]],
        linewidth=EDGE if kind[1] != "row" else 0.0,
        zorder=3,
        rasterized=len(panel) > DENSE_POINTS,
        **line,
    )


def _caption(data: Sequence[Mapping[str, Any]]) -> str:
    said = _rows.settings(data, omit=FREE[:1], seeds="{} seeds, a point each")
    budgets = sorted({row["budget_fraction"] for row in data})
    said += ", thin lines join the budgets " + ", ".join(f"{budget:g}" for budget in budgets)
    compacted = [row for row in data if row["floor_share"] is not None]
    reached = sum(not _misses_floor(row) for row in compacted)
    said += f"; {reached:,} of {len(compacted):,} runs with compaction on their packed floor"
    left_out = data[0]["left_out_runs"]
    return said + f"; {left_out or 'none'} left out for want of a partner"
