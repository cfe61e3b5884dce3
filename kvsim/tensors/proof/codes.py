"""What quantized keys must be: the codes of the contiguous cache's float32 keys, row by row.

Knows the codes of `kvsim.tensors.quantized` and which elements share a scale; no store.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from kvsim.layout.families import RowSpec
from kvsim.tensors.contiguous import ContiguousCache
from kvsim.tensors.quantized import decode, encode, has_scale
from kvsim.tensors.quantized_store import SCALES
from kvsim.tensors.shape import key_parts


class Coded:
    """A contiguous cache as attention would read it, had its keys been kept as codes.

    Parameters
    ----------
    twin : ContiguousCache
    kind : {"float32", "int8", "e4m3", "e4m3_scaled"}
    """

    def __init__(self, twin: ContiguousCache, kind: str) -> None:
        self._twin = twin
        self._kind = kind
        self._read: dict[int, dict[str, np.ndarray]] = {}

    @property
    def next_position(self) -> int:
        """The position that the next token gets."""
        return self._twin.next_position

    def rows(self, family: int = 0) -> dict[str, np.ndarray]:
        """Return the rows of a family, keys decoded from their codes."""
        if family not in self._read:
            self._read[family] = self._coded(family)
        return self._read[family]

    def _coded(self, family: int) -> dict[str, np.ndarray]:
        rows = self._twin.rows(family)
        if self._kind == "float32" or "K" not in rows:
            return rows
        read = np.empty_like(rows["K"])
        first = 0
        for row in self._twin.shape.families[family].rows:
            for width in key_parts(row):
                part = slice(first, first + width)
                read[:, part] = decode(self._kind, *encode(self._kind, _narrow(rows["K"][:, part])))
                first += width
        return {**rows, "K": read}

    def append(self, rows: Sequence[Mapping[str, np.ndarray]]) -> None:
        """Append to the twin."""
        self._twin.append(rows)
        self._read.clear()


def stored_keys(kind: str, row: RowSpec, keys: np.ndarray) -> dict[str, np.ndarray]:
    """Return the planes that a store keeps of one unit's keys [n, elements]."""
    if kind == "float32":
        return {"K": keys}
    codes, scales, first = [], [], 0
    for width in key_parts(row):
        made = encode(kind, _narrow(keys[:, first : first + width]))
        codes.append(made.codes)
        scales.append(made.scale)
        first += width
    found = {"K": np.concatenate(codes, axis=1)}
    if has_scale(kind):
        found[SCALES] = np.stack([s for s in scales if s is not None], axis=1)
    return found


def _narrow(keys: np.ndarray) -> np.ndarray:
    """Return keys as float32: those of a float64 family are float32 numbers already."""
    with np.errstate(over="ignore", invalid="ignore"):
        return np.ascontiguousarray(keys, np.float32)
