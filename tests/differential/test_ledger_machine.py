"""A state machine that drives the ledger and its oracles in lockstep through random verbs."""

from __future__ import annotations

import os
from collections import Counter

import pytest
from hypothesis import HealthCheck, Phase, event, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from differential.cases import CASES, PAGE_TOKENS, SHAPES, victims_of
from differential.lockstep import Lockstep
from differential.paths import MINIMUM

# Interpreted kernels are much slower, and run the same code: fewer examples say as much.
SLOW = os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0")
MOST_OPEN = 6
byte = st.integers(0, 255)
index = st.integers(0, 63)


class Machine(RuleBasedStateMachine):
    """Rules are the verbs; every one of them ends with the agreement of ledger and oracles."""

    def __init__(self, reached=None):
        super().__init__()
        self.reached = reached
        self.paths = set()

    def note(self, path):
        """Let Hypothesis' statistics show a path, and remember it for the test of the reach."""
        event(path)
        self.paths.add(path)

    def teardown(self):
        if self.reached is not None:
            self.reached.update([*self.paths, "examples"])

    @initialize(
        case=st.sampled_from(CASES),
        page_tokens=st.sampled_from(PAGE_TOKENS),
        ceiling=st.sampled_from((0, 0, 3, 8, 20, 50)),
        order=st.sampled_from(("fifo", "lifo")),
        tokens=st.integers(0, 9),
    )
    def begin(self, case, page_tokens, ceiling, order, tokens):
        # A ceiling in pages of one table would refuse everything where a sequence has several.
        self.step = Lockstep(case, page_tokens, ceiling, order, self.note)
        self.step.append(self.step.open(), tokens)

    def pick(self, number):
        """Return one of the open sequences."""
        return self.step.sequences()[number % len(self.step.sequences())]

    def some_open(self):
        return bool(self.step.sequences())

    def room_for_one(self):
        return len(self.step.sequences()) < MOST_OPEN

    @precondition(room_for_one)
    @rule()
    def open(self):
        self.step.open()

    @precondition(some_open)
    @rule(number=index, tokens=st.integers(0, 9))
    def append(self, number, tokens):
        self.step.append(self.pick(number), tokens)

    @precondition(some_open)
    @rule(number=index, tokens=st.integers(1, 9))
    def append_more(self, number, tokens):
        """A second rule for the most important verb: examples that never fill a page say little."""
        self.step.append(self.pick(number), tokens)

    @precondition(some_open)
    @rule(numbers=st.lists(index, min_size=1, max_size=4), steps=st.integers(1, 5))
    def advance(self, numbers, steps):
        """Advance a batch, which may name a sequence more than once."""
        self.step.advance([self.pick(number) for number in numbers], steps)

    @precondition(lambda self: self.some_open() and self.room_for_one())
    @rule(number=index)
    def fork(self, number):
        self.step.fork(self.pick(number))

    @precondition(some_open)
    @rule(
        number=index, shape=st.sampled_from(SHAPES), a=byte, b=byte, stride=st.sampled_from((0, 77))
    )
    def evict(self, number, shape, a, b, stride):
        """Evict by one shape; `stride` makes the sets differ in what they drop."""
        self.evict_from(self.pick(number), shape, a, b, stride)

    @precondition(some_open)
    @rule(shape=st.sampled_from(SHAPES), a=byte, b=byte)
    def evict_everywhere(self, shape, a, b):
        """Evict the same from all: what forks share is let go by each of them in turn."""
        for sequence in self.step.sequences():
            self.evict_from(sequence, shape, a, b, 0)

    def evict_from(self, sequence, shape, a, b, stride):
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
    @rule(number=index)
    def free(self, number):
        self.step.free(self.pick(number))

    @rule()
    def end_step(self):
        self.step.end_step()


def run(examples, steps, reached=None, **options):
    """Run the machine, without shrinking where only its reach is asked for."""
    run_state_machine_as_test(
        lambda: Machine(reached),
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            suppress_health_check=list(HealthCheck),
            **options,
        ),
    )


def test_ledger_equals_its_oracles():
    """Whatever the verbs, rows, tables, counters, census and floors are the oracles'."""
    run(10 if SLOW else 60, 25)


def test_machine_reaches_every_path():
    """A machine that never shares, refuses or copies would pass with any bug in there."""
    reached = Counter()
    run(40 if SLOW else 100, 25, reached, phases=[Phase.generate])
    examples = reached.pop("examples")
    assert set(reached) <= set(MINIMUM) | {"open"}, "a path has no stated minimum"
    short = {
        path: f"{reached[path]} of {examples} examples, {least}% wanted"
        for path, least in MINIMUM.items()
        if 100 * reached[path] < least * examples
    }
    print({path: round(100 * reached[path] / examples) for path in MINIMUM})
    assert not short


@pytest.mark.nightly
def test_ledger_equals_its_oracles_for_long():
    """The same with other verbs every night; the blob that a failure prints repeats it."""
    run(3000, 60, derandomize=False)
