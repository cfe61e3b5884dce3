"""The tables of experiments/05-extents: from the CSVs of its figures, and from runs that are quick.

python tests/extents_tables.py   # writes the tables anew
"""

from __future__ import annotations

import csv
import functools
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from kvsim.lab import sweep
from kvsim.lab.run import run
from kvsim.lab.scenario import Scenario

ROOT = Path(__file__).parents[1]
EXPERIMENT = ROOT / "experiments" / "05-extents"
README = EXPERIMENT / "README.md"
CSVS = ("extents_against_stride", "extents_eligible", "extents_idle")
BLOCK = re.compile(r"<!-- extents (\S+) -->\n(.*?)<!-- end of extents -->", re.DOTALL)
RULES = ("lru", "page_aligned", "chain_aware")
STRIDES = (1, 2, 4, 8, 16, 32)


@functools.cache
def read(name: str) -> tuple[dict[str, str], ...]:
    """Return the lines of one figure's CSV."""
    path = ROOT / "figures" / "05-extents" / f"{name}.csv"
    with path.open(newline="") as file:
        return tuple(csv.DictReader(file))


def rows() -> list[dict[str, str]]:
    """Return the lines of all CSVs."""
    return [line for name in CSVS for line in read(name)]


def pick(lines: Sequence[dict[str, str]], **values: Any) -> list[dict[str, str]]:
    """Return the lines that show these values."""
    return [line for line in lines if all(line[k] == str(v) for k, v in values.items())]


@functools.cache
def scenarios() -> tuple[Scenario, ...]:
    """Return the scenarios of the sweep that are quick, and of one size and seed."""
    every = sweep.read(EXPERIMENT).scenarios
    return tuple(s for s in every if (s.pages.tokens, s.seed) == (16, 7))


@functools.cache
def quick(recipe: str, **values: Any) -> tuple[dict[str, Any], ...]:
    """Run those of the sweep with 16-token pages, seed 7, a recipe and these keys of [extents]."""
    found = []
    for each in scenarios():
        study = each.extents
        if study.recipe == recipe and all(getattr(study, k) == v for k, v in values.items()):
            found.append(run(each))
    return tuple(found)


def markdown(head: Sequence[str], lines: Sequence[Sequence[str]], left: int = 1) -> str:
    """Return a table whose first columns are words."""
    rule = ["---"] * left + ["--:"] * (len(head) - left)
    return "".join(f"| {' | '.join(line)} |\n" for line in (head, rule, *lines))


def stride() -> str:
    """Return emptied extents and unreachable pages for each rule and order of use."""
    lines = []
    for queue in ("head_first", "tail_first"):
        for rule in RULES:
            cells = []
            for step in STRIDES:
                (line,) = pick(
                    read(CSVS[0]), pages_per_extent=128, victims=rule, queue=queue, stride=step
                )
                said = line["published_emptied_extents"]
                cells.append(
                    f"{line['emptied_extents_total']}{f' ({said})' if said else ''}, "
                    f"{line['unreachable_pages']}"
                )
            lines.append([queue, rule, *cells])
    return markdown(["queue", "victims", *map(str, STRIDES)], lines, 2)


def sizes() -> str:
    """Return what page-aligned victims and plain order of use empty at each size of a page."""
    lines = []
    for pages in (256, 128, 64, 32):
        for rule in RULES[:2]:
            cells = [
                pick(
                    read(CSVS[0]),
                    pages_per_extent=pages,
                    victims=rule,
                    queue="head_first",
                    stride=step,
                )[0]["emptied_extents_total"]
                for step in STRIDES
            ]
            lines.append([str(pages), rule, *cells])
    return markdown(["pages an extent", "victims", *map(str, STRIDES)], lines, 2)


def chains() -> str:
    """Return what the two rules lose with longer chains, and what they leave without a top-up."""
    lines = []
    for name, keys in (
        ("1,024 tokens", {"chain_pages": 64, "top_up": True}),
        ("8,192 tokens", {"chain_pages": 512, "top_up": True}),
        ("1,024 tokens, no top-up", {"chain_pages": 64, "top_up": False}),
    ):
        for rule in RULES[1:]:
            cells = []
            for step in STRIDES:
                (row,) = (
                    r
                    for r in quick("stride", **keys, stride=step, victims=rule, queue="head_first")
                    if r["touch"] == "first"
                )
                cells.append(
                    f"{row['emptied_extents_total']}, {row['unreachable_pages']}, "
                    f"{row['freed_pages_total']}"
                )
            lines.append([name, rule, *cells])
    return markdown(["chain", "victims", *map(str, STRIDES)], lines, 2)


