"""The loop view -> score -> select -> evict: by hand, and in lockstep with the tokens oracle."""

from __future__ import annotations

import loops
import numpy as np
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st
from loops import Written, kept
from oracles.tokens import Tokens
from oracles.victims import TooManyProtected

from kvsim.errors import Infeasible, LedgerError, PolicyError
from kvsim.paging import fields as f
from kvsim.policies import build


def filled(loop, scores, queries=None):
    """Open a sequence with one token per score."""
    signals = Written(scores, queries)
    sequence = loop.open(signals)
    loop.append(sequence, signals.scores.shape[-1])
    return sequence


def test_one_eviction_by_hand():
    loop = loops.make(page_tokens=2)
    sequence = filled(loop, [[[1, 2, 9, 8, 3, 7]]])
    loop.evict(sequence)
    # Tokens 2, 3 and 5 score highest: page 0 empties, and page 2 keeps a hole.
    assert kept(loop, sequence) == [[2, 3, 5]]
    assert loop.ledger.pages_of(sequence).tolist()[0] == -1
    assert loop.ledger.held_pages == 2
    assert loop.ledger.total(f.FREED_TOTAL) == 1
    assert loop.dense.held_pages == 3
    loop.ledger.check()


def test_evicting_again_at_the_same_budget_changes_nothing():
    loop = loops.make()
    sequence = filled(loop, [[[1, 2, 9, 8, 3, 7]]])
    loop.evict(sequence)
    before = kept(loop, sequence)
    loop.evict(sequence)
    assert kept(loop, sequence) == before
    assert loop.ledger.total(f.EVICTED_ROWS_TOTAL) == 3


def test_tokens_are_remembered_when_slots_are_used_again():
    # The last two tokens go, the cursor rewinds, and tokens 4 and 5 take slots 2 and 3.
    loop = loops.make(page_tokens=2, tokens=2)
    sequence = loop.open(Written([[[9, 7, 1, 2, 8, 3]]]))
    loop.append(sequence, 4)
    loop.evict(sequence)
    assert kept(loop, sequence) == [[0, 1]]
    assert loop.ledger.cursor(sequence) == 2
    loop.append(sequence, 2)
    assert loop.ledger.cursor(sequence) == 4
    loop.evict(sequence)
    # The score of token 4 counts, and not that of token 2, which had its slot before.
    assert kept(loop, sequence) == [[0, 4]]
    assert np.flatnonzero(loop.ledger.retained(sequence, 0)).tolist() == [0, 2]


def test_protection_counts_tokens_appended_since():
    loop = loops.make(tokens=3, protect_recent=1, protect_sinks=1)
    sequence = filled(loop, [[[0, 5, 6, 7, 0]]])
    loop.evict(sequence)
    assert kept(loop, sequence) == [[0, 3, 4]]


def test_the_newest_tokens_are_those_appended_last_and_not_those_left():
    loop = loops.make(tokens=3)
    sequence = filled(loop, [[[9, 8, 1, 7, 0]]])
    loop.evict(sequence)
    assert kept(loop, sequence) == [[0, 1, 3]]
    # Token 4 was the newest and is gone; of the two newest, token 3 alone is left to protect.
    loop.rules = loops.rules(tokens=1, protect_recent=2)
    loop.evict(sequence)
    assert kept(loop, sequence) == [[3]]
    loop.rules = loops.rules(tokens=1, protect_recent=1)
    loop.append(sequence, 0)
    loop.evict(sequence)
    assert kept(loop, sequence) == [[3]]


def test_page_completion_takes_its_share_of_what_was_appended():
    # Eight tokens in four pages; the first eviction leaves one token in each of three.
    loop = loops.make(page_tokens=2, tokens=3)
    sequence = filled(loop, [[[9, 0, 8, 0, 7, 0, 0, 0]]])
    loop.evict(sequence)
    assert kept(loop, sequence) == [[0, 2, 4]]
    # Half of four pages are two. Half of the two that could hold what is left would be one.
    loop.rules = loops.rules(granularity="page_completion", fraction=0.5)
    loop.evict(sequence)
    assert kept(loop, sequence) == [[2, 4]]
    assert loop.ledger.held_pages == 2


