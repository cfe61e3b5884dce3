"""Verbs called from Python against the times that they may take, and compaction against JIT off."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from kvsim.bench.ratios import Pair, seconds
from kvsim.paging import Ledger, Order, single

TOKENS = 1000
COMPACTED = 16_384
# Run by a process of its own: the same compaction without compiled kernels.
UNCOMPILED = (
    f"from kvsim.bench.verbs import compaction_seconds; print(compaction_seconds({COMPACTED}))"
)


def _times(function: Callable[[], None], calls: int) -> list[float]:
    """Return seconds per call, as medians of blocks."""
    function()
    blocks = [[seconds(function) for _ in range(calls)] for _ in range(9)]
    return [statistics.median(block) for block in blocks]


def _append() -> list[float]:
    ledger = Ledger(single(), 16)
    sequence = ledger.open()
    return _times(lambda: ledger.append(sequence, 1), 200)


def _fork_and_free() -> list[float]:
    ledger = Ledger(single(), 16)
    sequence = ledger.open()
    ledger.append(sequence, TOKENS)
    return _times(lambda: ledger.free(ledger.fork(sequence)), 200)


def _evict() -> list[float]:
    """Evict every second of 1,000 tokens; what prepares the sequence is not timed."""
    ledger = Ledger(single(), 16)
    parent = ledger.open()
    ledger.append(parent, TOKENS)
    victims = [np.arange(0, TOKENS, 2)]
    blocks = []
    for _ in range(10):
        block = []
        for _ in range(50):
            child = ledger.fork(parent)
            block.append(seconds(lambda child=child: ledger.evict(child, victims)))  # type: ignore[misc]
            ledger.free(child)
        blocks.append(statistics.median(block))
    return blocks[1:]


def compaction_seconds(tokens: int) -> float:
    """Return how long hole_fill takes after every second token was evicted."""
    ledger = Ledger(single(), 16, ordering=Order(compaction="hole_fill"))

    def once() -> float:
        sequence = ledger.open()
        ledger.append(sequence, tokens)
        ledger.evict(sequence, [np.arange(0, tokens, 2)])
        taken = seconds(lambda: ledger.compact(sequence))
        ledger.free(sequence)
        return taken

    if os.environ.get("NUMBA_DISABLE_JIT") == "1":
        return once()
    once()
    return statistics.median(once() for _ in range(9))


def _verb(name: str, times: list[float], limit_us: float) -> dict[str, Any]:
    limit = [limit_us * 1e-6] * len(times)
    return Pair(tuple(times), tuple(limit)).entry(
        name,
        f"{limit_us:g} us",
        at_most=1,
        detail=f"{statistics.median(times) * 1e6:.1f} us a call",
    )


def _compaction() -> dict[str, Any]:
    pairs = []
    for _ in range(3):
        ours = compaction_seconds(COMPACTED)
        answer = subprocess.run(
            [sys.executable, "-c", UNCOMPILED],
            env={**os.environ, "NUMBA_DISABLE_JIT": "1"},
            capture_output=True,
            text=True,
            check=True,
        )
        pairs.append((ours, float(answer.stdout)))
    pair = Pair(tuple(a for a, _ in pairs), tuple(b for _, b in pairs))
    return pair.entry(
        f"hole_fill of {COMPACTED:,} tokens, half of them dead",
        "the same with JIT off",
        at_least=50,
        detail=f"{min(pair.ours) * 1e6:.0f} us, JIT off {min(pair.baseline) * 1e3:.0f} ms",
    )


def measurements() -> list[Callable[[], dict[str, Any]]]:
    """Return the timing of append, fork + free and evict from Python, and of compaction."""
    return [
        lambda: _verb("append one token from Python", _append(), 10),
        lambda: _verb("fork + free of 1,000 tokens from Python", _fork_and_free(), 20),
        lambda: _verb("evict 500 of 1,000 tokens from Python", _evict(), 20),
        _compaction,
    ]
