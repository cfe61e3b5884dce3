"""Speed as ratios inside one run, against baselines that are kept here in plain sight."""

from kvsim.bench.registry import measure, names

__all__ = ["measure", "names"]
