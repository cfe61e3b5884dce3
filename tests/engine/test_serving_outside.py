"""What comes from outside: live requests, branches, pull-backs, beams, a background compactor."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

from kvsim.engine.serving import fields as s
from kvsim.engine.serving import outside
from kvsim.engine.serving.drive import Drive, Foreign
from kvsim.engine.serving.engine import ServingEngine
from kvsim.errors import Infeasible, LedgerError, WorkloadError
from kvsim.paging import Order, single
from kvsim.paging import fields as f
from tests.engine.serving_fuzz import COST, LEDGER, STATE, draw
from tests.engine.test_serving_golden import MS, _engine, _requests

CASES = 60


def _pages(engine: ServingEngine, request: int) -> list[int]:
    arrays = engine.ledger.arrays
    sequence = int(engine.rows[request, s.SEQUENCE])
    table = arrays.tables[sequence]
    start = int(table[f.START])
    return arrays.entries[f.PAGE, start : start + int(table[f.ENTRIES])].tolist()


def test_a_branch_shares_what_its_parent_has_and_copies_on_write() -> None:
    # 6 prompt tokens in 2 pages of 4; at 2 ms 8 tokens are known and 7 have a row. The branch
    # begins with all of them and 3 more, 11 in all: 7 rows are shared and 4 are prefilled, the
    # first of them into a copy of the second page.
    engine = _engine(_requests([(0, 6, 8, [])]), ceiling_pages=8, max_running=2)
    seen = []

    def act(e: ServingEngine) -> None:
        seen.append(outside.branch(e, 0, 1_000, 3, 2))
        seen.append((_pages(e, 0), _pages(e, 1), e.known_tokens(0)))
        e.check()

    Drive(engine, (Foreign(2 * MS, act),), every_steps=1, watch=lambda e: e.check()).run()
    assert seen == [(1, True), ([0, 1], [0, 1], 8)]
    row = engine.rows[1]
    assert row[[s.INPUT, s.OUTPUT, s.HIT_TOKENS]].tolist() == [11, 2, 7]
    # The parent's next row comes first and takes the copy; the branch then owns the old page.
    assert engine.ledger.total(f.COW_TOTAL) == 1
    assert engine.ledger.total(f.COPIED_ROWS_TOTAL) == 3
    # Its prefill and first token in the third step, its second one in the fourth.
    assert row[[s.FIRST_NS, s.LAST_NS]].tolist() == [3 * MS, 4 * MS]
    # 6 tokens of the parent's prompt and the 4 that the branch did not share.
    assert int(engine.state[s.PREFILLED_TOTAL]) == 10


def test_a_pull_back_into_a_known_page_gets_its_copy_at_once() -> None:
    # At 1 ms the parent's 8 prompt tokens fill 2 pages, both in the index. The branch keeps 6:
    # the first page is shared, 2 rows of the second are copied into a page of its own, and the
    # known page stays as it is for a request with the same prompt.
    engine = _engine(
        _requests([(0, 8, 8, [0, 1]), (4, 9, 1, [0, 1])]),
        ceiling_pages=12,
        max_running=4,
        prefix="blocks",
    )
    seen = []

    def act(e: ServingEngine) -> None:
        number, shared = outside.branch(e, 0, 6, 5, 1)
        seen.append((number, shared, _pages(e, 0), _pages(e, number)))
        e.check()

    Drive(engine, (Foreign(1 * MS, act),), every_steps=1, watch=lambda e: e.check()).run()
    assert seen == [(2, True, [0, 1], [0, 2])]
    assert engine.ledger.total(f.COPIED_ROWS_TOTAL) == 2
    assert engine.rows[2, s.HIT_TOKENS] == 6
    assert engine.rows[1, s.HIT_TOKENS] == 8


def test_a_branch_without_a_seat_waits_and_finds_its_parents_pages() -> None:
    # One seat: the branch waits until its parent has left, and finds the pages that it filled,
    # one of which holds generated tokens: 6 + 2 known tokens are its first 8.
    engine = _engine(_requests([(0, 6, 6, [])]), ceiling_pages=8, max_running=1, prefix="blocks")
    seen = []
    act = Foreign(2 * MS, lambda e: seen.append(outside.branch(e, 0, 8, 4, 1)))
    Drive(engine, (act,), every_steps=1, watch=lambda e: e.check()).run()
    assert seen == [(1, False)]
    assert engine.rows[1, [s.HIT_TOKENS, s.FIRST_NS]].tolist() == [8, 7 * MS]


def test_a_beam_that_is_given_up_becomes_a_copy_of_another() -> None:
    # 4 prompt tokens in a page of 4; two beams. At 3 ms each has 2 rows in a page of its own.
    # The second becomes a copy of the first: its page is free, and the next row of one copies.
    engine = _engine(_requests([(0, 4, 8, [])], samples=2), ceiling_pages=8, max_running=2)
    seen = []

    def act(e: ServingEngine) -> None:
        held = e.ledger.total(f.HELD)
        outside.rejoin(e, 1, 0)
        seen.append((held, e.ledger.total(f.HELD), _pages(e, 0) == _pages(e, 1)))
        e.check()

    Drive(engine, (Foreign(3 * MS, act),), every_steps=1, watch=lambda e: e.check()).run()
    assert seen == [(3, 2, True)]
    assert engine.ledger.total(f.COW_TOTAL) == 1
    assert engine.ledger.total(f.COPIED_ROWS_TOTAL) == 2
    assert int(engine.state[s.FINISHED]) == 2


def test_beams_and_an_index_of_generated_pages_contradict_each_other() -> None:
    engine = _engine(
        _requests([(0, 4, 8, [])], samples=2), ceiling_pages=8, max_running=2, prefix="blocks"
    )

    def act(e: ServingEngine) -> None:
        with pytest.raises(LedgerError, match=r"prefix\.publish"):
            outside.rejoin(e, 1, 0)
        with pytest.raises(LedgerError, match="not two"):
            outside.rejoin(e, 1, 1)
        e.check()

    Drive(engine, (Foreign(3 * MS, act),)).run()


def test_a_live_request_joins_the_queue_with_the_keys_it_is_given() -> None:
    engine = _engine(
        _requests([(0, 8, 6, [0, 1])]), ceiling_pages=8, max_running=2, prefix="blocks"
    )
    act = Foreign(2 * MS, lambda e: outside.submit(e, 9, 2, keys=[0, 1]))
    Drive(engine, (act,), every_steps=1, watch=lambda e: e.check()).run()
    row = engine.rows[1]
    assert row[[s.ARRIVAL_NS, s.HIT_TOKENS, s.LAST_NS]].tolist() == [2 * MS, 8, 4 * MS]
    for bad in ((0, 1, []), (4, -1, []), (4, 0, [0, 1])):
        with pytest.raises(WorkloadError):
            outside.submit(engine, bad[0], bad[1], keys=bad[2])
    assert engine.count == 2


def test_a_background_compactor_empties_pages() -> None:
    # 16 prompt tokens of which 8 random ones stay: compacted they need 2 pages of 4, and the
    # ninth live token a third.
    requests = _requests([(0, 16, 6, [])])
    engine = _engine(requests, ceiling_pages=16, max_running=2)
    settings = replace(
        engine.settings,
        eviction=replace(engine.settings.eviction, order="random", tokens=8, when="prefill_end"),
    )
    ordering = Order(compaction="rebuild", positions="keep")
    engine = ServingEngine(requests, settings, engine.serving.cost, single(), ordering=ordering)
    seen = []

    def act(e: ServingEngine) -> None:
        before = e.ledger.total(f.HELD)
        assert outside.compact(e, 0)
        seen.append((before, e.ledger.total(f.HELD)))
        e.check()

    Drive(engine, (Foreign(2 * MS, act),), every_steps=1, watch=lambda e: e.check()).run()
    ((before, after),) = seen
    assert after == 3 <= before


@dataclass(frozen=True)
class Event:
    """Something drawn to happen at a time; numbers are taken modulo what there is then."""

    at_ns: int
    kind: str
    one: int
    other: int
    tokens: int
    output: int


def _draw_events(rng: np.random.Generator) -> list[Event]:
    kinds = ["branch", "branch", "branch", "submit", "rejoin", "rejoin", "cancel"]
    times = np.sort(rng.integers(0, 3 * 10**7, int(rng.integers(1, 12))))
    return [
        Event(int(at), str(rng.choice(kinds)), *(int(x) for x in rng.integers(0, 60, 4)))
        for at in times
    ]


def _act(engine: ServingEngine, event: Event, done: dict[str, int]) -> None:
    one, other = event.one % engine.count, event.other % engine.count
    decoding = np.flatnonzero(engine.rows[:, s.STATUS] == s.DECODES).tolist()
    if decoding and event.other % 4:
        one = decoding[event.one % len(decoding)]
    name = event.kind
    if name == "submit":
        keys = outside.keys_of(engine, one, min(1, int(engine.rows[one, s.KEY_COUNT])))
        outside.submit(engine, event.tokens + engine.ledger.page_tokens, event.output, keys=keys)
    elif name == "branch":
        tokens = 1000 if event.tokens % 3 == 0 else 1 + event.tokens
        _, shared = outside.branch(engine, one, tokens, event.other % 5, event.output)
        name = "shared" if shared else "queued"
    elif name == "rejoin":
        known: dict[int, int] = {}
        for member in decoding:
            twin = known.setdefault(engine.known_tokens(member), member)
            if (
                twin != member
                and (engine.settings.prefix == "none" or engine.settings.publish == "prompt")
                and engine.rows[twin, s.INPUT] == engine.rows[member, s.INPUT]
            ):
                outside.rejoin(engine, member, twin)
                done[name] = done.get(name, 0) + 1
                break
        return
    else:
        engine.cancel(other)
    done[name] = done.get(name, 0) + 1


def _play(seed: int, *, leaping: bool, checking: bool) -> tuple[object, dict[str, int]]:
    rng = np.random.default_rng(seed)
    case = draw(rng)
    events = _draw_events(rng)
    requests, settings = case.requests, case.settings
    if seed % 2:
        # Beams: they have samples, and an index knows no page of theirs.
        settings = replace(settings, publish="prompt", max_running=12, step_tokens=72)
        requests = replace(requests, samples=np.full(len(requests), 2 + seed % 3))
    engine = ServingEngine(requests, settings, COST, single())
    done: dict[str, int] = {}
    foreign = [
        Foreign(event.at_ns, lambda e, event=event: _act(e, event, done))  # type: ignore[misc]
        for event in events
    ]
    outcome = "completed"
    watch = (lambda e: e.check()) if checking else None
    try:
        Drive(engine, tuple(foreign), leaping=leaping, every_steps=int(checking), watch=watch).run()
    except Infeasible as refusal:
        outcome = str(refusal)
    engine.check()
    scalars = engine.ledger.arrays.scalars
    totals = [int(engine.state[x]) for x in STATE] + [int(scalars[x]) for x in LEDGER]
    columns = [s.STATUS, s.FIRST_NS, s.LAST_NS, s.PREEMPTIONS, s.HIT_TOKENS, s.EVICTED]
    return (outcome, totals, engine.rows[:, columns].tolist()), done


def test_everything_ends_and_stays_accounted_for() -> None:
    done: dict[str, int] = {}
    for seed in range(CASES):
        leaping, happened = _play(seed, leaping=True, checking=False)
        stepping, _ = _play(seed, leaping=False, checking=True)
        assert leaping == stepping, seed
        for name, times in happened.items():
            done[name] = done.get(name, 0) + times
    # All of it took place, and often.
    assert {"submit", "shared", "queued", "rejoin", "cancel"} <= set(done)
    assert min(done.values()) >= 5, done
