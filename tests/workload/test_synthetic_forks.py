"""Forks of synthetic signals: one past, futures of their own, and nothing shared that changes."""

from __future__ import annotations

import numpy as np
import pytest
from synthetic_signals import blob, rows, same, signals

from kvsim.workload.synthetic_tokens import BLOCK


@pytest.mark.parametrize("at", [1, 40, BLOCK, BLOCK + 9, 2 * BLOCK])
def test_a_fork_keeps_the_past_and_draws_its_own_future(at):
    parent = signals(at)
    child, twin, other = parent.fork(5), parent.fork(5), parent.fork(6)
    assert blob(child) == blob(parent)
    for made in (parent, child, other):
        made.extend(100)
    for _ in range(100):
        twin.extend(1)
    assert blob(parent) == blob(signals(at + 100))
    assert blob(twin) == blob(child)
    saliences = [made._tokens.salience[:, : at + 100] for made in (parent, child, other)]
    for one, two in ((0, 1), (0, 2), (1, 2)):
        assert (saliences[one][:, :at] == saliences[two][:, :at]).all()
        assert (saliences[one][:, at:] != saliences[two][:, at:]).all()
    # The child's rows are still the definition's.
    same(
        child.observe(np.arange(at + 100))["attention"].cumulative,
        rows(child, at + 100).sum(axis=1),
    )


def test_a_fork_of_a_fork_inside_one_block():
    grown = signals(10).fork(1)
    grown.extend(10)
    grown = grown.fork(2)
    grown.extend(10)
    # Tokens 0 to 9, 10 to 19 and 20 to 29 come from three sequences' streams of block 0.
    drawn = [s._tokens._normal(0, 0, (2, 9), np.float64) for s in (signals(), grown)]
    owners = [signals(sequence=n)._tokens._normal(0, 0, (2, 9), np.float64) for n in (0, 1, 2)]
    assert (drawn[0] == owners[0]).all()
    for number, (start, end) in enumerate(((0, 10), (10, 20), (20, BLOCK))):
        assert (drawn[1][..., start:end] == owners[number][..., start:end]).all()


def test_a_fork_shares_nothing_that_can_change():
    parent = signals(100)
    child = parent.fork(4)
    mutable = 0
    for mine, its in ((parent, child), (parent._tokens, child._tokens)):
        for name, value in vars(mine).items():
            if isinstance(value, np.ndarray) and value.size:
                assert not np.shares_memory(value, vars(its)[name]), name
                mutable += 1
            elif isinstance(value, list):
                assert value is not vars(its)[name], name
                mutable += 1
    assert mutable == 10
