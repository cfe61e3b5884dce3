"""The tables in README files: each is computed from the experiment that its comment names.

python tests/readme.py            # writes the tables anew
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from kvsim.cli import render
from kvsim.lab import sweep
from kvsim.lab.run import run

ROOT = Path(__file__).parents[1]
READMES = ("README.md", "experiments/01-memory-ceilings/README.md", "experiments/02-cow/README.md")
BLOCK = re.compile(r"<!-- table (\S+) (\{.*?\}) -->\n(.*?)<!-- end of table -->", re.DOTALL)


def table(experiment: str, where: dict) -> str:
    """Run the scenarios of an experiment that fit `where`, and return their table."""
    scenarios = [
        scenario
        for scenario in sweep.read(ROOT / experiment).scenarios
        if all(scenario.flat()[key] in values for key, values in where.items())
    ]
    return render.markdown([run(scenario) for scenario in scenarios])


def blocks(name: str) -> list[tuple[str, dict, str]]:
    """Return (experiment, filter, text) of each table in a README."""
    text = (ROOT / name).read_text(encoding="utf-8")
    return [(m[1], json.loads(m[2]), m[3]) for m in BLOCK.finditer(text)]


def write(name: str) -> None:
    """Write the tables of a README anew."""
    path = ROOT / name
    text = BLOCK.sub(
        lambda m: (
            f"<!-- table {m[1]} {m[2]} -->\n{table(m[1], json.loads(m[2]))}<!-- end of table -->"
        ),
        path.read_text(encoding="utf-8"),
    )
    path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    for readme in READMES:
        write(readme)
