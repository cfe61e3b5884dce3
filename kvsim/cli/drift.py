"""Measure what lossy re-rotation costs, and draw it: the figure of docs/quantized.md.

    python -m kvsim.cli.drift FOLDER

writes quantized_drift.pdf, .png and .csv into the folder.
"""

from __future__ import annotations

import sys
from pathlib import Path

EVICTIONS = 20
SEEDS = 8


def main(folder: Path) -> list[Path]:
    """Measure all kinds of keys under both kinds of spans; return the files written."""
    from kvsim.cli.render import progress
    from kvsim.figures import draw
    from kvsim.tensors.drift import SPANS, measure

    rows = []
    with progress("measurements") as step:
        for number in range(SEEDS):
            for at, which in enumerate(SPANS, 1):
                rows += measure(which, number, EVICTIONS)
                step(number * len(SPANS) + at, SEEDS * len(SPANS))
    return draw("quantized_drift", rows, folder)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m kvsim.cli.drift FOLDER")
    print(*main(Path(sys.argv[1])), sep="\n")
