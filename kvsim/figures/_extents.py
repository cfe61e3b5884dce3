"""Rows of the study of extents: which a figure of it shows, and the looks of victim rules.

Knows the study's column names; nothing about files.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kvsim.errors import FigureError

if TYPE_CHECKING:
    from matplotlib.lines import Line2D

Row = dict[str, Any]
AnyRow = Mapping[str, Any]

RULES = ("lru", "page_aligned", "chain_aware")
COLORS = {"lru": "#d55e00", "page_aligned": "#0173b2", "chain_aware": "#029e73"}
MARKERS = {"lru": "o", "page_aligned": "s", "chain_aware": "^"}
IDENTITY = (
    "run_id",
    "seed",
    "layout",
    "layers_counted",
    "page_tokens",
    "pages_per_extent",
    "extent_bytes",
    "recipe",
    "victims",
    "top_up",
    "queue",
    "allocation",
    "cached_pages",
    "evict_pages",
    "stride",
    "touch",
    "chain_pages",
    "pinned_pages",
    "pinned_fraction",
    "request_pages_least",
    "request_pages_most",
    "decode_tokens_least",
    "decode_tokens_most",
    "reserve_extents",
)
MEASURED = (
    "used_extents_peak",
    "used_extents",
    "eligible_extents",
    "emptied_extents_total",
    "parked_extents",
    "returned_extents_total",
    "freed_pages_total",
    "stranded_pages_total",
    "orphan_pages",
    "unreachable_pages",
    "packed_floor_extents",
    "held_bytes",
    "empty_bytes",
    "parked_bytes",
    "returned_bytes",
    "evicted_bytes_total",
    "emptied_bytes_total",
    "extent_reclaim_efficiency",
    "hit_pages_total",
    "published_emptied_extents",
    "published_eligible_extents",
    "published_used_extents",
    "published_source",
)
COLUMNS = (*IDENTITY, *MEASURED)


def select(name: str, rows: Sequence[AnyRow], recipe: str) -> list[Row]:
    """Completed rows of one recipe, each once, in a stated order.

    Raises
    ------
    FigureError
        If there are none, or a rule has no colour.
    """
    found = {
        str(row["run_id"]): {column: row.get(column) for column in COLUMNS}
        for row in rows
        if row.get("recipe") == recipe and row.get("outcome") == "completed"
    }
    if not found:
        raise FigureError(f"{name} needs completed rows with recipe {recipe}, and there are none")
    strange = sorted({str(row["victims"]) for row in found.values()} - set(RULES))
    if strange:
        raise FigureError(f"{name} has no colour for victims {strange[0]}")
    return sorted(found.values(), key=_order)


def _order(row: AnyRow) -> tuple[Any, ...]:
    """Sort by settings in the order of IDENTITY, rules by name, seeds and ids last."""
    key: list[Any] = []
    for column in IDENTITY[2:]:
        value = row[column]
        # Numbers among themselves, words among themselves, nulls first.
        number = isinstance(value, int | float)
        key.append((value is not None, not number, value if number else str(value)))
    return (*key, row["seed"], row["run_id"])


def rules(data: Iterable[AnyRow]) -> list[str]:
    """Rules that occur, in the order of the legend."""
    there = {row["victims"] for row in data}
    return [rule for rule in RULES if rule in there]


def rule_handles(data: Iterable[AnyRow]) -> list[Line2D]:
    """Legend entries of the rules that occur."""
    from matplotlib.lines import Line2D

    return [
        Line2D(
            [],
            [],
            color=COLORS[rule],
            marker=MARKERS[rule],
            markerfacecolor="white",
            label=f"victims: {rule}",
        )
        for rule in rules(data)
    ]


PUBLISHED: dict[str, Any] = {
    "linestyle": "",
    "marker": "x",
    "color": "#000000",
    "markersize": 4.5,
    "markeredgewidth": 1.0,
    "zorder": 5,
}
"""How a published value is marked."""


def published_handle() -> Line2D:
    """Legend entry of published values."""
    from matplotlib.lines import Line2D

    return Line2D([], [], **PUBLISHED, label="published by kvcached")
