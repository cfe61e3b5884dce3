"""The proof as a whole: its verdict, its time, and that it says the same again.

Parts of it have files of their own; most of them also break it on purpose, because a proof that
cannot fail proves nothing.
"""

from __future__ import annotations

import os

import pytest

from kvsim.tensors.proof import matrix, pairwise, proving
from kvsim.tensors.proof.assembly import Gate
from kvsim.tensors.proof.controls import Control
from kvsim.tensors.proof.tally import Tally


def test_every_verdict_needs_all_of_it():
    good = proving.Report(
        7, controls=[Control("one", True, ""), Control("two", "undetectable", "")]
    )
    assert good.holds
    assert not proving.Report(7, controls=[Control("one", False, "")]).holds
    assert not proving.Report(7, gate=Gate("failed")).holds
    assert not proving.Report(7, sections={"one": Tally(words_differing=1)}).holds
    assert not proving.Report(7, sections={"one": Tally(failures=[("case", "what")])}).holds
    gates = (
        (Gate("skipped", reason="why"), "undetectable"),
        (Gate("passed", fuses=False), "undetectable"),
        (Gate("passed", fuses=True), False),
        (Gate("passed", control=3, fuses=True), True),
    )
    assert [proving._gate_control(gate).detected for gate, _ in gates] == [d for _, d in gates]


def test_time_goes_into_cases_of_the_product(monkeypatch):
    """A product that repeats the cover or itself, or that does not end with the time."""
    monkeypatch.setattr(
        proving, "run_case", lambda case, seed: Tally(cases=1, case=case.describe())
    )
    report = proving.Report(7, product=matrix.size())
    known = {1, 2}
    cases = proving._shuffled(7, known, report)
    names = [next(cases)[0] for _ in range(200)]
    assert len(set(names)) == 200
    assert report.product_run == 200
    again = proving._shuffled(7, {1, 2}, proving.Report(7, product=matrix.size()))
    assert [next(again)[0] for _ in range(200)] == names
    assert list(proving._until(0.0, cases, 0.0, None)) == []


@pytest.mark.nightly
def test_the_product_for_long():
    seconds = float(os.environ.get("KVSIM_PROVE_SECONDS", "3600"))
    report = proving.prove(int(os.environ.get("KVSIM_PROVE_SEED", "7")), seconds)
    assert report.as_dict()["failures"] == []
    assert report.holds
    assert report.product_run > len(pairwise.cover())


@pytest.mark.nightly
def test_two_proofs_say_the_same():
    one, two = (proving.prove(11).as_dict() for _ in range(2))
    assert one | {"seconds": 0} == two | {"seconds": 0}
