"""Which benchmarks there are, and what each of them prints."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable
from typing import Any

from kvsim.errors import KvsimError

BENCHMARKS = {
    "engine": "kvsim.bench.engine",
    "evict": "kvsim.bench.evict",
    "ledger": "kvsim.bench.ledger",
    "replay": "kvsim.bench.replay",
}


def names() -> tuple[str, ...]:
    """Names of the benchmarks."""
    return tuple(BENCHMARKS)


def measure(
    name: str, report: Callable[[int, int], None] = lambda done, total: None
) -> list[dict[str, Any]]:
    """Run one benchmark.

    Parameters
    ----------
    name : str
    report : callable, optional
        Is told after each measurement how many are done, and how many there are.

    Returns
    -------
    list of dict
        {name, baseline, ratio, ratio_min, ratio_max, target, met, detail}; where something could
        not be measured, `met` and the ratios are None and `detail` says why.

    Raises
    ------
    KvsimError
        If there is no such benchmark.
    """
    if name not in BENCHMARKS:
        near = difflib.get_close_matches(name, BENCHMARKS, 1)
        hint = f"; did you mean {near[0]!r}?" if near else f"; there is {', '.join(BENCHMARKS)}"
        raise KvsimError(f"unknown benchmark {name!r}{hint}")
    measurements = importlib.import_module(BENCHMARKS[name]).measurements()
    results = []
    for number, one in enumerate(measurements):
        report(number, len(measurements))
        results.append(one())
    report(len(measurements), len(measurements))
    return results
