"""Timing two things in turn, many times, and keeping the ratio of each pair.

Pairs see the same machine a moment apart, so what slows one slows the other.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Pair:
    """Seconds of both sides, repetition by repetition.

    Attributes
    ----------
    ours, baseline : tuple of float
    """

    ours: tuple[float, ...]
    baseline: tuple[float, ...]

    def entry(
        self, name: str, baseline: str, *, at_least: float = 0, at_most: float = 0, detail: str = ""
    ) -> dict[str, Any]:
        """Return what `kvsim bench` prints.

        With `at_least` the ratio is baseline / ours (how much faster), with `at_most` it is
        ours / baseline (what share). The median decides whether the target is met.
        """
        pairs = list(zip(self.ours, self.baseline, strict=True))
        ratios = [b / a if at_least else a / b for a, b in pairs]
        ratio = statistics.median(ratios)
        return {
            "name": name,
            "baseline": baseline,
            "ratio": ratio,
            "ratio_min": min(ratios),
            "ratio_max": max(ratios),
            "target": f">= {at_least:g}" if at_least else f"<= {at_most:g}",
            "met": ratio >= at_least if at_least else ratio <= at_most,
            "detail": detail,
        }


def unmeasured(name: str, baseline: str, *, at_least: float, reason: str) -> dict[str, Any]:
    """Return the entry of what could not be measured here: no ratio, and the reason in words."""
    return {
        "name": name,
        "baseline": baseline,
        "ratio": None,
        "ratio_min": None,
        "ratio_max": None,
        "target": f">= {at_least:g}",
        "met": None,
        "detail": reason,
    }


def seconds(function: Callable[[], object]) -> float:
    """Return how long one call takes."""
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def interleave(
    ours: Callable[[], object], baseline: Callable[[], object], repetitions: int
) -> Pair:
    """Time both in turn, after one untimed call of each."""
    ours(), baseline()
    pairs = [(seconds(ours), seconds(baseline)) for _ in range(repetitions)]
    return Pair(tuple(a for a, _ in pairs), tuple(b for _, b in pairs))
