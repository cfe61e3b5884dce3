"""Tables of cosines and sines: their bits, and the rows that positions pick."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from rope_facts import GPT_OSS

from kvsim.errors import RotationError
from kvsim.tensors.rope import Rope, rope_of_facts, rotate, rows, tables


def test_tables_are_float64_numbers_cast_once():
    rope = Rope(16, 1e4)
    turns = tables(rope, 3)
    for position in range(3):
        for pair, frequency in enumerate(rope.inverse_frequencies().tolist()):
            assert turns.cos[position, pair] == np.float32(math.cos(position * frequency))
            assert turns.sin[position, pair] == np.float32(math.sin(position * frequency))
    for table in turns:
        assert table.dtype == np.float32
        assert table.flags.c_contiguous


def test_a_longer_table_begins_with_the_same_bits():
    longer = tables(Rope(96, 1e4), 9001)
    for length in (1, 5, 4096, 4097, 8193):
        shorter = tables(Rope(96, 1e4), length)
        for ours, theirs in zip(shorter, longer, strict=True):
            assert np.array_equal(ours.view(np.uint32), theirs[:length].view(np.uint32))


def test_attention_factor_multiplies_in_float32():
    plain_turns = tables(replace(rope_of_facts(GPT_OSS, 64), attention_factor=1.0), 100)
    turns = tables(rope_of_facts(GPT_OSS, 64), 100)
    factor = np.float32(0.1 * math.log(32) + 1)
    for ours, theirs in zip(turns, plain_turns, strict=True):
        assert ours.dtype == np.float32
        assert np.array_equal(ours, theirs * factor)


def test_tables_of_nothing():
    assert tables(Rope(0), 5).cos.shape == (5, 0)
    assert tables(Rope(8), 0).sin.shape == (0, 4)
    with pytest.raises(RotationError, match="-1"):
        tables(Rope(8), -1)
    empty = np.empty((3, 0), np.float32)
    assert rotate(empty, empty, empty, "half_split").shape == (3, 0)


def test_rows_of_positions():
    turns = tables(Rope(8), 10)
    picked = rows(turns, np.array([[9, 0], [3, 3]]))
    assert picked.cos.shape == (2, 2, 4)
    assert np.array_equal(picked.sin[1, 0], turns.sin[3])
    assert rows(turns, np.array([], np.float64)).cos.shape == (0, 4)
    assert rows(turns, np.array(4)).cos.shape == (4,)


@pytest.mark.parametrize(
    ("positions", "named"),
    [
        (np.array([0, -1]), "position -1 "),
        (np.array([0, 10]), "position 10 "),
        (np.array([-(2**63)]), "position -9223372036854775808 "),
        (np.array([2**63 - 1]), "position 9223372036854775807 "),
        (np.array([2**64 - 1], np.uint64), "position 18446744073709551615 "),
        (np.array([2**70]), "not object"),
        (np.array([1.0]), "not float64"),
        (np.array([True]), "not bool"),
    ],
)
def test_positions_outside_the_tables_are_refused(positions, named):
    with pytest.raises(RotationError, match=named):
        rows(tables(Rope(8), 10), positions)
