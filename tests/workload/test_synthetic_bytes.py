"""What the bytes of synthetic signals depend on, and what they do not."""

from __future__ import annotations

import numpy as np
import pytest
from synthetic_signals import PARTS, UNITS, blob, signals


@pytest.mark.parametrize("pieces", [[1] * 150, [64, 64, 22], [63, 2, 63, 22], [149, 1], [0, 150]])
def test_bytes_do_not_depend_on_how_many_tokens_come_at_a_time(pieces):
    made = signals()
    for piece in pieces:
        made.extend(piece)
    assert made.appended == 150
    assert blob(made) == blob(signals(150))
    assert made.next_query(150).tobytes() == signals(150).next_query(150).tobytes()


def test_bytes_do_not_depend_on_what_was_asked_before():
    asked = signals()
    for piece in (3, 61, 40, 1, 1, 64):
        asked.extend(piece)
        asked.next_query(asked.appended)
        asked.next_query(1)
        asked.observe(np.arange(0, asked.appended, 2))
        asked.observe(np.arange(asked.appended))
        asked.fork(99).extend(5)
    assert blob(asked) == blob(signals(170))
    assert asked.next_query(7).tobytes() == signals(7).next_query(7).tobytes()


def test_a_chunk_sees_only_the_queries_so_far():
    made = signals(100)
    before = blob(made)
    made.extend(30)
    assert blob(made, np.arange(100)) != before
    assert blob(signals(100)) == before


@pytest.mark.parametrize("appended", [40, 200, 256])
def test_columns_pick_from_the_whole(appended):
    made = signals(appended)
    whole = made.observe(np.arange(appended))
    picks = np.random.default_rng(3)
    runs = [np.arange(10, 30), np.arange(0, appended - 1), np.array([appended - 1])]
    for columns in [*runs, np.sort(picks.choice(appended, appended // 2, replace=False))]:
        got = made.observe(columns)
        for part in PARTS:
            want = getattr(whole["attention"], part)[..., columns]
            assert getattr(got["attention"], part).tobytes() == want.tobytes()
        for name in ("key_norms", "value_norms"):
            assert (got[name] == whole[name][..., columns]).all()
        assert (got["keys"] == whole["keys"][:, :, columns]).all()
    empty = made.observe(np.zeros(0, np.int64))
    assert empty["attention"].window.shape == (*UNITS, 0)


def test_seeds_and_sequences_differ_and_repeat():
    kinds = [signals(80), signals(80, seed=8), signals(80, sequence=1)]
    assert len({blob(made)[0] for made in kinds}) == 3
    assert blob(signals(80)) == blob(kinds[0])
    # A seed is a model: its units are the same in every sequence.
    assert kinds[0]._tokens.units is kinds[2]._tokens.units
    assert not kinds[0]._tokens.units.spread.flags.writeable


def test_what_is_needed_is_returned_and_changes_nothing_else():
    whole = signals(90).observe(np.arange(90))
    for needs in ((), ("attention",), ("key_norms",), ("keys", "value_norms")):
        found = signals(90, needs=needs).observe(np.arange(90))
        assert set(found) == set(needs)
        for name in set(needs) - {"attention"}:
            assert found[name].tobytes() == whole[name].tobytes()
            assert found[name].dtype == np.float32
        if "attention" in found:
            got, want = found["attention"].cumulative, whole["attention"].cumulative
            assert got.tobytes() == want.tobytes()
        row = signals(90, needs=needs).next_query(90)
        assert row.tobytes() == signals(90).next_query(90).tobytes()
