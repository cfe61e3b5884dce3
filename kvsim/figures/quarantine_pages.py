"""How much of a span's room comes back, and how much of the span stays readable, by page size?

A column of panels per span, by length and first position. Upper row: slots of the pages freed, as
a share of the span's tokens. Lower row: tokens of the span that attention still reads. At the least
fan-out that there is; with one sequence nothing is shared, and rewriting once for all is left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kvsim.errors import FigureError
from kvsim.figures import _quarantine as rows_of
from kvsim.figures import _rows

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "quarantine_pages"
COLUMNS = (*rows_of.COLUMNS, "freed_share")


def select(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Rows of one suffix and fan-out without tails, of several sizes of a page."""
    found = [row for row in rows_of.select(NAME, rows) if row["tail_tokens"] == 0]
    found = [row for row in found if row["fan_out"] > 1 or row["sharing"] != "once"]
    sizes: dict[tuple[Any, ...], set[int]] = {}
    for row in found:
        sizes.setdefault(_case(row), set()).add(row["page_tokens"])
    most = min(sizes, key=lambda case: (-len(sizes[case]), case[::-1])) if sizes else None
    if most is None or len(sizes[most]) < 2:
        raise FigureError(f"{NAME} needs rows of more than one size of a page")
    return [
        {**row, "freed_share": row["net_freed_pages"] * row["page_tokens"] / row["span_tokens"]}
        for row in found
        if _case(row) == most and _several(found, row)
    ]


def _case(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in ("layout", "device", "suffix_tokens", "fan_out"))


def _several(rows: Sequence[Mapping[str, Any]], one: Mapping[str, Any]) -> bool:
    sizes = {row["page_tokens"] for row in rows if _span(row) == _span(one)}
    return len(sizes) > 1


def _span(row: Mapping[str, Any]) -> tuple[int, int]:
    return row["span_tokens"], row["prefix_tokens"]


def draw(data: Sequence[Mapping[str, Any]]) -> Figure:
    """Two rows of panels, freed and readable, by span."""
    from kvsim.figures import style

    spans = sorted({_span(row) for row in data}, reverse=True)
    sizes = [row["page_tokens"] for row in data]
    shares = [0.0, 1.0, *(row["freed_share"] for row in data)]
    left = [row["readable_span_tokens"] for row in data]
    figure, panels = style.grid(2, len(spans), 1.3, sizes, shares, style.PAGE_IN)
    for j, (span, prefix) in enumerate(spans):
        panels[0][j].set_title(f"{span} tokens\nfrom position {prefix:,}")
        here = [row for row in data if _span(row) == (span, prefix)]
        for i, column in enumerate(("freed_share", "readable_span_tokens")):
            axes = panels[i][j]
            style.log_axis(axes.xaxis, sizes, 2)
            if i == 1:
                margin = 0.06 * max(left) or 1.0
                axes.set_ylim(-margin, max(left) + margin)
            for place, way in enumerate(rows_of.ways(data)):
                mine = [row for row in here if rows_of.way(row) == way]
                look, line = rows_of.look(way)
                points = _rows.points(mine, "page_tokens", column, "page_tokens")
                # Later ways are drawn smaller, so that those that coincide are all seen.
                style.series(axes, points, look, linestyle=line, markersize=6.0 - 0.6 * place)
    panels[0][0].set_ylabel("freed, share of\nthe span's tokens")
    panels[1][0].set_ylabel("tokens of the span\nstill read")
    row = data[0]
    text = (
        f"{row['layout']}, fan-out {row['fan_out']}, {row['suffix_tokens']:,} tokens behind the "
        "span, no tails"
    )
    style.x_title(figure, "Tokens in a page", text)
    style.finish(figure, rows_of.handles(rows_of.ways(data)))
    return figure
