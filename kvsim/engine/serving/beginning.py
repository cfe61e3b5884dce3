"""The arrays that an engine begins with."""

from __future__ import annotations

import numpy as np

from kvsim.engine.serving import fields as s
from kvsim.engine.serving.arrays import Serving, all_keys
from kvsim.engine.serving.radix_arrays import tree_of
from kvsim.engine.serving.settings import (
    ADMISSIONS,
    CACHES,
    EVICTIONS,
    MOMENTS,
    PREEMPTIONS,
    PUBLICATIONS,
    Settings,
)
from kvsim.paging import Order
from kvsim.paging import fields as f
from kvsim.paging.arrays import Arrays
from kvsim.workload.requests import Requests


def beginning_state(
    requests: Requests, settings: Settings, ceiling: int, touch_all: bool
) -> np.ndarray:
    """Return the scalars that an engine begins with, int64 [STATE_SIZE]."""
    eviction = settings.eviction
    state = np.zeros(s.STATE_SIZE, np.int64)
    for field, value in (
        (s.WAIT_HEAD, -1),
        (s.WAIT_TAIL, -1),
        (s.BLOCKED, -1),
        (s.ARRIVED, len(requests)),
        (s.GIVEN_KEYS, requests.given_keys),
        (s.CEILING, ceiling),
        (s.WATERMARK, int(settings.watermark * settings.ceiling_pages)),
        (s.STEP_TOKENS, settings.step_tokens),
        (s.MAX_RUNNING, settings.max_running),
        (s.CHUNKED, settings.chunked),
        (s.ADMISSION, ADMISSIONS[settings.admission]),
        (s.PREEMPTION, PREEMPTIONS[settings.preemption]),
        (s.PREFIX, CACHES[settings.prefix]),
        (s.PUBLISH, PUBLICATIONS[settings.publish]),
        (s.EVICTION, EVICTIONS[eviction.order]),
        (s.WHEN, MOMENTS[eviction.when]),
        (s.PRESSURE, eviction.when == "pressure" and eviction.order != "none"),
        (s.RUN_TOKENS, eviction.run_tokens),
        (s.KEPT, eviction.tokens),
        (s.SINKS, eviction.sinks),
        (s.RECENT, eviction.recent),
        (s.SEED, eviction.seed),
        (s.PLANES, settings.planes),
        (s.TOUCH_ALL, touch_all),
    ):
        state[field] = value
    return state


def serving_arrays(
    requests: Requests,
    rows: np.ndarray,
    settings: Settings,
    ordering: Order,
    cost: np.ndarray,
    ledger: Arrays,
    touch_all: bool,
) -> Serving:
    """Return arrays for all requests of a trace.

    Parameters
    ----------
    requests : Requests
    rows : int64 [requests and forks, REQUEST_FIELDS]
    settings : Settings
    ordering : Order
    cost : float64
    ledger : Arrays
    touch_all : bool
        Whether every member is looked at in every step.
    """
    page_tokens = requests.page_tokens
    seats = settings.max_running
    longest = int((rows[:, s.INPUT] + rows[:, s.OUTPUT]).max())
    evicts = settings.eviction.order in ("oldest", "random")
    choosing = longest if evicts else 0
    return Serving(
        state=beginning_state(requests, settings, int(ledger.scalars[f.CEILING]), touch_all),
        requests=rows,
        keys=requests.keys,
        page_of=np.full(all_keys(requests, rows) if settings.prefix != "none" else 0, -1, np.int32),
        tree=tree_of(int(ledger.scalars[f.PAGES]) if settings.prefix == "radix" else 0),
        running=np.zeros(seats, np.int64),
        calendar=np.zeros((page_tokens + 1, seats + 1), np.int32),
        today=np.zeros(seats, np.int64),
        tomorrow=np.zeros(seats, np.int64),
        heap=np.zeros(rows.shape[0] + 1, np.int64),
        hits=np.zeros(longest // page_tokens + 1, np.int64),
        due=np.zeros(seats, np.int64),
        draws=np.zeros((2, choosing), np.int64),
        candidates=np.zeros((0, 2), np.int64),
        means=np.zeros((2, choosing // settings.eviction.run_tokens + 1)),
        starts=np.zeros(2, np.int64),
        victims=np.zeros(choosing, np.int64),
        scratch=np.zeros(
            longest + 2 if ordering.stored or ordering.renumbers_alone else 0, np.int64
        ),
        cost=cost,
        fraction=np.array([settings.eviction.fraction]),
    )
