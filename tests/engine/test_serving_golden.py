"""Small scenarios of the serving engine, with every number worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from kvsim.engine.costs.roofline import COEFFICIENTS
from kvsim.engine.serving import fields as s
from kvsim.engine.serving.drive import Drive, Foreign
from kvsim.engine.serving.engine import ServingEngine
from kvsim.engine.serving.settings import Settings
from kvsim.errors import Infeasible
from kvsim.paging import fields as f
from kvsim.paging import single
from kvsim.workload.requests import Requests

MS = 1_000_000


def _cost() -> np.ndarray:
    """A step takes a millisecond, whatever it does."""
    cost = np.zeros(COEFFICIENTS)
    cost[2] = cost[5] = cost[6] = 1e30
    cost[7] = MS
    return cost


def _requests(rows: list[tuple[int, int, int, list[int]]], samples: int = 1) -> Requests:
    """Rows of (arrival in ms, input, output, keys); pages have 4 tokens."""
    keys = [key for row in rows for key in row[3]]
    count = len(rows)
    return Requests(
        page_tokens=4,
        arrival_ns=np.array([row[0] * MS for row in rows]),
        input_tokens=np.array([row[1] for row in rows]),
        output_tokens=np.array([row[2] for row in rows]),
        priority=np.zeros(count, np.int64),
        samples=np.full(count, samples),
        keys=np.array(keys, np.int32),
        key_start=np.cumsum([0, *(len(row[3]) for row in rows)]),
        given_keys=max(keys, default=-1) + 1,
    )


def _engine(requests: Requests, **settings: object) -> ServingEngine:
    return ServingEngine(requests, Settings(**settings), _cost(), single())  # type: ignore[arg-type]


def _total(engine: ServingEngine, field: int) -> int:
    return int(engine.state[field])


def test_dense_prefix_reuse() -> None:
    # The second prompt begins with the two pages of the first, which has left by then: they are
    # cached, and a third page of its own is computed.
    engine = _engine(
        _requests([(0, 9, 1, [0, 1]), (5, 12, 1, [0, 1, 2])]), ceiling_pages=8, prefix="blocks"
    )
    Drive(engine, every_steps=1, watch=lambda e: e.check()).run()
    assert _total(engine, s.HIT_TOKENS_TOTAL) == 8
    assert _total(engine, s.PREFILLED_TOTAL) == 9 + 4
    assert engine.ledger.total(f.ALLOCATED_TOTAL) == 3 + 1
    assert engine.ledger.total(f.REVIVED_TOTAL) == 2
    # Pages 0, 1 and 2 stay cached; the partial page of the first request is free.
    assert engine.ledger.total(f.CACHED) == 3


def test_a_whole_prompt_is_never_a_hit() -> None:
    # Its last token has to be computed, so of 8 tokens in two known pages one page is a hit.
    engine = _engine(
        _requests([(0, 8, 1, [0, 1]), (5, 8, 1, [0, 1])]), ceiling_pages=8, prefix="blocks"
    )
    engine.run()
    assert _total(engine, s.HIT_TOKENS_TOTAL) == 4


def test_pool_pressure_preempts_the_last_and_computes_it_again() -> None:
    # Two prompts of 4 tokens fill 2 of 3 pages. In the second step both need a page: the first
    # takes the third, and the second is preempted with one token generated. The first writes 4
    # rows behind its prompt (5 tokens), then the second computes 4 + 1 tokens again.
    engine = _engine(
        _requests([(0, 4, 5, []), (0, 4, 5, [])]), ceiling_pages=3, step_tokens=8, max_running=2
    )
    Drive(engine, every_steps=1, watch=lambda e: e.check()).run()
    assert _total(engine, s.PREEMPTIONS_TOTAL) == 1
    assert _total(engine, s.PREFILLED_TOTAL) == 4 + 4 + 5
    assert _total(engine, s.GENERATED_TOTAL) == 10
    # The first ends with step 5; the second generates its second token in step 6, and 3 more.
    assert engine.rows[:, s.LAST_NS].tolist() == [5 * MS, 9 * MS]


def test_a_page_that_a_withdrawn_row_would_have_filled_has_no_key() -> None:
    # The first request is the less urgent one. In the third step its row fills its page, and then
    # the second needs a page of the pool's two: the first is preempted, and its page, whose last
    # row is never written, is free and not cached. Taking it reclaims nothing.
    requests = replace(
        _requests([(0, 2, 4, []), (1, 4, 2, [])]), priority=np.array([1, 0], np.int64)
    )
    engine = _engine(
        requests,
        ceiling_pages=2,
        step_tokens=8,
        max_running=2,
        admission="priority",
        prefix="blocks",
    )
    seen = []

    def watch(e: ServingEngine) -> None:
        seen.append((_total(e, s.PREEMPTIONS_TOTAL), e.ledger.total(f.RECLAIMED_TOTAL)))
        e.check()

    Drive(engine, every_steps=1, watch=watch).run()
    assert seen[:3] == [(0, 0), (0, 0), (1, 0)]


def test_shared_ownership_ends_in_one_step() -> None:
    # Two samples of one prompt of 8 tokens share its 2 pages until both end in the same step.
    engine = _engine(_requests([(0, 8, 3, [])], samples=2), ceiling_pages=8, max_running=2)
    owners = []

    def watch(e: ServingEngine) -> None:
        counts = e.ledger.arrays.pages[f.REFCOUNT, :-1]
        owners.append(sorted(counts[counts > 0].tolist()))
        e.check()

    Drive(engine, every_steps=1, watch=watch).run()
    # After the prefill the two shared pages; then a fresh page for each; then nothing.
    assert owners == [[2, 2], [1, 1, 2, 2], []]
    assert engine.ledger.total(f.COW_TOTAL) == 0


def test_a_partial_page_is_copied_once_for_two_samples() -> None:
    engine = _engine(_requests([(0, 6, 3, [])], samples=2), ceiling_pages=8, max_running=2)
    engine.run()
    assert engine.ledger.total(f.COW_TOTAL) == 1
    assert engine.ledger.total(f.COPIED_ROWS_TOTAL) == 2


def test_a_cancelled_fork_gives_back_what_only_it_held() -> None:
    # The fork (row 1) leaves after two steps: its own page goes, the shared ones stay.
    engine = _engine(_requests([(0, 8, 6, [])], samples=2), ceiling_pages=8, max_running=2)
    held = []
    Drive(
        engine,
        (Foreign(2 * MS, lambda e: e.cancel(1)),),  # type: ignore[arg-type, return-value]
        every_steps=1,
        watch=lambda e: held.append(e.ledger.held_pages),
    ).run()
    assert held[:3] == [2, 4, 3]
    assert _total(engine, s.CANCELLED) == 1
    assert _total(engine, s.FINISHED) == 1
    engine.check()


def test_a_ceiling_lowered_under_way() -> None:
    # Two members hold 2 pages of 4. At 2 ms the ceiling falls to 2, so the next page that the
    # first needs preempts the second; the pages above the ceiling are parked.
    engine = _engine(
        _requests([(0, 3, 6, []), (0, 3, 6, [])]), ceiling_pages=4, step_tokens=8, max_running=2
    )
    stocks = []

    def watch(e: ServingEngine) -> None:
        scalars = e.ledger.arrays.scalars
        held, parked = int(scalars[f.HELD]), int(scalars[f.PARKED])
        stocks.append((held, parked))
        e.check()

    Drive(engine, (Foreign(2 * MS, lambda e: e.set_ceiling(2)),), every_steps=1, watch=watch).run()
    assert stocks[:3] == [(2, 0), (2, 0), (2, 2)]
    assert _total(engine, s.PREEMPTIONS_TOTAL) == 1
    assert _total(engine, s.FINISHED) == 2


def test_what_cannot_fit_is_infeasible_with_its_reason() -> None:
    engine = _engine(_requests([(0, 40, 2, [])]), ceiling_pages=4, step_tokens=64, max_running=1)
    with pytest.raises(Infeasible, match=r"request 0 of 40 tokens .* 10 pages needed .* 4 in"):
        engine.run()
