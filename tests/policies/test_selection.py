"""From scores to victims: cases worked by hand, then an independent program on random ones."""

from __future__ import annotations

import numpy as np
import pytest
import views
from hypothesis import event, given, settings
from hypothesis import strategies as st
from oracles.victims import TooManyProtected, victims

from kvsim.errors import Infeasible
from kvsim.policies.selection import Target, lowest, select


def chosen(
    scores,
    kept,
    granularity="token",
    *,
    page_tokens=4,
    window_tokens=4,
    protected=(),
    retained=None,
    fraction=1.0,
    **where,
):
    """Return the victims of each set, as lists of columns; one set gives one list."""
    scores = np.asarray(scores, np.float64)
    shape = scores.shape[:-1] or (1, 1)
    view = views.make(scores.shape[-1], set_shape=shape, retained=retained)
    mask = np.zeros(view.tokens, bool)
    mask[list(protected)] = True
    out = select(
        view,
        scores.reshape(*shape, view.tokens),
        mask,
        Target(kept, fraction),
        granularity=granularity,
        window_tokens=window_tokens,
        places=views.places(view, page_tokens, **where),
    )
    lists = [np.flatnonzero(row).tolist() for row in out.reshape(view.sets, view.tokens)]
    return lists[0] if view.sets == 1 else lists


def test_lowest_scores_go_and_the_rest_is_not_sorted():
    assert chosen([5, 1, 4, 2, 3], kept=3) == [1, 3]


def test_nothing_goes_when_the_budget_is_not_exceeded():
    assert chosen([3, 1, 2], kept=3) == []
    assert chosen([3, 1, 2], kept=9) == []


def test_everything_goes_when_nothing_is_kept():
    assert chosen([3, 1, 2], kept=0) == [0, 1, 2]


def test_among_equal_scores_the_oldest_goes():
    assert chosen([7, 7, 7, 7], kept=2) == [0, 1]
    # One tie is enough room for the lower score and one of the three equals.
    assert chosen([7, 7, 1, 7], kept=2) == [0, 2]


def test_minus_zero_ties_with_zero():
    assert chosen([0.0, -0.0, 1.0], kept=2) == [0]


@pytest.mark.parametrize("count", range(6))
def test_lowest_counts_exactly(count):
    # Every score ties with some other: the count must still be exact.
    scores = np.array([2.0, 1.0, 2.0, 1.0, 2.0])
    assert lowest(scores, count).tolist() == sorted([1, 3, 0, 2, 4][:count])


def test_protected_tokens_stay_whatever_they_score():
    assert chosen([0, 0, 9, 8, 7], kept=3, protected=[0, 1]) == [3, 4]


def test_window_takes_whole_aligned_runs_by_their_mean():
    # Means of the three windows: 4, 1, 2. The single lowest token lies in the first window.
    scores = [0, 0, 8, 8, 1, 1, 1, 1, 2, 2, 2, 2]
    assert chosen(scores, 8, "window") == [4, 5, 6, 7]
    assert chosen(scores, 4, "window") == [4, 5, 6, 7, 8, 9, 10, 11]


@pytest.mark.parametrize(("kept", "runs"), [(12, 0), (9, 0), (8, 1), (5, 1), (4, 2), (1, 2)])
@pytest.mark.parametrize("granularity", ["window", "page"])
def test_runs_are_floored_so_that_no_set_falls_below_its_budget(granularity, kept, runs):
    scores = [1] * 4 + [2] * 4 + [3] * 4
    assert len(chosen(scores, kept, granularity)) == 4 * runs


def test_window_and_page_have_lengths_of_their_own():
    scores = [2, 2, 1, 1, 3, 3, 0, 9]
    assert chosen(scores, 6, "window", window_tokens=2, page_tokens=4) == [2, 3]
    assert chosen(scores, 4, "page", window_tokens=2, page_tokens=4) == [0, 1, 2, 3]


@pytest.mark.parametrize("granularity", ["window", "page"])
def test_among_equal_runs_the_oldest_goes(granularity):
    assert chosen([5] * 12, 8, granularity) == [0, 1, 2, 3]


@pytest.mark.parametrize("granularity", ["window", "page"])
def test_an_incomplete_last_run_is_no_candidate(granularity):
    # Its mean is the lowest of all, but it is still being written.
    scores = [5] * 4 + [6] * 4 + [0, 0]
    assert chosen(scores, 6, granularity) == [0, 1, 2, 3]


@pytest.mark.parametrize("granularity", ["window", "page"])
def test_a_run_with_a_protected_token_is_no_candidate(granularity):
    # And its protected token's score, however low, pulls no mean down.
    scores = [-99, 0, 0, 0] + [5] * 4 + [6] * 4
    assert chosen(scores, 8, granularity, protected=[0]) == [4, 5, 6, 7]


