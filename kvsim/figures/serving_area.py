"""What is in the pool over time, without eviction and with it?

A panel per run, of one ceiling: live slots, slots of cached pages, holes (dead slots of held
pages), tails and free pages, stacked; they add up to the pool at every sample. Slots are counted
once, whoever shares them. The black line is how many requests wait, on the right scale.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvsim.figures import _rows, _serving

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "serving_area"
NEEDS_FOLDER = True
STOCKS = ("live_slots", "cached_slots", "dead_slots", "tail_slots", "free_slots")
WORDS = {
    "live_slots": "live",
    "cached_slots": "cached",
    "dead_slots": "hole",
    "tail_slots": "tail",
    "free_slots": "free",
}
COLORS = {
    "live_slots": "#0173b2",
    "cached_slots": "#9ecae1",
    "dead_slots": "#d55e00",
    "tail_slots": "#949494",
    "free_slots": "#f2f2f2",
}
SAMPLES_MOST = 300
"""Samples of a run that are shown; of more, every second, third and so on."""
COLUMNS = (*_serving.IDENTITY, "time_ns", *STOCKS, "pool_slots", "running", "waiting")


def select(rows: Sequence[Mapping[str, Any]], folder: Path) -> list[dict[str, Any]]:
    """A flat row per run and sample."""
    found = []
    for row in _serving.panels(_serving.with_series(NAME, rows)):
        arrays = _serving.series(NAME, row, folder)
        tokens = row["page_tokens"]
        step = -(-len(arrays["time_ns"]) // SAMPLES_MOST)
        whole = {
            "cached_slots": arrays["cached_pages"] * tokens,
            "free_slots": (arrays["free_pages"] + arrays["parked_pages"]) * tokens,
            "pool_slots": arrays["pool_pages"] * tokens,
        }
        samples = {**arrays, **whole}
        for at in range(0, len(arrays["time_ns"]), step):
            found.append(
                {
                    **{column: row[column] for column in _serving.IDENTITY},
                    **{name: int(samples[name][at]) for name in COLUMNS[len(_serving.IDENTITY) :]},
                }
            )
    return found


def draw(data: Sequence[Mapping[str, Any]]) -> Figure:
    """A panel per run: the one without eviction above, then a row per policy."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    from kvsim.figures import style

    runs = list(dict.fromkeys((row["policy"], row["granularity"]) for row in data))
    policies = sorted({policy for policy, _ in runs}, key=lambda p: (p != _serving.ABSENT, p))
    lines = {p: [line for line in _serving.LINES if (p, line) in runs] for p in policies}
    columns = max(len(found) for found in lines.values())
    seconds = [row["time_ns"] / 1e9 for row in data]
    figure, axes = style.grid(len(policies), columns, 1.3, seconds, [0.0, 1.0], style.PAGE_IN)
    most = max(row["waiting"] for row in data)
    for i, policy in enumerate(policies):
        for j in range(columns):
            panel = axes[i][j]
            if j >= len(lines[policy]):
                panel.set_axis_off()
                continue
            mine = _rows.where(data, policy=policy, granularity=lines[policy][j])
            times = [row["time_ns"] / 1e9 for row in mine]
            shares = [[row[name] / row["pool_slots"] for row in mine] for name in STOCKS]
            panel.stackplot(times, shares, colors=[COLORS[name] for name in STOCKS], linewidth=0)
            panel.set_xlim(0, max(seconds))
            panel.set_ylim(0, 1)
            panel.plot(
                times,
                [row["waiting"] / most if most else 0.0 for row in mine],
                color="#000000",
                linewidth=0.8,
            )
            panel.tick_params(labelbottom=i == len(policies) - 1 or j >= len(lines[policies[-1]]))
            panel.set_title(_serving.title(mine[0]))
    figure.supylabel("share of the pool's slots")
    caption = f"{_serving.settings(data[0])}, {data[0]['ceiling_pages']:,} pages"
    style.x_title(figure, "Time, s", f"{caption} of {data[0]['page_tokens']} tokens")
    handles: list[Any] = [
        Patch(facecolor=COLORS[name], edgecolor="#c8c8c8", linewidth=0.4, label=WORDS[name])
        for name in STOCKS
    ]
    label = f"requests waiting; the full height is {most:,}"
    style.finish(figure, [*handles, Line2D([], [], color="#000000", label=label)])
    return figure
