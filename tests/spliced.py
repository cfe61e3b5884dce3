"""Contiguous caches of fak's sizes, the rows that fill them, and rotations of a test's own.

Rows are compared as integers.
"""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from differential.paged_rows import rows_of

from kvsim.layout.families import dense
from kvsim.seeds import stream
from kvsim.tensors.contiguous import ContiguousCache
from kvsim.tensors.rope import Rope, rotate, tables
from kvsim.tensors.shape import CacheShape

# The sizes of fak's tests: 2 layers, 2 KV heads of 8, a theta for each layer; 7 tokens.
THETAS = (1e4, 1e6)
TOKENS = 7
DENSE = dense([2, 2], 8, 8)
ROPES = tuple(Rope(8, theta) for theta in THETAS)
PLANES = ("kv", "kv_raw", "raw_only")
SPANS = [(0, 2), (2, 2), (2, 3), (5, 2), (0, 7), (3, 1), (5, 100), (2, 2**63 - 1), (0, 1), (6, 1)]
NOTHING = [(-1, 3), (0, 0), (2, -1), (7, 1), (8, 3), (2**63 - 1, 1), (-(2**63), 5), (2, -(2**63))]


def drawn(shape, tokens, seed=0):
    """Return rows for an append, as every family of a shape takes them."""
    return rows_of(shape, tokens, stream(seed, "test"), hard=False)


def filled(planes="kv_raw", positions="renumber", families=DENSE, ropes=ROPES, tokens=TOKENS, **o):
    """Return a cache of some tokens, and what was appended."""
    shape = CacheShape(families, ropes, planes, max_positions=64)
    cache = ContiguousCache(shape, positions, **o)
    rows = drawn(shape, tokens)
    cache.append(rows)
    return cache, rows


def digest(cache):
    """Hash every byte of a cache."""
    hashed = hashlib.sha256(cache.pos.tobytes())
    for family in range(len(cache.shape.families)):
        for name, array in sorted(cache.rows(family).items()):
            hashed.update(f"{name} {array.shape} {array.dtype}".encode())
            hashed.update(array.tobytes())
    return hashed.hexdigest()


def refuse(error, cache, call, *arguments, match=None):
    """Call what must raise, and find every byte as it was."""
    before = digest(cache)
    with pytest.raises(error, match=match):
        call(*arguments)
    assert digest(cache) == before


def turned(keys, positions, theta, pairing="half_split"):
    """Return rows [n, dim] rotated at positions, from tables of this test's own."""
    cos, sin = tables(Rope(keys.shape[1], theta), 64)
    return rotate(np.ascontiguousarray(keys), cos[positions], sin[positions], pairing)


def dense_keys(raw, positions):
    """Return the dense rows of fak's sizes rotated, layer by layer and head by head."""
    heads = [
        turned(raw[:, at : at + 8], positions, THETAS[at // 16]) for at in range(0, raw.shape[1], 8)
    ]
    return np.hstack(heads)
