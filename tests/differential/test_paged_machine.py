"""A state machine over the paged cache: every verb, plane set, family, rotation and compaction.

Each step goes to the paged cache and to a contiguous one for each sequence, and then all rows are
compared as integers, receipts are held against what happened, and the ledger is recounted.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import replace
from functools import cache

import numpy as np
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

from differential.paged_cases import CUTS, FAMILIES, KEYS, PAGE_TOKENS, Case, step_of
from differential.paged_script import MOST_OPEN, ORDERINGS, do
from kvsim.errors import CeilingExceeded, LedgerError
from kvsim.tensors.streaming import STREAMS

EXAMPLES, STEPS = 9, 25
# How many verbs the nightly run does at most, and which: by default others every night.
NIGHTLY_STEPS = int(os.environ.get("KVSIM_MACHINE_STEPS", "1000000"))
NIGHTLY_SEED = os.environ.get("KVSIM_MACHINE_SEED")
NIGHTLY_STEPS_EACH = 60
# Examples, of all the runs together, that must come along each path at least.
MINIMUM = {
    "a ceiling that just fits": 25,
    "a hole is used again": 1,
    "a page taken ahead is used": 25,
    "append": 160,
    "append copies on write": 15,
    "append past the tables": 1,
    "append refused": 35,
    "bad victim refused": 35,
    "clone": 25,
    "clone of pages taken ahead": 10,
    "clone refused": 20,
    "compact": 50,
    "compact refused": 5,
    "compact without an algorithm refused": 15,
    "damaged swap refused": 50,
    "double free refused": 35,
    "evict aligned": 18,
    "evict all": 2,
    "evict clamped": 18,
    "evict copies on write": 7,
    "evict encodes anew": 10,
    "evict frees pages": 70,
    "evict head": 12,
    "evict holds more than before": 12,
    "evict kv refused": 9,
    "evict moves rows": 40,
    "evict nothing": 70,
    "evict one": 8,
    "evict refused": 13,
    "evict rotates": 13,
    "evict rotates in place": 6,
    "evict scattered": 35,
    "evict span": 50,
    "evict tail": 18,
    "extents are given back": 15,
    "flush": 30,
    "fork": 50,
    "free": 35,
    "logits": 3,
    "mapped": 30,
    "misuse refused": 45,
    "open": 160,
    "reserve": 50,
    "reserve refused": 25,
    "sets drop other tokens": 11,
    "streams": 9,
    "swap in": 40,
    "swap out": 60,
    "swap refused": 5,
    "the pool grows": 45,
    **{f"keys {kind}": 5 for kind in KEYS},
    **{f"pages of {tokens}": 9 for tokens in PAGE_TOKENS},
    **{f"cut {scope} {sets}": 8 for scope, sets in CUTS},
    "cut head shared": 1,
}

# Cases and numbers of verbs: plain integers, so that a failure shrinks to small ones.
sequence = st.integers(0, 63)
where = st.integers(0, 255)
which = st.integers(0, 63)


class PagedMachine(RuleBasedStateMachine):
    """Rules are the verbs; after every one of them all sequences must hold what they should."""

    def __init__(self, ordering, reached):
        super().__init__()
        self.ordering = ordering
        self.reached = reached
        self.paths = set()

    def note(self, path):
        """Let Hypothesis' statistics show a path, and remember it for the test of the reach."""
        event(path)
        self.paths.add(path)

    def teardown(self):
        self.reached.update([*self.paths, "examples"])

    @initialize(
        family=st.sampled_from(FAMILIES),
        planes=st.sampled_from(("kv_raw", "raw_only", "kv_raw", "kv")),
        cut=st.sampled_from(CUTS),
        page_tokens=st.sampled_from(PAGE_TOKENS),
        spare=st.sampled_from((None, 2, 1, 4, 8)),
        tokens=st.sampled_from((14, 23, 9, 33)),
        append=st.sampled_from(("tail", "reuse_holes")),
        order=st.sampled_from(("fifo", "lifo")),
        layout=st.sampled_from(("page_major", "layer_major")),
        portable=st.sampled_from((False, False, True)),
        mapped=st.sampled_from((False, True)),
        keys=st.sampled_from(KEYS),
        number=st.integers(0, 999),
    )
    def begin(self, cut, **drawn):
        """Begin with some tokens, and a ceiling not far above them unless `spare` is None."""
        # Rows move on their own only where a table holds several sets.
        if self.ordering[1] == "row" and drawn["number"] % 3:
            cut = ("sequence", ("layer", "head")[drawn["number"] % 2])
        # Wide rows are there for non-temporal stores, which carry no codes.
        if drawn["family"] == "wide" and drawn["number"] % 2:
            drawn["keys"] = "float32"
        self.step = step_of(Case(*self.ordering, cut=cut, **drawn), self.note)

    def some_open(self):
        return bool(self.step.sequences())

    def room_for_one(self):
        return len(self.step.sequences()) < MOST_OPEN

    @precondition(room_for_one)
    @rule(which=which)
    def open(self, which):
        """Open a sequence and append to it, nothing perhaps: that is legal."""
        do(self.step, "open", 0, 0, 0, which)

    @precondition(some_open)
    @rule(sequence=sequence, which=which)
    def append(self, sequence, which):
        do(self.step, "append", sequence, 0, 0, which)

    @precondition(lambda self: self.some_open() and self.room_for_one())
    @rule(sequence=sequence, a=where, b=where, which=which)
    def fork(self, sequence, a, b, which):
        """Fork, and often let one of the two write: shared pages are what copies are for."""
        do(self.step, "fork", sequence, a, b, which)

    @precondition(lambda self: self.some_open() and self.room_for_one())
    @rule(sequence=sequence, a=where, b=where, which=which)
    def clone(self, sequence, a, b, which):
        """Take pages ahead now and then, and clone."""
        if which % 3 == 0:
            do(self.step, "reserve", sequence, a, b, which)
        do(self.step, "clone", sequence, a, b, which)

    @precondition(some_open)
    @rule(sequence=sequence, which=which, then=st.sampled_from(("append", "nothing", "span")))
    def reserve(self, sequence, which, then):
        """Take pages ahead, and use them, or give up the tokens before them."""
        do(self.step, "reserve", sequence, 0, 0, which)
        do(self.step, then, sequence, 100, 200, which)

    @precondition(some_open)
    @rule(sequence=sequence, a=where, b=where, which=which)
    def evict_span(self, sequence, a, b, which):
        """Evict a span: from the start, in the middle, aligned or not, the tail, one, all."""
        do(self.step, "span", sequence, a, b, which)

    @precondition(some_open)
    @rule(sequence=sequence, which=which)
    def evict_nothing(self, sequence, which):
        """Name a span without a token."""
        do(self.step, "nothing", sequence, 0, 0, which)

    @precondition(some_open)
    @rule(sequence=sequence, which=which)
    def flush(self, sequence, which):
        """Drop every token, and begin again."""
        do(self.step, "flush", sequence, 0, 0, 0)
        do(self.step, "append", sequence, 0, 0, which)

    @precondition(some_open)
    @rule(
        sequence=sequence,
        a=where,
        b=where,
        which=which,
        then=st.sampled_from(("append", "fork", "span", "swap out", "compact")),
    )
    def evict(self, sequence, a, b, which, then):
        """Evict scattered tokens, others in each set perhaps, and do something to the holes."""
        do(self.step, "scatter", sequence, a, b, which)
        do(self.step, then, sequence, b, a, which)

    @precondition(some_open)
    @rule(sequence=sequence)
    def compact(self, sequence):
        """Compact, whatever was done before; or see it refused where there is no algorithm."""
        do(self.step, "compact", sequence, 0, 0, 0)

    @precondition(some_open)
    @rule(sequence=sequence, which=which, a=where, b=where, comes=st.booleans())
    def swap(self, sequence, which, a, b, comes):
        """Swap out, try damaged bytes, and often swap in again."""
        do(self.step, "swap out", sequence, 0, 0, 0)
        do(self.step, "damaged", 0, a, b, which)
        if comes:
            do(self.step, "swap in", 0, 0, 0, which)

    @precondition(lambda self: self.room_for_one() and self.step.swapped)
    @rule(which=which)
    def swap_in(self, which):
        """Swap in, a second time perhaps."""
        do(self.step, "swap in", 0, 0, 0, which)

    @precondition(some_open)
    @rule(sequence=sequence, which=which)
    def misuse(self, sequence, which):
        """Do what is always refused."""
        do(self.step, "misuse", sequence, 0, 0, which)

    @precondition(lambda self: self.some_open() and self.step.decoder)
    @rule(sequence=sequence, which=which)
    def logits(self, sequence, which):
        """Compare the logits of a next token."""
        do(self.step, "logits", sequence, 0, 0, which)

    @precondition(lambda self: len(self.step.sequences()) > 1)
    @rule(sequence=sequence)
    def free(self, sequence):
        do(self.step, "free", sequence, 0, 0, 0)


