"""What is still held when a policy is told to keep a share of the dense footprint?

One column of panels per granularity, one row per (sets, scope), one series per policy. On the pale
line the cache shrank to its budget; above it, pages are held for the few tokens that survive in
them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kvsim.figures import _rows

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "held_against_budget"
DRAWN = ("held_fraction",)
COLUMNS = (*_rows.IDENTITY, *DRAWN, "budget_met")


def select(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Completed rows, with the fraction of dense bytes held and whether the budget was met."""
    return _rows.flat(_rows.select(NAME, rows, DRAWN), (*DRAWN, "budget_met"))


def draw(data: Sequence[Mapping[str, Any]]) -> Figure:
    """Grid of granularities by (sets, scope), with the ideal line y = x."""
    from kvsim.figures import style

    return style.policy_grid(
        data,
        x="budget_fraction",
        y="held_fraction",
        x_label="Budget, fraction of the dense footprint",
        y_label="Held fraction of dense bytes",
        ideal="ideal: held = budget",
    )
