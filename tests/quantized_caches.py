"""Quantized caches of every family, rows for them, and what their codes make of keys."""

from __future__ import annotations

import numpy as np

from kvsim.layout.families import dense, glm_dsa, mla
from kvsim.tensors.paged_cache import PagedCache
from kvsim.tensors.quantized import decode, encode
from kvsim.tensors.rope import Rope
from kvsim.tensors.shape import CacheShape, key_parts

KINDS = ("int8", "e4m3", "e4m3_scaled")
SCALED = ("int8", "e4m3_scaled")
TWO = (Rope(8, 1e4), Rope(8, 1e6))
YARN = Rope(8, 1e4, "yarn", 8.0, 32)
FAMILIES = {
    "dense": (dense([2, 2], 8, 6), TWO),
    "partial": (dense([2, 1], 12, 6, 8), TWO),
    "interleaved": (dense([2, 2], 8, 8, pairing="interleaved"), (YARN,)),
    "nope": (dense([2, 2], 8, 8, [8, 0]), (Rope(8), Rope(0))),
    "mla": (mla(2, 16, 8), TWO),
    "glm": (glm_dsa(2, 2, 6, 8, 10, 12, [1]), (Rope(8),)),
}


def shape_of(family, planes="kv_raw", positions=256):
    rows, ropes = FAMILIES[family]
    return CacheShape(rows, ropes, planes, positions)


def drawn(shape, tokens, rng):
    """Return rows for an append, as every family of a shape takes them."""
    rows = []
    for family in shape.families:
        widths = {
            "k": sum(row.carried + row.raw for row in family.rows),
            "v": sum(row.value for row in family.rows),
        }
        rows.append(
            {
                name: rng.standard_normal((tokens, width), dtype=np.float32).astype(family.dtype)
                for name, width in widths.items()
                if width
            }
        )
    return rows


def same(ours, theirs):
    """Compare two arrays bit for bit."""
    return (
        ours.dtype == theirs.dtype
        and ours.shape == theirs.shape
        and np.ascontiguousarray(ours).tobytes() == np.ascontiguousarray(theirs).tobytes()
    )


def through_codes(keys, family, kind):
    """Return keys as their codes let them be read."""
    out = np.empty_like(keys)
    first = 0
    for row in family.rows:
        for width in key_parts(row):
            part = slice(first, first + width)
            first += width
            out[:, part] = decode(kind, *encode(kind, keys[:, part].astype(np.float32)))
    return out


def table_of(cache):
    """Everything that a refused verb must leave as it was."""
    arrays = [array.tobytes() for array in cache.ledger.copy_of_arrays()]
    planes = [plane.tobytes() for block in cache.store.planes for plane in block.values()]
    return arrays + planes


def make(kind, family="dense", planes="kv_raw", page_tokens=4, **options):
    return PagedCache(shape_of(family, planes), page_tokens, keys=kind, **options)
