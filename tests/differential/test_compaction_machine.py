"""A state machine over ledgers that move rows: every compaction, renumbering, reuse of holes."""

from __future__ import annotations

from collections import Counter
from functools import cache
from itertools import product

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

from differential.cases import CASES, CUTS, victims_of
from differential.moving import ALGORITHMS, Moving

MOST_OPEN = 4
EXAMPLES = 11
# Where several sets share a table, so that rows can move on their own.
FINER = (("sequence", "head"), ("sequence", "layer"), ("group", "head"), ("layer", "head"))
# Every algorithm by unit and positions, and what evict alone does. Each gets a run of its own,
# renumbering inside evict several: it is refused only where a fork is near the ceiling.
VARIANTS = (
    *product(ALGORITHMS, ("slot", "row"), ("keep", "renumber")),
    ("none", "slot", "keep"),
    ("none", "slot", "renumber"),
    ("none", "row", "renumber"),
    ("none", "slot", "renumber"),
    ("none", "row", "renumber"),
)
# Examples, of all the runs together, that must come along each path at least.
MINIMUM = {
    **{f"{a} {u} {p} frees pages": 1 for a, u, p in VARIANTS if a != "none"},
    "append": 90,
    "append refused": 25,
    "append copies on write": 20,
    "reuse of a hole": 15,
    "reuse skips a shared page": 8,
    "fork": 35,
    "free": 30,
    "evict head": 30,
    "evict tail": 30,
    "evict span": 30,
    "evict random": 60,
    "evict aligned": 30,
    "evict all": 4,
    "evict nothing": 40,
    "evict refused": 1,
    "evict copies on write": 2,
    "evict rotates in place": 7,
    "rebuild": 30,
    "rebuild refused": 15,
    "forward": 35,
    "forward refused": 5,
    "forward copies on write": 5,
    "hole_fill": 30,
    "hole_fill refused": 4,
    "hole_fill copies on write": 5,
    "compact rotates": 12,
    "compact rotates in place": 8,
}

where = st.sampled_from(range(0, 256, 13))
share = st.sampled_from((1, 40, 90, 128, 160, 200, 230))
index = st.integers(0, 63)


