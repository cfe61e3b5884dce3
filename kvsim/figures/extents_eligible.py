"""How many extents can come back at all, while running requests hold a share of the pages?

Everything is drawn against the pinned fraction, the share of pages that running requests hold.
Left: extents in which every occupied page is cached, so that an eviction can empty them; one line
per number of pages in an extent. Middle: extents that an eviction does empty, and right: the share
of the cached pages left that nobody can reach any more, because a page before them in their chain
is gone; one line per rule that chooses victims, at one number of pages in an extent. Lines are
means over seeds and bands reach from least to greatest. Crosses are what kvcached published of one
seed of the same runs; they come with the rows.

The smaller the share that is evicted, the fewer extents empty: rows of one such share are shown,
the most frequent one. Pages of running requests are drawn one by one and lie scattered, which is
the worst case.
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

NAME = "extents_eligible"
COLUMNS = _extents.COLUMNS
ALIGNED = "page_aligned"
COLORS = ("#000000", "#cc78bc", "#de8f05", "#949494", "#ca9161", "#56b4e9")
MARKERS = ("P", "D", "X", "v", "p", "<")
TICKS = (0.0, 0.01, 0.03, 0.1, 0.3, 0.5, 1.0)


def select(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Rows of the recipe `random`: page-aligned ones of all sizes, other rules at one size."""
    found = [dict(r) for r in _rows.fix(_extents.select(NAME, rows, "random"), "top_up", True)]
    shares = Counter(_share(row) for row in found)
    usual = min(shares, key=lambda share: (-shares[share], share))
    found = [row for row in found if _share(row) == usual]
    sizes = {row["pages_per_extent"] for row in found if row["victims"] == ALIGNED}
    if not sizes:
        raise FigureError(f"{NAME} needs rows with victims {ALIGNED}")
    if len(sizes) > len(COLORS):
        raise FigureError(f"{NAME} has colours for {len(COLORS)} numbers of pages an extent")
    size = _size(found)
    found = [row for row in found if row["victims"] == ALIGNED or row["pages_per_extent"] == size]
    if len({row["pinned_fraction"] for row in found}) < 2:
        raise FigureError(f"{NAME} needs rows of more than one pinned fraction")
    return found


def _share(row: Mapping[str, Any]) -> float:
    share: float = row["evict_pages"] / row["cached_pages"]
    return share


def _size(data: Sequence[Mapping[str, Any]]) -> int:
    """Return the pages of an extent at which rules are told apart: the published, or most rows."""
    counts = Counter(row["pages_per_extent"] for row in data)
    said = Counter(
        row["pages_per_extent"] for row in data if row["published_emptied_extents"] is not None
    )
    return min(counts, key=lambda size: (-said[size], -counts[size], size))


def draw(data: Sequence[Mapping[str, Any]]) -> Figure:
    """Three panels: eligible by size; emptied, and unreachable, by rule at one size."""
    from kvsim.figures import style

    fractions = [row["pinned_fraction"] for row in data]
    names = ("eligible_extents", "emptied_extents_total")
    size = _size(data)
    ruled = [
        {**row, "unreachable": _unreachable(row)}
        for row in _rows.where(data, pages_per_extent=size)
    ]
    emptied = [0, *(row[names[1]] for row in ruled)]
    figure, (panels,) = style.grid(1, 3, 1.8, fractions, [0, *emptied], style.PAGE_IN)
    left, middle, right = panels
    _heights(left, [row[names[0]] for row in data])
    _heights(right, [row["unreachable"] for row in ruled])
    for place, other in enumerate(_sizes(data)):
        look = style.Look(COLORS[place], MARKERS[place])
        mine = _rows.where(data, pages_per_extent=other, victims=ALIGNED)
        _line(left, mine, names[0], look)
    for rule in _extents.rules(ruled):
        look = style.Look(_extents.COLORS[rule], _extents.MARKERS[rule])
        for axes, column in ((middle, names[1]), (right, "unreachable")):
            _line(axes, _rows.where(ruled, victims=rule), column, look)
    for axes, column in (
        (left, "published_eligible_extents"),
        (middle, "published_emptied_extents"),
    ):
        marks = [(r["pinned_fraction"], r[column]) for r in data if r[column] is not None]
        axes.plot([x for x, _ in marks], [y for _, y in marks], **_extents.PUBLISHED)
    for axes in panels:
        _scale(axes, max(fractions))
    left.set_title("extents that can empty")
    middle.set_title(f"extents emptied\n({size} pages an extent)")
    right.set_title(f"share of cached pages unreachable\n({size} pages an extent)")
    style.x_title(figure, "Pinned fraction: pages that running requests hold", _caption(data))
    style.finish(figure, _handles(data))
    return figure


def _unreachable(row: Mapping[str, Any]) -> float:
    left = row["cached_pages"] - row["freed_pages_total"]
    return row["unreachable_pages"] / left if left else 0.0


def _sizes(data: Sequence[Mapping[str, Any]]) -> list[int]:
    return sorted({row["pages_per_extent"] for row in data}, reverse=True)


def _heights(axes: Axes, values: Sequence[float]) -> None:
    margin = 0.06 * max(values) or 0.1
    axes.set_ylim(-margin, max(values) + margin)


def _scale(axes: Axes, most: float) -> None:
    """Stretch small fractions, where most happens; below the first step linear, so 0 is there."""
    axes.set_xscale("symlog", linthresh=0.01, linscale=0.4)
    axes.set_xlim(-0.001, most * 1.15)
    ticks = [tick for tick in TICKS if tick <= most]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.tick_params(labelleft=True)


def _line(axes: Axes, rows: Sequence[Mapping[str, Any]], column: str, look: Any) -> None:
    from kvsim.figures import style

    style.series(axes, _rows.points(rows, "pinned_fraction", column, "pinned_fraction"), look)


def _handles(data: Sequence[Mapping[str, Any]]) -> list[Any]:
    from matplotlib.lines import Line2D

    tokens = {row["pages_per_extent"]: row["page_tokens"] for row in data}
    sizes = [
        Line2D(
            [],
            [],
            color=COLORS[place],
            marker=MARKERS[place],
            markerfacecolor="white",
            label=f"{size} pages an extent ({tokens[size]} tokens)",
        )
        for place, size in enumerate(_sizes(data))
    ]
    return [*sizes, *_extents.rule_handles(data), _extents.published_handle()]


def _caption(data: Sequence[Mapping[str, Any]]) -> str:
    row = data[0]
    tokens = row["cached_pages"] * row["page_tokens"]
    evicted = row["evict_pages"] * row["page_tokens"]
    used = max(row["used_extents_peak"] for row in data)
    seeds = len({row["seed"] for row in data})
    return (
        f"recipe random, {row['layout']}, {tokens:,} cached tokens over at most {used} extents, "
        f"{evicted:,} tokens evicted, mean and range of {seeds} seeds"
    )