def run(ordering, examples, steps, reached, number=None, **options):
    """Run the machine under one ordering; count in `reached` who came along each path."""

    def machine():
        return PagedMachine(ordering, reached)

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

    Short runs, each under one ordering and with a seed of its own. Failures are shrunk only when
    asked for: `pytest --hypothesis-profile shrink`.
    """
    shrink = settings.get_current_profile_name() == "shrink"
    phases = [Phase.generate, Phase.shrink] if shrink else [Phase.generate]
    reached = Counter()
    try:
        for number, ordering in enumerate(ORDERINGS):
            run(ordering, EXAMPLES, STEPS, reached, number, phases=phases)
    except Exception as error:
        return reached, error
    return reached, None


def test_paged_cache_equals_contiguous_ones():
    """Whatever the verbs: every row of every plane, every receipt, and nothing at a refusal."""
    reached, error = daily()
    if error is not None:
        raise error
    assert reached["examples"] >= len(ORDERINGS) * EXAMPLES


def test_machine_reaches_every_path():
    """A machine that never copies, moves, swaps or refuses would pass with any bug in there."""
    reached, error = daily()
    if error is not None:
        pytest.skip("the run ended early: see test_paged_cache_equals_contiguous_ones")
    least = MINIMUM if STREAMS else MINIMUM | {"streams": 0}
    assert set(reached) <= {*least, "examples"}, "a path has no stated minimum"
    assert not {p: (reached[p], n) for p, n in least.items() if reached[p] < n}


# Controls: a proof that cannot fail proves nothing.


def forked(keys="float32"):
    """Return a lockstep with a child that shares its parent's pages."""
    step = step_of(Case("forward", "slot", "renumber", spare=3, keys=keys, number=3))
    step.fork(0)
    return step