@pytest.mark.parametrize("granularity", ["window", "page"])
def test_when_candidates_run_out_all_of_them_go(granularity):
    # Three runs are over the budget; one is protected and one is incomplete.
    scores = [1] * 4 + [2] * 4 + [3] * 2
    assert chosen(scores, 1, granularity, window_tokens=4, protected=[5]) == [0, 1, 2, 3]


@pytest.mark.parametrize("granularity", ["window", "page"])
def test_a_run_is_scored_by_the_mean_over_its_live_tokens(granularity):
    # The first run lost two tokens before: the mean of the others is 3, not their sum over four.
    scores = [0, 0, 3, 3] + [2] * 4 + [9] * 4
    live = [0, 0, 1, 1] + [1] * 8
    assert chosen(scores, 6, granularity, retained=live) == [4, 5, 6, 7]
    # And its tokens alone go with it, which is fewer than a run.
    assert chosen([0, 0, 1, 1, *scores[4:]], 6, granularity, retained=live) == [2, 3]


def test_excess_is_counted_from_the_tokens_live_now():
    # Ten of twelve live, eight kept: not a whole run over, whatever was appended.
    live = [0, 0] + [1] * 10
    assert chosen([0] * 12, 8, "page", retained=live) == []


def test_page_completion_drops_the_emptiest_pages():
    # Token victims leave 1, 3 and 2 rows in the three pages; two of three pages may be held.
    scores = [0, 0, 0, 9, 9, 9, 9, 0, 9, 9, 0, 0]
    assert chosen(scores, 6, "page_completion", fraction=2 / 3) == [0, 1, 2, 3, 7, 10, 11]


def test_page_completion_goes_on_until_the_table_holds_its_share():
    scores = [0, 0, 0, 9, 9, 9, 9, 0, 9, 9, 0, 0]
    # ceil(1/3 * 3) = 1 page: the fullest is left, three tokens of the six that were asked for.
    assert chosen(scores, 6, "page_completion", fraction=1 / 3) == [0, 1, 2, 3, 7, 8, 9, 10, 11]


def test_page_completion_rounds_its_share_up():
    # ceil(0.5 * 3) = 2 pages.
    scores = [0, 0, 0, 9, 9, 9, 9, 0, 9, 9, 0, 0]
    assert chosen(scores, 6, "page_completion", fraction=0.5) == [0, 1, 2, 3, 7, 10, 11]


def test_page_completion_stops_at_pages_that_are_empty_already():
    # The token victims empty one page of three, and two may be held: nothing more goes.
    scores = [0] * 4 + [9] * 8
    assert chosen(scores, 8, "page_completion", fraction=2 / 3) == [0, 1, 2, 3]


def test_page_completion_ties_go_to_the_oldest_page():
    scores = [9, 9, 0, 0] * 3
    assert chosen(scores, 6, "page_completion", fraction=2 / 3) == [0, 1, 2, 3, 6, 7, 10, 11]


def test_page_completion_leaves_pages_with_protected_tokens():
    scores = [0, 0, 0, 9, 9, 9, 9, 0, 9, 9, 0, 0]
    got = chosen(scores, 6, "page_completion", fraction=2 / 3, protected=[3])
    assert got == [0, 1, 2, 7, 8, 9, 10, 11]


def test_page_completion_with_every_page_protected_drops_no_page():
    scores = [0, 0, 0, 9, 9, 9, 9, 0, 9, 9, 0, 0]
    got = chosen(scores, 6, "page_completion", fraction=0.1, protected=[3, 4, 8])
    assert got == [0, 1, 2, 7, 10, 11]


# Two sets, one per layer, each of four tokens; pages of two.
TWO_SETS = np.array([[[1, 2, 3, 4]], [[4, 3, 2, 1]]])


def test_sets_choose_alone():
    assert chosen(TWO_SETS, 2, page_tokens=2) == [[0, 1], [2, 3]]
    assert chosen(TWO_SETS, 2, "page", page_tokens=2) == [[0, 1], [2, 3]]
    assert chosen(TWO_SETS, 2, "window", window_tokens=2) == [[0, 1], [2, 3]]


def test_page_completion_counts_the_rows_of_all_sets_of_a_table():
    # In shared pages each page has two surviving rows; the older one goes, for both sets.
    got = chosen(TWO_SETS, 2, "page_completion", page_tokens=2, fraction=0.5)
    assert got == [[0, 1], [0, 1, 2, 3]]


def test_page_completion_works_table_by_table():
    # With a table each, both hold one page already.
    got = chosen(TWO_SETS, 2, "page_completion", page_tokens=2, fraction=0.5, table=[[0], [1]])
    assert got == [[0, 1], [2, 3]]


def test_a_set_that_spans_tables_acts_like_one_in_the_table_that_it_names():
    # Sets coarser than the scope: their tables agree, and the first stands for all.
    scores = [0, 0, 0, 9, 9, 9, 9, 0]
    alone = chosen(scores, 4, "page_completion", fraction=0.5)
    assert chosen(scores, 4, "page_completion", fraction=0.5, table=3) == alone


