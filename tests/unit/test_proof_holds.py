"""What must hold in the proof: fak's cases, the quarantine, and one case of the matrix.

Cases of the cover are in test_proof_cover.py.
"""

from __future__ import annotations

import pytest
from proof_case import ONE, SEED

from kvsim.tensors import moving
from kvsim.tensors.proof import fak, matrix, proving, quarantine
from kvsim.tensors.proof.script import run_case


@pytest.mark.parametrize("name", [name for name, _ in fak.cases(SEED)])
def test_faks_cases_hold(name):
    tally = dict(fak.cases(SEED))[name]()
    assert tally.failures == []
    assert tally.words_compared > 0


def test_the_quarantine_invariant_holds():
    names = []
    for name, run in quarantine.cases(SEED):
        tally = run()
        assert tally.failures == [], name
        assert tally.words_compared > 0
        names.append(name)
    assert sum("never read it" in name for name in names) >= 12


def test_a_case_is_what_its_seed_makes_it():
    first, again, other = (run_case(ONE, seed) for seed in (1, 1, 2))
    assert first.failures == other.failures == []
    assert first.words_compared == again.words_compared
    one, two = (proving.prove_case(matrix.number_of(ONE), 1).as_dict() for _ in range(2))
    assert one | {"seconds": 0} == two | {"seconds": 0}
    assert one["words_compared"] == first.words_compared
    assert one["holds"]


@pytest.mark.skipif(not moving.streaming.STREAMS, reason="no non-temporal stores here")
def test_wide_rows_use_the_streaming_kernel(monkeypatch):
    used = []
    real = moving.move_streaming

    def watched(*arguments):
        used.append(arguments[3].shape[1])
        real(*arguments)

    monkeypatch.setattr(moving, "move_streaming", watched)
    wide = ONE._replace(family="wide", kernel="streaming")
    tally = run_case(wide, SEED)
    assert tally.failures == []
    assert sum(used) == tally.streamed_moves > tally.streamed_rotations > 0
    assert moving.move_streaming is watched
    used.clear()
    assert run_case(wide._replace(kernel="portable"), SEED).failures == []
    assert used == []
