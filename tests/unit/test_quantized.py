"""Codes of int8 and e4m3 against oracles that share nothing with them."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest

from kvsim.errors import ExactnessRefused, LayoutError
from kvsim.tensors.quantized import (
    KINDS,
    decode,
    e4m3_dequantize,
    e4m3_quantize,
    encode,
    int8_dequantize,
    int8_quantize,
)

CODES = np.arange(256, dtype=np.uint8)


def value(code):
    """What an e4m3 code stands for, exactly."""
    exponent, mantissa = code >> 3 & 15, code & 7
    size = Fraction(8 + mantissa) * Fraction(2) ** (exponent - 10)
    if exponent == 0:
        size = Fraction(mantissa, 512)
    return -size if code & 128 else size


POSITIVE = [value(code) for code in range(127)]


def nearest(number):
    """The code of a finite float32, by looking at all of them; the even one of two."""
    number = Fraction(float(number))
    distances = [abs(abs(number) - each) for each in POSITIVE]
    least = min(distances)
    found = [code for code, distance in enumerate(distances) if distance == least]
    assert len(found) <= 2
    return next(code for code in found if len(found) == 1 or code % 2 == 0)


def halfway():
    """Every float32 half way between two neighbours, and the float32 on either side of it."""
    exact = [np.float32(float(a + b) / 2) for a, b in pairwise(POSITIVE)]
    around = [np.nextafter(x, np.float32(to)) for x in exact for to in (0, np.inf)]
    return np.array([*exact, *around], np.float32)


def checked(numbers):
    expected = np.array([nearest(x) for x in numbers], np.uint8)
    return expected, expected | np.uint8(128)


def test_e4m3_rounds_every_halfway_case_to_even():
    numbers = halfway()
    assert numbers.size == 3 * 126
    plus, minus = checked(numbers)
    assert np.array_equal(e4m3_quantize(numbers), plus)
    assert np.array_equal(e4m3_quantize(-numbers), minus)
    # Control: rounding halves up is another function, and this comparison sees it.
    edges = np.array([float(a + b) / 2 for a, b in pairwise(POSITIVE)])
    half_up = np.searchsorted(edges, numbers.astype(np.float64), side="right")
    differing = np.flatnonzero(half_up != plus)
    assert differing.size == 63
    assert (differing < 126).all()


def test_e4m3_rounds_any_float32_to_nearest():
    rng = np.random.default_rng(7)
    normal = rng.standard_normal(500).astype(np.float32)
    bits = rng.integers(0, 0x43E00000, 500).astype(np.uint32).view(np.float32)
    small = (rng.random(500) * 2.0**-5).astype(np.float32)
    numbers = np.abs(np.concatenate([normal, bits, small, [0, 1e-45, 1e-38, 448]])).astype("f4")
    plus, minus = checked(numbers)
    assert np.array_equal(e4m3_quantize(numbers), plus)
    assert np.array_equal(e4m3_quantize(-numbers), minus)


def test_all_codes_roundtrip():
    values = e4m3_dequantize(CODES)
    assert values.dtype == np.float32
    for code in range(256):
        if code & 127 == 127:
            assert values.view(np.uint32)[code] == 0x7FC00000
        else:
            assert Fraction(float(values[code])) == value(code)
    assert math.copysign(1, values[128]) == -1
    back = e4m3_quantize(values)
    assert np.array_equal(back[:255], CODES[:255])
    # Both NaN decode to one, which is encoded as 0x7f.
    assert back[255] == 0x7F
    assert values[[1, 8, 0x7E]].tolist() == [2.0**-9, 2.0**-6, 448.0]


def test_e4m3_beyond_its_largest_number():
    just_above = np.nextafter(np.float32(464), np.float32(500))
    numbers = np.array([448, 464, just_above, 480, 1e30, np.inf, np.nan], np.float32)
    assert e4m3_quantize(numbers).tolist() == [0x7E] * 6 + [0x7F]
    assert e4m3_quantize(-numbers).tolist() == [0xFE] * 6 + [0x7F]
    assert e4m3_quantize(numbers, saturate=False).tolist() == [0x7E] * 2 + [0x7F] * 5
    assert e4m3_quantize(-numbers, saturate=False).tolist() == [0xFE] * 2 + [0x7F] * 5


def test_e4m3_of_any_shape():
    numbers = np.random.default_rng(8).standard_normal((4, 6), dtype=np.float32)
    codes = e4m3_quantize(numbers)
    assert codes.dtype == np.uint8
    assert np.array_equal(e4m3_quantize(numbers.T), codes.T)
    assert e4m3_quantize(np.float32(1.5)).shape == ()
    assert e4m3_quantize(np.array(-1.5, np.float32)) == 0xBC
    assert e4m3_quantize(np.empty((0, 3), np.float32)).shape == (0, 3)


def test_int8_scales_by_the_largest_and_rounds_half_to_even():
    rows = np.array([[127, 0.5, 1.5, -2.5, -127], [-254, 1, 3, 0, -1]], np.float32)
    codes, scale = int8_quantize(rows)
    assert (codes.dtype, scale.dtype, scale.shape) == (np.int8, np.float32, (2,))
    assert scale.tolist() == [1, 2]
    assert codes.tolist() == [[127, 0, 2, -2, -127], [-127, 0, 2, 0, 0]]
    assert int8_dequantize(codes, scale)[1].tolist() == [-254, 0, 4, 0, 0]


def test_int8_against_exact_division():
    """The code is the integer nearest to f32(x / scale), which python works out exactly."""
    rows = np.random.default_rng(9).standard_normal((16, 3, 64), dtype=np.float32)
    codes, scale = int8_quantize(rows)
    for at in np.ndindex(16, 3):
        largest = max(abs(float(x)) for x in rows[at])
        assert scale[at] == np.float32(largest / 127)
        expected = [round(float(np.float32(float(x) / float(scale[at])))) for x in rows[at]]
        assert codes[at].tolist() == expected
    assert np.abs(int8_dequantize(codes, scale) - rows).max() <= 0.51 * scale.max()


def test_rows_without_a_usable_scale_become_zeros():
    rows = np.zeros((3, 4), np.float32)
    rows[1, 2] = 1e-45
    rows[2, 0] = 2.0**-126
    for kind in ("int8", "e4m3_scaled"):
        kept = encode(kind, rows)
        assert kept.scale[:2].tolist() == [1, 1]
        assert not kept.codes[:2].any()
        assert kept.codes[2, 0] == (127 if kind == "int8" else 0x7E)


def test_rows_of_any_size_keep_their_codes_in_range():
    largest = np.finfo(np.float32).max
    # At the smallest, one step of the subnormal scale is a large part of it.
    sizes = [largest, np.nextafter(largest, np.float32(0)), 1.0, 2e-38, 650 * 2.0**-149]
    rows = np.array([[size, -size, size / 3] for size in sizes], np.float32)
    with np.errstate(all="raise", under="ignore"):
        for kind in ("int8", "e4m3_scaled"):
            kept = encode(kind, rows)
            assert kept.codes[:, 0].tolist() == [127 if kind == "int8" else 0x7E] * 5
            assert np.isfinite(decode(kind, *kept)).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_rows_with_a_scale_cannot_hold_nan_or_infinity(bad):
    rows = np.ones((2, 4), np.float32)
    rows[1, 3] = bad
    for kind in ("int8", "e4m3_scaled"):
        with pytest.raises(ExactnessRefused, match="no scale: keep it as float32"):
            encode(kind, rows)
    assert encode("e4m3", rows).codes[1, 3] in (0x7E, 0xFE, 0x7F)
    kept = encode("float32", rows).codes
    assert np.array_equal(kept.view(np.uint32), rows.view(np.uint32))


@pytest.mark.parametrize("kind", KINDS)
def test_encoding_and_decoding(kind):
    rows = np.random.default_rng(10).standard_normal((5, 2, 32), dtype=np.float32)
    kept = encode(kind, rows)
    assert kept.codes.shape == rows.shape
    assert kept.codes is not rows
    assert (kept.scale is not None) == (kind in ("int8", "e4m3_scaled"))
    again = decode(kind, *kept)
    assert again.dtype == np.float32
    bound = {"float32": 0, "int8": 0.02, "e4m3": 0.13, "e4m3_scaled": 0.13}[kind]
    assert np.abs(again - rows).max() <= bound * np.abs(rows).max()
    # Codes are a function of their own row alone.
    alone = encode(kind, rows[3:4, 1:])
    assert np.array_equal(alone.codes[0, 0], kept.codes[3, 1])
    empty = encode(kind, rows[:0])
    assert (empty.codes.shape, empty.codes.dtype) == ((0, 2, 32), kept.codes.dtype)


def test_kinds_and_types_that_do_not_exist_are_refused():
    rows = np.ones((2, 4), np.float32)
    with pytest.raises(LayoutError, match="one of float32, int8"):
        encode("int4", rows)
    with pytest.raises(LayoutError, match="not float64"):
        encode("int8", rows.astype(np.float64))
    with pytest.raises(LayoutError, match="no 'int8' codes without a scale"):
        decode("int8", encode("int8", rows).codes, None)
    with pytest.raises(LayoutError, match="no 'e4m3' codes with a scale"):
        decode("e4m3", *encode("e4m3_scaled", rows))
