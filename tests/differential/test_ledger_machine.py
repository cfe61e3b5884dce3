"""A state machine that drives the ledger and its oracles in lockstep through random verbs."""

from __future__ import annotations

from collections import Counter
from functools import cache

import pytest
from hypothesis import HealthCheck, Phase, event, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from differential.cases import CASES, victims_of
from differential.lockstep import Lockstep
from differential.paths import MINIMUM

MOST_OPEN = 5
# Drawn from lists, because Hypothesis prefers small integers and so evicts next to nothing.
where = st.sampled_from(range(0, 256, 13))
share = st.sampled_from((1, 40, 90, 128, 160, 200, 230, 255))
index = st.integers(0, 63)


class Machine(RuleBasedStateMachine):
    """Rules are the verbs; every one of them ends with the agreement of ledger and oracles."""

    def __init__(self, reached):
        super().__init__()
        self.reached = reached
        self.paths = set()

    def note(self, path):
        """Let Hypothesis' statistics show a path, and remember it for the test of the reach."""
        event(path)
        self.paths.add(path)

    def teardown(self):
        self.reached.update([*self.paths, "examples"])

    @initialize(
        case=st.sampled_from((*CASES, *CASES[:1] * 2)),
        page_tokens=st.sampled_from((4, 3, 16, 2, 1)),
        ceiling=st.sampled_from((0, 0, 0, 12, 40)),
        order=st.sampled_from(("fifo", "lifo")),
        tokens=st.sampled_from((5, 9, 14, 23, 0)),
    )
    def begin(self, case, page_tokens, ceiling, order, tokens):
        """Begin with some tokens, so that few examples spend their steps on an empty ledger.

        The first case is drawn more often: `advance` has a way of its own for one plain table.
        """
        self.step = Lockstep(case, page_tokens, ceiling, order, self.note)
        self.step.append(self.step.open(), tokens)

    def pick(self, number):
        """Return one of the open sequences."""
        return self.step.sequences()[number % len(self.step.sequences())]

    def some_open(self):
        return bool(self.step.sequences())

    def room_for_one(self):
        return len(self.step.sequences()) < MOST_OPEN

    # Few rules with much inside them: Hypothesis leaves some rules out of every example, and
    # a verb of its own for each choice would leave out what the others need.

    @precondition(room_for_one)
    @rule(tokens=st.integers(0, 9))
    def open(self, tokens):
        """Open a sequence; appending 0 tokens is legal and does nothing."""
        self.step.append(self.step.open(), tokens)

    @precondition(some_open)
    @rule(number=index, tokens=st.sampled_from((1, 2, 3, 4, 5, 6, 7, 8, 9, 0)))
    def append(self, number, tokens):
        self.step.append(self.pick(number), tokens)

    @precondition(some_open)
    @rule(numbers=st.lists(index, min_size=1, max_size=4), steps=st.integers(1, 5))
    def advance(self, numbers, steps):
        """Advance a batch, which may name a sequence more than once."""
        self.step.advance([self.pick(number) for number in numbers], steps)

    @precondition(lambda self: self.some_open() and self.room_for_one())
    @rule(
        number=index,
        writer=st.sampled_from(("child", "parent", "both", "nobody")),
        tokens=st.integers(1, 5),
    )
    def fork(self, number, writer, tokens):
        """Fork, and often write at once: a shared partial page is what copy-on-write is for."""
        parent = self.pick(number)
        child = self.step.fork(parent)
        if writer == "both":
            self.step.advance([parent, child], tokens)
        elif writer != "nobody":
            self.step.append(child if writer == "child" else parent, tokens)

    @precondition(some_open)
    @rule(
        number=index,
        shape=st.sampled_from(("random", "tail", "span", "head", "aligned", "all")),
        a=where,
        b=share,
        stride=st.sampled_from((0, 77)),
        everywhere=st.booleans(),
    )
    def evict(self, number, shape, a, b, stride, everywhere):
        """Evict by one shape; `stride` makes the sets differ in what they drop.

        Evicting from all lets each fork in turn let go of what it shares.
        """
        for sequence in self.step.sequences() if everywhere else [self.pick(number)]:
            victims = []
            for which in range(self.step.sets):
                retained = self.step.retained(sequence, which)
                at, size = (a + stride * which) % 256, (b + stride * which) % 256
                victims.append(victims_of(retained, shape, at, size, self.step.page_tokens))
            self.step.evict(sequence, victims, shape)

    @precondition(some_open)
    @rule(number=index, which=index, at=index, fault=st.sampled_from(("dead", "twice", "beyond")))
    def evict_badly(self, number, which, at, fault):
        """Name one bad victim among good ones, in one set's list."""
        sequence = self.pick(number)
        which %= self.step.sets
        victims = [self.step.retained(sequence, other)[:2] for other in range(self.step.sets)]
        retained = self.step.retained(sequence, which)
        beyond = self.step.pages.tables[sequence][0].cursor + at
        dropped = sorted(set(range(beyond - at)) - set(retained))
        if fault == "dead" and dropped:
            bad = dropped[at % len(dropped)]
        elif fault == "twice" and retained:
            bad = retained[0]
        else:
            bad = beyond if at % 2 else -1 - at
        victims[which] = [*victims[which], bad]
        self.step.evict_badly(sequence, victims)

    @precondition(some_open)
    @rule(number=index, ends=st.booleans())
    def finish(self, number, ends):
        """End a step, or a sequence."""
        if ends:
            self.step.free(self.pick(number))
        else:
            self.step.end_step()


def run(examples, steps, reached, number=None, **options):
    """Run the machine; count in `reached` how many examples came along each path."""

    def machine():
        return Machine(reached)

    run_state_machine_as_test(
        machine if number is None else seed(number)(machine),
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            suppress_health_check=list(HealthCheck),
            **options,
        ),
    )


@cache
def daily():
    """Run once for both tests; return (paths reached, what went wrong or None).

    After some ten examples Hypothesis goes on to vary those that it has; short runs with seeds of
    their own give examples that have nothing in common. Shrinking a failure takes minutes, so it
    is done only when asked for: `pytest --hypothesis-profile shrink`.
    """
    shrink = settings.get_current_profile_name() == "shrink"
    phases = [Phase.generate, Phase.shrink] if shrink else [Phase.generate]
    reached = Counter()
    try:
        for number in range(6):
            run(10, 30, reached, number, phases=phases)
    except Exception as error:
        return reached, error
    return reached, None


def test_ledger_equals_its_oracles():
    """Whatever the verbs, rows, tables, counters, census and floors are the oracles'."""
    reached, error = daily()
    if error is not None:
        raise error
    assert reached["examples"] >= 60


def test_machine_reaches_every_path():
    """A machine that never shares, refuses or copies would pass with any bug in there."""
    reached, error = daily()
    if error is not None:
        pytest.skip("the run ended early: see test_ledger_equals_its_oracles")
    examples = reached["examples"]
    assert set(reached) <= {*MINIMUM, "open", "examples"}, "a path has no stated minimum"
    short = {
        path: f"{reached[path]} of {examples} examples, {least}% wanted"
        for path, least in MINIMUM.items()
        if 100 * reached[path] < least * examples
    }
    assert not short


@pytest.mark.nightly
def test_ledger_equals_its_oracles_for_long():
    """The same with other verbs every night; the blob that a failure prints repeats it."""
    run(1000, 60, Counter(), derandomize=False)
