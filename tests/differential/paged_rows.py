"""Rows of new tokens for the lockstep of the paged cache, hard ones among them.

NaN of several payloads, signalling ones too, infinities, negative zeros and denormals: a cache
carries bits, and rotates what it is given.
"""

from __future__ import annotations

import numpy as np

from kvsim.tensors.quantized import has_scale

# Small enough that a run reaches the end of the rotation tables now and then.
MAX_POSITIONS = 48
WORDS = np.array(
    [
        0x7F800001,  # signalling NaN
        0xFFA00002,
        0x7FC00000,  # quiet NaN, the canonical one,
        0xFFC12345,  # and with a payload
        0x7FFFFFFF,
        0x7F800000,  # infinities
        0xFF800000,
        0x80000000,  # -0
        0x00000001,  # denormals
        0x807FFFFF,
        0x7F7FFFFF,  # the largest number: a rotation overflows it
    ],
    np.uint32,
)
WIDE_WORDS = np.array(
    [
        0x7FF0000000000001,  # signalling NaN whose payload no float32 holds
        0xFFF8000000000123,
        0x7FF0000000000000,
        0x8000000000000000,
        0x36A0000000000000,  # float32's least denormal
        0x47EFFFFFE0000000,  # and its largest number: float64 rows hold float32 numbers
    ],
    np.uint64,
)


def rows_of(shape, tokens, rng, hard=True, keys="float32"):
    """Return rows of new tokens, as an append takes them; `keys` says how keys will be kept."""
    rows = []
    for family in shape.families:
        widths = {
            "k": sum(row.carried + row.raw for row in family.rows),
            "v": sum(row.value for row in family.rows),
        }
        rows.append(
            {
                name: drawn(
                    (tokens, width),
                    np.dtype(family.dtype),
                    rng,
                    hard,
                    small=name == "k" and has_scale(keys),
                )
                for name, width in widths.items()
                if width
            }
        )
    return rows


def drawn(size, dtype, rng, hard, small=False):
    """Return numbers of a float type, one in sixteen of them a hard one.

    With `small` the hard ones are zeros and denormals: what is scaled has to be finite.
    """
    array = rng.standard_normal(size, dtype=np.float32).astype(dtype)
    if hard:
        words = WORDS if dtype == np.float32 else WIDE_WORDS
        if small:
            words = words[np.abs(np.nan_to_num(words.view(dtype), nan=np.inf)) < 1]
        here = rng.random(size) < 1 / 16
        array.view(words.dtype)[here] = rng.choice(words, int(here.sum()))
    return array


def bits(array):
    """Return an array as integers, to be compared as such."""
    kinds = {4: np.uint32, 8: np.uint64}
    return array.view(kinds[array.dtype.itemsize]) if array.dtype.kind == "f" else array


def equal(ours, theirs):
    """Tell whether two arrays have one type, one shape and the same bits."""
    return (
        ours.dtype == theirs.dtype
        and ours.shape == theirs.shape
        and np.array_equal(bits(np.ascontiguousarray(ours)), bits(np.ascontiguousarray(theirs)))
    )
