"""How long does it take to remove a poisoned span, by the suffix behind it and by fan-out?

One panel per fan-out, one line per method: milliseconds under the roofline, copies and rotations
as bytes over bandwidth, prefills as steps. Both axes are logarithmic, so methods that move nothing
are not drawn; the caption names them. Dashed: what all sequences share is rewritten once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kvsim.errors import FigureError
from kvsim.figures import _quarantine as rows_of
from kvsim.figures import _rows

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "quarantine_time"
COLUMNS = (*rows_of.COLUMNS, "time_ms")


def select(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Rows of one span without tails, of several lengths of suffix."""
    found = rows_of.against_suffix(NAME, rows)
    if not any(row["time_ns"] for row in found):
        raise FigureError(f"{NAME} needs rows of a method that takes time")
    return [{**row, "time_ms": row["time_ns"] / 1e6} for row in found]


def draw(data: Sequence[Mapping[str, Any]]) -> Figure:
    """One row of panels, by fan-out."""
    from kvsim.figures import style

    timed = [row for row in data if row["time_ns"]]
    fan_outs = sorted({row["fan_out"] for row in data})
    suffixes = [row["suffix_tokens"] for row in data]
    times = [row["time_ms"] for row in timed]
    figure, (panels,) = style.grid(1, len(fan_outs), 1.9, suffixes, times, style.PAGE_IN)
    for axes, fan_out in zip(panels, fan_outs, strict=True):
        style.log_axis(axes.xaxis, suffixes, 4)
        style.log_axis(axes.yaxis, times, 10)
        axes.set_title(f"{fan_out} sequence{'s' if fan_out > 1 else ''}")
        for way in rows_of.ways(timed):
            mine = [row for row in timed if row["fan_out"] == fan_out and rows_of.way(row) == way]
            look, line = rows_of.look(way)
            points = _rows.points(mine, "suffix_tokens", "time_ms", "suffix_tokens")
            style.series(axes, points, look, linestyle=line)
        axes.tick_params(axis="x", rotation=45)
    panels[0].set_ylabel("milliseconds")
    free = [way for way in rows_of.ways(data) if way not in rows_of.ways(timed)]
    said = "; ".join(rows_of.label(way) for way in free)
    text = rows_of.caption(data) + (f". No rows are moved by: {said}" if free else "")
    style.x_title(figure, "Tokens behind the span", text)
    style.finish(figure, rows_of.handles(rows_of.ways(timed)))
    return figure
