"""How full are pages before the first eviction, right after it, and when most of them have holes?

Held pages by their live slots, from 0 to a whole page, as shares of the pages held at that sample.
*Before* is the last sample at which nothing had been evicted; *after* is the next one; *most holes*
is the sample with the greatest share of dead slots among those held, and is absent from runs in
which every eviction took whole pages. A page that two requests
share is counted once, and a slot is live if any of them retains it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvsim.errors import FigureError
from kvsim.figures import _rows, _serving

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.figure import Figure

NAME = "serving_occupancy"
NEEDS_FOLDER = True
STAGES = ("before", "after", "most holes")
COLORS = {"before": "#949494", "after": "#0173b2", "most holes": "#d55e00"}
COLUMNS = (
    *_serving.IDENTITY,
    "stage",
    "time_ns",
    "evicted_tokens_total",
    "freed_pages_total",
    "held_pages",
    "live_slots",
    "pages",
)


def select(rows: Sequence[Mapping[str, Any]], folder: Path) -> list[dict[str, Any]]:
    """A flat row per run, stage and number of live slots."""
    found = []
    for row in _serving.panels(_serving.with_series(NAME, rows)):
        if row["granularity"] == "none":
            continue
        arrays = _serving.series(NAME, row, folder)
        for stage, at in zip(STAGES, _stages(row, arrays), strict=True):
            if stage == STAGES[2] and not arrays["dead_slots"][at]:
                continue
            for live, pages in enumerate(arrays["pages_by_live_slots"][at].tolist()):
                found.append(
                    {
                        **{column: row[column] for column in _serving.IDENTITY},
                        "stage": stage,
                        **{
                            name: int(arrays[name][at])
                            for name in (
                                "time_ns",
                                "evicted_tokens_total",
                                "freed_pages_total",
                                "held_pages",
                            )
                        },
                        "live_slots": live,
                        "pages": pages,
                    }
                )
    if not found:
        raise FigureError(f"{NAME} needs runs that evict, and none of these does")
    return found


def _stages(row: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> tuple[int, int, int]:
    """Return the samples of the stages.

    Raises
    ------
    FigureError
        If nothing was evicted between two samples of the run.
    """
    evicted = arrays["evicted_tokens_total"].tolist()
    after = next((at for at, count in enumerate(evicted) if count > 0), 0)
    if after == 0:
        raise FigureError(f"{NAME}: run {row['run_id']} evicts nothing after its first sample")
    shares = [
        dead / held if held else 0.0
        for dead, held in zip(
            arrays["dead_slots"].tolist(), arrays["held_pages"].tolist(), strict=True
        )
    ]
    return after - 1, after, max(range(len(shares)), key=lambda at: (shares[at], -at))


def draw(data: Sequence[Mapping[str, Any]]) -> Figure:
    """A panel per policy and granularity; stages beside each other."""
    from matplotlib.patches import Patch

    from kvsim.figures import style

    policies = sorted({row["policy"] for row in data})
    lines = [line for line in _serving.LINES if any(row["granularity"] == line for row in data)]
    slots = [row["live_slots"] for row in data]
    ends = [min(slots) - 0.5, max(slots) + 0.5]
    figure, axes = style.grid(len(policies), len(lines), 1.3, ends, [0.0, 1.0], style.PAGE_IN)
    least = 0.5 / max(row["held_pages"] for row in data)
    for i, policy in enumerate(policies):
        for j, line in enumerate(lines):
            panel = axes[i][j]
            style.log_axis(panel.yaxis, [least, 1.0], 10)
            panel.set_ylim(least, 1.4)
            for stage in STAGES:
                mine = _rows.where(data, policy=policy, granularity=line, stage=stage)
                if mine:
                    edges = [row["live_slots"] - 0.5 for row in mine] + [ends[1]]
                    shares = [row["pages"] / row["held_pages"] for row in mine]
                    # A share of 0 lies below the logarithmic axis.
                    panel.stairs(
                        shares, edges, baseline=least, fill=True, color=COLORS[stage], alpha=0.25
                    )
                    panel.stairs(shares, edges, baseline=least, color=COLORS[stage], linewidth=0.9)
            panel.set_title(f"{policy}, {_serving.WORDS[line]}")
    figure.supylabel("share of held pages")
    caption = f"{_serving.settings(data[0])}, {data[0]['ceiling_pages']:,} pages"
    style.x_title(figure, "Live slots of a page", f"{caption} of {data[0]['page_tokens']} tokens")
    words = {
        "before": "before the first eviction",
        "after": "at the next sample",
        "most holes": "when the share of holes is greatest",
    }
    style.finish(figure, [Patch(facecolor=COLORS[s], label=words[s]) for s in STAGES])
    return figure
