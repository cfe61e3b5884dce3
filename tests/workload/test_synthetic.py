"""The synthetic process: its signals against rows by the definition, and values by hand."""

from __future__ import annotations

import numpy as np
import pytest
from synthetic_signals import blob, rows, same, signals

from kvsim.workload.synthetic import WINDOW, Process
from kvsim.workload.synthetic_rows import attend
from kvsim.workload.synthetic_tokens import BLOCK, decayed


@pytest.mark.parametrize("appended", [1, 5, WINDOW, WINDOW + 1, BLOCK, BLOCK + 1, 200, 256])
def test_signals_are_the_sums_of_the_rows_by_the_definition(appended):
    made = signals(appended)
    wanted = rows(made, appended + 1)
    got = made.observe(np.arange(appended))["attention"]
    so_far = wanted[:, :appended, :appended]
    same(got.cumulative, so_far.sum(axis=1))
    same(got.last, so_far[:, -1])
    same(got.window, so_far[:, -WINDOW:].mean(axis=1))
    same(made.next_query(appended), wanted[:, appended, :appended])
    # A query gives 1 in all; the next one keeps some for itself.
    assert got.cumulative.sum(axis=2) == pytest.approx(appended, rel=1e-5)
    assert got.window.sum(axis=2) == pytest.approx(1, rel=1e-5)
    assert (made.next_query(appended).sum(axis=2) < 1).all()


def test_three_tokens_by_hand():
    # All weights 1, and g = c everywhere: row q gives 1 / (q + 1) to each token.
    flat = Process(spread=0.0, sinks=0, recency_short=0.0, recency_long=0.0, mixture_sd=0.0)
    made = signals(3, process=flat)
    got = made.observe(np.arange(3))["attention"]
    assert got.cumulative[1, 2] == pytest.approx([1 + 1 / 2 + 1 / 3, 1 / 2 + 1 / 3, 1 / 3])
    assert got.last[0, 0] == pytest.approx([1 / 3] * 3)
    assert got.window[0, 0] == pytest.approx([11 / 18, 5 / 18, 2 / 18])
    assert made.next_query(3)[0, 0] == pytest.approx([1 / 4] * 3)
    assert made.next_query(2)[0, 0] == pytest.approx([1 / 3] * 2)


def test_a_sink_takes_its_share_and_recency_its_own():
    one = Process(spread=0.0, sinks=1, sink_share=0.25, sink_sd=0.0, mixture_sd=0.0)
    last = signals(4096, process=one).observe(np.arange(4096))["attention"].last
    others = last[..., 1:].sum(axis=2)
    assert last[..., 0] == pytest.approx(0.25, abs=0.003)
    # 44% falls off within 7 tokens: three times that hold 1 - e**-3 of it, and a little else.
    near = last[..., -21:].sum(axis=2) / others
    assert near == pytest.approx(0.44 * (1 - np.exp(-3)) + 0.17 * 21 / 270, abs=0.01)


def test_query_heads_multiply_the_sum_and_nothing_else():
    one, three = signals(100), signals(100, query_heads=3)
    got, plain = (made.observe(np.arange(100))["attention"] for made in (three, one))
    assert (got.cumulative == plain.cumulative * np.float32(3)).all()
    assert (got.last == plain.last).all()
    assert (got.window == plain.window).all()


def test_decayed_sums_by_hand_and_goes_on():
    assert decayed(np.array([1.0, 2.0, 4.0]), 0.5).tolist() == [1.0, 2.5, 5.25]
    assert decayed(np.array([[4.0]]), 0.5, np.array([2.5])).tolist() == [[5.25]]


def test_the_compiled_pass_equals_the_same_code_in_numpy():
    made = signals(150)
    compiled = blob(made)
    plain = getattr(attend, "py_func", attend)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kvsim.workload.synthetic.attend", plain)
        assert blob(made) == compiled