def test_a_policys_own_protection_joins_the_rules():
    loop = loops.make(tokens=4, protect_recent=1, policy=build("streaming_llm", {"n_sink": 2}))
    sequence = filled(loop, [[[0] * 8]])
    loop.evict(sequence)
    assert kept(loop, sequence) == [[0, 1, 6, 7]]


def test_a_refusal_leaves_everything_as_it_was():
    loop = loops.make(tokens=2, protect_recent=3)
    sequence = filled(loop, [[[1, 2, 3, 4, 5]]])
    with pytest.raises(Infeasible, match="3 tokens are protected and the budget keeps 2"):
        loop.evict(sequence)
    assert kept(loop, sequence) == [[0, 1, 2, 3, 4]]
    assert loop.ledger.total(f.EVICTED_ROWS_TOTAL) == 0


def test_scores_that_are_not_finite_are_refused_by_name():
    loop = loops.make()
    sequence = filled(loop, [[[1, np.nan, 3]]])
    with pytest.raises(PolicyError, match="policy under test: scores contain a number"):
        loop.evict(sequence)
    assert kept(loop, sequence) == [[0, 1, 2]]


def test_a_policy_cannot_write_into_the_view():
    class Writer(loops.ByNorm):
        def score(self, view):
            view.retained[:] = False
            return view.key_norms

    loop = loops.make(policy=Writer())
    sequence = filled(loop, [[[1, 2, 3, 4]]])
    with pytest.raises(PolicyError, match="score raised ValueError"):
        loop.evict(sequence)


def test_a_policys_mask_stays_its_own():
    class Same(loops.ByNorm):
        def protected(self, view):
            # Read-only, and the view's own.
            return view.retained[0, 0]

    loop = loops.make(policy=Same(), fraction=1.0, protect_recent=1)
    sequence = filled(loop, [[[1, 2, 3, 4]]])
    loop.evict(sequence)
    assert kept(loop, sequence) == [[0, 1, 2, 3]]


def test_a_ledger_that_was_evicted_behind_the_loops_back_is_noticed():
    loop = loops.make()
    sequence = filled(loop, [[[1, 2, 3, 4]]])
    loop.ledger.evict(sequence, [np.array([1])])
    with pytest.raises(LedgerError, match="other tokens than the loop remembers"):
        loop.evict(sequence)


# Two heads that want opposite things, three tokens, and the next query's attention to them.
OPPOSITE = [[[3, 2, 1], [1, 2, 3]]]
QUERY = [[[4, 2, 2], [1, 1, 6]]]


@pytest.mark.parametrize(
    ("sets", "tokens", "mass", "held"),
    [
        # Head 0 keeps tokens 0 and 1 of its 4 + 2 + 2, head 1 tokens 1 and 2 of its 1 + 1 + 6.
        ("head", 2, (6 / 8 + 7 / 8) / 2, 3),
        ("head", 1, (4 / 8 + 6 / 8) / 2, 2),
        # One set: all three score 2, so the oldest go first.
        ("shared", 2, (4 / 8 + 7 / 8) / 2, 2),
        ("shared", 1, (2 / 8 + 6 / 8) / 2, 1),
        ("shared", 3, 1.0, 3),
    ],
)
def test_retained_mass_by_hand(sets, tokens, mass, held):
    loop = loops.make(1, 2, sets=sets, page_tokens=1, tokens=tokens)
    sequence = filled(loop, OPPOSITE, QUERY)
    loop.evict(sequence)
    assert loop.retained_mass() == mass
    assert loop.ledger.held_pages == held


def test_retained_mass_is_averaged_over_sequences():
    loop = loops.make(1, 2, sets="head", page_tokens=1, tokens=2)
    first = filled(loop, OPPOSITE, QUERY)
    filled(loop, OPPOSITE, QUERY)
    loop.evict(first)
    # The other sequence has lost nothing.
    assert loop.retained_mass() == (13 / 16 + 1) / 2


