"""Does a share of tokens evicted bring back the same share of pages?

One column of panels per granularity, one row per (sets, scope), one series per policy over the
budgets. On the pale line every evicted token's memory came back; at zero none did. The freed
share is what the tables no longer hold, 1 - held_pages / dense_pages: it may be negative, because
an eviction that copies shared pages holds more than it found.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kvsim.figures import _rows

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "freed_against_evicted"
DRAWN = ("evicted_tokens_total", "retained_tokens", "held_pages", "dense_pages")
COLUMNS = (*_rows.IDENTITY, *DRAWN, "evicted_fraction", "freed_fraction")


def select(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Completed rows, with the share of tokens evicted and the share of dense pages freed."""
    return _rows.flat(
        _rows.select(NAME, rows, DRAWN),
        DRAWN,
        evicted_fraction=_evicted_fraction,
        freed_fraction=lambda row: 1 - _rows.share(row, row["held_pages"], row["dense_pages"]),
    )


def _evicted_fraction(row: Mapping[str, Any]) -> float:
    # Not 1 - budget: protected tokens, whole runs and page completion all miss the target.
    evicted = row["evicted_tokens_total"]
    return _rows.share(row, evicted, evicted + row["retained_tokens"])


def draw(data: Sequence[Mapping[str, Any]]) -> Figure:
    """Grid of granularities by (sets, scope), with the ideal line y = x."""
    from kvsim.figures import style

    return style.policy_grid(
        data,
        x="evicted_fraction",
        y="freed_fraction",
        x_label="Share of tokens evicted",
        y_label="Share of pages freed",
        ideal="ideal: as many freed as evicted",
    )
