"""How many extents come back when all but every so many-th page went unused?

A column of panels per number of pages in an extent; one colour per rule that chooses victims. The
upper row counts extents that the eviction empties, the lower one cached pages that nobody can
reach any more, because a page before them in their chain is gone. Drawn through: the pages of a
request stand in the order of use with its first page in front, as kvcached's benchmark has them.
Dotted: with its last page in front, as vLLM frees them. Crosses are what kvcached published of the
same runs; they come with the rows.

Where rows differ in the length of chains, the touched page, or the top-up, one length of chain in
tokens, the first page of a stride and runs with a top-up are shown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kvsim.errors import FigureError
from kvsim.figures import _extents, _rows

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NAME = "extents_against_stride"
COLUMNS = _extents.COLUMNS
LINES: dict[str, Any] = {"head_first": "-", "tail_first": (0, (1, 1.2))}


def select(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Rows of the recipe `stride`, more than one stride, with one chain, touch and top-up."""
    found = _extents.select(NAME, rows, "stride")
    found = [dict(row) for row in _rows.fix(_rows.fix(found, "top_up", True), "touch", "first")]
    chains = Counter(_chain_tokens(row) for row in found)
    usual = min(chains, key=lambda tokens: (-chains[tokens], tokens))
    found = [row for row in found if _chain_tokens(row) == usual]
    if len({row["stride"] for row in found}) < 2:
        raise FigureError(f"{NAME} needs rows of more than one stride")
    return found


def _chain_tokens(row: Mapping[str, Any]) -> int:
    tokens: int = row["chain_pages"] * row["page_tokens"]
    return tokens


def draw(data: Sequence[Mapping[str, Any]]) -> Figure:
    """Two rows of panels, extents and unreachable pages, by pages per extent."""
    from kvsim.figures import style

    columns = sorted({row["pages_per_extent"] for row in data}, reverse=True)
    strides = [row["stride"] for row in data]
    emptied = [0, *(row["emptied_extents_total"] for row in data)]
    shares = [0.0, *(_unreachable(row) for row in data)]
    figure, axes = style.grid(2, len(columns), 1.25, strides, emptied, style.PAGE_IN)
    for j, pages in enumerate(columns):
        panel = _rows.where(data, pages_per_extent=pages)
        for i, column in enumerate(("emptied_extents_total", "unreachable")):
            style.log_axis(axes[i][j].xaxis, strides, 2)
            if i == 1:
                margin = 0.06 * max(shares) or 0.1
                axes[i][j].set_ylim(-margin, max(shares) + margin)
            _lines(axes[i][j], panel, column)
        said = [(r["stride"], r["published_emptied_extents"]) for r in panel]
        marks = sorted({(x, y) for x, y in said if y is not None})
        axes[0][j].plot([x for x, _ in marks], [y for _, y in marks], **_extents.PUBLISHED)
        size = {row["page_tokens"] for row in panel}
        axes[0][j].set_title(f"{pages} pages an extent\n({min(size)}-token pages)")
    axes[0][0].set_ylabel("extents emptied")
    axes[1][0].set_ylabel("share of cached\npages unreachable")
    style.x_title(figure, "Stride: one page of so many was used again", _caption(data))
    style.finish(figure, _handles(data))
    return figure


def _unreachable(row: Mapping[str, Any]) -> float:
    left = row["cached_pages"] - row["freed_pages_total"]
    return row["unreachable_pages"] / left if left else 0.0


def _lines(axes: Axes, panel: Sequence[Mapping[str, Any]], column: str) -> None:
    from kvsim.figures import style

    rows = [{**row, "unreachable": _unreachable(row)} for row in panel]
    for rule in _extents.rules(panel):
        look = style.Look(_extents.COLORS[rule], _extents.MARKERS[rule])
        for queue, line in LINES.items():
            mine = _rows.where(rows, victims=rule, queue=queue)
            if mine:
                points = _rows.points(mine, "stride", column, "stride")
                # Later rules are drawn smaller, so that those that coincide are all seen.
                size = 5.5 - 1.3 * _extents.RULES.index(rule)
                style.series(axes, points, look, linestyle=line, markersize=size)


def _handles(data: Sequence[Mapping[str, Any]]) -> list[Any]:
    from matplotlib.lines import Line2D

    from kvsim.figures import style

    words = {"head_first": "first page in front", "tail_first": "last page in front"}
    queues = {row["queue"] for row in data}
    return [
        *_extents.rule_handles(data),
        *(
            Line2D([], [], color=style.INK, linestyle=line, label=words[queue])
            for queue, line in LINES.items()
            if queue in queues
        ),
        _extents.published_handle(),
    ]


def _caption(data: Sequence[Mapping[str, Any]]) -> str:
    row = data[0]
    tokens = row["cached_pages"] * row["page_tokens"]
    evicted = row["evict_pages"] / row["cached_pages"]
    extents = max(row["used_extents_peak"] for row in data)
    return (
        f"recipe stride, {row['layout']}, {tokens:,} cached tokens in {extents} extents, "
        f"{evicted:.3g} of the pages evicted, chains of {_chain_tokens(row):,} tokens"
    )
