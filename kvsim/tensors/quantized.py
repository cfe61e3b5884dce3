"""Codes of quantized rows: int8 with a scale per row, and fp8 e4m3 with or without one.

Knows single rows and their codes; knows nothing about positions, rotation or caches. Everything
is exact NumPy: a code is a function of the row's bits alone.

e4m3 is the finite variant (FN) of the OCP 8-bit floating point specification, which engines use
for keys: 4 exponent bits with bias 7, 3 mantissa bits, subnormals down to 2**-9, no infinities,
448 at most, and a NaN at 0x7f and 0xff.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from kvsim.errors import ExactnessRefused, LayoutError

KINDS = ("float32", "int8", "e4m3", "e4m3_scaled")
INT8_MAX = np.float32(127.0)
E4M3_MAX = np.float32(448.0)

_SIGN = 0x80
_NAN_CODE = 0x7F
_MAX_CODE = 0x7E
# The bits by which float32's mantissa is longer, and its bias larger, than e4m3's.
_SHORTER = np.uint32(20)
_REBIAS = np.uint32((127 - 7) << 3)
_LEAST_NORMAL = np.float32(2.0**-6)
_SUBNORMAL_STEPS = np.float32(2.0**9)


class Codes(NamedTuple):
    """Rows as they are kept: `codes` [..., width], and `scale` float32 [...] or None."""

    codes: np.ndarray
    scale: np.ndarray | None


def encode(kind: str, rows: np.ndarray) -> Codes:
    """Quantize float32 rows.

    Parameters
    ----------
    kind : {"float32", "int8", "e4m3", "e4m3_scaled"}
        "float32" keeps the bits, "e4m3" saturates and has no scale, "e4m3_scaled" maps each
        row's largest magnitude to 448.
    rows : float32 [..., width]

    Raises
    ------
    ExactnessRefused
        If a kind with a scale meets a NaN or an infinity.
    LayoutError
        If there is no such kind, or the rows are not float32.
    """
    _check(kind, rows)
    if kind == "int8":
        return Codes(*int8_quantize(rows))
    if kind == "e4m3":
        return Codes(e4m3_quantize(rows), None)
    if kind == "e4m3_scaled":
        scale = _row_scale(rows, E4M3_MAX)
        return Codes(e4m3_quantize(rows / scale[..., None]), scale)
    return Codes(rows.copy(), None)


def has_scale(kind: str) -> bool:
    """Tell whether codes of this kind have a float32 scale for each row."""
    return kind in ("int8", "e4m3_scaled")


def code_type(kind: str) -> np.dtype:
    """Return the type of one code."""
    return np.dtype({"float32": "f4", "int8": "i1"}.get(kind, "u1"))


def coded_bytes(kind: str, width: int) -> int:
    """Return the bytes of one row of `width` elements: its codes, and its scale if it has one."""
    return width * code_type(kind).itemsize + 4 * has_scale(kind)


def decode(kind: str, codes: np.ndarray, scale: np.ndarray | None) -> np.ndarray:
    """Return the float32 rows that codes of `encode` stand for."""
    if kind == "int8" and scale is not None:
        return int8_dequantize(codes, scale)
    if kind == "e4m3_scaled" and scale is not None:
        return e4m3_dequantize(codes) * scale[..., None]
    if kind == "e4m3" and scale is None:
        return e4m3_dequantize(codes)
    if kind == "float32" and scale is None:
        return codes.copy()
    raise LayoutError(
        f"there are no {kind!r} codes {'without' if scale is None else 'with'} a scale"
    )


def int8_quantize(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return codes in [-127, 127] and a scale for each row.

    scale = max|x| / 127 and code = x / scale rounded half to even, both in float32. Where the
    scale comes out as 0 (a row of zeros, or of magnitudes below about 2**-143) it is 1, and
    every code 0. Where 127 * scale would pass float32's range it is one step less.

    Parameters
    ----------
    rows : float32 [..., width]

    Returns
    -------
    int8 [..., width], float32 [...]

    Raises
    ------
    ExactnessRefused
        If a row holds a NaN or an infinity, for which there is no code.
    """
    _check("int8", rows)
    scale = _row_scale(rows, INT8_MAX)
    # A subnormal scale is coarse enough for a quotient to pass 127.
    codes = np.clip(np.rint(rows / scale[..., None]), -INT8_MAX, INT8_MAX)
    return codes.astype(np.int8), scale


