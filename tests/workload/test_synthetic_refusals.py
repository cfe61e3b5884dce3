"""What the synthetic process refuses: parameters, calls, and writing to what it returned."""

from __future__ import annotations

import numpy as np
import pytest
from synthetic_signals import PARTS, blob, signals

from kvsim.errors import WorkloadError
from kvsim.workload.synthetic import Process


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("spread", -0.1),
        ("spread", float("nan")),
        ("spread", "wide"),
        ("sinks", 1.0),
        ("sinks", True),
        ("sinks", -1),
        ("layer", 0.96),
        ("layer", 1.5),
        ("recency_short", 0.9),
        ("short_tokens", 0.0),
        ("sink_share", 0.0),
        ("dim", 0),
        ("neighbour", 1.0),
    ],
)
def test_parameters_that_cannot_be_are_refused_by_name(key, value):
    with pytest.raises(WorkloadError, match=rf"^process\.({key}|shared):? ?"):
        Process(**{key: value})


def test_calls_that_cannot_be_answered_are_refused():
    made = signals(10)
    for columns in ([0, 10], [-1, 2], [3, 2], [4, 4]):
        with pytest.raises(WorkloadError, match="columns must ascend below 10"):
            made.observe(np.array(columns))
    for refused in (
        lambda: made.next_query(11),
        lambda: made.next_query(-1),
        lambda: made.extend(-1),
        lambda: made.fork(0),
        lambda: made.fork(3).fork(3),
        lambda: made.fork(-2),
        lambda: signals(needs=("queries",)),
        lambda: signals(query_heads=0),
        lambda: signals(seed=-1),
    ):
        with pytest.raises(WorkloadError):
            refused()
    assert blob(made) == blob(signals(10))


def test_what_is_returned_cannot_be_written():
    found = signals(70).observe(np.arange(70))
    attention = found.pop("attention")
    arrays = [getattr(attention, part) for part in PARTS]
    for array in [*arrays, *found.values(), signals(70).next_query(70)]:
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 0
