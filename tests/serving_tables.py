"""The tables of experiments/04-serving, written from the CSVs of its figures.

python tests/serving_tables.py   # writes the tables anew
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

ROOT = Path(__file__).parents[1]
EXPERIMENT = ROOT / "experiments" / "04-serving"
README = EXPERIMENT / "README.md"
FIGURES = ROOT / "figures" / "04-serving"
BLOCK = re.compile(r"<!-- serving (\S+) -->\n(.*?)<!-- end of serving -->", re.DOTALL)
LINES = (
    ("-", "none"),
    ("streaming_llm", "token"),
    ("streaming_llm", "window"),
    ("streaming_llm", "page"),
    ("random", "token"),
    ("random", "window"),
    ("random", "page"),
)


def read(name: str) -> list[dict[str, str]]:
    """Return the lines of one figure's CSV."""
    with (FIGURES / f"{name}.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def pick(lines: Sequence[dict[str, str]], **values: Any) -> list[dict[str, str]]:
    """Return the lines that show these values."""
    return [line for line in lines if all(line[k] == str(v) for k, v in values.items())]


def markdown(head: Sequence[str], lines: Sequence[Sequence[str]], left: int) -> str:
    """Return a table whose first columns are words."""
    rule = ["---"] * left + ["--:"] * (len(head) - left)
    return "".join(f"| {' | '.join(line)} |\n" for line in (head, rule, *lines))


def _cell(lines: Sequence[dict[str, str]]) -> str:
    if any(line["outcome"] == "infeasible" for line in lines):
        return "infeasible"

    def mean(column: str) -> float:
        return fmean(float(line[column]) for line in lines)

    ttft = mean("ttft_p99_ms") / 1000
    return (
        f"{mean('preemptions_total'):.0f}, {ttft:.3g} s, "
        f"{mean('good_fraction'):.2f}, {mean('freed_pages_total'):,.0f}"
    )


def cliff(name: str, page_tokens: int, ceilings: Sequence[int]) -> str:
    """Return preemptions, p99 time to first token, good share and freed pages by ceiling."""
    mine = pick(read(name), page_tokens=page_tokens)
    lines = []
    for policy, granularity in LINES:
        some = pick(mine, policy=policy, granularity=granularity)
        cells = [_cell(pick(some, ceiling_pages=ceiling)) for ceiling in ceilings]
        lines.append([policy, granularity, *cells])
    return markdown(["policy", "evicts", *(f"{c:,}" for c in ceilings)], lines, 2)


def vllm() -> str:
    """Return mean absolute errors against the recorded runs."""
    lines = []
    rows = read("serving_vllm")
    variants = dict.fromkeys((r["run"], r["pool_share"], r["efficiency"]) for r in rows)
    for run, share, efficiency in variants:
        mine = pick(rows, run=run, pool_share=share, efficiency=efficiency)
        cells = []
        for at, late in (("tokens", 0), ("time", 60)):
            for what in ("held_percent", "running"):
                some = [r for r in mine if r[f"recorded_{what}"] and float(r["time_s"]) > late]
                off = [
                    abs(float(r[f"{what}_at_{at}"]) - float(r[f"recorded_{what}"])) for r in some
                ]
                cells.append(f"{fmean(off):.2f}" if off else "-")
        pool = mine[0]["pool_pages"] if mine[0]["pool_pages"] != "0" else "unknown"
        lines.append([mine[0]["device"], pool, efficiency, *cells])
    head = ["device", "pool, pages", "efficiency", "occupied, tokens", "running, tokens"]
    return markdown([*head, "occupied, time", "running, time"], lines, 1)


TABLES: dict[str, Callable[[], str]] = {
    "small-pages": lambda: cliff("serving_cliff", 16, (4800, 1600, 1200, 600, 200, 64, 32, 24)),
    "large-pages": lambda: cliff("serving_cliff", 64, (1200, 400, 300, 150, 50, 16, 8, 6)),
    "mooncake": lambda: cliff(
        "mooncake/serving_cliff", 16, (64000, 32000, 20000, 12000, 8000, 7600, 4000)
    ),
    "agent": lambda: cliff(
        "agent/serving_cliff", 16, (40000, 28000, 21000, 16000, 13500, 12400, 8000)
    ),
    "vllm": vllm,
}


def blocks() -> list[tuple[str, str]]:
    """Return (name, text) of each table in the README."""
    return [(m[1], m[2]) for m in BLOCK.finditer(README.read_text(encoding="utf-8"))]


if __name__ == "__main__":
    README.write_text(
        BLOCK.sub(
            lambda m: f"<!-- serving {m[1]} -->\n{TABLES[m[1]]()}<!-- end of serving -->",
            README.read_text(encoding="utf-8"),
        ),
        encoding="utf-8",
    )
