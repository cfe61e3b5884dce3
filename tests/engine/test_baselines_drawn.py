"""The two baselines of `kvsim bench engine` on random workloads: each other, and conservation."""

from __future__ import annotations

import numpy as np
import pytest
from engine_workloads import Steps, drawn, linear, requests, terms_drawn

from kvsim.bench import engine_numpy, engine_process
from kvsim.bench.engine_process_pages import Pages
from kvsim.bench.engine_report import StaticEviction, Terms
from kvsim.errors import LedgerError, ScenarioError
from kvsim.seeds import stream


def test_both_baselines_agree_on_random_workloads():
    reached = np.zeros(3, np.int64)
    for index in range(60):
        rng = stream(7, "test", index)
        of, terms = drawn(rng), terms_drawn(rng)
        report = engine_process.serve(of, terms, linear, checking=True)
        assert report.differences(engine_numpy.serve(of, terms, linear)) == [], (index, terms)
        done = report.outcome == "completed"
        reached += [done, report.preemptions_total > 0, report.evicted_tokens_total > 0]
    assert min(reached) >= 10, reached


def test_everything_is_conserved_with_cache_samples_and_priorities():
    reached = np.zeros(5, np.int64)
    for index in range(120):
        rng = stream(8, "test", index)
        of, terms = drawn(rng, full=True), terms_drawn(rng, full=True)
        report = engine_process.serve(of, terms, linear, checking=True)
        done = report.outcome == "completed"
        if done:
            samples = np.where(of.output_tokens > 0, of.samples, 1)
            assert report.finished == samples.sum()
            assert report.generated_tokens_total == (of.output_tokens * of.samples).sum()
        totals = ("preemptions", "evicted_tokens", "hit_tokens", "cow_pages")
        reached += [done, *(getattr(report, f"{name}_total") > 0 for name in totals)]
    assert min(reached) >= 10, reached


def test_a_cache_and_a_ceiling_that_never_bind_change_no_token():
    # A pool of pages for everybody, under which a cached page is taken only behind fresh ones,
    # and an unlimited one are the same.
    for index in range(10):
        rng = stream(9, "test", index)
        of = drawn(rng, full=True)
        reports = [
            engine_process.serve(of, Terms(64, 8, ceiling_pages=c, cache="blocks"), linear)
            for c in (0, 100_000)
        ]
        assert reports[0].differences(reports[1]) == []


def test_a_leak_is_noticed(monkeypatch):
    # The control of `checking`: a page that is let go of and never comes back.
    def leak(self, page):
        self.refcount[page] -= 1
        return False

    of = requests((0, 6, 3, 0, 1), (500, 3, 2, 0, 1))
    monkeypatch.setattr(Pages, "let_go", leak)
    with pytest.raises(LedgerError, match="each page once"):
        engine_process.serve(of, Terms(8, 2), Steps(), checking=True)


def test_a_difference_is_noticed():
    # The control of `differences`: one more output token in one of the requests.
    one, other = (
        engine_process.serve(requests((0, 6, 3, 0, 1), (0, 5, more, 0, 1)), Terms(16, 2), Steps())
        for more in (1, 2)
    )
    names = {line.partition(":")[0] for line in one.differences(other)}
    assert names == {"generated_tokens_total", "last_token_ns", "page_integral"}


@pytest.mark.parametrize(
    ("what", "wrong"),
    [
        (Terms, {"order": "lifo"}),
        (Terms, {"cache": "radix"}),
        (Terms, {"publish": "none"}),
        (Terms, {"unhashed": "middle"}),
        (Terms, {"step_tokens": 0}),
        (Terms, {"watermark": 1.0}),
        (StaticEviction, {"policy": "h2o"}),
        (StaticEviction, {"when": "chunk"}),
        (StaticEviction, {"tokens": -1}),
        (StaticEviction, {"fraction": 1.5}),
    ],
    ids=lambda part: next(iter(part)) if isinstance(part, dict) else part.__name__,
)
def test_what_cannot_be_meant_is_refused(what, wrong):
    good = {"step_tokens": 8, "max_running": 1} if what is Terms else {"policy": "random"}
    with pytest.raises(ScenarioError):
        what(**{**good, **wrong})


def test_the_numpy_baseline_says_what_it_leaves_out():
    plain = requests((0, 4, 1, 0, 1))
    for of, terms in (
        (plain, Terms(8, 1, cache="blocks")),
        (plain, Terms(8, 1, order="priority")),
        (requests((0, 4, 1, 0, 2)), Terms(8, 2)),
    ):
        with pytest.raises(ScenarioError, match="no prefix cache"):
            engine_numpy.serve(of, terms, linear)
