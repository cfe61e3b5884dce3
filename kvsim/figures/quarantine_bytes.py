"""What does removing a poisoned span read, write and hold, by the suffix behind it and by fan-out?

A column of panels per fan-out, one line per method. Upper row: bytes read and written, by copies
and rotations and by prefills with their weights; logarithmic, so methods that move nothing are
not drawn. Lower row: bytes held at most during the removal, over what the same sequences held
before it in planes kv. Above 1.5 copies on write are on top of the plane that renumbering needs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kvsim.errors import FigureError
from kvsim.figures import _quarantine as rows_of
from kvsim.figures import _rows

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "quarantine_bytes"
COLUMNS = (*rows_of.COLUMNS, "traffic_gib", "peak_over_kv")


def select(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Rows of one span without tails, of several lengths of suffix."""
    found = rows_of.against_suffix(NAME, rows)
    if not any(map(_traffic, found)):
        raise FigureError(f"{NAME} needs rows of a method that reads or writes rows")
    return [
        {**row, "traffic_gib": _traffic(row) / 2**30, "peak_over_kv": _peak(row)} for row in found
    ]


def _traffic(row: Mapping[str, Any]) -> int:
    moved: int = row["moved_bytes_total"] + row["prefill_bytes_total"]
    return moved


def _peak(row: Mapping[str, Any]) -> float:
    pages = row["dense_pages"] + row["extra_pages_peak"]
    peak: float = row["plane_price"] * pages / row["dense_pages"]
    return peak


def draw(data: Sequence[Mapping[str, Any]]) -> Figure:
    """Two rows of panels, traffic and peak, by fan-out."""
    from kvsim.figures import style

    fan_outs = sorted({row["fan_out"] for row in data})
    suffixes = [row["suffix_tokens"] for row in data]
    moving = [row for row in data if _traffic(row)]
    traffic = [row["traffic_gib"] for row in moving]
    peaks = [row["peak_over_kv"] for row in data]
    figure, panels = style.grid(2, len(fan_outs), 1.5, suffixes, traffic, style.PAGE_IN)
    for j, fan_out in enumerate(fan_outs):
        panels[0][j].set_title(f"{fan_out} sequence{'s' if fan_out > 1 else ''}")
        for i, (some, column) in enumerate(((moving, "traffic_gib"), (data, "peak_over_kv"))):
            axes = panels[i][j]
            style.log_axis(axes.xaxis, suffixes, 4)
            style.log_axis(axes.yaxis, traffic if i == 0 else peaks, 10 if i == 0 else 2)
            for place, way in enumerate(rows_of.ways(data)):
                mine = [r for r in some if r["fan_out"] == fan_out and rows_of.way(r) == way]
                look, line = rows_of.look(way)
                points = _rows.points(mine, "suffix_tokens", column, "suffix_tokens")
                # Later ways are drawn smaller, so that those that coincide are all seen.
                style.series(axes, points, look, linestyle=line, markersize=5.5 - 0.45 * place)
        panels[1][j].tick_params(axis="x", rotation=45)
    panels[0][0].set_ylabel("GiB read\nand written")
    panels[1][0].set_ylabel("peak bytes over\nkv before")
    style.x_title(figure, "Tokens behind the span", rows_of.caption(data))
    style.finish(figure, rows_of.handles(rows_of.ways(data)))
    return figure
