"""No hit ever returns a page whose bytes differ from a dense prefill's: rule 10 of the ledger.

The engine moves counters; `serving_rows` keeps real rows beside it and compares them as integers.
The controls tamper with the engine's arrays, and the comparison has to find it.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from kvsim.engine.costs.roofline import COEFFICIENTS
from kvsim.engine.serving import fields as s
from kvsim.engine.serving.engine import ServingEngine
from kvsim.engine.serving.settings import Eviction, Settings
from kvsim.paging import Order
from kvsim.paging import fields as f
from kvsim.workload.requests import Requests
from tests.engine.serving_fuzz import LEDGER, STATE
from tests.engine.serving_rows import WrongBytes
from tests.engine.serving_rows_cases import Case, Watch, draw, drive, make, play

DAILY = 70
NIGHTLY = int(os.environ.get("KVSIM_ROWS_SCENARIOS", "2000"))
MS = 1_000_000
# What the drawn scenarios have to reach, or they would not test what they are for.
REACHED = ("hits", "evicted", "preempted", "swapped", "cancelled", "copied", "reclaimed", "parked")


def _cost() -> np.ndarray:
    """A step takes a millisecond, whatever it does."""
    cost = np.zeros(COEFFICIENTS)
    cost[2] = cost[5] = cost[6] = 1e30
    cost[7] = MS
    return cost


def _case(rows: list[tuple[int, int, int, int, list[int]]], **settings: object) -> Case:
    """Rows of (arrival in ms, priority, input, output, keys); pages have 4 tokens."""
    keys = [key for row in rows for key in row[4]]
    requests = Requests(
        page_tokens=4,
        arrival_ns=np.array([row[0] * MS for row in rows]),
        priority=np.array([row[1] for row in rows]),
        input_tokens=np.array([row[2] for row in rows]),
        output_tokens=np.array([row[3] for row in rows]),
        samples=np.ones(len(rows), np.int64),
        keys=np.array(keys, np.int32),
        key_start=np.cumsum([0, *(len(row[4]) for row in rows)]),
        given_keys=max(keys, default=-1) + 1,
    )
    chosen = {"step_tokens": 32, "max_running": 4, "prefix": "blocks", **settings}
    return Case(requests, Settings(**chosen), cost=_cost())  # type: ignore[arg-type]


def _reached(engine: ServingEngine, hits: int, steps: Counter[str]) -> Counter[str]:
    scalars, state = engine.ledger.arrays.scalars, engine.state
    return Counter(
        hits=hits,
        evicted=int(state[s.EVICTED_TOTAL]),
        preempted=int(state[s.PREEMPTIONS_TOTAL]),
        swapped=int(state[s.SWAPPED_PAGES_TOTAL]),
        cancelled=int(state[s.CANCELLED]),
        copied=int(scalars[f.COW_TOTAL]),
        reclaimed=int(scalars[f.RECLAIMED_TOTAL]),
        parked=steps["parked"],
    )


def _play(seed: int) -> Counter[str]:
    steps: Counter[str] = Counter()

    def watch(engine: ServingEngine) -> None:
        engine.check()
        steps["parked"] += int(engine.ledger.total(f.PARKED) > 0)

    try:
        _, engine, shadow = play(draw(np.random.default_rng(seed)), watch=watch)
    except AssertionError as error:
        error.add_note(f"seed {seed}")
        raise
    return _reached(engine, shadow.hits, steps)


def test_no_hit_returns_other_bytes_than_a_dense_prefill() -> None:
    total: Counter[str] = Counter()
    for seed in range(DAILY):
        total += _play(seed)
    assert all(total[what] >= DAILY // 10 for what in REACHED), total
    assert total["hits"] >= DAILY, total


def test_hits_stay_true_where_cached_pages_are_trimmed() -> None:
    taken = hits = 0
    for seed in range(20):
        rng = np.random.default_rng(seed)

        def trim(engine: ServingEngine, rng: np.random.Generator = rng) -> None:
            nonlocal taken
            cached = np.flatnonzero(engine.ledger.arrays.pages[f.STATE, :-1] == f.CACHED_PAGE)
            victims = rng.permutation(cached)[: int(rng.integers(0, 3))].tolist()
            engine.forget_cached(victims)
            taken += len(victims)
            engine.check()

        hits += play(draw(np.random.default_rng(seed)), watch=trim)[2].hits
    assert taken > 20
    assert hits > 20


@pytest.mark.nightly
def test_no_hit_returns_other_bytes_in_many_scenarios() -> None:
    for seed in range(DAILY, NIGHTLY):
        _play(seed)


def test_the_loop_that_is_watched_is_the_one_that_runs() -> None:
    # Watched, the step loop runs uncompiled from its source; compiled, it has the same totals.
    for seed in range(12):
        case = draw(np.random.default_rng(seed))
        outcome, watched, _ = play(case)
        engine = make(case)
        assert drive(engine, case, lambda e: e.check()) == outcome
        assert (engine.state[list(STATE)] == watched.state[list(STATE)]).all()
        ours, theirs = engine.ledger.arrays.scalars, watched.ledger.arrays.scalars
        assert (ours[list(LEDGER)] == theirs[list(LEDGER)]).all()
        assert (engine.rows == watched.rows).all()


# Found by it, each reduced to its smallest case


@pytest.mark.parametrize("order", ["oldest", "none"])
@pytest.mark.parametrize("preemption", ["recompute", "swap"])
def test_a_page_whose_last_row_is_withdrawn_is_no_hit(preemption: str, order: str) -> None:
    # Requests 0 and 1 begin with the same page; 1 computes it too, so its own copy has no key. In
    # the fifth step the eighth row of each fills its second page, and then request 2 needs a page
    # of the pool's five. Under pressure both are evicted from, which frees nothing, and then 1, the
    # less urgent, is preempted: its eighth row is never computed. Its page without a key is taken;
    # the other one must not be found by request 3, which begins with the same two pages.
    case = _case(
        [(0, 0, 4, 8, [0]), (0, 1, 4, 8, [0, 1]), (3, 0, 4, 2, []), (5, 0, 9, 1, [0, 1])],
        ceiling_pages=5,
        admission="priority",
        preemption=preemption,
        eviction=Eviction(order=order, when="pressure", tokens=7),
    )
    outcome, engine, shadow = play(case)
    assert outcome == "completed"
    assert engine.state[s.PREEMPTIONS_TOTAL] >= 1
    assert shadow.hits >= 1


def test_a_row_written_under_pressure_publishes_nothing() -> None:
    # Request 0 fills its second page in the step in which it is evicted from: that row attends to
    # less than a dense one, so the page has no key though nobody is preempted.
    case = _case(
        [(0, 0, 4, 9, [0]), (3, 0, 4, 2, [])],
        ceiling_pages=3,
        eviction=Eviction(order="oldest", when="pressure", tokens=4),
    )
    keys = []

    def watch(engine: ServingEngine) -> None:
        engine.check()
        keys.append(sorted(engine.ledger.arrays.pages[f.KEY, :-1].tolist()))

    outcome, engine, _ = play(case, watch=watch)
    assert outcome == "completed"
    assert engine.state[s.PREEMPTIONS_TOTAL] == 0
    assert engine.rows[0, s.EVICTED] >= 4
    # Its first page, emptied, went to request 1, whose prompt alone has a key.
    assert keys[3:5] == [[0, 1, 4], [0, 0, 4]]


@pytest.mark.parametrize("positions", ["keep", "renumber"])
@pytest.mark.parametrize("compaction", ["none", "rebuild", "forward", "hole_fill"])
def test_a_swap_ends_nothing_that_python_remembers(compaction: str, positions: str) -> None:
    # Request 0 is evicted from by Python, then has its row of a step when request 1, which is more
    # urgent and stands behind it, needs a page: it is swapped, and its row withdrawn. Python once
    # took it for a new sequence afterwards, and its next row stood at the position behind.
    case = _case(
        [(0, 1, 6, 20, []), (7, 0, 4, 8, [])],
        # Compacted in place, the two never hold more than six pages.
        ceiling_pages=5 if compaction in ("forward", "hole_fill") else 6,
        admission="priority",
        preemption="swap",
        eviction=Eviction(order="ask", when="step", tokens=9),
    )
    ordering = Order(compaction=compaction, positions=positions)
    evicted = []

    def watch(engine: ServingEngine) -> None:
        engine.check()
        if engine.rows[0, s.STATUS] == s.SWAPPED:
            evicted.append(int(engine.rows[0, s.EVICTED]))

    outcome, engine, _ = play(replace(case, ordering=ordering), watch=watch)
    assert outcome == "completed"
    assert evicted
    assert 0 < evicted[0] < engine.rows[0, s.EVICTED]


# Controls: each has to be found, or the comparison proves nothing


def _found(case: Case, tamper: Watch, match: str) -> None:
    """Without tampering nothing differs; with it a hit does."""
    _, engine, _ = play(case, audits=False)
    assert engine.state[s.FINISHED] == len(case.requests)
    with pytest.raises(WrongBytes, match=match):
        play(case, audits=False, watch=tamper)
    with pytest.raises(WrongBytes):
        play(case, watch=tamper)


def test_control_an_evicted_sequence_publishes() -> None:
    case = _case(
        [(0, 0, 5, 8, [0, 1]), (9, 0, 9, 1, [0, 1])],
        ceiling_pages=8,
        eviction=Eviction(order="oldest", tokens=3),
    )

    def tamper(engine: ServingEngine) -> None:
        row, arrays = engine.rows[0], engine.ledger.arrays
        if row[s.STATUS] == s.DECODES and row[s.INPUT] + row[s.GENERATED] >= 9:
            page = int(arrays.entries[f.PAGE, arrays.tables[row[s.SEQUENCE], f.START] + 1])
            arrays.pages[f.KEY, page] = 1 + 1
            engine.serving.page_of[1] = page

    _found(case, tamper, "hit: .* as page 1 of request 1: .* words of K differ")


def test_control_a_page_keeps_its_key_when_it_is_taken() -> None:
    # Request 1 takes the page that request 0 left for its own ninth row, and request 2 arrives.
    case = _case(
        [(0, 0, 4, 1, [0]), (2, 0, 4, 9, []), (9, 0, 5, 1, [0])], ceiling_pages=3, unhashed="tail"
    )

    def tamper(engine: ServingEngine) -> None:
        pages = engine.ledger.arrays.pages
        if engine.ledger.total(f.RECLAIMED_TOTAL):
            pages[f.KEY, engine.serving.page_of[0]] = 0 + 1

    _found(case, tamper, "hit: .* as page 0 of request 2")


def test_control_a_key_of_another_chain() -> None:
    # Requests 0 and 1 begin with other tokens, and a hash that collides gives them one key.
    case = _case([(0, 0, 5, 1, [0]), (2, 0, 5, 1, [1])], ceiling_pages=8)

    def tamper(engine: ServingEngine) -> None:
        engine.serving = engine.serving._replace(keys=np.zeros(2, np.int32))

    _found(case, tamper, "hit: .* as page 0 of request 1")


def test_control_a_row_that_is_off_by_one_bit() -> None:
    # The comparison is of integers: -0.0 is not 0.0, and the last bit counts.
    case = _case([(0, 0, 5, 1, [0]), (2, 0, 5, 1, [0])], ceiling_pages=8)

    def tamper(engine: ServingEngine) -> None:
        page = int(engine.serving.page_of[0])
        rows = engine.ledger.store._rows  # type: ignore[attr-defined]
        if engine.state[s.STEP] == 1:
            rows.planes[0]["V"].view(np.uint32)[page * 4 + 3, 0] ^= 1

    _found(case, tamper, "hit: .* as page 0 of request 1: 1 words of V differ")
