"""The engine: who runs when, what is held at which step, and what is left after the end."""

from __future__ import annotations

import loops
import numpy as np
import pytest
from loops import Written, kept

from kvsim.engine import Clock, Engine, Request
from kvsim.errors import Infeasible
from kvsim.paging import fields as f
from kvsim.policies import build

CLOCK = Clock(prefill_token_ns=10, decode_step_ns=1000)
ROOM = 64


def signals(tokens: int = ROOM, seed: int = 0) -> Written:
    return Written(np.random.default_rng(seed).random((1, 1, tokens)))


class Trace:
    """Runs an engine and notes what is held at the end of each step and before the finish."""

    def __init__(self, loop, requests, clock=CLOCK):
        self.loop = loop
        # Step by step, so that there is a trace to see.
        loop.leaps = False
        self.held = []
        self.dense = []
        self.ends = []
        self.before_finish = []
        engine = Engine(loop, requests, self._finish, clock=clock)
        sample = loop.end_step

        def end_step():
            sample()
            loop.ledger.check()
            self.held.append(loop.ledger.held_pages)
            self.dense.append(loop.dense.held_pages)
            self.ends.append([state.appended for state in loop.tracked.values()])

        loop.end_step = end_step
        self.now = engine.run()
        self.steps = engine.steps

    def _finish(self):
        loop = self.loop
        self.before_finish.append(
            {
                "held": loop.ledger.held_pages,
                "freed": loop.ledger.total(f.FREED_TOTAL),
                "cow": loop.ledger.total(f.COW_TOTAL),
                "kept": [kept(loop, sequence) for sequence in loop.tracked],
                "appended": [state.appended for state in loop.tracked.values()],
            }
        )


def request(prompt, decode=0, *, at=0, forks=0, of=None):
    return Request(at, prompt, decode, forks, of or signals())


def test_one_prompt_is_one_step():
    trace = Trace(loops.make(), [request(10)])
    # Half of ten tokens go in the step of the prefill, so they never count at a step's end.
    assert trace.steps == 1
    assert trace.now == 100
    assert trace.ends == [[10]]
    assert trace.dense == [3]
    assert len(trace.before_finish) == 1
    assert [len(tokens) for tokens in trace.before_finish[0]["kept"][0]] == [5]


def test_decode_steps_append_one_token_each_and_are_kept():
    # Four of eight are kept; then three tokens come, one a step, and none of them is evicted.
    loop = loops.make(fraction=0.5)
    trace = Trace(loop, [request(8, 3, of=Written([[[1, 1, 1, 1, 9, 9, 9, 9, 0, 0, 0]]]))])
    assert trace.steps == 4
    assert trace.now == 80 + 3000
    assert trace.ends == [[8], [9], [10], [11]]
    assert trace.before_finish[0]["kept"] == [[[4, 5, 6, 7, 8, 9, 10]]]
    # The first page was freed, the ninth token took a third.
    assert trace.held == [1, 2, 2, 2]
    assert trace.dense == [2, 3, 3, 3]


def test_a_step_ends_after_its_eviction():
    loop = loops.make(page_tokens=1, tokens=2)
    Trace(loop, [request(20, 1)])
    # Twenty pages were held inside the first step, two at its end, three at the next one's.
    assert loop.ledger.total(f.ALLOCATED_TOTAL) == 21
    assert loop.ledger.total(f.HELD_PEAK) == 3
    # An append takes what it keeps; only evicting and compacting have a price of passing pages.
    assert loop.ledger.total(f.EXTRA_PEAK) == 0
    assert loop.dense.total(f.HELD_PEAK) == 21


def test_everything_is_let_go_of_at_the_end_and_no_flow_grows():
    loop = loops.make()
    trace = Trace(loop, [request(30, 5, forks=2), request(9)])
    assert loop.tracked == {}
    assert loop.ledger.held_pages == loop.dense.held_pages == 0
    assert loop.ledger.total(f.FREED_TOTAL) == trace.before_finish[0]["freed"]
    assert loop.ledger.sequences() == []
    loop.ledger.check()


def test_sequences_decode_together_and_stop_alone():
    trace = Trace(loops.make(fraction=1.0), [request(4, 1), request(4, 3)])
    # Both prompts first, one step each; then one step for both, and two for the second alone.
    assert trace.ends == [[4], [4, 4], [5, 5], [5, 6], [5, 7]]
    assert trace.now == 40 + 40 + 3000
    assert trace.before_finish[0]["appended"] == [5, 7]


def test_a_prompt_that_arrives_goes_before_the_next_decode_step():
    trace = Trace(loops.make(fraction=1.0), [request(4, 4), request(4, 0, at=1500)])
    # Prefill until 40, steps until 1040 and 2040; the second prompt came at 1500.
    assert trace.ends == [[4], [5], [6], [6, 4], [7, 4], [8, 4]]
    assert trace.now == 40 + 4000 + 40


def test_nothing_runs_before_the_first_arrival():
    trace = Trace(loops.make(), [request(4, 2, at=5000)])
    assert trace.now == 5000 + 40 + 2000
    # And with the first long gone, the engine waits for the second.
    trace = Trace(loops.make(), [request(4), request(4, at=9000)])
    assert trace.now == 9000 + 40


