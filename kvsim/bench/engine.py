"""`kvsim bench engine`: the leaping engine against two other readings of docs/serving.md.

Both baselines are run on the same requests, and a run counts only if every total and every
request's times are the same as ours.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from kvsim.bench import engine_leap, engine_numpy, engine_process, engine_work
from kvsim.bench.engine_report import Report, StepNs, Terms
from kvsim.bench.ratios import Pair, interleave
from kvsim.engine.costs.roofline import step_ns
from kvsim.errors import KvsimError
from kvsim.seeds import stream
from kvsim.workload.requests import Requests

SEED = 7
REPETITIONS = 5
GIB = 1 << 30
MOST_BYTES = 2 * GIB

Serve = Callable[[Requests, Terms, StepNs], Report]
Result = dict[str, Any]

PROCESS = "a SimPy process for each request"
NUMPY = "NumPy steps under SimPy"
SERVERS: dict[str, Serve] = {PROCESS: engine_process.serve, NUMPY: engine_numpy.serve}


def _step_ns(*counts: int) -> int:
    return int(step_ns(engine_work.COST, *counts))


def against(name: str, baseline: str, requests: Requests, terms: Terms, at_least: float) -> Result:
    """Time one baseline and the engine in turn, after comparing what they did.

    Raises
    ------
    KvsimError
        If they differ in any total or any request's times.
    """
    theirs = SERVERS[baseline]
    ours = engine_leap.serve(requests, terms, engine_work.COST)
    differing = ours.differences(theirs(requests, terms, _step_ns))
    if differing:
        raise KvsimError(f"bench engine: {name}: not what {baseline} did: {differing[0]}")
    pair = interleave(
        lambda: engine_leap.serve(requests, terms, engine_work.COST),
        lambda: theirs(requests, terms, _step_ns),
        REPETITIONS,
    )
    ours_us, theirs_us = (
        statistics.median(side) / ours.steps * 1e6 for side in (pair.ours, pair.baseline)
    )
    tokens = ours.generated_tokens_total
    return pair.entry(
        name,
        baseline,
        at_least=at_least,
        detail=f"{ours_us:.2f} us a step, baseline {theirs_us:.1f} us; {ours.steps:,} steps, "
        f"{tokens:,} tokens generated, {ours.preemptions_total:,} preemptions, "
        f"{ours.cow_pages_total:,} copies on write, {ours.evicted_tokens_total:,} tokens evicted",
    )


def _alone_against_processes() -> Result:
    requests = engine_work.plain(stream(SEED, "workload"), 4000)
    return against("no eviction", PROCESS, requests, engine_work.plain_terms(), 60)


def _alone_against_numpy() -> Result:
    requests = engine_work.plain(stream(SEED, "workload"), 4000)
    return against("no eviction", NUMPY, requests, engine_work.plain_terms(), 20)


def _pressed() -> Result:
    requests = engine_work.shared(stream(SEED, "workload"), 4000)
    name = "ceiling, preemption, prefix cache"
    return against(name, PROCESS, requests, engine_work.pressed_terms(), 40)


def _scattered() -> Result:
    requests = engine_work.long_prompts(stream(SEED, "workload"), 1500)
    name = "scattered eviction at every step"
    return against(name, NUMPY, requests, engine_work.scattered_terms(), 3)


def _million() -> Result:
    """Serve a million requests in a process of its own, whose memory is measured."""
    command = [sys.executable, "-m", "kvsim.bench.engine_million"]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    found = json.loads(done.stdout)
    return Pair((found["peak_bytes"] / GIB,), (MOST_BYTES / GIB,)).entry(
        "memory of 1,000,000 requests, end to end",
        "2 GiB",
        at_most=1,
        detail=f"{found['peak_bytes'] / GIB:.2f} GiB, {found['seconds']:.1f} s, "
        f"{found['steps']:,} steps of {found['step_us']:.2f} us, "
        f"{found['generated_tokens_total']:,} tokens generated",
    )


def measurements() -> list[Callable[[], Result]]:
    """Return all measurements."""
    return [_alone_against_processes, _alone_against_numpy, _pressed, _scattered, _million]
