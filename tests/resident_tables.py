"""The tables of experiments/03-resident: written from the CSV that its figure shows.

python tests/resident_tables.py   # writes the tables anew

The other experiments' tables are computed anew by each test run. These runs are measured, 1 GiB
each; tests compare the CSV's accounting with runs that only count.
"""

from __future__ import annotations

import csv
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
README = ROOT / "experiments" / "03-resident" / "README.md"
CSV = ROOT / "figures" / "03-resident" / "resident_against_budget.csv"
BLOCK = re.compile(r"<!-- resident (\S+) (\d+) -->\n(.*?)<!-- end of resident -->", re.DOTALL)


def rows() -> list[dict[str, str]]:
    """Return the lines of the committed CSV."""
    with CSV.open(newline="") as file:
        return list(csv.DictReader(file))


def table(plane_layout: str, extent_bytes: str) -> str:
    """Return held, mapped and resident shares at every budget for one layout and extent."""
    mine = [
        row
        for row in rows()
        if (row["plane_layout"], row["extent_bytes"]) == (plane_layout, extent_bytes)
    ]
    budgets = sorted({float(row["budget_fraction"]) for row in mine}, reverse=True)
    lines = [
        "| granularity | compaction | " + " | ".join(f"{b:.2f}" for b in budgets) + " | copied |",
        "|---|---|" + "--:|" * (len(budgets) + 1),
    ]
    kinds = dict.fromkeys((row["granularity"], row["compaction"]) for row in mine)
    for kind in kinds:
        line = {
            float(row["budget_fraction"]): row
            for row in mine
            if (row["granularity"], row["compaction"]) == kind
        }
        shares = [
            " ".join(f"{float(line[b][f'{n}_share']):.3f}" for n in ("held", "mapped", "resident"))
            for b in budgets
        ]
        copied = int(line[budgets[-1]]["copied_bytes_total"]) / int(
            line[budgets[-1]]["dense_bytes"]
        )
        lines.append("| " + " | ".join([*kind, *shares, f"{copied:.3f}"]) + " |")
    return "\n".join(lines) + "\n"


def blocks() -> list[tuple[str, str, str]]:
    """Return (plane layout, extent bytes, text) of each table in the README."""
    return [(m[1], m[2], m[3]) for m in BLOCK.finditer(README.read_text(encoding="utf-8"))]


if __name__ == "__main__":
    README.write_text(
        BLOCK.sub(
            lambda m: (
                f"<!-- resident {m[1]} {m[2]} -->\n{table(m[1], m[2])}<!-- end of resident -->"
            ),
            README.read_text(encoding="utf-8"),
        ),
        encoding="utf-8",
    )
