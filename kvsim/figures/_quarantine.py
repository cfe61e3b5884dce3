"""Rows of the study of quarantines: which a figure of it shows, and the looks of the methods.

Knows the study's column names; nothing about files.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kvsim.errors import FigureError

if TYPE_CHECKING:
    from matplotlib.lines import Line2D

    from kvsim.figures.style import Look

Row = dict[str, Any]
AnyRow = Mapping[str, Any]
Way = tuple[str, str | None, str]

# (method, sharing, planes): colour, marker, and the line of the second one of a colour.
WAYS: dict[Way, tuple[str, str, Any]] = {
    ("renumber", "each", "kv_raw"): ("#0173b2", "o", "-"),
    ("renumber", "once", "kv_raw"): ("#0173b2", "s", (0, (2, 1.2))),
    ("compact", "each", "kv_raw"): ("#56b4e9", "^", "-"),
    ("compact", "once", "kv_raw"): ("#56b4e9", "v", (0, (2, 1.2))),
    ("renumber", "each", "raw_only"): ("#029e73", "D", "-"),
    ("keep", None, "kv"): ("#949494", "P", "-"),
    ("keep_aligned", None, "kv"): ("#de8f05", "X", "-"),
    ("reprefill_suffix", None, "kv"): ("#cc78bc", "<", "-"),
    ("reset", None, "kv"): ("#d55e00", ">", "-"),
}
IDENTITY = (
    "run_id",
    "layout",
    "layers_counted",
    "device",
    "element_bytes",
    "method",
    "sharing",
    "planes",
    "page_tokens",
    "prefix_tokens",
    "span_tokens",
    "aligned",
    "suffix_tokens",
    "fan_out",
    "tail_tokens",
    "step_tokens",
)
MEASURED = (
    "tokens",
    "dense_pages",
    "held_pages",
    "net_freed_pages",
    "freed_pages_total",
    "cow_pages_total",
    "extra_pages_peak",
    "dense_bytes",
    "held_bytes",
    "plane_price",
    "readable_span_tokens",
    "residual_bytes",
    "conditioned_tokens",
    "copied_rows_total",
    "rotated_rows_total",
    "copied_bytes_total",
    "rotated_bytes_total",
    "moved_bytes_total",
    "moved_tail_tokens",
    "prefilled_tokens_total",
    "prefill_steps",
    "prefill_bytes_total",
    "prefill_flops_total",
    "decode_read_bytes_before",
    "decode_read_bytes",
    "moving_time_ns",
    "prefill_time_ns",
    "time_ns",
)
COLUMNS = (*IDENTITY, *MEASURED)


def way(row: AnyRow) -> Way:
    """Return what decides the look of a row."""
    return row["method"], row["sharing"], row["planes"]


def select(name: str, rows: Sequence[AnyRow]) -> list[Row]:
    """Completed rows of removals, each once, in a stated order.

    Raises
    ------
    FigureError
        If there are none, or a way has no look.
    """
    found = {
        str(row["run_id"]): {column: row.get(column) for column in COLUMNS}
        for row in rows
        if row.get("workload") == "quarantine" and row.get("outcome") == "completed"
    }
    if not found:
        raise FigureError(f"{name} needs completed rows of a quarantine, and there are none")
    for row in found.values():
        if way(row) not in WAYS:
            raise FigureError(f"{name} has no look for {label(way(row))}")
    return sorted(found.values(), key=_order)


def _order(row: AnyRow) -> tuple[Any, ...]:
    settings = [row[column] for column in IDENTITY[8:15]]
    return (row["layout"], row["device"], list(WAYS).index(way(row)), settings, row["run_id"])


def against_suffix(name: str, rows: Sequence[AnyRow]) -> list[Row]:
    """Rows without tails of the span whose rows have most lengths of suffix.

    Raises
    ------
    FigureError
        If no span has rows of more than one suffix.
    """
    found = [row for row in select(name, rows) if row["tail_tokens"] == 0]
    spans: dict[tuple[Any, ...], set[int]] = {}
    for row in found:
        spans.setdefault(_span(row), set()).add(row["suffix_tokens"])
    most = max(spans, key=lambda span: (len(spans[span]), str(span))) if spans else None
    if most is None or len(spans[most]) < 2:
        raise FigureError(f"{name} needs rows of more than one length of suffix")
    return [row for row in found if _span(row) == most]


def _span(row: AnyRow) -> tuple[Any, ...]:
    names = ("layout", "device", "page_tokens", "prefix_tokens", "span_tokens")
    return tuple(row[name] for name in names)


def ways(data: Iterable[AnyRow]) -> list[Way]:
    """Ways that occur, in the order of the legend."""
    there = {way(row) for row in data}
    return [each for each in WAYS if each in there]


def label(each: Way) -> str:
    """Return the words of a legend."""
    method, sharing, planes = each
    words = [method.replace("_", " ")]
    if planes == "raw_only":
        words.append("raw only")
    elif sharing:
        words.append(sharing)
    return ", ".join(words)


def look(each: Way) -> tuple[Look, Any]:
    """Return the look of a way, and its line."""
    from kvsim.figures.style import Look

    color, marker, line = WAYS[each]
    return Look(color, marker), line


def handles(each: Iterable[Way]) -> list[Line2D]:
    """Legend entries of ways."""
    from matplotlib.lines import Line2D

    return [
        Line2D(
            [],
            [],
            color=WAYS[one][0],
            marker=WAYS[one][1],
            linestyle=WAYS[one][2],
            markerfacecolor="white",
            label=label(one),
        )
        for one in each
    ]


def caption(data: Sequence[AnyRow]) -> str:
    """Return what all rows of a figure against the suffix share."""
    row = data[0]
    where = "aligned" if row["aligned"] else "not aligned"
    return (
        f"{row['layout']} on {row['device']}, {row['page_tokens']}-token pages, a span of "
        f"{row['span_tokens']:,} tokens behind {row['prefix_tokens']:,}, {where}; no tails"
    )
