"""Rotation against what was measured at head_dim 128 on N(0, 1) numbers.

The shares of changed elements are those that semantics.md measured; the data are other random
numbers, so they are held within a few percent.
"""

from __future__ import annotations

import numpy as np
import pytest

from kvsim.tensors.rope import Rope, rotate, rows, tables

TOKENS = 1024


@pytest.fixture(scope="module", params=[1e4, 1e6])
def head(request):
    """Keys, the tables, and positions at which the keys stand."""
    rng = np.random.default_rng(11)
    keys = rng.standard_normal((TOKENS, 128), dtype=np.float32)
    return keys, tables(Rope(128, request.param), 8192), rng.integers(1024, 8192, TOKENS), rng


def back(keys, turns, difference):
    step = rows(turns, difference)
    return rotate(keys, step.cos, -step.sin, "half_split")


def changed(ours, theirs):
    return np.mean(ours.view(np.uint32) != theirs.view(np.uint32))


def test_composing_two_rotations_changes_more_than_half(head):
    keys, turns, positions, rng = head
    difference = rng.integers(1, 1024, TOKENS)
    once = rotate(keys, *rows(turns, positions - difference), "half_split")
    twice = back(rotate(keys, *rows(turns, positions), "half_split"), turns, difference)
    assert 0.53 <= changed(once, twice) <= 0.58
    assert 4e-7 <= np.abs(once - twice).max() <= 1.2e-6


@pytest.mark.parametrize(("spans", "share"), [("equal", 0.87), ("random", 0.78)])
def test_ten_corrections_change_most(head, spans, share):
    """The 87% of semantics.md are those of equal spans: random ones cancel some of the error."""
    keys, turns, positions, rng = head
    drifted = rotate(keys, *rows(turns, positions), "half_split")
    for _ in range(10):
        equal = np.full(TOKENS, 16)
        difference = equal if spans == "equal" else rng.integers(1, 100, TOKENS)
        positions = positions - difference
        drifted = back(drifted, turns, difference)
    exact = rotate(keys, *rows(turns, positions), "half_split")
    assert changed(exact, drifted) == pytest.approx(share, abs=0.02)
    assert 1e-6 <= np.abs(exact - drifted).max() <= 3e-6


def test_a_fused_multiply_add_changes_a_quarter(head):
    """Control: the first product exact, one rounding at the end."""
    keys, turns, positions, _ = head
    cos, sin = (table.astype(np.float64) for table in rows(turns, positions))
    a, b = keys[:, :64].astype(np.float64), keys[:, 64:].astype(np.float64)
    rounded = [(x * sin).astype(np.float32).astype(np.float64) for x in (b, a)]
    fused = np.concatenate([a * cos - rounded[0], b * cos + rounded[1]], axis=1)
    pinned = rotate(keys, *rows(turns, positions), "half_split")
    assert changed(pinned, fused.astype(np.float32)) == pytest.approx(0.26, abs=0.02)


def test_an_angle_in_float32_is_off_at_large_positions():
    inverse = Rope(128).inverse_frequencies()
    angle = (np.float32(1e5) * inverse.astype(np.float32)).astype(np.float64)
    error = np.abs(np.cos(angle) - np.cos(1e5 * inverse)).max()
    assert error == pytest.approx(5e-3, rel=0.1)
    # Ours is off by one rounding of the result.
    cast = tables(Rope(128), 100_001).cos[100_000]
    assert np.abs(cast - np.cos(1e5 * inverse)).max() < 2.0**-24
