"""What does turning a kept key again and again cost, where a key is quantized?

One column of panels for equal spans, one for spans of random lengths; evictions along x. Rows: the
share of key codes that differ from the exact ones, the largest difference of a logit, and the
share of next tokens that would be chosen differently. A line is the mean over seeds, its band the
least and the greatest; the lowest panels have no bands, which would hide the lines. Dotted lines
are what quantizing alone costs, against float32 keys. An exact eviction, one rotation from k_raw,
has no line on any panel: it is 0 on all of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kvsim.errors import FigureError
from kvsim.figures import _rows

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "quantized_drift"
IDENTITY = ("spans", "keys", "seed", "evictions")
DRAWN = (
    "keys_codes_changed",
    "logits_error_max",
    "logits_argmax_changed",
    "logits_exact_loss_max",
    "logits_exact_loss_argmax_changed",
)
COLUMNS = (
    *IDENTITY,
    "evicted_tokens",
    "keys_codes_changed",
    "keys_values_changed",
    "keys_error_max",
    "keys_loss_max",
    "keys_exact_loss_max",
    "logits_error_max",
    "logits_words_changed",
    "logits_argmax_changed",
    "logits_loss_max",
    "logits_loss_argmax_changed",
    "logits_exact_loss_max",
    "logits_exact_loss_argmax_changed",
    "logits_deviation",
)
LOOKS = {
    "float32": ("#333333", "s"),
    "int8": ("#0173b2", "o"),
    "e4m3": ("#de8f05", "^"),
    "e4m3_scaled": ("#029e73", "D"),
}
"""Colour and marker of each kind of keys, in the order of the legend."""
SPANS = {"equal": "equal spans", "random": "random spans"}
PANELS = (
    ("keys_codes_changed", None, "key codes\nchanged"),
    ("logits_error_max", "logits_exact_loss_max", "largest logit\ndifference"),
    ("logits_argmax_changed", "logits_exact_loss_argmax_changed", "next tokens\nchanged"),
)
"""Column of a row of panels, the column of its dotted line, and what its axis says."""


def select(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Rows of a measured drift, by spans, kind of keys, seed and evictions."""
    found = [row for row in rows if all(row.get(column) is not None for column in COLUMNS)]
    if not found:
        raise FigureError(
            f"{NAME} needs rows of a measured drift, and none of the {len(rows)} rows has"
            f" {', '.join(IDENTITY)} and what was measured"
        )
    seen: dict[tuple[Any, ...], Mapping[str, Any]] = {}
    for row in found:
        key = tuple(row[column] for column in IDENTITY)
        if row["spans"] not in SPANS or row["keys"] not in LOOKS:
            raise FigureError(f"{NAME}: unknown spans {row['spans']!r} or keys {row['keys']!r}")
        if not all(math.isfinite(row[column]) for column in DRAWN):
            raise FigureError(f"{NAME}: a number of row {key} is not finite")
        if seen.setdefault(key, row) != row:
            raise FigureError(f"{NAME} would mix two rows of {key}")
    ordered = sorted(seen.values(), key=_order)
    return [{column: row[column] for column in COLUMNS} for row in ordered]


def draw(data: Sequence[Mapping[str, Any]]) -> Figure:
    """Grid of what is measured by kind of spans."""
    from matplotlib.lines import Line2D

    from kvsim.figures import style

    columns = [spans for spans in SPANS if any(row["spans"] == spans for row in data)]
    kinds = [kind for kind in LOOKS if any(row["keys"] == kind for row in data)]
    evictions = [row["evictions"] for row in data]
    figure, axes = style.grid(len(PANELS), len(columns), 1.15, evictions, [0.0, 1.0])
    for line, (column, floor, label) in zip(axes, PANELS, strict=True):
        # float32 keys are not quantized, so they have no dotted line.
        floors = [(floor, kind) for kind in kinds if floor is not None and kind != "float32"]
        lines = {
            (spans, kind, what): _points(data, spans, kind, what)
            for spans in columns
            for what, kind in [*((column, kind) for kind in kinds), *floors]
        }
        shown = [y for points in lines.values() for p in points for y in (p.y_low, p.y_high)]
        for panel, spans in zip(line, columns, strict=True):
            if column == "logits_error_max":
                style.log_axis(panel.yaxis, [value for value in shown if value > 0], 10)
            elif column == "logits_argmax_changed":
                top = max(shown) or 1.0
                panel.set_ylim(-0.04 * top, 1.08 * top)
            for at, kind in enumerate(kinds):
                look = style.Look(*LOOKS[kind])
                # Markers of lines that coincide stand beside one another.
                points = lines[spans, kind, column]
                style.series(panel, points, look, markevery=(at, 4), markersize=3.0)
            for what, kind in floors:
                low = lines[spans, kind, what]
                panel.plot([p.x for p in low], [p.y for p in low], ":", color=LOOKS[kind][0])
        line[0].set_ylabel(label)
    for panel, spans in zip(axes[0], columns, strict=True):
        panel.set_title(SPANS[spans])
    seeds = len({row["seed"] for row in data})
    style.x_title(figure, "Evictions", f"mean of {seeds} seeds, range shaded above")
    handles = [
        Line2D([], [], color=color, marker=marker, markerfacecolor="white", label=f"{kind} keys")
        for kind, (color, marker) in LOOKS.items()
        if kind in kinds
    ]
    alone = "quantizing alone, against float32"
    handles.append(Line2D([], [], color=style.INK, linestyle=":", label=alone))
    style.finish(figure, handles)
    return figure


def _points(
    data: Sequence[Mapping[str, Any]], spans: str, kind: str, column: str
) -> list[_rows.Point]:
    rows = _rows.where(data, spans=spans, keys=kind)
    points = _rows.points(rows, "evictions", column, "evictions")
    if "argmax" in column:
        return [point._replace(y_low=point.y, y_high=point.y) for point in points]
    return points


def _order(row: Mapping[str, Any]) -> tuple[Any, ...]:
    kinds, spans = list(LOOKS), list(SPANS)
    return spans.index(row["spans"]), kinds.index(row["keys"]), row["seed"], row["evictions"]
