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
    pages = 1 + max(
        (i for m in maps for stage in m.values() for i, page in enumerate(stage) if page[0] != "F"),
        default=0,
    )
    return [
        {
            **{column: row.get(column) for column in SETTINGS},
            "runs_with_maps": len(runs),
            "pages_of_pool": pages,
            "stage": stage,
            "page": page,
            "state": "free" if slots[0] == "F" else "held",
            "live_slots": slots.count("L"),
            "dead_slots": slots.count("D"),
            "tail_slots": slots.count("T"),
            "slots": slots,
        }
        for row, found in zip(shown, maps, strict=True)
        for stage in _maps.STAGES
        for page, slots in enumerate(_padded(found[stage], min(pages, PAGES_MOST)))
    ]


def _padded(pages: list[str], count: int) -> list[str]:
    """Return `count` pages: the pool grows during a run, and what it had not yet was not held."""
    width = len(pages[0]) if pages else 0
    return [*pages[:count], *["F" * width] * (count - len(pages))]


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
        held = sum(row["state"] == "held" for row in strip.pages)
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
