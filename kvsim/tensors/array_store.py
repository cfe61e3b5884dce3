"""A store of real rows that carries out the ledger's plan, move by move, in plan order.

It decides nothing and counts nothing. Its planes are those of a CacheShape; where a move names a
position, the key is made anew from its pre-RoPE row in one rotation.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from kvsim.errors import ExactnessRefused, LedgerError, RotationError
from kvsim.layout import PLANES
from kvsim.paging import Geometry
from kvsim.paging import fields as f
from kvsim.paging.physical import Orders
from kvsim.tensors import lanes as n
from kvsim.tensors import moving
from kvsim.tensors.angles import RotationTables, rotation_tables
from kvsim.tensors.lanes import LAYOUTS, Block, blocks
from kvsim.tensors.memory import HeapMemory, Memory
from kvsim.tensors.shape import CacheShape


class ArrayStore:
    """Rows of every unit, page-major: each plane is [page * page_tokens + offset, elements].

    Parameters
    ----------
    shape : CacheShape
        Families, planes and rotations.
    geometry : Geometry
        Its units are those of the shape.
    page_tokens : int
    layout : {"page_major", "layer_major"}
        One buffer per family and plane, or one per layer, too.
    memory : Memory, optional
        Where planes get their memory; by default NumPy's.
    portable : bool
        Never use non-temporal stores, so that both kernels can be compared.
    """

    keys = "float32"

    def __init__(
        self,
        shape: CacheShape,
        geometry: Geometry,
        page_tokens: int,
        *,
        layout: str = "page_major",
        memory: Memory | None = None,
        portable: bool = False,
    ) -> None:
        if layout not in LAYOUTS:
            raise LedgerError(f"layout must be one of {', '.join(LAYOUTS)}, not {layout!r}")
        if len(shape.units) != geometry.units:
            raise LedgerError(f"a geometry of {geometry.units} units for {len(shape.units)} rows")
        self.shape = shape
        self.geometry = geometry
        self.page_tokens = page_tokens
        self.layout = layout
        self.blocks = blocks(shape, geometry, layout)
        self.planes: list[dict[str, np.ndarray]] = []
        self._memory: Memory = memory or HeapMemory()
        self._portable = portable
        self._sets = len(geometry.inner_sets[0])
        self._tables: RotationTables | None = None
        self._streams: list[bool] = []
        for block in self.blocks:
            self.planes.append(
                {
                    plane: self._memory.plane(self.name(block, plane), 0, elements, dtype)
                    for plane, (elements, dtype) in self.plane_types(block).items()
                }
            )

    def plane_types(self, block: Block) -> dict[str, tuple[int, np.dtype]]:
        """Return the elements of one slot, and their type, in each plane of a block."""
        dtype = np.dtype(self.shape.families[block.family].dtype)
        return {plane: (elements, dtype) for plane, elements in block.elements.items()}

    def encoded(self, scope: int, rows: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return rows of a scope unit as `write` takes them: here they are kept as they are."""
        return rows

    def decoded(self, scope: int, rows: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return what `gather_scope` found as attention reads it."""
        return rows

    def name(self, block: Block, plane: str) -> str:
        """Return the name of a block's plane: family.plane, and the layer where it has its own."""
        name = f"{self.shape.families[block.family].name}.{plane}"
        return name if block.layer < 0 else f"{name}.{block.layer}"

    def resize(self, pages: int) -> None:
        """Make room for this many pages, keeping all rows.

        Raises
        ------
        MemoryRefused
            If there is not enough memory. All planes are as they were.
        """
        slots = pages * self.page_tokens
        every = [plane for planes in self.planes for plane in planes.values()]
        self._memory.check(sum(slots * plane.shape[1] * plane.itemsize for plane in every))
        grown = [
            {
                plane: self._memory.grow(self.name(block, plane), old, slots)
                for plane, old in planes.items()
            }
            for block, planes in zip(self.blocks, self.planes, strict=True)
        ]
        self.planes = grown
        self._streams = [
            not self._portable and moving.can_stream(block.lanes, list(planes.values()))
            for block, planes in zip(self.blocks, self.planes, strict=True)
        ]

    def map(self, orders: Orders) -> None:
        """Populate the extents that the orders name, before anything is written there."""
        self._memory.map(orders)

    def give_back(self, orders: Orders) -> None:
        """Give the extents that the orders name back to the operating system."""
        self._memory.give_back(orders)

    def tables(self) -> RotationTables:
        """Return the rotation tables, made at their first use."""
        if self._tables is None:
            self._tables = rotation_tables(self.shape)
        return self._tables

    def write(self, scope: int, slots: np.ndarray, rows: object) -> None:
        """Put new rows into slots of one scope unit.

        Parameters
        ----------
        scope : int
        slots : int64 [n]
        rows : dict
            For each plane, [n, ...]: the rows of the scope's units, in their order, flat or not.
        """
        assert isinstance(rows, Mapping)
        if not slots.size:
            return
        for block, planes in zip(self.blocks, self.planes, strict=True):
            for plane, first, last, source in self.parts(block, scope):
                if plane in rows:
                    flat = np.asarray(rows[plane]).reshape(slots.size, -1)
                    planes[plane][slots, first:last] = flat[:, source : source + last - first]

    def parts(self, block: Block, scope: int) -> list[tuple[str, int, int, int]]:
        """Return (plane, first element, last, first in the scope's flat row) of a block's rows."""
        lanes = self._lanes(block, scope)
        if not lanes.size:
            return []
        found = []
        for plane, column, width in (
            ("K", n.KEY_AT, n.KEY),
            ("k_raw", n.RAW_AT, n.RAW),
            ("V", n.VALUE_AT, n.VALUE),
        ):
            if plane in PLANES[self.shape.planes] and lanes[:, width].any():
                last = int((lanes[:, column] + lanes[:, width]).max())
                before = self._before(block, scope, width)
                found.append((plane, 0, last, before))
        return found

    def _lanes(self, block: Block, scope: int) -> np.ndarray:
        first, last = block.starts[scope * self._sets], block.starts[(scope + 1) * self._sets]
        return block.lanes[first:last]

    def _before(self, block: Block, scope: int, width: int) -> int:
        """Return the elements of a plane that earlier layers of the scope take in a flat row."""
        before = 0
        for other in self.blocks:
            if other is block:
                break
            if other.family == block.family:
                before += int(self._lanes(other, scope)[:, width].sum())
        return before

    def apply(self, plan: np.ndarray) -> None:
        """Carry out moves in plan order. A move with a position rotates its keys to it.

        Raises
        ------
        ExactnessRefused
            If a move rotates and there are no pre-RoPE keys.
        RotationError
            If a position lies past the rotation tables.
        """
        plan = np.ascontiguousarray(plan)
        highest = int(plan[f.POSITION].max())
        if highest >= 0:
            self._check_rotation(highest)
        tables = self.tables()
        # Uncompiled, a kernel's infinities and NaNs would be warned of; they are meant.
        with np.errstate(over="ignore", invalid="ignore"):
            for block, planes, streams in zip(self.blocks, self.planes, self._streams, strict=True):
                move = moving.move_streaming if streams else moving.move_plainly
                move(
                    planes["K"],
                    planes["k_raw"],
                    planes["V"],
                    plan,
                    plan.shape[1],
                    block.lanes,
                    block.starts,
                    self._sets,
                    *tables,
                )

    def _check_rotation(self, highest: int) -> None:
        if self.shape.planes != "kv_raw":
            raise ExactnessRefused("these planes have no pre-RoPE keys beside the rotated ones")
        if highest >= self.shape.max_positions:
            raise RotationError(
                f"position {highest} lies past the rotation tables of"
                f" {self.shape.max_positions} positions"
            )

    def gather(self, slots: np.ndarray, unit: int) -> dict[str, np.ndarray]:
        """Return the stored rows of one unit at these physical slots, {plane: [n, elements]}."""
        for block, planes in zip(self.blocks, self.planes, strict=True):
            for lane in block.lanes[block.lanes[:, n.UNIT] == unit]:
                return {
                    plane: planes[plane][slots, lane[at] : lane[at] + lane[width]]
                    for plane, at, width in (
                        ("K", n.KEY_AT, n.KEY),
                        ("k_raw", n.RAW_AT, n.RAW),
                        ("V", n.VALUE_AT, n.VALUE),
                    )
                    if lane[width]
                }
        raise LedgerError(f"there is no unit {unit}")

    def gather_scope(self, slots: np.ndarray, scope: int) -> dict[str, np.ndarray]:
        """Return the stored rows of a scope unit at these slots, {plane: [n, elements]}.

        Rows lie flat in the order of the scope's units, C-contiguous, as `write` takes them.
        """
        found: dict[str, list[np.ndarray]] = {}
        for block, planes in zip(self.blocks, self.planes, strict=True):
            for plane, first, last, _ in self.parts(block, scope):
                found.setdefault(plane, []).append(planes[plane][slots, first:last])
        return {
            plane: np.ascontiguousarray(parts[0] if len(parts) == 1 else np.concatenate(parts, 1))
            for plane, parts in found.items()
        }