def int8_dequantize(codes: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """Return f32(code) * scale, float32 [..., width]."""
    return codes.astype(np.float32) * scale[..., None]


def e4m3_quantize(rows: np.ndarray, *, saturate: bool = True) -> np.ndarray:
    """Round float32 to e4m3, to nearest and ties to even.

    Parameters
    ----------
    rows : float32, any shape
    saturate : bool
        What rounds past 448, infinities included, becomes 448 of its sign if True, and NaN if
        False. 464, half way to the next number there would be, rounds to 448 either way.

    Returns
    -------
    uint8, same shape
        Zeros keep their sign; every NaN is 0x7f.
    """
    _check("e4m3", rows)
    bits = np.ascontiguousarray(rows).view(np.uint32)
    magnitude = bits & np.uint32(0x7FFFFFFF)
    odd = (magnitude >> _SHORTER) & np.uint32(1)
    below_half = np.uint32((1 << 19) - 1)
    # A carry out of the mantissa moves into the exponent, which is the next code. Magnitudes
    # below e4m3's normal range wrap around here and are not looked at.
    normal = ((magnitude + below_half + odd) >> _SHORTER) - _REBIAS
    absolute = magnitude.view(np.float32)
    small = absolute < _LEAST_NORMAL
    # Scaling by a power of two is exact. Step 8 is the least normal number, and its code too.
    steps = np.rint(np.where(small, absolute, np.float32(0)) * _SUBNORMAL_STEPS)
    codes = np.where(small, steps.astype(np.uint32), normal)
    codes[codes > _MAX_CODE] = _MAX_CODE if saturate else _NAN_CODE
    codes[np.isnan(absolute)] = _NAN_CODE
    signed = codes != _NAN_CODE
    codes[signed] |= ((bits >> np.uint32(24)) & np.uint32(_SIGN))[signed]
    return codes.astype(np.uint8).reshape(rows.shape)


def _e4m3_values() -> np.ndarray:
    """Return the number that each code stands for, float32 [256]."""
    codes = np.arange(256)
    exponent, mantissa = (codes >> 3) & 15, (codes & 7).astype(np.float64)
    values = np.where(
        exponent == 0, mantissa * 2.0**-9, (1 + mantissa / 8) * 2.0 ** (exponent - 7.0)
    ).astype(np.float32)
    values[codes & _SIGN != 0] *= np.float32(-1)
    values.view(np.uint32)[codes & _NAN_CODE == _NAN_CODE] = 0x7FC00000
    return values


_E4M3_VALUES = _e4m3_values()


def e4m3_dequantize(codes: np.ndarray) -> np.ndarray:
    """Return the numbers that codes stand for, float32 and exact; a NaN is 0x7fc00000."""
    return _E4M3_VALUES[codes]


def _check(kind: str, rows: np.ndarray) -> None:
    if kind not in KINDS:
        raise LayoutError(f"keys are kept as one of {', '.join(KINDS)}, not {kind!r}")
    if rows.dtype != np.float32:
        raise LayoutError(f"rows to quantize are float32, not {rows.dtype}")


def _row_scale(rows: np.ndarray, largest: np.float32) -> np.ndarray:
    """Return max|x| / largest of each row, in float32, and 1 where that is 0.

    One step less where largest * scale would pass float32, so that a finite row stays finite.
    """
    top = np.abs(rows).max(axis=-1, initial=np.float32(0))
    if not np.isfinite(top).all():
        raise ExactnessRefused(
            "a row with a NaN or an infinity has no scale: keep it as float32, or as e4m3"
            " without scale"
        )
    scale = np.asarray(top / largest)
    with np.errstate(over="ignore"):
        passes = np.isinf(scale * largest)
    scale = np.where(passes, np.nextafter(scale, np.float32(0)), scale)
    return np.where(scale == 0, np.float32(1), scale)