class CompactionMachine(RuleBasedStateMachine):
    """Rules are the verbs; every one of them ends with the agreement of ledgers and oracles."""

    def __init__(self, variant, reached):
        super().__init__()
        self.variant = variant
        self.reached = reached
        self.paths = set()

    def note(self, path):
        """Let Hypothesis' statistics show a path, and remember it for the test of the reach."""
        event(path)
        self.paths.add(path)

    def teardown(self):
        self.reached.update([*self.paths, "examples"])

    @initialize(
        case=st.sampled_from(CASES),
        finer=st.sampled_from(FINER),
        page_tokens=st.sampled_from((4, 3, 2, 16, 1)),
        spare=st.sampled_from((None, 2, 4, 8, 1)),
        order=st.sampled_from(("fifo", "lifo")),
        append=st.sampled_from(("tail", "reuse_holes")),
        writes=st.sampled_from((True, True, False)),
        tokens=st.sampled_from((23, 14, 33, 9)),
    )
    def begin(self, case, finer, page_tokens, spare, order, append, writes, tokens):
        """Begin with some tokens, and a ceiling not far above them unless `spare` is None."""
        compaction, unit, positions = self.variant
        ordering = {
            "append": append,
            "compaction": compaction,
            "unit": unit,
            "positions": positions,
            "renumber_writes": writes,
        }
        case = finer if unit == "row" else case
        tables = max(CUTS[case[0]]) + 1
        ceiling = 0 if spare is None else tables * (-(-tokens // page_tokens) + spare)
        self.step = Moving(case, page_tokens, ordering, ceiling, order, self.note)
        self.step.append(self.step.open(), tokens)

    def pick(self, number):
        """Return one of the open sequences."""
        return self.step.sequences()[number % len(self.step.sequences())]

    def some_open(self):
        return bool(self.step.sequences())

    def room_for_one(self):
        return len(self.step.sequences()) < MOST_OPEN

    @precondition(room_for_one)
    @rule(tokens=st.integers(0, 9))
    def open(self, tokens):
        """Open a sequence; appending 0 tokens is legal and does nothing."""
        self.step.append(self.step.open(), tokens)

    @precondition(some_open)
    @rule(number=index, tokens=st.sampled_from((1, 2, 3, 4, 5, 6, 7, 8, 9, 0)))
    def append(self, number, tokens):
        self.step.append(self.pick(number), tokens)

    @precondition(lambda self: self.some_open() and self.room_for_one())
    @rule(
        number=index,
        first=st.sampled_from(("child", "parent", "nobody")),
        does=st.sampled_from(("append", "evict", "fill")),
        a=where,
        b=share,
        which=index,
    )
    def fork(self, number, first, does, a, b, which):
        """Fork, and often write at once: shared pages are what copy-on-write is for."""
        parent = self.pick(number)
        child = self.step.fork(parent)
        writer = child if first == "child" else parent
        if first != "nobody" and does == "append":
            self.step.append(writer, 1 + which % 5)
        elif first != "nobody":
            if does == "fill":
                self.fill(writer)
            self.evict_one(writer, "random", a, b, 77)
            self.compact_one(writer, which)

    def fill(self, sequence):
        """Append until the ceiling leaves less than a page a table, if there is a ceiling."""
        if self.step.pages.ceiling:
            room = self.step.pages.room() // len(self.step.pages.scopes)
            self.step.append(sequence, room * self.step.page_tokens)

    @precondition(some_open)
    @rule(
        number=index,
        shape=st.sampled_from(("random", "span", "head", "aligned", "tail", "random")),
        a=where,
        b=share,
        stride=st.sampled_from((0, 77)),
        then=st.sampled_from(("compact", "nothing", "append", "compact")),
        which=index,
    )
    def evict(self, number, shape, a, b, stride, then, which):
        """Evict by one shape, and often compact or append at once."""
        sequence = self.pick(number)
        # All of them but seldom: an empty sequence is soon tested.
        self.evict_one(sequence, "all" if which == 0 else shape, a, b, stride)
        if then == "compact":
            self.compact_one(sequence, which)
        elif then == "append":
            self.step.append(sequence, 1 + which % 4)

    def evict_one(self, sequence, shape, a, b, stride):
        """Evict by one shape; `stride` makes the sets differ in what they drop."""
        victims = []
        for one in range(self.step.sets):
            at, size = (a + stride * one) % 256, (b + stride * one) % 256
            retained = self.step.retained(sequence, one)
            victims.append(victims_of(retained, shape, at, size, self.step.page_tokens))
        self.step.evict(sequence, victims, shape)

    @precondition(some_open)
    @rule(number=index, a=where, b=st.sampled_from((90, 128, 160)), which=index)
    def squeeze(self, number, a, b, which):
        """Evict here and there, then compact: Hypothesis often leaves `evict` out altogether."""
        sequence = self.pick(number)
        self.evict_one(sequence, "random", a, b, 77 * (which % 2))
        self.compact_one(sequence, which)
        self.step.append(sequence, 1 + which % 3)

    @precondition(lambda self: self.some_open() and self.step.algorithms())
    @rule(number=index, which=index)
    def compact(self, number, which):
        """Compact, whatever was done before: nothing, another compaction, a fork."""
        self.compact_one(self.pick(number), which)

    def compact_one(self, sequence, which):
        """Compact by the ordering's own algorithm, or one time in four by any that it allows."""
        allowed = self.step.algorithms()
        if allowed:
            other = allowed[which // 4 % len(allowed)]
            self.step.compact(sequence, self.variant[0] if which % 4 else other)

    @precondition(some_open)
    @rule(number=index)
    def finish(self, number):
        """End a step, or if several sequences are open one of them."""
        if number % 2 and len(self.step.sequences()) > 1:
            self.step.free(self.pick(number))
        else:
            self.step.end_step()


def run(variant, examples, steps, reached, number=None, **options):
    """Run the machine under one variant; count in `reached` who came along each path."""

    def machine():
        return CompactionMachine(variant, reached)

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

    Short runs, each under one variant and with a seed of its own: their examples have little in
    common. Failures are shrunk only when asked for: `pytest --hypothesis-profile shrink`.
    """
    shrink = settings.get_current_profile_name() == "shrink"
    phases = [Phase.generate, Phase.shrink] if shrink else [Phase.generate]
    reached = Counter()
    try:
        for number, variant in enumerate(VARIANTS):
            run(variant, EXAMPLES, 25, reached, number, phases=phases)
    except Exception as error:
        return reached, error
    return reached, None


def test_moving_ledger_equals_its_oracles():
    """Whatever the verbs, rows, positions, tables, counters and prices are the oracles'."""
    reached, error = daily()
    if error is not None:
        raise error
    assert reached["examples"] >= len(VARIANTS) * EXAMPLES


def test_machine_reaches_every_path():
    """A machine that never compacts, copies or refuses would pass with any bug in there."""
    reached, error = daily()
    if error is not None:
        pytest.skip("the run ended early: see test_moving_ledger_equals_its_oracles")
    assert set(reached) <= {*MINIMUM, "examples"}, "a path has no stated minimum"
    short = {p: (reached[p], least) for p, least in MINIMUM.items() if reached[p] < least}
    assert not short


@pytest.mark.nightly
@pytest.mark.parametrize("variant", VARIANTS, ids="-".join)
def test_moving_ledger_equals_its_oracles_for_long(variant):
    """The same with other verbs every night; the blob that a failure prints repeats it."""
    run(variant, 400, 60, Counter(), derandomize=False)