def test_more_protected_than_kept_is_infeasible():
    with pytest.raises(Infeasible, match="3 tokens are protected and the budget keeps 2"):
        chosen([1, 2, 3, 4], kept=2, protected=[0, 1, 2])
    assert chosen([1, 2, 3, 4], kept=3, protected=[0, 1, 2]) == [3]


def test_protected_tokens_that_are_gone_do_not_count():
    assert chosen([1, 2, 3, 4], kept=1, protected=[0, 1], retained=[0, 1, 1, 1]) == [2, 3]


@st.composite
def situations(draw):
    """A view in mid-life: sets that dropped different tokens, in shared or separate tables."""
    set_shape = draw(st.sampled_from([(1, 1), (2, 1), (3, 2)]))
    scope = draw(st.sampled_from(["sequence", "layer", "head"]))
    sets = [(layer, head) for layer in range(set_shape[0]) for head in range(set_shape[1])]
    if scope == "sequence":
        table = [0] * len(sets)
    elif scope == "layer":
        table = [layer for layer, _ in sets]
    else:
        table = list(range(len(sets)))
    tokens = draw(st.integers(1, 40))
    bits = st.integers(0, 2**tokens - 1)
    # Drawn as bits and inverted, because Hypothesis prefers zeros: most tokens are live.
    live = [[not (gone >> i) & 1 for i in range(tokens)] for gone in (draw(bits) for _ in sets)]
    if draw(st.booleans()):
        live = [[True] * tokens for _ in sets]
    # Few values, in quarters: ties abound, and no mean depends on the order of its sum.
    values = st.lists(st.integers(0, 5), min_size=tokens, max_size=tokens)
    scores = [[value / 4 for value in draw(values)] for _ in sets]
    guard = draw(bits) & draw(bits)
    protected = [bool((guard >> i) & 1) for i in range(tokens)]
    return {
        "set_shape": set_shape,
        "table": table,
        "live": live,
        "scores": scores,
        "protected": protected,
        "kept": draw(st.integers(0, tokens)),
        "fraction": draw(st.sampled_from([0.05, 0.25, 0.3, 0.5, 0.6, 0.9, 1.0])),
        "granularity": draw(st.sampled_from(["token", "window", "page", "page_completion"])),
        "window_tokens": draw(st.integers(1, 6)),
        "page_tokens": draw(st.integers(1, 6)),
    }


def expected(case):
    """Ask the oracle; columns are named by their token."""
    tables = set(case["table"])
    cursor = {}
    for number in tables:
        # A table's cursor stands one past the last slot that one of its sets retains.
        mine = [live for live, t in zip(case["live"], case["table"], strict=True) if t == number]
        cursor[number] = max((i + 1 for live in mine for i, on in enumerate(live) if on), default=0)
    dense = dict.fromkeys(tables, -(-len(case["protected"]) // case["page_tokens"]))
    sets = [
        {i: (i, score) for i, (score, on) in enumerate(zip(scores, live, strict=True)) if on}
        for scores, live in zip(case["scores"], case["live"], strict=True)
    ]
    protected = {i for i, on in enumerate(case["protected"]) if on}
    rules = {k: case[k] for k in ("kept", "fraction", "granularity", "window_tokens")}
    rules |= {"table": case["table"], "cursor": cursor, "dense": dense}
    try:
        gone = victims(sets, protected, page_tokens=case["page_tokens"], **rules)
    except TooManyProtected:
        gone = None
    return gone, cursor, dense


@settings(max_examples=400)
@given(situations())
def test_selection_agrees_with_the_oracle(case):
    wanted, cursor, dense = expected(case)
    live = np.array(case["live"])
    columns = np.flatnonzero(live.any(axis=0))
    shape = case["set_shape"]
    view = views.make(
        columns.size,
        set_shape=shape,
        retained=live[:, columns],
        positions=columns,
        appended=len(case["protected"]),
    )
    table = np.array(case["table"]).reshape(shape)
    where = views.places(
        view,
        case["page_tokens"],
        table=table,
        cursor=np.array([cursor[t] for t in case["table"]]).reshape(shape),
        dense=np.array([dense[t] for t in case["table"]]).reshape(shape),
    )
    try:
        got = select(
            view,
            np.array(case["scores"])[:, columns].reshape(*shape, columns.size),
            np.array(case["protected"])[columns],
            Target(case["kept"], case["fraction"]),
            granularity=case["granularity"],
            window_tokens=case["window_tokens"],
            places=where,
        )
    except Infeasible:
        assert wanted is None
        return
    assert wanted is not None
    named = [set(columns[row].tolist()) for row in got.reshape(view.sets, columns.size)]
    event(f"{case['granularity']}: {'some' if any(wanted) else 'no'} victims")
    assert named == wanted
