"""The shape of a real cache: its families, where each row stands in each plane, how it rotates.

Rows of one token in one family lie behind one another, in layer-major order of their (layer,
head): a plane of a family is [token, elements], and `offsets` says where each unit begins.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from kvsim.errors import KvsimError, LayoutError
from kvsim.layout import PLANES, KVLayout
from kvsim.layout.families import ROW_TYPES, RowFamily, RowSpec, of_layout
from kvsim.layout.kinds import integer
from kvsim.paging import Geometry
from kvsim.tensors.quantized import KINDS, coded_bytes
from kvsim.tensors.rope import Rope, rope_of_facts


@dataclass(frozen=True)
class CacheShape:
    """What one token's rows look like.

    Attributes
    ----------
    families : tuple of RowFamily
    ropes : tuple of Rope
        How each layer of the model rotates: one for all layers, or one for each.
    planes : {"kv", "kv_raw", "raw_only"}
    max_positions : int
        Positions that the rotation tables cover; one past the highest.
    """

    families: tuple[RowFamily, ...]
    ropes: tuple[Rope, ...]
    planes: str = "kv_raw"
    max_positions: int = 4096

    def __post_init__(self) -> None:
        if self.planes not in PLANES:
            raise LayoutError(f"planes must be one of {', '.join(PLANES)}, not {self.planes!r}")
        integer(self.max_positions, "max_positions", lowest=1)
        if not self.families:
            raise LayoutError("a cache needs a family of rows")
        layers = 1 + max(row.layer for family in self.families for row in family.rows)
        if len(self.ropes) not in (1, layers):
            raise LayoutError(f"one rope is needed, or {layers}, not {len(self.ropes)}")
        for family in self.families:
            for row in family.rows:
                rope = self.rope_of(row)
                if row.rope_dim and rope.dim != row.rope_dim:
                    raise LayoutError(
                        f"family {family.name!r}, layer {row.layer}: the rope turns {rope.dim}"
                        f" elements where the row has {row.rope_dim}"
                    )

    def rope_of(self, row: RowSpec) -> Rope:
        """Return the rotation of a row's layer."""
        return self.ropes[row.layer if len(self.ropes) > 1 else 0]

    @property
    def units(self) -> tuple[tuple[int, RowSpec], ...]:
        """Every (family number, row), in the order of the ledger's units."""
        return tuple((at, row) for at, family in enumerate(self.families) for row in family.rows)

    @cached_property
    def offsets(self) -> tuple[dict[str, np.ndarray], ...]:
        """For each family and plane, where each of its rows begins, int64 [rows + 1]."""
        found = []
        for family in self.families:
            planes = {}
            for name in PLANES[self.planes]:
                widths = [row.widths(self.planes).get(name, 0) for row in family.rows]
                if sum(widths):
                    planes[name] = np.cumsum([0, *widths]).astype(np.int64)
            found.append(planes)
        return tuple(found)

    def elements(self, family: int, plane: str) -> int:
        """Return the elements of one token in a plane of a family; 0 if it has none."""
        offsets = self.offsets[family].get(plane)
        return 0 if offsets is None else int(offsets[-1])

    def geometry(
        self, scope: str = "sequence", sets: str = "shared", keys: str = "float32"
    ) -> Geometry:
        """Return the ledger's geometry: families never share a table.

        Parameters
        ----------
        scope : {"sequence", "layer", "head"}
            What one block table covers, inside each family.
        sets : {"shared", "layer", "head"}
            Which rows keep and drop tokens together.
        keys : str
            How rotated keys are kept: one of `kvsim.tensors.quantized.KINDS`. "float32" is as
            the family says.

        Raises
        ------
        LayoutError
            If there is no such kind, or there are no rotated keys to quantize.
        """
        if keys not in KINDS:
            raise LayoutError(f"keys are kept as one of {', '.join(KINDS)}, not {keys!r}")
        if keys != "float32" and self.planes == "raw_only":
            raise LayoutError(
                f"planes raw_only keep no rotated keys, so none can be kept as {keys}"
            )
        return Geometry(
            unit_scope=_numbered(
                [(at, *_label(scope, at, row)) for at, row in self.units],
            ),
            unit_set=_numbered([_label(sets, at, row) for at, row in self.units]),
            unit_row_bytes=tuple(
                self._row_bytes(ROW_TYPES[self.families[at].dtype], row, keys)
                for at, row in self.units
            ),
            # Values do not turn, nor do keys without rotation: renumbering leaves both alone.
            unit_turns=tuple(row.rope_dim > 0 for _, row in self.units),
        )

    def _row_bytes(self, element_bytes: int, row: RowSpec, keys: str) -> int:
        """Return the bytes of one token's row in all planes, codes and scales at their own."""
        widths = row.widths(self.planes)
        stored = element_bytes * sum(widths.values())
        if keys == "float32" or "K" not in widths:
            return stored
        coded = sum(coded_bytes(keys, part) for part in key_parts(row))
        return stored - element_bytes * widths["K"] + coded


def key_parts(row: RowSpec) -> tuple[int, ...]:
    """Return the elements of each part of a key that is quantized on its own.

    What is carried and what may rotate have a scale each, or rotating would touch what is
    carried, of which nothing but the codes is kept.
    """
    return tuple(width for width in (row.carried, row.raw) if width)


def shape_of_layout(layout: KVLayout, planes: str, max_positions: int) -> CacheShape:
    """Return the shape of a layout's dense rows, each layer rotated as its catalogue entry says.

    Raises
    ------
    LayoutError
        If the layout does not say how its keys are rotated, or caches more than dense rows.
    """
    if layout.rope is None:
        raise LayoutError(f"layout {layout.name!r} does not say how keys are rotated: rope")
    ropes = []
    for layer in layout.layers():
        # An entry with a rotation for each kind of layer nests them by the kind's name.
        facts = layout.rope.get(layer.kind, layout.rope)
        try:
            ropes.append(rope_of_facts(facts, layer.k_head_dim))
        except KvsimError as trouble:
            raise LayoutError(f"layout {layout.name!r}: {trouble}") from None
    turned = [rope.dim for rope in ropes]
    return CacheShape(of_layout(layout, turned), tuple(ropes), planes, max_positions)


def _label(how: str, family: int, row: RowSpec) -> tuple[int, ...]:
    if how in ("sequence", "shared"):
        return ()
    if how == "layer":
        return (row.layer,)
    if how == "head":
        return (family, row.layer, row.head)
    raise LayoutError(f"rows are cut by sequence, layer or head, not by {how!r}")


def _numbered(labels: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    order: dict[tuple[int, ...], int] = {}
    return tuple(order.setdefault(label, len(order)) for label in labels)