@pytest.mark.parametrize("keys", sorted(set(KEYS)))
def test_a_flipped_bit_is_noticed_in_every_plane(keys):
    """An agreement that compares numbers, looks at one plane, or at the sequence of the verb."""
    step = forked(keys)
    for planes in step.cache.store.planes:
        for plane in planes.values():
            plane.view(np.uint8)[-1] ^= 1
            step.agree()
            slot = int(step.ledger.physical(0, 0, np.array([5]))[0])
            plane.view(np.uint8)[slot, 3] ^= 0x80
            with pytest.raises(AssertionError):
                step.agree()
            plane.view(np.uint8)[slot, 3] ^= 0x80
    step.agree()


@pytest.mark.parametrize(
    "field",
    [
        "evicted_tokens",
        "survivors_rotated_rows",
        "copied_rows",
        "copied_bytes",
        "cow_pages",
        "freed_pages",
        "newly_held_pages",
        "extra_pages_peak",
        "last",
    ],
)
def test_a_receipt_that_is_off_by_one_is_noticed(field, monkeypatch):
    """A number of the receipt that nothing is held against."""
    step = forked()
    evict = step.cache.evict_span

    def off_by_one(*span):
        receipt = evict(*span)
        return replace(receipt, **{field: getattr(receipt, field) + 1})

    monkeypatch.setattr(step.cache, "evict_span", off_by_one)
    with pytest.raises(AssertionError):
        step.evict_span(1, 2, 5)


def test_a_refusal_that_changes_a_byte_is_noticed(monkeypatch):
    """A comparison of the ledger alone, or of pages that are held."""
    step = forked()

    def half_done(*_):
        step.cache.store.planes[0]["V"].view(np.uint32)[-1, 0] ^= 1
        raise LedgerError("no")

    monkeypatch.setattr(step.cache, "free", half_done)
    with pytest.raises(AssertionError, match="a refused"):
        step.must_refuse("free", LedgerError, "free", 1)


@pytest.mark.parametrize(("needed", "wrong"), [(3, "although it fits"), (5, "DID NOT RAISE")])
def test_a_refusal_of_what_fits_is_noticed(needed, wrong, monkeypatch):
    """A ceiling that binds too early, or a verb that asks for more than it needs."""
    step = forked()
    clone = step.cache.clone

    def refuses(parent):
        if step.ledger.free_pages < 4:
            raise CeilingExceeded("clone", needed, 3)
        return clone(parent)

    monkeypatch.setattr(step.cache, "clone", refuses)
    with pytest.raises((AssertionError, pytest.fail.Exception), match=wrong):
        step.clone(0)


@pytest.mark.nightly
def test_paged_cache_equals_contiguous_ones_for_a_million_steps():
    """The same with other verbs every night; the blob that a failure prints repeats it."""
    examples = -(-NIGHTLY_STEPS // (len(ORDERINGS) * NIGHTLY_STEPS_EACH))
    number = None if NIGHTLY_SEED is None else int(NIGHTLY_SEED)
    for ordering in ORDERINGS:
        run(ordering, examples, NIGHTLY_STEPS_EACH, Counter(), number, derandomize=False)
