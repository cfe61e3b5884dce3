"""How far is the simulated engine from recorded runs of vLLM?

Above: the share of the pool that is occupied, of the run whose pool is known. Below it: requests
that run, of each recorded run. Left, against generated tokens: what is in memory after so many
tokens, with the specification sheet's constants and nothing tuned. Right, over time: the same, and
drawn through with one efficiency that was fitted on requests which end in the first minute. Grey
dots were recorded; they come with the rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

from kvsim.errors import FigureError
from kvsim.figures import _rows

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NAME = "serving_vllm"
COLUMNS = (
    "run",
    "layout",
    "device",
    "pool_pages",
    "pool_share",
    "efficiency",
    "time_s",
    "generated_tokens",
    "recorded_held_percent",
    "recorded_running",
    "held_percent_at_tokens",
    "running_at_tokens",
    "held_percent_at_time",
    "running_at_time",
)
RECORDED = "#8a8a8a"
UNTUNED = "#0173b2"
FITTED = "#d55e00"


def select(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """All rows of recorded runs, of every pool and efficiency, in a stated order."""
    found = {
        _order(row): {column: row[column] for column in COLUMNS}
        for row in rows
        if all(column in row for column in COLUMNS)
    }
    if not found:
        raise FigureError(f"{NAME} needs rows of recorded runs of vLLM, and there are none")
    return [found[key] for key in sorted(found)]


def _order(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return (row["run"], row["pool_share"], row["efficiency"], row["time_s"])


def errors(rows: Sequence[Mapping[str, Any]], ours: str, recorded: str, late_s: float = 0) -> float:
    """Mean absolute error of a column, over seconds after `late_s`."""
    return fmean(abs(row[ours] - row[recorded]) for row in rows if row["time_s"] > late_s)


def draw(data: Sequence[Mapping[str, Any]]) -> Figure:
    """Rows of panels: occupancy where the pool is known, then running requests of each run."""
    from matplotlib.lines import Line2D

    from kvsim.figures import style

    runs = sorted({row["run"] for row in data})
    lines = [
        (run, what)
        for run in runs
        for what in ("held_percent", "running")
        if _rows.where(data, run=run)[0][f"recorded_{what}"] is not None
    ]
    figure, axes = style.grid(len(lines), 2, 1.25, [0.0, 1.0], [0.0, 1.0], style.PAGE_IN)
    for i, (run, what) in enumerate(lines):
        mine = _rows.where(data, run=run, pool_share=1.0)
        variants = sorted({row["efficiency"] for row in mine}, reverse=True)
        for j, (x, at) in enumerate((("generated_tokens", "tokens"), ("time_s", "time"))):
            panel = axes[i][j]
            panel.tick_params(labelbottom=True)
            shown = _rows.where(mine, efficiency=variants[0])
            _panel(panel, shown, x, what)
            _line(panel, shown, x, f"{what}_at_{at}", UNTUNED, "-")
            text = f"off by {errors(shown, f'{what}_at_{at}', f'recorded_{what}'):.1f}"
            if j and len(variants) > 1:
                fitted = _rows.where(mine, efficiency=variants[1])
                _line(panel, fitted, x, f"{what}_at_{at}", FITTED, "-")
                text += f"; fitted {errors(fitted, f'{what}_at_{at}', f'recorded_{what}'):.1f}"
            panel.text(0.42, 0.1, text, transform=panel.transAxes, ha="center", va="bottom")
        name = {"held_percent": "occupied, %", "running": "requests that run"}[what]
        axes[i][0].set_ylabel(name)
        style.row_label(axes[i][1], shown[0]["device"])
    axes[0][0].set_title("at equal generated tokens")
    axes[0][1].set_title("over time")
    axes[-1][0].set_xlabel("generated tokens, thousands")
    axes[-1][1].set_xlabel("time, s")
    fitted = sorted({row["efficiency"] for row in data})[0]
    handles = [
        Line2D([], [], color=RECORDED, linestyle="", marker=".", label="recorded, vLLM 0.19"),
        Line2D([], [], color=UNTUNED, label="simulated, nothing tuned"),
    ]
    if fitted < 1:
        label = f"simulated, efficiency {fitted:g} fitted on the first minute"
        handles.append(Line2D([], [], color=FITTED, label=label))
    style.finish(figure, handles)
    return figure


def _panel(axes: Axes, rows: Sequence[Mapping[str, Any]], x: str, what: str) -> None:
    """Set the scales and draw what was recorded."""
    xs = [_x(row, x) for row in rows]
    ys = [row[f"recorded_{what}"] for row in rows]
    axes.set_xlim(-0.02 * max(xs), 1.02 * max(xs))
    axes.set_ylim(-0.05 * max(ys), 1.1 * max(ys))
    axes.tick_params(labelleft=True)
    axes.plot(xs, ys, linestyle="", marker=".", color=RECORDED, markersize=4, zorder=2)


def _line(
    axes: Axes, rows: Sequence[Mapping[str, Any]], x: str, column: str, color: str, style: str
) -> None:
    axes.plot([_x(r, x) for r in rows], [r[column] for r in rows], style, color=color, zorder=3)


def _x(row: Mapping[str, Any], x: str) -> float:
    value: float = row[x]
    return value / 1000 if x == "generated_tokens" else value
