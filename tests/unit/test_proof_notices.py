"""What goes wrong is seen: the proof against broken stores, counts, twins and refusals."""

from __future__ import annotations

import pytest
from proof_case import ONE, SEED, started

from kvsim.errors import CeilingExceeded
from kvsim.paging import fields as f
from kvsim.tensors.array_store import ArrayStore
from kvsim.tensors.contiguous import ContiguousCache
from kvsim.tensors.proof import ceilings, fak, matrix, proving
from kvsim.tensors.proof.counting import PageCount
from kvsim.tensors.proof.script import run_case
from kvsim.tensors.proof.tally import Tally


def broken_apply(real, how):
    def apply(self, plan):
        wrong = plan.copy()
        how(wrong)
        real(self, wrong)

    return apply


def no_rotation(plan):
    plan[f.POSITION] = -1


def one_position_off(plan):
    plan[f.POSITION, plan[f.POSITION] > 0] -= 1


def backwards(plan):
    plan[:] = plan[:, ::-1].copy()


@pytest.mark.parametrize("how", [no_rotation, one_position_off, backwards])
def test_a_broken_store_is_noticed(how, monkeypatch):
    monkeypatch.setattr(ArrayStore, "apply", broken_apply(ArrayStore.apply, how))
    tally = run_case(ONE, SEED)
    assert tally.words_differing > 0
    case, what = tally.failures[0]
    assert case.startswith(f"case {matrix.number_of(ONE)}: family=dense")
    assert "words differ" in what
    # fak's own sizes are too small to see moves in the wrong order; all of its cases together do.
    assert [name for name, run in fak.cases(SEED) if not run().holds]


def test_a_wrong_page_count_is_noticed(monkeypatch):
    monkeypatch.setattr(PageCount, "held", property(lambda self: 1))
    assert any("pages held" in what for _, what in run_case(ONE, SEED).failures)


def test_a_wrong_twin_is_noticed(monkeypatch):
    """Logits and rows are those of the twin: a twin that forgets too much must be seen."""
    real = ContiguousCache.evict_span
    monkeypatch.setattr(
        ContiguousCache, "evict_span", lambda self, first, count: real(self, first, count + 1)
    )
    found = " ".join(what for _, what in run_case(ONE, SEED).failures)
    assert "lengths or next positions differ" in found


def test_a_crash_is_a_failure_and_the_proof_goes_on(monkeypatch):
    def crash(self, plan):
        raise RuntimeError("what no case expects")

    monkeypatch.setattr(ArrayStore, "apply", crash)
    tally = run_case(ONE, SEED)
    assert tally.failures[-1][1] == "RuntimeError: what no case expects"
    report = proving._run([("one", lambda: 1 / 0), ("two", lambda: Tally(cases=1))], lambda: None)
    assert report.cases == 2
    assert report.failures == [("one", "ZeroDivisionError: division by zero")]


def test_a_refused_verb_that_changes_a_byte_is_noticed():
    tally = Tally()
    both, _, _ = started(Tally())
    cache, tries = both.paged, []

    def verb():
        tries.append(len(tries))
        if len(tries) < 3:
            cache.store.planes[0]["V"][0, 0] += 1
            raise CeilingExceeded("verb", 1, 0)
        return "done"

    assert ceilings.under_ceilings(cache, verb, tally) == "done"
    assert len([w for _, w in tally.failures if "changed something" in w]) == 2
    ledger = cache.ledger
    assert ledger._arrays.scalars[f.CEILING] > 10**6
    before = ceilings.fingerprint(cache)
    ceilings.set_ceiling(cache, 12)
    assert ceilings.fingerprint(cache) == before
    ledger._arrays.dead[0] ^= 1
    assert ceilings.fingerprint(cache) != before


def test_ceilings_are_tried_from_below():
    """A refusal that asks for a page too few or too many, or never ends."""
    both, _, _ = started(Tally())
    ledger = both.paged.ledger
    held = ledger.held_pages

    def needing(pages, asked):
        def verb():
            free = int(ledger._arrays.scalars[f.CEILING]) - held
            if free < pages:
                raise CeilingExceeded("verb", asked, free)
            return free

        return verb

    tally = Tally()
    assert ceilings.under_ceilings(both.paged, needing(5, 5), tally) == 5
    assert tally.holds
    tally = Tally()
    ceilings.under_ceilings(both.paged, needing(5, 7), tally)
    assert not tally.holds
    tally = Tally()
    ceilings.under_ceilings(both.paged, needing(50, 3), tally)
    assert not tally.holds