def test_time_is_whole_nanoseconds():
    trace = Trace(loops.make(), [request(7, 3)], Clock(3, 7))
    assert trace.now == 7 * 3 + 3 * 7
    assert type(trace.now) is int


def test_equal_arrivals_keep_the_order_of_the_list():
    loop = loops.make(fraction=1.0)
    trace = Trace(loop, [request(length) for length in (3, 1, 2)])
    assert trace.ends == [[3], [3, 1], [3, 1, 2]]


def test_no_request_still_ends():
    trace = Trace(loops.make(), [])
    assert trace.steps == 0
    assert trace.now == 0
    assert len(trace.before_finish) == 1


def test_forks_share_the_prompt_and_copy_what_they_write():
    # Six tokens in pages of four: the second page is half full and shared by three.
    loop = loops.make(fraction=1.0)
    trace = Trace(loop, [request(6, 1, forks=2)])
    assert trace.held == [2, 4]
    assert trace.dense == [2, 4]
    # Two copied the page before writing; the last one had it to itself by then.
    assert trace.before_finish[0]["cow"] == 2
    assert loop.ledger.total(f.COPIED_ROWS_TOTAL) == 2 * 2


def test_forks_come_before_the_eviction_and_let_go_in_the_same_step():
    loop = loops.make(page_tokens=2, fraction=0.5)
    scores = Written([[[1, 1, 9, 9, 2, 2, 8, 8]]])
    trace = Trace(loop, [request(8, forks=1, of=scores)])
    # 2 -> 1 -> 0: two pages, freed once each.
    assert trace.before_finish[0]["kept"] == [[[2, 3, 6, 7]]] * 2
    assert trace.held == [2]
    assert trace.before_finish[0]["freed"] == 2


def test_forks_with_draws_of_their_own_hold_what_any_of_them_keeps():
    loop = loops.make(policy=build("random", {}), tokens=4)
    trace = Trace(loop, [request(40, forks=2)])
    pages = {t // 4 for member in trace.before_finish[0]["kept"] for t in member[0]}
    assert trace.held == [len(pages)]
    assert trace.before_finish[0]["freed"] == 10 - len(pages)
    assert len(pages) > 4


def test_independent_sequences_share_nothing():
    loop = loops.make(fraction=1.0)
    trace = Trace(loop, [request(8)] * 3)
    assert trace.held == [2, 4, 6]


def test_a_ceiling_is_met_inside_the_verb_whatever_an_eviction_would_leave():
    # Five pages are needed before half of them could be freed.
    with pytest.raises(Infeasible, match="append needs 5 pages and the ceiling leaves 4"):
        Trace(loops.make(ceiling_pages=4), [request(20)])


def test_a_ceiling_is_met_by_a_decode_step():
    loop = loops.make(ceiling_pages=2, fraction=1.0)
    with pytest.raises(Infeasible, match="append needs 1 pages and the ceiling leaves 0"):
        Trace(loop, [request(7, 2)])
    # The step that fitted stands, and the refused verb changed nothing.
    assert loop.ledger.held_pages == 2
    assert loop.ledger.cursor(0) == 8
    loop.ledger.check()


def test_an_eviction_makes_room_below_the_ceiling():
    loop = loops.make(ceiling_pages=5, page_tokens=4, fraction=0.5)
    scores = Written([[[0] * 10 + [1] * 10 + [0] * 8]])
    trace = Trace(loop, [request(20, 8, of=scores)])
    assert trace.held == [3, 4, 4, 4, 4, 5, 5, 5, 5]


def test_an_infeasible_budget_ends_the_run_with_its_reason():
    loop = loops.make(protect_recent=6)
    with pytest.raises(Infeasible, match="6 tokens are protected and the budget keeps 5"):
        Trace(loop, [request(10)])


def test_a_run_is_a_function_of_its_inputs():
    def story():
        loop = loops.make(policy=build("random", {}), tokens=5, seed=9)
        trace = Trace(loop, [request(30, 3, forks=1), request(20, 2, at=700)])
        return trace.held, trace.dense, trace.ends, trace.now, trace.before_finish

    assert story() == story()


@pytest.mark.parametrize("ceiling", [0, 14])
def test_a_leap_of_many_steps_ends_as_the_same_steps_one_by_one(ceiling):
    def story(leaps):
        loop = loops.make(tokens=12, ceiling_pages=ceiling)
        loop.leaps = leaps
        ends = []

        def finish():
            ledger = loop.ledger
            ends.append([ledger.cursor(s) for s in loop.tracked] + [ledger.held_pages])
            ends.append(
                [ledger.total(field) for field in (f.COW_TOTAL, f.HELD_PEAK, f.FREED_TOTAL)]
            )

        engine = Engine(
            loop, [request(10, 9, forks=1), request(6, 4, at=12_345)], finish, clock=CLOCK
        )
        return engine.run(), engine.steps, ends

    assert story(True) == story(False)
