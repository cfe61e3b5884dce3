"""The serving engine's arrays: how they are made from requests and settings."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from kvsim.engine.serving import fields as s
from kvsim.workload.requests import Requests

FOREVER = 1 << 62


class Serving(NamedTuple):
    """Everything that the engine's kernels read and write beside the ledger's arrays.

    Attributes
    ----------
    state : int64 [STATE_SIZE]
    requests : int64 [requests and forks of samples, REQUEST_FIELDS]
    keys : int32 [given keys of all requests]
    page_of : int32 [key]
        The prefix index; of length 0 without a prefix cache.
    running : int64 [max_running]
        Members in running order.
    calendar : int32 [page_tokens + 1, max_running + 1]
        Members by the step, modulo the rows, at which they have to be looked at; the last column
        counts them.
    today, tomorrow : int64 [max_running]
        Scratch: the members of one day.
    heap : int64 [waiting requests]
        The waiting queue under admission by priority.
    hits : int64 [most pages of a request]
        Scratch: the pages that a request finds.
    due : int64 [max_running]
        Requests that Python evicts from.
    draws : int64 [2, most tokens of a request or 0]
        Scratch of victim selection.
    means : float64 [2, most runs of a request or 0]
        Scratch of victim selection by runs.
    candidates : int64 [arena * page_tokens or 0, 2]
        A heap of (priority, slot) for each table, where single tokens of fixed random priority are
        evicted at each step.
    starts, victims, scratch : int64
        Arguments of the ledger's evict.
    cost : float64
        Coefficients of the cost model.
    fraction : float64 [1]
        What a budget keeps, if KEPT is 0.
    """

    state: np.ndarray
    requests: np.ndarray
    keys: np.ndarray
    page_of: np.ndarray
    running: np.ndarray
    calendar: np.ndarray
    today: np.ndarray
    tomorrow: np.ndarray
    heap: np.ndarray
    hits: np.ndarray
    due: np.ndarray
    draws: np.ndarray
    means: np.ndarray
    candidates: np.ndarray
    starts: np.ndarray
    victims: np.ndarray
    scratch: np.ndarray
    cost: np.ndarray
    fraction: np.ndarray


def request_rows(requests: Requests) -> np.ndarray:
    """Return the rows of all requests, and behind them one for each fork of a sample."""
    arrived = len(requests)
    forks = requests.samples - 1
    rows = np.zeros((arrived + int(forks.sum()), s.REQUEST_FIELDS), np.int64)
    first = rows[:arrived]
    for column, values in (
        (s.ARRIVAL_NS, requests.arrival_ns),
        (s.INPUT, requests.input_tokens),
        (s.OUTPUT, requests.output_tokens),
        (s.PRIORITY, requests.priority),
        (s.SAMPLES, requests.samples),
        (s.KEYS, requests.key_start[:-1]),
        (s.KEY_COUNT, np.diff(requests.key_start)),
    ):
        first[:, column] = values
    first[:, s.PARENT] = -1
    first[:, s.FIRST_CHILD] = arrived + np.cumsum(forks) - forks
    if rows.shape[0] > arrived:
        parents = np.repeat(np.arange(arrived), forks)
        rows[arrived:] = first[parents]
        rows[arrived:, s.PARENT] = parents
        rows[arrived:, s.SAMPLES] = 1
        # Only the prompt is the parent's; what a fork generates is its own.
        prompt = rows[arrived:, s.INPUT] // requests.page_tokens
        rows[arrived:, s.KEY_COUNT] = np.minimum(rows[arrived:, s.KEY_COUNT], prompt)
    # Own keys lie behind the given ones, in the order of the rows.
    full = (rows[:, s.INPUT] + rows[:, s.OUTPUT]) // requests.page_tokens
    own = full - rows[:, s.KEY_COUNT]
    rows[:, s.OWN_KEY] = requests.given_keys + np.cumsum(own) - own - rows[:, s.KEY_COUNT]
    rows[:, s.SEQUENCE] = -1
    rows[:, s.NEXT] = -1
    rows[:, s.PREVIOUS] = -1
    rows[:, s.NUMBER] = np.arange(rows.shape[0])
    rows[:, s.PROMPT_PAGES] = rows[:, s.INPUT] // requests.page_tokens
    rows[:, s.PROMPT_KEY] = rows[:, s.OWN_KEY]
    forked = rows[:, s.PARENT] >= 0
    for column in (s.NUMBER, s.PROMPT_KEY):
        rows[forked, column] = rows[rows[forked, s.PARENT], column]
    for column in (s.SCHEDULED_NS, s.FIRST_NS, s.LAST_NS):
        rows[:, column] = -1
    return rows


def all_keys(requests: Requests, rows: np.ndarray) -> int:
    """Return how many keys there are, given ones and those of single requests."""
    full = (rows[:, s.INPUT] + rows[:, s.OUTPUT]) // requests.page_tokens
    return int(requests.given_keys + (full - rows[:, s.KEY_COUNT]).sum())
