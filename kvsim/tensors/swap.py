"""Swap files: one sequence as checked bytes, tables and rows, and back.

    magic, 8 bytes | version, u32 | header length, u32 | header, JSON | arrays | SHA-256 of all

The header names the geometry and the size of every array; nothing after the checksum is allowed.
Little-endian throughout.
"""

from __future__ import annotations

import hashlib
import json
import math
import operator
import struct
from dataclasses import astuple
from typing import Any

import numpy as np

from kvsim.errors import SwapError
from kvsim.paging import Ledger
from kvsim.paging.images import TableImage
from kvsim.tensors.array_store import ArrayStore
from kvsim.tensors.columns import scope_columns

MAGIC = b"kvsimswp"
VERSION = 1
_PREFIX = struct.Struct("<8sII")
_DIGEST_BYTES = 32
_TYPES = ("<i8", "<i4", "|i1", "|u1", "<f4", "<f8")
_TABLES = ("cursors", "reserved", "following", "named", "dead", "holders", "position")


def _geometry(ledger: Ledger, store: ArrayStore) -> dict[str, Any]:
    """Return what two caches must share for a sequence to move from one to the other."""
    ordering = ledger.ordering
    return {
        "page_tokens": ledger.page_tokens,
        "planes": store.shape.planes,
        "keys": store.keys,
        "unit_scope": list(ledger.geometry.unit_scope),
        "unit_set": list(ledger.geometry.unit_set),
        "families": [
            [family.name, family.dtype, [list(astuple(row)) for row in family.rows]]
            for family in store.shape.families
        ],
        "ropes": [repr(rope) for rope in store.shape.ropes],
        "positions": ordering.positions,
    }


def pack(ledger: Ledger, store: ArrayStore, sequence: int) -> bytes:
    """Return a sequence's tables and rows as a swap file's bytes. Changes nothing."""
    image, placed = ledger.image(sequence)
    parts: list[np.ndarray] = [getattr(image, name) for name in _TABLES]
    columns = scope_columns(store.shape, ledger.geometry)
    first = 0
    for scope, cursor in enumerate(image.cursors.tolist()):
        here = np.arange(first, first + cursor)[placed[first : first + cursor] >= 0]
        first += cursor
        rows = store.gather_scope(placed[here], scope)
        # What nobody retains may be another sequence's: a copied page has there whatever its
        # last user left.
        for plane in rows.values():
            plane[image.dead[here] == 1] = 0
        if image.holders.size:
            for member, which in enumerate(ledger.geometry.inner_sets[scope]):
                dropped = image.holders[member, here] == 0
                for name, mine in columns[scope].of_set[which].items():
                    rows[name][np.ix_(dropped, mine)] = 0
        parts.extend(rows[plane] for plane in sorted(rows))
    header = {
        "geometry": _geometry(ledger, store),
        "arrays": [[array.dtype.str, list(array.shape)] for array in parts],
    }
    text = json.dumps(header, separators=(",", ":")).encode()
    body = b"".join([text, *(np.ascontiguousarray(array).tobytes() for array in parts)])
    data = _PREFIX.pack(MAGIC, VERSION, len(text)) + body
    return data + hashlib.sha256(data).digest()


def unpack(ledger: Ledger, store: ArrayStore, data: bytes) -> int:
    """Return a new sequence with the tables and rows of a swap file.

    Raises
    ------
    SwapError
        If the bytes are not a whole, unaltered swap file of a cache of this shape.
    CeilingExceeded
        If its pages do not fit.
    """
    if not isinstance(data, bytes | bytearray | memoryview):
        raise SwapError(f"a swap file is bytes, not {type(data).__name__}")
    arrays = _read(ledger, store, bytes(data))
    tables = TableImage(*arrays[: len(_TABLES)])
    _check_positions(ledger, store, tables)
    sequence, placed = ledger.restore(tables)
    first = 0
    left = iter(arrays[len(_TABLES) :])
    for scope, cursor in enumerate(tables.cursors.tolist()):
        slots = placed[first : first + cursor]
        first += cursor
        planes = sorted(store.gather_scope(np.empty(0, np.int64), scope))
        store.write(scope, slots[slots >= 0], {plane: next(left) for plane in planes})
    return sequence


