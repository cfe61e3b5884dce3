"""KeyDiff and ChunkKV against values worked by hand from their formulas."""

from __future__ import annotations

import numpy as np
import pytest
import views

from kvsim.errors import PolicyError
from kvsim.policies import Attention, build, registry
from kvsim.policies.selection import Target, select


def keyed(keys, **options):
    """Return a view of one unit, or of a layer of two heads, with these keys."""
    array = np.array(keys, np.float32)
    array = array.reshape(1, -1, *array.shape[-2:])
    return views.make(
        array.shape[2], unit_shape=array.shape[:2], **{"keys": array, "seed": 1, **options}
    )


def test_keydiff_by_hand():
    # Directions (1, 0), (1, 0), (0, 1): the anchor points to (2, 1) / sqrt(5). Lengths: no matter.
    got = build("keydiff", {}).score(keyed([[5, 0], [0.1, 0], [0, 2]]))
    assert got[0, 0] == pytest.approx([-2 / 5**0.5, -2 / 5**0.5, -1 / 5**0.5])
    # The odd one out is kept.
    assert got[0, 0].argmax() == 2


def test_keydiff_is_not_the_mean_of_the_keys_themselves():
    # By plain means the long key would be the anchor; by directions the two short ones are.
    got = build("keydiff", {}).score(keyed([[100, 0], [0, 1], [0, 1]]))
    assert got[0, 0] == pytest.approx([-1 / 5**0.5, -2 / 5**0.5, -2 / 5**0.5])


def test_each_head_has_its_own_anchor():
    got = build("keydiff", {}).score(keyed([[[1, 0], [1, 0]], [[0, 3], [0, -3]]]))
    assert got[0, 0] == pytest.approx([-1, -1])
    # Opposite directions have no mean at all: every cosine is 0, and not a number.
    assert got[0, 1].tolist() == [0, 0]


def test_the_anchor_is_of_what_the_set_retains():
    keys = [[[1, 0], [0, 1], [0, 1]], [[1, 0], [0, 1], [0, 1]]]
    view = keyed(keys, set_shape=(1, 2), retained=[[[1, 0, 1], [1, 1, 1]]])
    got = build("keydiff", {}).score(view)
    assert got[0, 0, [0, 2]] == pytest.approx([-1 / 2**0.5, -1 / 2**0.5])
    assert got[0, 1] == pytest.approx([-1 / 5**0.5, -2 / 5**0.5, -2 / 5**0.5])


def test_a_key_of_length_zero_has_cosine_zero():
    got = build("keydiff", {}).score(keyed([[0, 0], [3, 4]]))
    assert got[0, 0] == pytest.approx([0, -1])


def attended(window, positions=None, **options):
    window = np.array(window, np.float32)
    other = np.full(window.shape, np.nan, np.float32)
    return views.make(
        window.shape[2],
        unit_shape=window.shape[:2],
        positions=positions,
        attention=Attention(cumulative=other, last=other, window=window),
        **options,
    )


def test_chunkkv_by_hand():
    # Heads summed: 2, 4, 6, 8, 3. In chunks of 2: 3, 3, 7, 7, and 3 alone.
    view = attended([[[1, 3, 2, 4, 1], [1, 1, 4, 4, 2]], [[0, 0, 1, 0, 0], [0, 2, 1, 0, 0]]])
    got = build("chunkkv", {"chunk": 2}).score(view)
    assert got.shape == (2, 1, 5)
    assert got[0, 0].tolist() == [3, 3, 7, 7, 3]
    assert got[1, 0].tolist() == [1, 1, 1, 1, 0]


def test_chunks_align_in_positions_and_average_what_is_left():
    # Chunks of 3 by position: {1, 2}, {3}, {7, 8}.
    view = attended([[[1, 3, 5, 2, 4]]], positions=[1, 2, 3, 7, 8])
    assert build("chunkkv", {"chunk": 3}).score(view)[0, 0].tolist() == [2, 2, 5, 3, 3]


def test_default_chunk_is_the_papers_and_chunk_one_is_the_score_itself():
    assert build("chunkkv", {}) == build("chunkkv", {"chunk": 20})
    window = np.random.default_rng(0).random((1, 1, 50))
    view = attended(window)
    got = build("chunkkv", {"chunk": 1}).score(view)
    assert (got == window.astype(np.float32).astype(np.float64)).all()
    assert np.unique(build("chunkkv", {}).score(view)).size == 3


def test_whole_chunks_go_and_the_last_one_loses_its_oldest():
    # Means of the four chunks of 4: 2, 1, 4, 3.
    view = attended(np.repeat([2.0, 1.0, 4.0, 3.0], 4).reshape(1, 1, 16))
    policy = build("chunkkv", {"chunk": 4})
    victims = select(
        view,
        registry.scores(policy, view, "under test"),
        np.zeros(16, bool),
        Target(kept=10, fraction=10 / 16),
        granularity="token",
        window_tokens=4,
        places=views.places(view, 4),
    )
    assert np.flatnonzero(victims[0, 0]).tolist() == [0, 1, 4, 5, 6, 7]


@pytest.mark.parametrize("chunk", [0, -1, 2.0, True])
def test_a_chunk_that_cannot_be_is_refused(chunk):
    with pytest.raises(PolicyError, match="chunk"):
        build("chunkkv", {"chunk": chunk})


def test_what_they_declare():
    assert build("keydiff", {}).signals == ("keys",)
    assert build("chunkkv", {}).signals == ("attention",)
    # Its scores are summed over heads: there is nothing to tell heads apart by.
    assert build("chunkkv", {}).sets == ("shared", "layer")