def published() -> str:
    """Return sim_eviction's table with ours beside it."""
    lines = []
    for pinned in (0, 200, 1000):
        cells = []
        for count in (4, 16, 64, 128):
            (row,) = (
                r
                for r in quick(
                    "random", pinned_pages=pinned, evict_pages=count, victims="page_aligned"
                )
                if r["published_emptied_extents"] is not None
            )
            cells.append(
                f"{row['published_emptied_extents']}, {row['emptied_extents_total']}, "
                f"{row['returned_extents_total']}, {row['unreachable_pages']}"
            )
        said = f"{row['published_eligible_extents']}/{row['published_used_extents_peak']}"
        ours = f"{row['eligible_extents']}/{row['used_extents_peak']}"
        lines.append([str(pinned), f"{said}, {ours}", *cells])
    return markdown(["pinned pages", "eligible", "4", "16", "64", "128"], lines, 1)


def _range(lines: Sequence[dict[str, str]], column: str) -> str:
    values = [int(line[column]) for line in lines]
    return f"{fmean(values):.1f} ({min(values)} to {max(values)})"


def pinned() -> str:
    """Return eligible extents by pages an extent, over the seeds, against the pinned fraction."""
    lines = []
    mine = pick(read(CSVS[1]), victims="page_aligned")
    fractions = sorted({float(line["pinned_fraction"]) for line in mine})
    for pages in (128, 64, 32, 16):
        some = pick(mine, pages_per_extent=pages)
        cells = [_range(pick(some, pinned_fraction=f), "eligible_extents") for f in fractions]
        lines.append([str(pages), *cells])
    return markdown(["pages an extent", *(f"{f:.3f}" for f in fractions)], lines)


def rules() -> str:
    """Return emptied extents and unreachable pages by rule, over the seeds."""
    lines = []
    mine = pick(read(CSVS[1]), pages_per_extent=64)
    fractions = sorted({float(line["pinned_fraction"]) for line in mine})
    for column in ("emptied_extents_total", "unreachable_pages"):
        for rule in RULES:
            some = pick(mine, victims=rule)
            cells = [_range(pick(some, pinned_fraction=f), column) for f in fractions]
            lines.append([column.split("_")[0], rule, *cells])
    return markdown(["", "victims", *(f"{f:.3f}" for f in fractions)], lines, 2)


def idle() -> str:
    """Return what is in use at the end, as published and here, and what of it is lost."""
    lines = []
    mine = [r for r in read(CSVS[2]) if r["decode_tokens_least"] != r["decode_tokens_most"]]
    before = {r["seed"]: r for r in pick(mine, allocation="newest", victims="lru")}
    first = int(before["1234"]["published_used_extents"])
    for allocation in ("newest", "best_fit"):
        for rule in RULES:
            some = pick(mine, allocation=allocation, victims=rule)
            (line,) = pick(some, seed=1234)
            said = line["published_used_extents"]
            ratios = [int(r["used_extents"]) / int(before[r["seed"]]["used_extents"]) for r in some]
            (ratio,) = (r for r, line in zip(ratios, some, strict=True) if line["seed"] == "1234")
            lines.append(
                [
                    allocation,
                    rule,
                    f"{said}, {int(said) / first:.2f}" if said else "-",
                    f"{line['used_extents']}, {ratio:.2f}",
                    f"{fmean(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})",
                    _range(some, "orphan_pages"),
                    _range(some, "unreachable_pages"),
                ]
            )
    for line in read(CSVS[2]):
        if line["decode_tokens_least"] == line["decode_tokens_most"]:
            ours = int(line["used_extents"])
            said = int(line["published_used_extents"])
            lines.append(
                [
                    line["allocation"],
                    f"{line['victims']}, decodes of {line['decode_tokens_most']}",
                    f"{said}, {said / first:.2f}",
                    f"{ours}, {ours / int(before['1234']['used_extents']):.2f}",
                    "-",
                    line["orphan_pages"],
                    line["unreachable_pages"],
                ]
            )
    head = ["allocation", "victims", "published", "ours, seed 1234", "ours, share, 5 seeds"]
    return markdown([*head, "orphans", "unreachable"], lines, 2)


TABLES: dict[str, Callable[[], str]] = {
    "stride": stride,
    "sizes": sizes,
    "chains": chains,
    "published": published,
    "pinned": pinned,
    "rules": rules,
    "idle": idle,
}


def blocks() -> list[tuple[str, str]]:
    """Return (name, text) of each table in the README."""
    return [(m[1], m[2]) for m in BLOCK.finditer(README.read_text(encoding="utf-8"))]


if __name__ == "__main__":
    README.write_text(
        BLOCK.sub(
            lambda m: f"<!-- extents {m[1]} -->\n{TABLES[m[1]]()}<!-- end of extents -->",
            README.read_text(encoding="utf-8"),
        ),
        encoding="utf-8",
    )
