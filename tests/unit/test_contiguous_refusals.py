"""What the contiguous cache refuses, and that every byte is then as it was.

Each docstring names the bug that its test would catch.
"""

from __future__ import annotations

import numpy as np
import pytest
from differential.paged_rows import equal
from spliced import DENSE, ROPES, drawn, filled, refuse

from kvsim.errors import ExactnessRefused, LedgerError, RotationError
from kvsim.layout.families import glm_dsa
from kvsim.tensors.angles import position_tables
from kvsim.tensors.contiguous import ContiguousCache
from kvsim.tensors.rope import Rope, rotate, tables
from kvsim.tensors.shape import CacheShape


@pytest.mark.parametrize(
    ("name", "array", "match"),
    [
        ("k", np.zeros((2, 31), np.float32), r"'kv', plane key: .*\(2, 32\).*\(2, 31\)"),
        ("v", np.zeros((3, 32), np.float32), r"'kv', plane V: .*\(2, 32\).*\(3, 32\)"),
        ("v", np.zeros((2, 4, 8), np.float32), r"plane V: .*\(2, 4, 8\)"),
        ("k", np.zeros((2, 32)), "float64"),
        ("k", [[0.0] * 32] * 2, "list"),
        ("k", np.float32(1), "key"),
        ("k_raw", np.zeros((2, 32), np.float32), "takes k and v"),
    ],
)
def test_rows_that_do_not_fit_are_refused(name, array, match):
    """Rows that are cut, cast or broadcast, and planes that are longer than others."""
    cache, _ = filled()
    rows = drawn(cache.shape, 2)
    rows[0][name] = array
    refuse(LedgerError, cache, cache.append, rows, match=match)


def test_families_that_are_missing_are_refused():
    """An append that only some of the families take part in."""
    cache, _ = filled(families=glm_dsa(1, 1, 4, 4, 6, 8, [0]), ropes=(Rope(4),))
    rows = drawn(cache.shape, 1)
    refuse(LedgerError, cache, cache.append, rows[:2], match="3 families")
    refuse(LedgerError, cache, cache.append, [rows[0], {}, rows[2]], match="takes v")
    rows[2]["k"] = rows[2]["k"].astype(np.float32)
    refuse(LedgerError, cache, cache.append, rows, match="float64 rows")


@pytest.mark.parametrize("positions", ["renumber", "keep"])
def test_positions_end_with_the_tables(positions):
    """A position that wraps round, or rows appended up to the one that does not fit."""
    cache, _ = filled(positions=positions)
    refuse(RotationError, cache, cache.append, drawn(cache.shape, 58), match="position 64")
    cache.append(drawn(cache.shape, 57))
    refuse(RotationError, cache, cache.append, drawn(cache.shape, 1))
    cache.append(drawn(cache.shape, 0))
    cache.evict_span(10, 1)
    if positions == "renumber":
        cache.append(drawn(cache.shape, 1))
    assert cache.length == (64 if positions == "renumber" else 63)


@pytest.mark.parametrize("span", [(2**63, 1), (0, 2**63), (-(2**63) - 1, 1), (0.5, 1), (0, None)])
def test_spans_outside_64_bits_are_refused(span):
    """A span that is cut to 64 bits, and then names other rows."""
    cache, _ = filled()
    refuse(LedgerError, cache, cache.evict_span, *span, match="integer")


@pytest.mark.parametrize("span", [(2, 2), (5, 2), (0, 7), (9, 1)])
def test_recurrent_layers_cannot_forget(span):
    """A span taken from the rows while a state that read it stays; the tail is no exception."""
    cache, _ = filled(recurrent_layers=(1,))
    refuse(ExactnessRefused, cache, cache.evict_span, *span, match="recurrent state cannot forget")
    refuse(ExactnessRefused, cache, cache.evict, np.array([6]), match="recurrent")
    refuse(ExactnessRefused, cache, cache.fork().truncate, 5, match="recurrent")


def test_longrope_is_not_renumbered_past_its_original_context():
    """Rows of two regimes side by side under one rank."""
    rope = Rope(
        8, scaling="longrope", factor=4.0, original_context=8,
        short_factors=(1.0,) * 4, long_factors=(1.0, 2.0, 3.0, 4.0),
    )  # fmt: skip
    cache, _ = filled(ropes=(rope, rope))
    cache.append(drawn(cache.shape, 1))
    refuse(RotationError, cache, cache.append, drawn(cache.shape, 1), match="original 8")
    cache.evict_span(2, 2)
    assert cache.length == 6
    # With kept positions, each row is rotated in the regime of the length that it ends.
    cache, _ = filled(positions="keep", ropes=(rope, rope))
    cache.append(drawn(cache.shape, 5, seed=1))
    cache.evict_span(0, 2)
    rows = cache.rows()
    for regime, where in (("short", slice(0, 6)), ("long", slice(6, 10))):
        cos, sin = (table[rows["positions"][where]] for table in tables(rope, 64, regime))
        for at in range(0, 32, 8):
            want = rotate(rows["k_raw"][where, at : at + 8], cos, sin, "half_split")
            assert equal(rows["K"][where, at : at + 8], want)
    short = tables(rope, 8)
    assert all(equal(a, b) for a, b in zip(position_tables(rope, 8), short, strict=True))


def test_unknown_numbering_is_refused():
    """A misspelt word that is taken for the default."""
    with pytest.raises(LedgerError, match="renumber, keep"):
        ContiguousCache(CacheShape(DENSE, ROPES), "rank")
