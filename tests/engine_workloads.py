"""Small workloads and step durations for whatever serves requests by docs/serving.md."""

from __future__ import annotations

import numpy as np

from kvsim.bench.engine_report import StaticEviction, Terms
from kvsim.workload.requests import Requests, without_keys

PAGE = 4


class Steps:
    """A step takes 100 ns; what each was told is kept."""

    def __init__(self) -> None:
        self.told: list[tuple[int, ...]] = []

    def __call__(self, *of: int) -> int:
        self.told.append(of)
        return 100


def linear(decode, reads, prefill, prefill_reads, pairs, moved, host):
    return 1000 + 17 * decode + 3 * reads + 29 * prefill + 2 * prefill_reads + pairs + 5 * moved


def requests(*rows, keys=None, page_tokens=PAGE):
    """Requests from rows of (arrival_ns, input, output, priority, samples)."""
    columns = [np.array(column, np.int64) for column in zip(*rows, strict=True)]
    keys = keys or [[] for _ in rows]
    flat = np.array([key for own in keys for key in own], np.int32)
    start = np.cumsum([0] + [len(own) for own in keys])
    given = int(flat.max(initial=-1)) + 1
    return Requests(page_tokens, *columns, flat, start, given)


def drawn(rng, full=False):
    """Return a random small workload; a `full` one has what the NumPy baseline leaves out."""
    count, page_tokens = int(rng.integers(1, 14)), int(rng.integers(1, 6))
    arrival = np.sort(rng.integers(0, int(rng.choice([1, 3000, 60000])), count))
    inputs, outputs = rng.integers(1, 40, count), rng.integers(0, 30, count)
    if not full:
        return without_keys(page_tokens, arrival, inputs, outputs)
    priority = rng.integers(0, 3, count)
    often = rng.integers(1, 4, count)
    names: dict[tuple[int, ...], int] = {}
    given = []
    for pages in ((inputs + outputs) // page_tokens).tolist():
        choices = rng.integers(0, 2, int(rng.integers(0, pages + 1))).tolist()
        prefixes = [tuple(choices[: page + 1]) for page in range(len(choices))]
        given.append([names.setdefault(prefix, len(names)) for prefix in prefixes])
    rows = zip(*(c.tolist() for c in (arrival, inputs, outputs, priority, often)), strict=True)
    return requests(*rows, keys=given, page_tokens=page_tokens)


def terms_drawn(rng, full=False):
    """Return random terms; `full` ones have what the NumPy baseline leaves out."""
    eviction = None
    if rng.random() < 0.7:
        eviction = StaticEviction(
            str(rng.choice(["streaming", "random"])),
            tokens=int(rng.choice([0, 3, 9])),
            fraction=float(rng.choice([0, 0.3, 0.5, 1])),
            sinks=int(rng.integers(0, 5)),
            recent=int(rng.integers(0, 5)),
            when=str(rng.choice(["step", "prefill_end"])),
            seed=int(rng.integers(0, 9)),
        )
    return Terms(
        step_tokens=int(rng.choice([5, 16, 64, 200])),
        max_running=int(rng.integers(1, 8)),
        ceiling_pages=int(rng.choice([0, 15, 25, 60])),
        chunked=bool(rng.random() < 0.8),
        watermark=float(rng.choice([0, 0.05, 0.2])),
        order=str(rng.choice(["fcfs", "priority"])) if full else "fcfs",
        cache=str(rng.choice(["none", "blocks", "blocks"])) if full else "none",
        publish=str(rng.choice(["all", "prompt"])),
        unhashed=str(rng.choice(["head", "tail"])),
        row_bytes=4,
        eviction=eviction,
    )
