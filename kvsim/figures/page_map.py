"""Where do live, dead and tail slots lie before eviction, after it, and after compaction?

Pages along x, slots along y, one strip per stage at the width of the page. Runs whose maps agree
before and after eviction share those two strips, and each has a strip of its own after compaction;
at most :data:`RUNS_MOST` runs are drawn, the first in the order of every figure. A blank page is
free. A slot is live if any table and unit retains it, so that under ``compaction.unit = row`` a
live slot says no more than that some row there is needed.

A row names its maps in the column ``page_map``, a file inside the results folder. The CSV has a
line per run, stage and page; ``slots`` holds a letter per slot: L live, D dead, T tail, F free.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from kvsim.errors import FigureError
from kvsim.figures import _maps, _rows

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NAME = "page_map"
NEEDS_FOLDER = True
RUNS_MOST = 6
PAGES_MOST = 512
"""Pages of the pool that are shown: a strip with more has none that can be told from the next."""

VARIED = ("policy", "granularity", "sets", "scope", "budget_fraction", "seed")
SETTINGS = (
    *VARIED,
    *(column for column, _ in _rows.FIXED if column not in VARIED),
    "run_id",
)
COLUMNS = (
    *SETTINGS,
    "runs_with_maps",
    "pages_of_pool",
    "stage",
    "stage_held_pages",
    "page",
    "state",
    "live_slots",
    "dead_slots",
    "tail_slots",
    "slots",
)
COLORS = {"L": "#0173b2", "D": "#f0a35e", "T": "#b8b8b8", "F": "#ffffff"}
"""Dark, middle, pale and blank, so that print in grey tells them apart too."""
WORDS = {"L": "live", "D": "dead", "T": "tail", "F": "free page"}


def select(rows: Sequence[Mapping[str, Any]], folder: Path) -> list[dict[str, Any]]:
    """One flat row per run, stage and page, of the first runs that recorded page maps."""
    named = [row for row in rows if isinstance(row.get("page_map"), str) and row["page_map"]]
    if not named:
        raise FigureError(
            f"{NAME} needs rows that name a page map, and none of the {len(rows)} rows does"
        )
    everything = tuple(column for column, _ in _rows.FIXED)
    runs = _rows.select(NAME, named, (), free=everything)
    shown = _rows.fix(runs, "page_tokens", 16)[:RUNS_MOST]
    maps = [_maps.load(NAME, row, folder) for row in shown]
    # Pages that no run ever holds, at the end of the pool, are left out.
    stages = [stage for found in maps for stage in found.values()]
    held = [i for stage in stages for i, slots in enumerate(stage) if slots[0] != "F"]
    if not held:
        raise FigureError(f"{NAME}: no page is held at any stage of {len(shown)} runs")
    pages = 1 + max(held)
    return [
        {
            **{column: row.get(column) for column in SETTINGS},
            "runs_with_maps": len(runs),
            "pages_of_pool": pages,
            "stage": stage,
            "stage_held_pages": sum(slots[0] != "F" for slots in found[stage]),
            "page": page,
            "state": "free" if slots[0] == "F" else "held",
            "live_slots": slots.count("L"),
            "dead_slots": slots.count("D"),
            "tail_slots": slots.count("T"),
            "slots": slots,
        }
        for row, found in zip(shown, maps, strict=True)
        for stage in _maps.STAGES
        for page, slots in enumerate(
            _padded(found[stage], min(pages, PAGES_MOST), row["page_tokens"])
        )
    ]


def _padded(pages: list[str], count: int, page_tokens: int) -> list[str]:
    """Return `count` pages: the pool grows during a run, and what it had not yet was not held."""
    return [*pages[:count], *["F" * page_tokens] * (count - len(pages))]


class Strip(NamedTuple):
    """One stage of one run, or of several runs that agree."""

    label: str
    pages: list[Mapping[str, Any]]


def draw(data: Sequence[Mapping[str, Any]]) -> Figure:
    """Strips of pages, from top to bottom in the order of what happens."""
    from matplotlib.patches import Patch

    from kvsim.figures import style

    strips = _strips(data)
    count = 1 + max(row["page"] for row in data)
    page_tokens = data[0]["page_tokens"]
    figure, axes = style.grid(
        len(strips), 1, 0.52, [0.0, count], [0.0, page_tokens], width=style.PAGE_IN
    )
    for strip, (panel,) in zip(strips, axes, strict=True):
        _raster(panel, strip.pages, count, page_tokens)
        held = strip.pages[0]["stage_held_pages"]
        panel.set_title(f"{strip.label}: {held:,} pages held", loc="left", pad=2)
    figure.supylabel("Slot of the page")
    style.x_title(figure, "Page of the pool", _caption(data))
    present = {letter for row in data for letter in row["slots"]}
    handles = [
        Patch(facecolor=COLORS[letter], edgecolor=style.INK, linewidth=0.4, label=WORDS[letter])
        for letter in "LDTF"
        if letter in present
    ]
    style.finish(figure, handles)
    return figure


def _strips(data: Sequence[Mapping[str, Any]]) -> list[Strip]:
    """Strips to draw: those before and after eviction once for all runs in which they agree."""
    stages: dict[str, dict[str, list[Mapping[str, Any]]]] = {}
    for row in data:
        stages.setdefault(row["run_id"], {}).setdefault(row["stage"], []).append(row)
    runs = list(stages.values())
    firsts = [run["before"][0] for run in runs]
    differ = [c for c in SETTINGS if c != "run_id" and len({row[c] for row in firsts}) > 1]
    groups: dict[tuple[Any, ...], list[dict[str, list[Mapping[str, Any]]]]] = {}
    for run in runs:
        agreed = tuple(row["slots"] for stage in ("before", "evicted") for row in run[stage])
        groups.setdefault(agreed, []).append(run)
    strips = []
    for group in groups.values():
        about = _about(differ, [run["before"][0] for run in group])
        plain = [run for run in group if run["before"][0]["compaction"] in (None, "none")]
        # Where nothing is compacted the last stage is the one before it, if nothing else happened.
        plain = [run for run in plain if _slots(run["after"]) == _slots(run["evicted"])]
        evicted = "after eviction, without compaction" if plain else "after eviction"
        strips.append(Strip(f"before eviction{about}", group[0]["before"]))
        strips.append(Strip(evicted + about, group[0]["evicted"]))
        for run in group:
            if run not in plain:
                row = run["after"][0]
                text = f"after {_rows.compaction(row)}{_about(differ, [row])}"
                strips.append(Strip(text, run["after"]))
    return strips


def _slots(pages: Sequence[Mapping[str, Any]]) -> list[str]:
    return [row["slots"] for row in pages]


def _about(differ: Sequence[str], runs: Sequence[Mapping[str, Any]]) -> str:
    """Settings that the runs share and that others in the figure do not."""
    said = [
        f"{column} {runs[0][column]}"
        for column in differ
        if column not in ("compaction", "compaction_unit") and len({r[column] for r in runs}) == 1
    ]
    return f" ({', '.join(said)})" if said else ""


def _raster(axes: Axes, pages: Sequence[Mapping[str, Any]], count: int, page_tokens: int) -> None:
    import numpy as np
    from matplotlib.colors import to_rgb

    palette = np.array([to_rgb(COLORS[letter]) for letter in _maps.LETTERS])
    states = np.array([[_maps.LETTERS.index(letter) for letter in row["slots"]] for row in pages])
    axes.imshow(
        palette[states].transpose(1, 0, 2),
        origin="lower",
        extent=(0, count, 0, page_tokens),
        aspect="auto",
        interpolation="none",
    )
    axes.grid(False)
    axes.set_xlim(0, count)
    axes.set_ylim(0, page_tokens)
    axes.set_yticks([0, page_tokens])
    for spine in axes.spines.values():
        spine.set_visible(True)


def _caption(data: Sequence[Mapping[str, Any]]) -> str:
    row = data[0]
    runs = [r for r in data if r["stage"] == "before" and r["page"] == 0]
    said = [
        f"{row[column]}{word}"
        for column, word in (
            ("policy", ""),
            ("granularity", " granularity"),
            ("sets", " sets"),
            ("scope", " scope"),
        )
        if len({r[column] for r in runs}) == 1
    ]
    if len({r["budget_fraction"] for r in runs}) == 1:
        said += [f"budget {row['budget_fraction']:g}"]
    fixed = [column for column in _rows.SAID if len({r[column] for r in runs}) > 1]
    said += [_rows.settings(runs, omit=("compaction", *fixed), seeds="{} seeds")]
    if row["runs_with_maps"] > len(runs):
        said += [f"the first {len(runs)} of {row['runs_with_maps']} runs with a map"]
    if row["pages_of_pool"] > PAGES_MOST:
        said += [f"the first {PAGES_MOST} of {row['pages_of_pool']:,} pages"]
    return ", ".join(said)
