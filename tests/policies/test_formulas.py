"""Each policy's score against values worked by hand from its formula."""

from __future__ import annotations

import numpy as np
import pytest
import views

from kvsim.policies import Attention, build, registry

# Two layers of two KV heads, four tokens.
CUM = np.array(
    [[[8, 4, 2, 1], [4, 8, 6, 3]], [[2, 2, 2, 2], [6, 2, 6, 2]]],
    np.float32,
)
LAST = np.array(
    [[[0.5, 0.25, 0.25, 0], [0, 0.25, 0.25, 0.5]], [[1, 0, 0, 0], [0.5, 0.5, 0, 0]]],
    np.float32,
)


def attention_view(set_shape=(1, 1), **options):
    return views.make(
        4,
        set_shape=set_shape,
        unit_shape=(2, 2),
        attention=Attention(cumulative=CUM, last=LAST, window=LAST),
        **options,
    )


def averaged(policy, view):
    return registry.scores(policy, view, "under test")


def test_h2o_is_the_attention_summed_so_far():
    assert (build("h2o", {}).score(attention_view()) == CUM).all()


def test_shared_sets_average_over_layers_and_heads_and_layer_sets_over_heads():
    # The sums over four units are 20, 16, 16, 8.
    assert averaged(build("h2o", {}), attention_view()).tolist() == [[[5, 4, 4, 2]]]
    by_layer = averaged(build("h2o", {}), attention_view((2, 1)))
    assert by_layer.tolist() == [[[6, 6, 4, 2]], [[4, 2, 4, 2]]]
    assert (averaged(build("h2o", {}), attention_view((2, 2))) == CUM).all()


def test_h2o_age_divides_by_the_queries_that_could_attend():
    # Four tokens were appended: 4, 3, 2 and 1 queries saw them.
    got = build("h2o_age", {}).score(attention_view())
    assert got[0, 0] == pytest.approx([8 / 4, 4 / 3, 2 / 2, 1 / 1], rel=1e-7)
    assert got[1, 1] == pytest.approx([6 / 4, 2 / 3, 6 / 2, 2 / 1], rel=1e-7)


def test_h2o_age_counts_tokens_and_not_columns():
    # Tokens 1, 4, 8, 9 are left of ten: T - position is 9, 6, 2 and 1.
    view = attention_view(positions=[1, 4, 8, 9], appended=10)
    got = build("h2o_age", {}).score(view)
    assert got[0, 0] == pytest.approx([8 / 9, 4 / 6, 2 / 2, 1 / 1], rel=1e-7)


def test_tova_averages_the_last_query_over_all_heads_of_a_layer():
    got = build("tova", {}).score(attention_view())
    assert got.tolist() == [[[0.25, 0.25, 0.25, 0.25]], [[0.75, 0.25, 0, 0]]]
    assert averaged(build("tova", {}), attention_view()).tolist() == [[[0.5, 0.25, 0.125, 0.125]]]


def snapkv(kernel, window):
    window = np.array(window, np.float32).reshape(1, 1, -1)
    nothing = np.zeros_like(window)
    view = views.make(window.size, attention=Attention(nothing, nothing, window))
    return build("snapkv", kernel).score(view).ravel().tolist()


def test_snapkv_pools_with_zero_padding_and_divides_by_the_kernel():
    window = [0, 5, 10, 0, 0, 20]
    # Five wide, and the ends see zeros: (0+5+10)/5, (0+5+10+0)/5, ..., (0+0+20)/5.
    assert snapkv({}, window) == [3, 3, 3, 7, 6, 4]
    assert snapkv({"kernel": 5}, window) == [3, 3, 3, 7, 6, 4]
    assert snapkv({"kernel": 1}, window) == window
    assert snapkv({"kernel": 3}, [3, 6, 9, 0]) == [3, 6, 5, 3]


def test_snapkv_may_be_wider_than_the_prompt():
    assert snapkv({"kernel": 7}, [7, 14]) == [3, 3]


def test_knorm_keeps_small_keys():
    norms = np.array([[[1.5, 0.5, 3.0]]], np.float32)
    got = build("knorm", {}).score(views.make(3, key_norms=norms))
    assert got.tolist() == [[[-1.5, -0.5, -3.0]]]


def test_streaming_llm_scores_by_position_and_protects_its_sinks():
    view = views.make(6, positions=[0, 2, 3, 5, 8, 9])
    policy = build("streaming_llm", {})
    assert policy.score(view).tolist() == [0, 2, 3, 5, 8, 9]
    # The four sinks are the tokens 0 to 3, of which one is gone; not the first four columns.
    assert policy.protected(view).tolist() == [True, True, True, False, False, False]
    assert not build("streaming_llm", {"n_sink": 0}).protected(view).any()


@pytest.mark.parametrize("set_shape", [(1, 1), (2, 1), (2, 2)])
def test_random_draws_once_per_set_and_token(set_shape):
    view = views.make(1000, set_shape=set_shape, unit_shape=(2, 2), seed=5)
    got = averaged(build("random", {}), view)
    assert got.shape == (*set_shape, 1000)
    assert (got == np.random.default_rng(5).random((*set_shape, 1000))).all()
    # An average of draws would gather round one half: the spread tells that it is none.
    assert got.std() == pytest.approx(12**-0.5, rel=0.1)
    assert np.unique(got).size == got.size


@pytest.mark.parametrize("name", ["h2o", "h2o_age", "knorm", "random", "snapkv", "streaming_llm"])
def test_only_tova_rules_sets_per_head_out(name):
    assert build(name, {}).sets == ("shared", "layer", "head")
    assert build("tova", {}).sets == ("shared", "layer")
