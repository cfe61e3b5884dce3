"""The proof's matrix and its cover: which cases there are, and that every pair meets in one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from proof_case import ONE, SEED

from kvsim.errors import LedgerError
from kvsim.seeds import stream
from kvsim.tensors.proof import matrix, pairwise, proving
from kvsim.tensors.proof.script import run_case

DOCUMENT = Path(__file__).parents[2] / "docs" / "proof.md"


@pytest.fixture(scope="module")
def cover():
    return pairwise.cover()


def test_every_pair_of_values_that_may_meet_does_meet(cover):
    allowed, met = pairwise.allowed_pairs(), pairwise.pairs_met(cover)
    assert not (allowed & ~met).any()
    # And nothing meets that may not.
    assert not (met & ~allowed).any()
    assert np.array_equal(allowed, allowed.T)
    # Every two axes have a pair, and two values of one axis never meet.
    axis = np.array([list(matrix.AXES).index(name) for name, _ in matrix.VALUES])
    for left in range(len(matrix.AXES)):
        for right in range(len(matrix.AXES)):
            block = allowed[np.ix_(axis == left, axis == right)]
            assert block.any() == (left != right)


def test_the_cover_is_small_and_always_the_same(cover):
    assert pairwise.cover() == cover
    assert len(set(cover)) == len(cover) <= 150


def test_pairs_that_cases_of_the_product_have_are_those_that_are_allowed():
    rng = stream(SEED, "test")
    cases = [matrix.case_of(int(n)) for n in rng.integers(matrix.size(), size=4000)]
    met = pairwise.pairs_met(cases)
    assert not (met & ~pairwise.allowed_pairs()).any()
    # A sample so large meets nearly all, so the table of allowed pairs is not too wide either.
    assert met.sum() > 0.97 * pairwise.allowed_pairs().sum()


def test_what_cannot_be_is_not_in_the_matrix():
    for wrong in (
        {"planes": "raw_only", "keys": "int8"},
        {"unit": "row", "compaction": "none", "tables": "sets"},
        {"unit": "row", "tables": "shared"},
        {"append": "reuse_holes"},
        {"family": "glm_dsa", "rotation": "plain", "tables": "sets"},
        {"family": "glm_dsa", "rotation": "partial"},
        {"family": "mla", "rotation": "alibi"},
        {"kernel": "streaming"},
        {"kernel": "streaming", "family": "wide", "keys": "int8"},
        {"kernel": "streaming", "family": "wide", "rotation": "partial"},
        {"span": "per_set"},
        {"span": "per_set", "tables": "sets", "compaction": "none"},
        {"forks": 0, "evicts": "child"},
    ):
        with pytest.raises(ValueError, match="does not allow"):
            matrix.number_of(ONE._replace(**wrong))


def test_a_pair_with_an_idle_kernel_is_not_met(cover):
    """A kernel that was asked for, moved nothing, and counts as covered."""
    asked = [case for case in cover if case.kernel == "streaming"]
    met = pairwise.pairs_met(asked, set(asked))
    assert not met[matrix.NUMBERS["kernel", "streaming"]].any()
    others = [at for at, (axis, _) in enumerate(matrix.VALUES) if axis != "kernel"]
    assert np.array_equal(met[np.ix_(others, others)], pairwise.pairs_met(asked)[:, others][others])


def test_the_documentation_counts_the_axes_and_the_product():
    text = DOCUMENT.read_text(encoding="utf-8")
    assert len(matrix.AXES) == 21
    assert "Twenty-one axes" in text
    assert f"{matrix.size() / 1e9:.1f} thousand million cases" in text


def test_numbers_and_cases_are_one_to_one():
    rng = stream(SEED, "test")
    for number in (0, matrix.size() - 1, *rng.integers(matrix.size(), size=50).tolist()):
        assert matrix.number_of(matrix.case_of(number)) == number
    for number in (-1, matrix.size()):
        with pytest.raises(LedgerError, match="the matrix has cases 0 to"):
            proving.prove_case(number)


def test_cases_of_the_cover_hold(cover):
    # Every fourth here; the whole cover runs as a user runs it, in tests/cli/test_prove.py.
    for case in cover[::4]:
        tally = run_case(case, SEED)
        assert tally.failures == []
        assert tally.words_compared > 0
