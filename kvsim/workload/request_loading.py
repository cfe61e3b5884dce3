"""Requests for the serving engine out of a recorded trace: arrival times, lengths, page keys.

A trace without times, or with times that count from each conversation's own start, gets arrivals
by chance. Nothing is repaired: what a run refuses is refused here, with its line.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from kvsim.errors import WorkloadError
from kvsim.workload.requests import MOST_KEYS, Requests
from kvsim.workload.rounding import Rounding
from kvsim.workload.traces.chains import Chains
from kvsim.workload.traces.reading import Tally, Trace
from kvsim.workload.traces.reblock import Reblocker, with_output
from kvsim.workload.traces.request import MOST_NANOSECONDS, Request


class Loaded(NamedTuple):
    """A trace's requests.

    Attributes
    ----------
    requests : Requests
    tally : Tally
        What the reading met.
    caveat : str or None
        What the page keys cannot tell.
    rounding_lost_tokens : int or None
        What hits lose because they are whole pages (`kvsim.workload.rounding`); None where the
        trace has no ids of blocks that pages are made of.
    """

    requests: Requests
    tally: Tally
    caveat: str | None
    rounding_lost_tokens: int | None = None


class Growing:
    """An int32 array that grows as numbers are put behind it."""

    def __init__(self) -> None:
        self._values = np.zeros(1 << 16, np.int32)
        self.size = 0

    def extend(self, values: np.ndarray) -> None:
        """Put values behind the others."""
        need = self.size + values.size
        if need > self._values.size:
            larger = np.zeros(max(need, 2 * self._values.size), np.int32)
            larger[: self.size] = self._values[: self.size]
            self._values = larger
        self._values[self.size : need] = values
        self.size = need

    def values(self) -> np.ndarray:
        """Return what was put in, int32 [size]."""
        return self._values[: self.size].copy()


class PageKeys:
    """The keys of a prompt's full pages, the same for equal tokens after equal tokens."""

    def __init__(self, trace: Trace, page_tokens: int) -> None:
        self._block_tokens, self._page_tokens = trace.block_tokens, page_tokens
        self._has_ids = trace.has_ids
        self._rounding = None
        if not trace.has_ids:
            self.caveat = None
            return
        self._reblock = Reblocker(trace.block_tokens, page_tokens)
        self.caveat = self._reblock.caveat
        # Re-blocked ids stand for whole prefixes; a trace's own need not.
        self._own = trace.block_tokens == page_tokens
        self._chains = Chains() if self._own else self._reblock.chains
        if 0 < trace.block_tokens <= page_tokens:
            self._rounding = Rounding(trace.block_tokens, page_tokens)

    def __call__(self, request: Request) -> np.ndarray:
        """Return the keys of the full pages of a prompt, and of an output's with ids; int64."""
        if not self._has_ids:
            return np.zeros(0, np.int64)
        request = with_output(request, self._block_tokens)
        pages = self._reblock(request)
        if self._own:
            pages = self._chains(pages)
        if self._rounding is not None:
            self._rounding.add(pages if self._own else self._reblock.nodes)
        return pages[: request.input_tokens // self._page_tokens]

    def rounding_lost_tokens(self, input_tokens: np.ndarray, order: np.ndarray) -> int | None:
        """Return what rounding costs the requests so far, arriving in this order."""
        if self._rounding is None:
            return None
        return self._rounding.lost_tokens(self._chains.parents(), input_tokens, order)


def from_trace(
    path: str | Path,
    page_tokens: int,
    *,
    limit: int = 0,
    skip_bad: bool = False,
    time_scale: float = 1.0,
    samples: int = 1,
    rate_per_s: float = 0.0,
    rng: np.random.Generator | None = None,
    progress: Callable[[int], None] = lambda requests: None,
) -> Loaded:
    """Return the requests of a trace.

    Parameters
    ----------
    path : str or Path
        Any format that `kvsim trace` reads.
    page_tokens : int
    limit : int
        Only the first requests of the file; 0 for all.
    skip_bad : bool
        Skip and count what is wrong, unsorted times included, instead of refusing it.
    time_scale : float
        What recorded times are multiplied with, rounded down to nanoseconds. Times that say
        what they were multiplied with already are multiplied with the quotient.
    samples : int
        Of each request that does not say how many it has.
    rate_per_s : float
        Poisson rate of requests of a trace without times, or of conversations where times count
        from a conversation's start.
    rng : numpy.random.Generator, optional
        For those arrivals.
    progress : callable
        Called with the number of requests read so far.

    Raises
    ------
    WorkloadError
        Naming file and line, or what has to be given.
    """
    trace = Trace(path)
    if trace.clock != "trace" and (rate_per_s <= 0 or rng is None):
        what = "no arrival times" if trace.clock == "none" else "times by conversation only"
        raise WorkloadError(
            f"{trace.path.name}: {trace.format} has {what}; workload.rate_per_s must say how "
            "often one arrives"
        )
    tally = Tally()
    keys_of = PageKeys(trace, page_tokens)
    scale = time_scale / trace.time_scale
    arrivals, inputs, outputs, begins = [], [], [], [0]
    priorities: list[int] = []
    sampled: list[int] = []
    groups: list[int] = []
    keys = Growing()
    most = -1
    for request in trace.requests(skip_bad=skip_bad, tally=tally):
        found = keys_of(request)
        if found.size:
            most = max(most, int(found.max()))
            if most >= MOST_KEYS:
                raise WorkloadError(f"{trace.path.name}: more pages than an int32 can number")
        keys.extend(found)
        # A double would not hold every nanosecond.
        arrivals.append(request.arrival_ns if scale == 1 else int(request.arrival_ns * scale))
        inputs.append(request.input_tokens)
        outputs.append(request.output_tokens)
        begins.append(keys.size)
        groups.append(request.conversation)
        priorities.append(request.priority)
        sampled.append(request.samples or samples)
        if len(arrivals) % 1024 == 0:
            progress(len(arrivals))
        if len(arrivals) == limit:
            break
    if not arrivals:
        raise WorkloadError(f"{trace.path.name}: no request is left of it")
    times = np.array(arrivals, np.int64)
    if rng is not None and trace.clock != "trace":
        times += _begin(np.array(groups), trace.clock, rate_per_s, rng)
    if int(times.max()) >= MOST_NANOSECONDS:
        raise WorkloadError(f"{trace.path.name}: the last request arrives in centuries")
    order = np.argsort(times, kind="stable")
    values, start = keys.values(), np.array(begins, np.int64)
    if (order != np.arange(order.size)).any():
        values, start = _in_order(values, start, order)
    input_tokens = np.array(inputs, np.int64)
    requests = Requests(
        page_tokens=page_tokens,
        arrival_ns=times[order],
        input_tokens=input_tokens[order],
        output_tokens=np.array(outputs, np.int64)[order],
        priority=np.array(priorities, np.int64)[order],
        samples=np.array(sampled, np.int64)[order],
        keys=values,
        key_start=start,
        given_keys=most + 1,
    )
    lost = keys_of.rounding_lost_tokens(input_tokens, order)
    return Loaded(requests, tally, keys_of.caveat, lost)


def _begin(
    groups: np.ndarray, clock: str, rate_per_s: float, rng: np.random.Generator
) -> np.ndarray:
    """Draw when each request, or each conversation, begins; int64 [requests] in nanoseconds."""
    numbers = np.arange(groups.size)
    if clock == "conversation":
        # In the order in which conversations first come up in the file.
        _, first, inverse = np.unique(groups, return_index=True, return_inverse=True)
        numbers = np.argsort(np.argsort(first))[inverse]
    gaps = np.floor(-np.log1p(-rng.random(int(numbers.max()) + 1)) * 1e9 / rate_per_s)
    if gaps.sum() >= MOST_NANOSECONDS:
        raise WorkloadError(f"at {rate_per_s} per second the last one arrives in centuries")
    return np.cumsum(gaps.astype(np.int64))[numbers]


def _in_order(
    keys: np.ndarray, start: np.ndarray, order: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return keys and their beginnings with the requests in another order."""
    lengths = np.diff(start)[order]
    begins = np.concatenate([[0], np.cumsum(lengths)])
    moved = np.empty_like(keys)
    for place, request in enumerate(order.tolist()):
        moved[begins[place] : begins[place + 1]] = keys[start[request] : start[request + 1]]
    return moved, begins