def test_retained_mass_is_unknown_where_nothing_is_attended_to():
    loop = loops.make(1, 2, sets="head")
    filled(loop, OPPOSITE, [[[0, 0, 0], [1, 1, 1]]])
    assert loop.retained_mass() is None
    assert loops.make().retained_mass() is None


def test_forks_share_pages_and_let_go_of_each_once():
    loop = loops.make(page_tokens=2)
    parent = filled(loop, [[[1, 1, 9, 9, 2, 2, 8, 8]]])
    child = loop.fork(parent)
    assert loop.ledger.held_pages == loop.dense.held_pages == 4
    loop.evict(parent)
    # The child still needs all of them: 2 -> 1.
    assert loop.ledger.held_pages == 4
    assert loop.ledger.total(f.FREED_TOTAL) == 0
    loop.evict(child)
    # 1 -> 0, and each of the two pages is freed once.
    assert loop.ledger.held_pages == 2
    assert loop.ledger.total(f.FREED_TOTAL) == 2
    assert kept(loop, parent) == kept(loop, child) == [[2, 3, 6, 7]]
    loop.ledger.check()


def test_forks_that_drop_different_tokens_free_a_page_when_the_last_needs_none_of_it():
    loop = loops.make(page_tokens=4, policy=build("random", {}), tokens=6, seed=3)
    family = [filled(loop, [[[0] * 40]])]
    family += [loop.fork(family[0]) for _ in range(2)]
    needed = {token // 4 for token in range(40)}
    for done, member in enumerate(family, start=1):
        loop.evict(member)
        whole = [range(40)] * (len(family) - done)
        lists = [kept(loop, other)[0] for other in family[:done]] + whole
        needed = {token // 4 for tokens in lists for token in tokens}
        assert loop.ledger.held_pages == len(needed)
        assert loop.ledger.total(f.FREED_TOTAL) == 10 - len(needed)
        loop.ledger.check()
    assert len({tuple(kept(loop, member)[0]) for member in family}) == 3
    assert len(needed) < 10
    assert loop.ledger.total(f.COW_TOTAL) == 0


def test_a_fork_knows_its_parents_holes():
    loop = loops.make(tokens=2)
    parent = filled(loop, [[[1, 9, 2, 8, 3]]])
    loop.evict(parent)
    child = loop.fork(parent)
    loop.rules = loops.rules(tokens=1)
    loop.evict(child)
    assert kept(loop, parent) == [[1, 3]]
    assert kept(loop, child) == [[1]]


def test_finishing_adds_to_no_flow():
    loop = loops.make(page_tokens=2)
    sequence = filled(loop, [[[1, 1, 9, 9, 2, 2, 8, 8]]])
    loop.evict(sequence)
    flows = [loop.ledger.total(field) for field in (f.FREED_TOTAL, f.EVICTED_ROWS_TOTAL)]
    loop.finish(sequence)
    assert loop.ledger.held_pages == loop.dense.held_pages == 0
    assert flows == [loop.ledger.total(field) for field in (f.FREED_TOTAL, f.EVICTED_ROWS_TOTAL)]


# Which table each set lies in, for two layers of two heads; a set that spans several names one.
TABLES = {
    ("shared", "sequence"): [0],
    ("shared", "layer"): [0],
    ("shared", "head"): [0],
    ("layer", "sequence"): [0, 0],
    ("layer", "layer"): [0, 1],
    ("layer", "head"): [0, 2],
    ("head", "sequence"): [0, 0, 0, 0],
    ("head", "layer"): [0, 0, 1, 1],
    ("head", "head"): [0, 1, 2, 3],
}
SCOPE_UNITS = {"sequence": 1, "layer": 2, "head": 4}
MOST = 60


def agree(loop, models):
    """Tokens, slots, cursors and pages are what the oracle says, for every sequence."""
    loop.ledger.check()
    shape = loop.ledger.geometry
    for sequence, model in models.items():
        assert kept(loop, sequence) == [sorted(slots) for slots in model.slot_of]
        for which, slots in enumerate(model.slot_of):
            got = np.flatnonzero(loop.ledger.retained(sequence, which)).tolist()
            assert got == sorted(slots.values())
        for number, cursor in model.cursor.items():
            assert loop.ledger.cursor(sequence, number) == cursor
            named = np.flatnonzero(loop.ledger.pages_of(sequence, number) >= 0).tolist()
            assert named == sorted(model.pages(number))
    if len(models) == 1:
        # Without forks no page is shared, so pages are a sum over tables.
        copies = shape.scope_units // len(model.cursor)
        assert loop.ledger.held_pages == copies * sum(len(model.pages(n)) for n in model.cursor)


@st.composite
def stories(draw):
    """Rounds of append, perhaps fork, and evict, under rules that change from round to round.

    Counts are drawn from lists that begin with what evicts most: Hypothesis prefers the first.
    """
    rounds = []
    for _ in range(draw(st.integers(2, 5))):
        rounds.append(
            {
                "append": draw(st.sampled_from([14, 9, 5, 1, 0])),
                "fork": draw(st.sampled_from([False, False, True])),
                "tokens": draw(st.sampled_from([4, 8, 2, 12, 1])),
                "granularity": draw(
                    st.sampled_from(["page_completion", "token", "window", "page"])
                ),
                "window_tokens": draw(st.integers(1, 5)),
                "protect_recent": draw(st.integers(0, 4)),
                "protect_sinks": draw(st.integers(0, 3)),
            }
        )
    return {
        "cut": draw(st.sampled_from(sorted(TABLES))),
        "page_tokens": draw(st.integers(1, 5)),
        "seed": draw(st.integers(0, 2**16)),
        "falling": draw(st.sampled_from([True, False])),
        "rounds": rounds,
    }


@settings(max_examples=250)
@given(stories())
def test_the_loop_agrees_with_the_oracle(story):
    sets, scope = story["cut"]
    # Few values, in quarters, so that ties abound and means of four units are exact.
    scores = np.random.default_rng(story["seed"]).integers(0, 6, (2, 2, MOST)) / 4
    if story["falling"]:
        # Recent tokens score low: cursors rewind, and slots are used again.
        scores = scores - np.arange(MOST)
    loop = loops.make(2, 2, scope=scope, sets=sets, page_tokens=story["page_tokens"])
    first = loop.open(Written(scores))
    models = {first: Tokens(TABLES[sets, scope], story["page_tokens"])}
    by_set = scores.mean(axis={"shared": (0, 1), "layer": 1, "head": ()}[sets])
    by_set = by_set.reshape(-1, MOST).tolist()
    for turn in story["rounds"]:
        names = ("granularity", "window_tokens", "protect_recent", "protect_sinks")
        loop.rules = loops.rules(tokens=turn["tokens"], **{name: turn[name] for name in names})
        for sequence in list(models):
            loop.append(sequence, turn["append"])
            models[sequence].append(turn["append"])
        if turn["fork"]:
            models[loop.fork(first)] = models[first].fork()
        for sequence, model in models.items():
            if not model.appended:
                continue
            try:
                model.evict(
                    by_set,
                    turn["tokens"],
                    turn["protect_recent"],
                    turn["protect_sinks"],
                    fraction=turn["tokens"] / model.appended,
                    granularity=turn["granularity"],
                    window_tokens=turn["window_tokens"],
                )
            except TooManyProtected:
                with pytest.raises(Infeasible):
                    loop.evict(sequence)
            else:
                loop.evict(sequence)
        agree(loop, models)
    lost = {model.appended - len(slots) for model in models.values() for slots in model.slot_of}
    event("tokens were evicted" if lost != {0} else "nothing was evicted")
    rewound = any(c < m.appended for m in models.values() for c in m.cursor.values())
    event("a cursor was rewound" if rewound else "no cursor was rewound")
