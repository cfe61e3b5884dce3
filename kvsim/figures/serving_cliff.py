"""How do preemptions and latencies grow when the pool gets smaller, and what does eviction change?

Four rows of panels against the ceiling of the pool, in tokens: preemptions, the 99th percentile of
the time to first token, goodput, which is finished requests a second that met both objectives, and
pages that eviction freed. A column for each page size and policy; the line without eviction stands
in every column of its page size. Lines are means over seeds and bands reach from least to greatest.
A cross under the upper panels marks a ceiling at which a run is infeasible for some seed; such a
ceiling has no point on that line.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kvsim.errors import FigureError
from kvsim.figures import _rows, _serving

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NAME = "serving_cliff"
MEASURED = (
    "requests",
    "finished_requests",
    "preemptions_total",
    "ttft_p50_ms",
    "ttft_p99_ms",
    "tpot_p99_ms",
    "goodput_requests_per_s",
    "good_fraction",
    "throughput_tokens_per_s",
    "evicted_tokens_total",
    "freed_pages_total",
    "held_pages_peak",
    "hit_fraction",
)
COLUMNS = (*_serving.IDENTITY, "outcome", "outcome_reason", *MEASURED)
SHOWN = (
    ("preemptions_total", "preemptions"),
    ("ttft_p99_s", "p99 time to\nfirst token, s"),
    ("goodput_requests_per_s", "goodput,\nrequests/s"),
    ("freed_pages_total", "pages freed\nby eviction"),
)


def select(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Rows of serving runs without time series, of more than one ceiling."""
    found = _serving.serving(NAME, [row for row in rows if not row.get("series")], COLUMNS)
    if len({row["ceiling_pages"] for row in found}) < 2:
        raise FigureError(f"{NAME} needs rows of more than one ceiling")
    if not any(row["outcome"] == "completed" for row in found):
        raise FigureError(f"{NAME} needs completed rows, and all are infeasible")
    return found


def draw(data: Sequence[Mapping[str, Any]]) -> Figure:
    """A column of panels for each page size and policy, a row for each measure."""
    from kvsim.figures import style

    rows = [_plain(row) for row in data]
    columns = _columns(rows)
    ceilings = [row["ceiling_tokens"] for row in rows]
    figure, axes = style.grid(4, len(columns), 1.05, ceilings, [0.0, 1.0], style.PAGE_IN)
    for i, (column, label) in enumerate(SHOWN):
        values = [row[column] for row in rows if row["outcome"] == "completed"]
        for j, (tokens, policy) in enumerate(columns):
            panel = axes[i][j]
            style.log_axis(panel.xaxis, ceilings, 2)
            panel.xaxis.set_major_formatter(lambda value, _: f"{value / 1024:g}k")
            _heights(panel, column, values)
            mine = [
                row
                for row in rows
                if row["page_tokens"] == tokens and row["policy"] in (policy, _serving.ABSENT)
            ]
            _lines(panel, mine, column)
            if i == 0:
                panel.set_title(f"{policy}\n{tokens}-token pages")
                _crosses(panel, mine)
        axes[i][0].set_ylabel(label)
    style.x_title(figure, "Ceiling of the pool, tokens (k = 1,024)", _caption(data))
    style.finish(figure, _handles(rows))
    return figure


def _plain(row: Mapping[str, Any]) -> dict[str, Any]:
    ttft = row["ttft_p99_ms"]
    return {
        **row,
        "ceiling_tokens": row["ceiling_pages"] * row["page_tokens"],
        "ttft_p99_s": None if ttft is None else ttft / 1000,
    }


def _columns(rows: Sequence[Mapping[str, Any]]) -> list[tuple[int, str]]:
    found = {(row["page_tokens"], row["policy"]) for row in rows}
    sizes = sorted({tokens for tokens, _ in found})
    policies = sorted({policy for _, policy in found} - {_serving.ABSENT}, reverse=True)
    there = [(t, p) for t in sizes for p in policies if (t, p) in found]
    return there or [(tokens, _serving.ABSENT) for tokens in sizes]


def _heights(axes: Axes, column: str, values: Sequence[float]) -> None:
    from kvsim.figures import style

    if column == "ttft_p99_s":
        style.log_axis(axes.yaxis, values, 10 if max(values) > 30 * min(values) else 2)
        return
    margin = 0.08 * max(values) or 0.1
    # Crosses of infeasible ceilings stand above the data of the first row.
    room = 0.7 * max(values) if column == "preemptions_total" else 0.0
    axes.set_ylim(-margin, max(values) + margin + room)


def _lines(axes: Axes, rows: Sequence[Mapping[str, Any]], column: str) -> None:
    from kvsim.figures import style

    for place, line in enumerate(_serving.LINES):
        mine = _rows.where(rows, granularity=line)
        lost = {row["ceiling_pages"] for row in mine if row["outcome"] != "completed"}
        there = [row for row in mine if row["ceiling_pages"] not in lost]
        if there:
            look = style.Look(_serving.COLORS[line], _serving.MARKERS[line])
            points = _rows.points(there, "ceiling_tokens", column, "ceiling_tokens")
            # Later lines are drawn smaller, so that those that coincide are all seen.
            style.series(axes, points, look, markersize=4.6 - 0.8 * place)


def _crosses(axes: Axes, rows: Sequence[Mapping[str, Any]]) -> None:
    """Mark infeasible ceilings above the panel's data, a row of crosses for each line."""
    for place, line in enumerate(_serving.LINES):
        mine = _rows.where(rows, granularity=line)
        lost = sorted({r["ceiling_tokens"] for r in mine if r["outcome"] == "infeasible"})
        axes.plot(
            lost,
            [0.96 - 0.1 * place] * len(lost),
            transform=axes.get_xaxis_transform(),
            linestyle="",
            marker="x",
            markersize=3.5,
            markeredgewidth=1.0,
            color=_serving.COLORS[line],
        )


def _handles(rows: Sequence[Mapping[str, Any]]) -> list[Any]:
    from matplotlib.lines import Line2D

    from kvsim.figures import style

    there = {row["granularity"] for row in rows}
    handles = [
        Line2D(
            [],
            [],
            color=_serving.COLORS[line],
            marker=_serving.MARKERS[line],
            markerfacecolor="white",
            label=_serving.WORDS[line],
        )
        for line in _serving.LINES
        if line in there
    ]
    cross = Line2D([], [], linestyle="", marker="x", color=style.INK, label="infeasible")
    return [*handles, cross]


def _caption(data: Sequence[Mapping[str, Any]]) -> str:
    row = data[0]
    budget = {r["budget_fraction"] for r in data if r["granularity"] != "none"}
    evicted = f", eviction under pressure down to {min(budget):g} of the tokens" if budget else ""
    return (
        f"{_serving.settings(row)}, objectives {row['slo_ttft_ms'] / 1000:g} s to the first token "
        f"and {row['slo_tpot_ms']:g} ms a further one{evicted}"
    )