def _check_positions(ledger: Ledger, store: ArrayStore, tables: TableImage) -> None:
    """Refuse positions that this cache's rotation tables do not reach."""
    ends = tables.cursors
    if ledger.ordering.stored:
        ends = tables.following
    elif ledger.ordering.positions == "renumber":
        # The position is the rank among a table's live slots.
        cuts = np.cumsum(np.maximum(tables.cursors, 0))[:-1]
        ends = np.array([np.count_nonzero(part == 0) for part in np.split(tables.dead, cuts)])
    if ends.size and ends.max() > store.shape.max_positions:
        raise SwapError(
            f"position {int(ends.max()) - 1} lies past the {store.shape.max_positions} positions"
            " of the rotation tables"
        )


def _read(ledger: Ledger, store: ArrayStore, data: bytes) -> list[np.ndarray]:
    """Return the arrays of a swap file that is whole and fits."""
    if len(data) < _PREFIX.size + _DIGEST_BYTES:
        raise SwapError(f"a swap file of {len(data)} bytes is truncated")
    magic, version, text_bytes = _PREFIX.unpack_from(data)
    if magic != MAGIC:
        raise SwapError("not a swap file: its first bytes are not kvsim's")
    if version != VERSION:
        raise SwapError(f"swap file of version {version}, and this is version {VERSION}")
    body, digest = data[:-_DIGEST_BYTES], data[-_DIGEST_BYTES:]
    if hashlib.sha256(body).digest() != digest:
        raise SwapError("the swap file is truncated, altered or has trailing bytes")
    # Whatever follows was written by `pack`, but maybe for another cache.
    geometry, shapes = _header(data[_PREFIX.size : _PREFIX.size + text_bytes])
    ours = json.loads(json.dumps(_geometry(ledger, store)))
    for key in ours:
        if geometry.get(key) != ours[key]:
            raise SwapError(f"the swap file is of a cache with other {key}")
    at = _PREFIX.size + text_bytes
    arrays = []
    for dtype, shape in shapes:
        size = dtype.itemsize * math.prod(shape)
        if at + size > len(body):
            raise SwapError("the swap file's arrays are longer than the file")
        arrays.append(np.frombuffer(body, dtype, size // dtype.itemsize, at).reshape(shape))
        at += size
    if at != len(body):
        raise SwapError(f"the swap file has {len(body) - at} trailing bytes")
    _check_arrays(ledger, store, arrays)
    return arrays


def _header(text: bytes) -> tuple[dict[str, Any], list[tuple[np.dtype, tuple[int, ...]]]]:
    """Return the geometry and the types and shapes of the arrays that a header names."""
    try:
        header = json.loads(text)
        geometry = dict(header["geometry"])
        shapes = [
            (str(name), tuple(map(operator.index, shape))) for name, shape in header["arrays"]
        ]
    except (ValueError, KeyError, TypeError, RecursionError) as trouble:
        raise SwapError(f"the swap file's header cannot be read: {trouble}") from None
    if any(name not in _TYPES or min(shape, default=0) < 0 for name, shape in shapes):
        raise SwapError("the swap file's header names an array that cannot be")
    return geometry, [(np.dtype(name), shape) for name, shape in shapes]


def _check_arrays(ledger: Ledger, store: ArrayStore, arrays: list[np.ndarray]) -> None:
    """Refuse arrays whose types or sizes the tables do not bear out, before anything is opened."""
    types = ("<i8", "<i8", "<i8", "|u1", "|u1", "|u1", "<i4")
    if len(arrays) < len(types) or any(
        array.dtype.str != wanted for array, wanted in zip(arrays, types, strict=False)
    ):
        raise SwapError("the swap file's tables are of other types")
    cursors, named = arrays[0], arrays[3]
    if cursors.shape != (ledger.geometry.scope_units,) or cursors.min() < 0:
        raise SwapError("the swap file has another number of tables")
    wanted: list[tuple[str, tuple[int, ...]]] = []
    entry = 0
    for scope, cursor in enumerate(cursors.tolist()):
        used = -(-cursor // ledger.page_tokens)
        there = np.repeat(named[entry : entry + used], ledger.page_tokens)[:cursor]
        entry += used
        sample = store.gather_scope(np.empty(0, np.int64), scope)
        for plane in sorted(sample):
            rows = int(np.count_nonzero(there))
            wanted.append((sample[plane].dtype.str, (rows, sample[plane].shape[1])))
    found = [(array.dtype.str, array.shape) for array in arrays[len(types) :]]
    if found != wanted:
        raise SwapError("the swap file's rows are of another number or width")
