"""`kvsim bench ledger`: counting against selecting, kernel steps against NumPy, --help."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from kvsim.bench import verbs
from kvsim.bench.numpy_steps import NumpySteps
from kvsim.bench.ratios import Pair, interleave, seconds
from kvsim.paging import Ledger, single
from kvsim.policies.selection import lowest
from kvsim.seeds import stream

TOKENS = 1_000_000
VICTIMS = 16_000
PAGE_TOKENS = 16
RUNNING = 256
PROMPT = 1100
STEPS = 400


def _counting() -> dict[str, Any]:
    """Evict 16k of 1M tokens: the ledger's verb against selecting the victims."""
    rng = stream(7, "test")
    ledger = Ledger(single(), PAGE_TOKENS)
    order = rng.permutation(TOKENS)
    batches = [np.sort(part) for part in order[: 4 * VICTIMS].reshape(4, VICTIMS)]
    scores = rng.random(TOKENS)
    ours, baseline = [], []
    for block in range(12):
        # A full sequence each time: later evictions from the same one would find pages to free.
        sequence = ledger.open()
        ledger.append(sequence, TOKENS)
        # Warm caches on both sides, as in the measurement that set the target: the first call
        # of each kind is not counted, and neither is the first block.
        lowest(scores, VICTIMS)
        selecting = [seconds(lambda: lowest(scores, VICTIMS)) for _ in range(3)]
        ledger.evict(sequence, batches[:1])
        updating = [
            seconds(lambda s=sequence, v=batch: ledger.evict(s, [v]))  # type: ignore[misc]
            for batch in batches[1:]
        ]
        if block:
            baseline.append(statistics.median(selecting))
            ours.append(statistics.median(updating))
        ledger.check()
        ledger.free(sequence)
    pair = Pair(tuple(ours), tuple(baseline))
    return pair.entry(
        "page counts after evicting 16k of 1M tokens",
        "selecting those victims (np.partition)",
        at_most=0.02,
        detail=f"update {statistics.median(ours) * 1e6:.0f} us, "
        f"selection {statistics.median(baseline) * 1e6:.0f} us",
    )


def _stepping() -> dict[str, Any]:
    """Append one token to each of 256 sequences, many steps in one call, against NumPy."""
    pages = RUNNING * ((PROMPT + STEPS * 12) // PAGE_TOKENS + 2)
    # The baseline's arrays are made for the whole run, and so are ours.
    ledger = Ledger(single(), PAGE_TOKENS, room_pages=pages)
    baseline = NumpySteps(RUNNING, PAGE_TOKENS, pages)
    batch = np.array([ledger.open() for _ in range(RUNNING)])
    # Prompts of different lengths, so that page boundaries do not fall into one step.
    for number, sequence in enumerate(batch.tolist()):
        prompt = PROMPT + number % PAGE_TOKENS
        ledger.append(sequence, prompt)
        baseline.prefill(number, prompt)

    def theirs() -> None:
        for _ in range(STEPS):
            baseline.step()

    pair = interleave(lambda: ledger.advance(batch, STEPS), theirs, 9)
    if baseline.held != ledger.held_pages:
        raise RuntimeError("the baseline holds another number of pages than the ledger")
    ours_us, theirs_us = (
        statistics.median(side) / STEPS * 1e6 for side in (pair.ours, pair.baseline)
    )
    return pair.entry(
        f"step of {RUNNING} running sequences in the kernel",
        "the same step with NumPy",
        at_least=20,
        detail=f"{ours_us:.2f} us a step, NumPy {theirs_us:.1f} us",
    )


def _help() -> dict[str, Any]:
    """`kvsim --help` against a program that builds an empty argparse parser."""
    empty = "import argparse; argparse.ArgumentParser(prog='x').parse_args(['--help'])"
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}

    def call(*arguments: str) -> None:
        subprocess.run(
            [sys.executable, *arguments],
            stdout=subprocess.DEVNULL,
            env=environment,
            check=True,
        )

    pair = interleave(lambda: call("-m", "kvsim", "--help"), lambda: call("-c", empty), 9)
    ours_ms, theirs_ms = (min(side) * 1e3 for side in (pair.ours, pair.baseline))
    return pair.entry(
        "kvsim --help",
        "an empty argparse program",
        at_most=4,
        detail=f"{ours_ms:.0f} ms, argparse {theirs_ms:.0f} ms",
    )


def measurements() -> list[Callable[[], dict[str, Any]]]:
    """Return all measurements."""
    return [_counting, _stepping, *verbs.measurements(), _help]
