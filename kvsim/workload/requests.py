"""Requests as the serving engine reads them: columns of integers, and a key for every page.

Knows no file format and no engine. Equal keys mean equal tokens in that page and in all pages
before it, so a prefix index can be a plain array with one place for each key.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kvsim.errors import WorkloadError

# Keys and page counts are int32 in the kernels.
MOST_KEYS = (1 << 31) - 1
COLUMNS = ("arrival_ns", "input_tokens", "output_tokens", "priority", "samples")


@dataclass(frozen=True)
class Requests:
    """Requests in order of arrival.

    Attributes
    ----------
    page_tokens : int
        Tokens behind a key.
    arrival_ns, input_tokens, output_tokens, priority, samples : int64 [requests]
        Arrivals ascend; inputs and samples are at least 1; a lower priority is served first.
        `samples` outputs are generated from one prompt.
    keys : int32 [all keys that are given]
        Page keys of one request after another, each in prefix order.
    key_start : int64 [requests + 1]
        Where the keys of each begin. They cover its first pages; a page after them has a key of
        its own, which no other request has.
    given_keys : int
        Given keys are from 0 to this number less one; a request's own ones lie above them.
    """

    page_tokens: int
    arrival_ns: np.ndarray
    input_tokens: np.ndarray
    output_tokens: np.ndarray
    priority: np.ndarray
    samples: np.ndarray
    keys: np.ndarray
    key_start: np.ndarray
    given_keys: int

    def __post_init__(self) -> None:
        """Refuse columns that contradict each other."""
        count = self.arrival_ns.shape[0]
        for name in COLUMNS:
            column = getattr(self, name)
            if column.shape != (count,) or column.dtype != np.int64:
                raise WorkloadError(f"requests: {name} must be int64 [{count}]")
        if count == 0:
            raise WorkloadError("requests: there are none")
        for name, least in (("input_tokens", 1), ("output_tokens", 0), ("samples", 1)):
            if getattr(self, name).min() < least:
                where = int(np.argmin(getattr(self, name)))
                raise WorkloadError(f"request {where}: {name} must be at least {least}")
        if self.arrival_ns[0] < 0 or (np.diff(self.arrival_ns) < 0).any():
            raise WorkloadError("requests: arrivals must ascend from 0 or later")
        held = np.diff(self.key_start)
        full = (self.input_tokens + self.output_tokens) // self.page_tokens
        if (held > full).any():
            where = int(np.argmax(held > full))
            raise WorkloadError(f"request {where}: more keys than full pages")
        if self.keys.size and not 0 <= self.keys.min() <= self.keys.max() < self.given_keys:
            raise WorkloadError(f"requests: keys must be from 0 to {self.given_keys - 1}")
        if self.given_keys + int(self.own_pages().sum()) > MOST_KEYS:
            raise WorkloadError("requests: more pages than an int32 can number")

    def __len__(self) -> int:
        """Return how many requests there are."""
        return int(self.arrival_ns.shape[0])

    def own_pages(self) -> np.ndarray:
        """Return how many keys of its own each request needs, over all its samples, int64."""
        full = (self.input_tokens + self.output_tokens) // self.page_tokens
        return (full - np.diff(self.key_start)) * self.samples


def without_keys(
    page_tokens: int,
    arrival_ns: np.ndarray,
    input_tokens: np.ndarray,
    output_tokens: np.ndarray,
    *,
    priority: np.ndarray | None = None,
    samples: np.ndarray | None = None,
) -> Requests:
    """Return requests that share no prefix with each other.

    Parameters
    ----------
    page_tokens : int
    arrival_ns, input_tokens, output_tokens : int64 [requests]
    priority, samples : int64 [requests], optional
        0 and 1 each where they are not given.
    """
    count = arrival_ns.shape[0]
    return Requests(
        page_tokens=page_tokens,
        arrival_ns=arrival_ns,
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        priority=np.zeros(count, np.int64) if priority is None else priority,
        samples=np.ones(count, np.int64) if samples is None else samples,
        keys=np.zeros(0, np.int32),
        key_start=np.zeros(count + 1, np.int64),
        given_keys=0,
    )
