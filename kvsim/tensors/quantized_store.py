"""A store whose rotated keys are codes: a plane of codes and, where the kind has one, of scales.

It carries out the same plans as ArrayStore, in plan order and in NumPy. A move without a position
carries codes and scales bit for bit; a move with one encodes the key anew, rotated once from its
float32 pre-RoPE row. Knows nothing about what may be evicted: see `remedies`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from kvsim.errors import ExactnessRefused, LayoutError
from kvsim.layout.families import RowSpec
from kvsim.paging import Geometry
from kvsim.paging import fields as f
from kvsim.tensors import lanes as n
from kvsim.tensors.array_store import ArrayStore
from kvsim.tensors.lanes import Block
from kvsim.tensors.quantized import code_type, decode, encode, has_scale
from kvsim.tensors.rotator import Rotator
from kvsim.tensors.shape import CacheShape, key_parts

#: The plane of scales, beside those that every store has.
SCALES = "K_scale"


def make_store(
    shape: CacheShape, geometry: Geometry, page_tokens: int, keys: str, **options: Any
) -> ArrayStore:
    """Return the store that keeps keys in this way; `options` are those of ArrayStore."""
    if keys == "float32":
        return ArrayStore(shape, geometry, page_tokens, **options)
    return QuantizedStore(shape, geometry, page_tokens, keys, **options)


class QuantizedStore(ArrayStore):
    """Rows of every unit, the rotated keys as codes.

    Parameters
    ----------
    shape : CacheShape
        Planes kv_raw or kv.
    geometry : Geometry
        As `shape.geometry(..., keys=keys)` returns it.
    page_tokens : int
    keys : {"int8", "e4m3", "e4m3_scaled"}
    **options
        As ArrayStore takes them. Its kernels move float32 rows, so none of them is used here.

    Raises
    ------
    LayoutError
        If the keys are not kept as codes, or there is no plane of them.
    """

    def __init__(
        self, shape: CacheShape, geometry: Geometry, page_tokens: int, keys: str, **options: Any
    ) -> None:
        if keys == "float32" or shape.planes == "raw_only":
            raise LayoutError(f"planes {shape.planes} with {keys} keys hold no codes")
        self.keys = keys
        self._specs = shape.units
        self._number = [
            at - [where for where, _ in self._specs].index(where)
            for at, (where, _) in enumerate(self._specs)
        ]
        super().__init__(shape, geometry, page_tokens, **{**options, "portable": True})
        self._rotator = Rotator(shape, self.tables())
        tables = self.tables()
        turns = [float(np.abs(table).max(initial=1)) for table in (tables.cosines, tables.sines)]
        # |a cos| + |b sin| stays below float32's limit for every position, at any factor.
        self._largest_raw = float(np.finfo(np.float32).max) / (2 * max(turns))

    # What is kept

    def plane_types(self, block: Block) -> dict[str, tuple[int, np.dtype]]:
        """Return the elements of one slot, and their type, in each plane of a block."""
        types = super().plane_types(block)
        types["K"] = (types["K"][0], code_type(self.keys))
        if has_scale(self.keys):
            scopes = range(self.geometry.scope_units)
            most = max(len(self._scale_columns(block, scope)) for scope in scopes)
            types[SCALES] = (most, np.dtype(np.float32))
        return types

    def encoded(self, scope: int, rows: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return rows of a scope unit with rotated keys as codes, and their scales.

        Raises
        ------
        ExactnessRefused
            If a key has no code: a NaN or an infinity where a scale is needed, or a pre-RoPE
            element so large that some position could make it one.
        """
        if "K" not in rows:
            return rows
        keys = rows["K"]
        if has_scale(self.keys) and "k_raw" in rows:
            top = float(np.abs(rows["k_raw"]).max(initial=0))
            if top > self._largest_raw:
                raise ExactnessRefused(
                    f"a key of magnitude {top:g} could pass float32's range when it is rotated,"
                    " and would have no scale then"
                )
        codes = np.empty(keys.shape, code_type(self.keys))
        spans = self._parts_of_scope(scope)
        scales = np.empty((len(keys), len(spans)), np.float32)
        for number, (first, last) in enumerate(spans):
            codes[:, first:last], scale = encode(self.keys, _narrow(keys[:, first:last]))
            if scale is not None:
                scales[:, number] = scale
        return {**rows, "K": codes, **({SCALES: scales} if has_scale(self.keys) else {})}

    def decoded(self, scope: int, rows: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return rows of a scope unit with the keys that their codes stand for."""
        if "K" not in rows:
            return rows
        found = {plane: array for plane, array in rows.items() if plane != SCALES}
        family = self._specs[self.geometry.unit_scope.index(scope)][0]
        found["K"] = np.empty(rows["K"].shape, self.shape.families[family].dtype)
        for number, (first, last) in enumerate(self._parts_of_scope(scope)):
            scale = rows[SCALES][:, number] if has_scale(self.keys) else None
            found["K"][:, first:last] = decode(self.keys, rows["K"][:, first:last], scale)
        return found

    def parts(self, block: Block, scope: int) -> list[tuple[str, int, int, int]]:
        """Return (plane, first element, last, first in the scope's flat row) of a block's rows."""
        found = super().parts(block, scope)
        own = len(self._scale_columns(block, scope)) if has_scale(self.keys) else 0
        if own:
            before = 0
            for other in self.blocks:
                if other is block:
                    break
                if other.family == block.family:
                    before += len(self._scale_columns(other, scope))
            found.append((SCALES, 0, own, before))
        return found

    def gather(self, slots: np.ndarray, unit: int) -> dict[str, np.ndarray]:
        """Return the stored rows of one unit at these physical slots, scales included."""
        found = super().gather(slots, unit)
        if "K" in found and has_scale(self.keys):
            scope = self.geometry.unit_scope[unit]
            for block, planes in zip(self.blocks, self.planes, strict=True):
                every = self._scale_columns(block, scope)
                own = [at for at, (of, _) in enumerate(every) if of == unit]
                if own:
                    found[SCALES] = np.ascontiguousarray(planes[SCALES][slots][:, own])
        return found

    # Moving

    def apply(self, plan: np.ndarray) -> None:
        """Carry out moves in plan order. A move with a position encodes its key anew.

        Raises
        ------
        ExactnessRefused
            If a move rotates and there are no pre-RoPE keys.
        RotationError
            If a position lies past the rotation tables.
        """
        highest = int(plan[f.POSITION].max())
        if highest >= 0:
            self._check_rotation(highest)
        for run in independent_runs(plan):
            scope, which = int(run[f.SCOPE_OF, 0]), int(run[f.SET_OF, 0])
            for block, planes in zip(self.blocks, self.planes, strict=True):
                lanes = self._lanes(block, scope)
                if which >= 0:
                    at = scope * self._sets + which
                    lanes = block.lanes[block.starts[at] : block.starts[at + 1]]
                if lanes.size:
                    self._move(block, planes, scope, lanes, run)

    def _move(
        self,
        block: Block,
        planes: dict[str, np.ndarray],
        scope: int,
        lanes: np.ndarray,
        run: np.ndarray,
    ) -> None:
        """Carry out independent moves of some lanes: read everything, then write."""
        source, target, position = run[f.SOURCE], run[f.TARGET], run[f.POSITION]
        turned = np.flatnonzero(position >= 0)
        taken = {plane: held[source] for plane, held in planes.items()}
        scale_at = {part: at for at, part in enumerate(self._scale_columns(block, scope))}
        units = set(lanes[:, n.UNIT].tolist())
        columns = {
            SCALES: np.array([at for (unit, _), at in scale_at.items() if unit in units], np.int64)
        }
        for plane, at, width in (
            ("K", n.KEY_AT, n.KEY),
            ("k_raw", n.RAW_AT, n.RAW),
            ("V", n.VALUE_AT, n.VALUE),
        ):
            spans = [np.arange(lane[at], lane[at] + lane[width]) for lane in lanes]
            columns[plane] = np.concatenate(spans)
        for lane in lanes:
            unit = int(lane[n.UNIT])
            spec = self._specs[unit][1]
            if turned.size and lane[n.KEY] and spec.raw:
                raw = taken["k_raw"][turned, lane[n.RAW_AT] : lane[n.RAW_AT] + spec.raw]
                codes, scale = self._turned(unit, spec, raw, position[turned])
                first = lane[n.KEY_AT] + spec.carried
                taken["K"][turned, first : first + spec.raw] = codes
                if scale is not None:
                    taken[SCALES][turned, scale_at[unit, len(key_parts(spec)) - 1]] = scale
        for plane, held in planes.items():
            held[np.ix_(target, columns[plane])] = taken[plane][:, columns[plane]]

    def _turned(
        self, unit: int, spec: RowSpec, raw: np.ndarray, positions: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """Return codes and scale of pre-RoPE rows [n, raw] of one unit, rotated once."""
        # What is carried does not rotate and is not encoded here, so anything may stand there.
        whole = np.zeros((len(raw), spec.carried + spec.raw), raw.dtype)
        whole[:, spec.carried :] = raw
        family = self._specs[unit][0]
        keys = self._rotator.unit_keys(family, self._number[unit], whole, positions)
        return encode(self.keys, _narrow(keys[:, spec.carried :]))

    # Where the parts of a key stand

    def _scale_columns(self, block: Block, scope: int) -> list[tuple[int, int]]:
        """Return (unit, part) of each column of a block's scales, for one scope unit."""
        lanes = self._lanes(block, scope)
        return [
            (unit, part)
            for unit in sorted(lanes[:, n.UNIT].tolist())
            for part in range(len(key_parts(self._specs[unit][1])))
        ]

    def _parts_of_scope(self, scope: int) -> list[tuple[int, int]]:
        """Return [first, last) of each part of the keys in a scope unit's flat row."""
        found = []
        first = 0
        for where, (_, spec) in zip(self.geometry.unit_scope, self._specs, strict=True):
            if where == scope:
                for width in key_parts(spec):
                    found.append((first, first + width))
                    first += width
        return found


def independent_runs(plan: np.ndarray) -> Iterator[np.ndarray]:
    """Yield a plan in pieces, each of moves of one scope unit and set that may act as one.

    Inside a piece no move reads or writes a slot that an earlier one wrote, so reading all
    sources first and then writing all targets is what plan order would give.
    """
    first = 0
    written: set[int] = set()
    sources, targets = plan[f.SOURCE].tolist(), plan[f.TARGET].tolist()
    whose = list(zip(plan[f.SCOPE_OF].tolist(), plan[f.SET_OF].tolist(), strict=True))
    for at, (source, target) in enumerate(zip(sources, targets, strict=True)):
        if source in written or target in written or whose[at] != whose[first]:
            yield plan[:, first:at]
            first = at
            written = set()
        written.add(target)
    if sources:
        yield plan[:, first:]


def _narrow(keys: np.ndarray) -> np.ndarray:
    """Return keys as float32: those of a float64 family are float32 numbers already."""
    with np.errstate(over="ignore", invalid="ignore"):
        return np.ascontiguousarray(keys, np.float32)
