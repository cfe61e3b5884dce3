"""The proof's cases of whole cache lines: that they stream, and what they notice in that kernel."""

from __future__ import annotations

import importlib

import numpy as np
import pytest

from kvsim.paging import fields as f
from kvsim.tensors import lanes as n
from kvsim.tensors import moving, streaming
from kvsim.tensors.proof import streamed

SEED = 7
CASES = streamed.streamed_cases()
real_keys, real_values = moving.stream_keys, moving.stream_values
needs_streams = pytest.mark.skipif(not streaming.STREAMS, reason="no non-temporal stores here")


def test_the_cases_cross_what_the_kernel_has_to_get_right():
    assert len(set(CASES)) == len(CASES) == 16
    for axis, values in {
        "rotation": {"plain", "per_layer_theta"},
        "compaction": {"none", "rebuild", "forward", "hole_fill"},
        "tables": {"shared", "sets", "layer", "head"},
        "unit": {"slot", "row"},
        "forks": {1, 2, 3, 4},
        "page_tokens": {1, 4, 16},
        "ceiling": {"none", "tight"},
        "layout": {"page_major", "layer_major"},
        "values": {"normal", "odd"},
        "kernel": {"streaming"},
    }.items():
        assert {getattr(case, axis) for case in CASES} == values
    assert {"swap", "clone"} <= {case.aside for case in CASES}
    assert {case.unit for case in CASES if case.tables == "sets"} == {"slot", "row"}


@pytest.mark.parametrize("case", CASES, ids=range(len(CASES)))
def test_every_case_holds_and_streams_a_rotation(case):
    tally = streamed.run_streamed(case, SEED)
    assert tally.failures == []
    assert (tally.streamed_rotations > 0) == streaming.STREAMS


@needs_streams
def test_a_store_that_does_not_stream_is_noticed(monkeypatch):
    monkeypatch.setattr(moving, "can_stream", lambda lanes, planes: False)
    failures = " ".join(what for _, what in streamed.run_streamed(CASES[0], SEED).failures)
    assert "no rotation was done by the streaming kernel" in failures
    assert "not the kernel that was asked for" in failures


def unchanged(plan, lanes):
    return plan, lanes


def every_set(plan, lanes):
    plan[f.SET_OF] = -1
    return plan, lanes


def first_table(plan, lanes):
    lanes[:, n.TABLE] = 0
    return plan, lanes


def twin(keys, change):
    """Return a `move_streaming` with these keys' kernel, given a changed plan and changed lanes."""

    def move(key, raw, value, plan, moves, lanes, starts, sets, *tables):
        other_plan, other_lanes = change(plan.copy(), lanes.copy())
        keys(key, raw, other_plan, moves, other_lanes, starts, sets, *tables)
        real_values(value, plan, moves, lanes, starts, sets)

    return move


def failed():
    return sum(not streamed.run_streamed(case, SEED).holds for case in CASES)


@needs_streams
@pytest.mark.parametrize(
    ("change", "noticed"), [(unchanged, False), (every_set, True), (first_table, True)]
)
def test_a_wrong_set_or_table_is_noticed(change, noticed, monkeypatch):
    monkeypatch.setattr(moving, "move_streaming", twin(real_keys, change))
    assert bool(failed()) == noticed


@needs_streams
@pytest.mark.parametrize("broken", [False, True])
def test_a_nan_that_is_not_canonical_is_noticed(broken, monkeypatch):
    """The kernel's own source, compiled anew and kept in no cache, whose NaN stay as they come."""
    if broken:
        monkeypatch.setattr(streaming, "_canonical", lambda builder, value: value)
    numba = importlib.import_module("numba")
    anew = numba.njit(error_model="numpy")(real_keys.py_func)
    monkeypatch.setattr(moving, "move_streaming", twin(anew, unchanged))
    assert bool(failed()) == broken
    # Where no value is odd nothing can show it.
    normal = [case for case in CASES if case.values == "normal"]
    assert all(streamed.run_streamed(case, SEED).holds for case in normal)


def test_the_count_of_moves_adds_up():
    one, two = (streamed.run_streamed(case, SEED) for case in CASES[:2])
    moves, rotations = one.streamed_moves, one.streamed_rotations
    one.add(two)
    assert one.streamed_cases == 2 * streaming.STREAMS
    assert one.streamed_moves == moves + two.streamed_moves
    assert one.streamed_rotations == rotations + two.streamed_rotations
    assert np.sign(one.streamed_moves) == int(streaming.STREAMS)
