"""Rotating: which elements, how each is rounded, and NaN."""

from __future__ import annotations

import numpy as np
import pytest
from rope_facts import GEMMA_4

from kvsim.errors import RotationError
from kvsim.tensors.rope import CANONICAL_NAN, Rope, rope_of_facts, rotate, rows, tables


def test_pairings_read_and_write_where_they_say():
    window = np.array([1, 2, 3, 4, 5, 6], np.float32)
    cos, sin = np.zeros(3, np.float32), np.ones(3, np.float32)
    # A quarter turn: (a, b) becomes (-b, a).
    assert rotate(window, cos, sin, "half_split").tolist() == [-4, -5, -6, 1, 2, 3]
    assert rotate(window, cos, sin, "interleaved").tolist() == [-2, 1, -4, 3, -6, 5]
    assert rotate(window, cos, sin, "interleaved_to_half").tolist() == [-2, -4, -6, 1, 3, 5]


def test_pairings_agree_on_permuted_elements():
    rng = np.random.default_rng(3)
    window = rng.standard_normal((5, 2, 16), dtype=np.float32)
    turns = rows(tables(Rope(16), 100), rng.integers(0, 100, (5, 1)))
    order = np.arange(16).reshape(8, 2).T.reshape(-1)
    split = rotate(np.ascontiguousarray(window[..., order]), *turns, "half_split")
    assert np.array_equal(rotate(window, *turns, "interleaved_to_half"), split)
    assert np.array_equal(rotate(window, *turns, "interleaved")[..., order], split)


def test_each_product_and_sum_is_rounded_on_its_own():
    rng = np.random.default_rng(4)
    window = rng.standard_normal((7, 8), dtype=np.float32)
    turns = rows(tables(Rope(8), 50), rng.integers(0, 50, 7))
    turned = rotate(window, *turns, "half_split")
    for token in range(7):
        for pair in range(4):
            a, b = window[token, pair], window[token, pair + 4]
            cos, sin = turns.cos[token, pair], turns.sin[token, pair]
            assert turned[token, pair] == np.float32(a * cos) - np.float32(b * sin)
            assert turned[token, pair + 4] == np.float32(b * cos) + np.float32(a * sin)


def test_every_nan_is_stored_as_one():
    payloads = np.array([0x7FC00000, 0xFFC00000, 0x7F800001, 0xFFFFFFFF, 0x7FC12345], np.uint32)
    window = np.zeros((5, 4), np.float32)
    window.view(np.uint32)[:, 1] = payloads
    turns = rows(tables(Rope(4), 9), np.full(5, 7))
    for pairing in ("half_split", "interleaved", "interleaved_to_half"):
        turned = rotate(window, *turns, pairing)
        bits = turned.view(np.uint32)[np.isnan(turned)]
        assert bits.size == 10
        assert (bits == CANONICAL_NAN).all()
    # Infinity minus infinity, whose NaN has its sign set on common machines.
    window = np.full((1, 2), np.inf, np.float32)
    turned = rotate(window, np.ones((1, 1), np.float32), np.ones((1, 1), np.float32), "half_split")
    assert turned.view(np.uint32).tolist() == [[CANONICAL_NAN, 0x7F800000]]


def test_frequency_zero_keeps_finite_values_and_nothing_else():
    rope = rope_of_facts(GEMMA_4, 16)
    turns = rows(tables(rope, 100), np.array([99]))
    window = np.random.default_rng(5).standard_normal((1, 16), dtype=np.float32)
    turned = rotate(window, *turns, "half_split")
    still = np.r_[2:8, 10:16]
    assert np.array_equal(turned[:, still].view(np.uint32), window[:, still].view(np.uint32))
    assert (turned[:, [0, 1, 8, 9]] != window[:, [0, 1, 8, 9]]).all()
    window[0, 4], window[0, 5], window[0, 13] = np.inf, -0.0, -0.0
    turned = rotate(window, *turns, "half_split")
    # The infinity stays, its partner is lost; -0 minus -0 * 0 is +0.
    assert turned[0, 4] == np.inf
    assert turned.view(np.uint32)[0, 12] == CANONICAL_NAN
    assert turned.view(np.uint32)[0, 5] == 0


def test_windows_that_do_not_fit_are_refused():
    window, half = np.zeros((3, 8), np.float32), np.zeros((3, 4), np.float32)
    for arguments in (
        (window, half, half, "crosswise"),
        (window.astype(np.float64), half, half, "half_split"),
        (window, half.astype(np.float64), half, "half_split"),
        (window, half, half[:2], "half_split"),
        (window[:, :7], half, half, "half_split"),
        (window, half[:2], half[:2], "half_split"),
        (window, np.float32(1), np.float32(0), "half_split"),
    ):
        with pytest.raises(RotationError):
            rotate(*arguments)
