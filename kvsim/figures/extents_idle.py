"""What does a server hold once it is idle, by how pages are allocated and how its cache is trimmed?

One line of dots per variant, a dot per seed, over the extents in use when nothing runs any more and
the cache is at its cap. Crosses are what kvcached measured on a real server for the same traffic;
they come with the rows. The pale line is the packed floor: what the cached pages would need if they
lay together. Left: extents in use. Right: cached pages that nobody can reach any more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kvsim.figures import _extents

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NAME = "extents_idle"
COLUMNS = _extents.COLUMNS
Variant = tuple[str, str, int, int]


def select(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Rows of the recipe `idle`."""
    return _extents.select(NAME, rows, "idle")


def _variant(row: Mapping[str, Any]) -> Variant:
    return (
        row["allocation"],
        row["victims"],
        row["decode_tokens_least"],
        row["decode_tokens_most"],
    )


def _place(variant: Variant) -> tuple[Any, ...]:
    """Sort decodes of other lengths last, then as kvcached went: newest fit, best fit."""
    allocation, rule, least, most = variant
    return least == most, -most, allocation != "newest", _extents.RULES.index(rule)


def draw(data: Sequence[Mapping[str, Any]]) -> Figure:
    """Two panels with a line for each variant: extents in use, and unreachable pages."""
    from kvsim.figures import style

    variants = sorted({_variant(row) for row in data}, key=_place)
    used = [0, *(row["used_extents"] for row in data)]
    lines = [-0.5, len(variants) - 0.5]
    height = 0.4 + 0.2 * len(variants)
    figure, ((left, right),) = style.grid(1, 2, height, used, lines, style.PAGE_IN)
    floor = max(row["packed_floor_extents"] for row in data)
    left.axvline(floor, color=style.PALE, linewidth=3.0, zorder=1)
    unreachable = [0, *(row["unreachable_pages"] for row in data)]
    margin = 0.06 * max(unreachable) or 1.0
    right.set_xlim(-margin, max(unreachable) + margin)
    for place, variant in enumerate(variants):
        rows = [row for row in data if _variant(row) == variant]
        at = len(variants) - 1 - place
        _dots(left, rows, "used_extents", at)
        _dots(right, rows, "unreachable_pages", at)
        said = {row["published_used_extents"] for row in rows} - {None}
        left.plot(sorted(said), [at] * len(said), **_extents.PUBLISHED)
    names = [_name(variant) for variant in reversed(variants)]
    left.set_yticks(range(len(variants)), names)
    right.set_yticks(range(len(variants)), [""] * len(variants))
    left.set_title("extents in use")
    right.set_title("unreachable pages")
    style.x_title(figure, "Extents (left), pages (right)", _caption(data))
    style.finish(
        figure,
        [
            *_extents.rule_handles(data),
            _extents.published_handle(),
            style.ideal_handle("packed floor"),
        ],
    )
    return figure


def _dots(axes: Axes, rows: Sequence[Mapping[str, Any]], column: str, at: int) -> None:
    values = [row[column] for row in rows]
    rule = rows[0]["victims"]
    axes.plot(
        values,
        [at] * len(values),
        linestyle="",
        color=_extents.COLORS[rule],
        marker=_extents.MARKERS[rule],
        markerfacecolor="none",
        zorder=3,
    )


def _name(variant: Variant) -> str:
    allocation, rule, least, most = variant
    decode = f", decodes of {most}" if least == most else ""
    return f"{allocation}, {rule}{decode}"


def _caption(data: Sequence[Mapping[str, Any]]) -> str:
    row = data[0]
    seeds = len({row["seed"] for row in data})
    return (
        f"recipe idle, {row['layout']}, {row['page_tokens']}-token pages, "
        f"{row['pages_per_extent']} to an extent, a cap of {row['cached_pages']:,} cached pages, "
        f"{seeds} seeds"
    )
