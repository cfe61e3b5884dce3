"""Which (layer, KV head) units share a block table, and which share an eviction set.

Pure integers worked out once per ledger; the kernels read them from the `scopes` array.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from kvsim.errors import LedgerError
from kvsim.layout import KVLayout
from kvsim.paging import fields as f

SCOPES = ("sequence", "group", "layer", "head")
SETS = ("shared", "layer", "head")


@dataclass(frozen=True)
class Geometry:
    """The units of a layout, cut into scope units (tables) and sets (what evicts together).

    Attributes
    ----------
    unit_scope, unit_set : tuple of int
        For each unit, in layer-major order, its scope unit and its set.
    unit_row_bytes : tuple of int
        Bytes of one token's row in each unit.
    unit_turns : tuple of bool
        Whether each unit stores a key that depends on its position; without it all do. A layer
        without rotation does not, and neither does a family without keys.
    """

    unit_scope: tuple[int, ...]
    unit_set: tuple[int, ...]
    unit_row_bytes: tuple[int, ...]
    unit_turns: tuple[bool, ...] = ()
    inner_sets: tuple[tuple[int, ...], ...] = field(init=False)

    def __post_init__(self) -> None:
        if not self.unit_turns:
            object.__setattr__(self, "unit_turns", (True,) * self.units)
        if not len(self.unit_set) == len(self.unit_row_bytes) == len(self.unit_turns) == self.units:
            raise LedgerError("a geometry needs a scope, a set, bytes and a turn for every unit")
        inner = []
        for scope in range(self.scope_units):
            members = [s for u, s in enumerate(self.unit_set) if self.unit_scope[u] == scope]
            inner.append(tuple(sorted(set(members))))
        if len({len(sets) for sets in inner}) != 1:
            raise LedgerError("every scope unit must hold the same number of sets")
        object.__setattr__(self, "inner_sets", tuple(inner))

    @property
    def units(self) -> int:
        """(layer, KV head) units."""
        return len(self.unit_scope)

    @property
    def scope_units(self) -> int:
        """Tables of a sequence."""
        return max(self.unit_scope) + 1

    @property
    def sets(self) -> int:
        """Sets of a sequence, hence victim lists of an eviction."""
        return max(self.unit_set) + 1

    @property
    def holder_sets(self) -> int:
        """Sets inside a scope unit if there are several, else 0: no holders are needed."""
        inside = len(self.inner_sets[0])
        return inside if inside > 1 else 0

    def first_scope_of(self, which: int) -> int:
        """Return the first scope unit that holds rows of a set."""
        return self.unit_scope[self.unit_set.index(which)]

    def page_row_bytes(self) -> np.ndarray:
        """Bytes of one token's rows in each scope unit, int64 [scope unit]."""
        return np.bincount(
            self.unit_scope, weights=self.unit_row_bytes, minlength=self.scope_units
        ).astype(np.int64)

    def scopes_array(self) -> np.ndarray:
        """The kernels' `scopes` array, int64 [scope unit, 1 + 4 * inner set]."""
        inside = len(self.inner_sets[0])
        array = np.zeros((self.scope_units, f.SET_COLUMNS + f.PER_SET * inside), np.int64)
        for unit, (scope, which) in enumerate(zip(self.unit_scope, self.unit_set, strict=True)):
            column = f.SET_COLUMNS + f.PER_SET * self.inner_sets[scope].index(which)
            array[scope, column + f.LIST] = which
            array[scope, column + f.ROWS] += 1
            array[scope, column + f.BYTES] += self.unit_row_bytes[unit]
            array[scope, column + f.TURNS] += self.unit_turns[unit]
        return array


def _cut(how: str, layout: KVLayout) -> tuple[int, ...]:
    """Number the units of a layout by sequence, by group of one kind, by layer or by head."""
    layers = layout.layers()
    if how in ("sequence", "shared"):
        labels: Sequence[object] = [0 for layer in layers for _ in range(layer.kv_heads)]
    elif how == "group":
        labels = [layer.kind for layer in layers for _ in range(layer.kv_heads)]
    elif how == "layer":
        labels = [number for number, layer in enumerate(layers) for _ in range(layer.kv_heads)]
    else:
        labels = list(range(layout.units))
    order: dict[object, int] = {}
    return tuple(order.setdefault(label, len(order)) for label in labels)


def geometry(
    layout: KVLayout, scope: str, sets: str, planes: str = "kv", element_bytes: int = 2
) -> Geometry:
    """Return the geometry of a layout under a scope and a kind of sets.

    Parameters
    ----------
    layout : KVLayout
    scope : {"sequence", "group", "layer", "head"}
        What one block table covers.
    sets : {"shared", "layer", "head"}
        Which units keep and drop tokens together.
    planes : {"kv", "kv_raw", "raw_only"}
        Which rows are stored, hence the bytes of a row.
    element_bytes : int
        Bytes of one stored element.
    """
    for name, value, known in (("scope", scope, SCOPES), ("sets", sets, SETS)):
        if value not in known:
            raise LedgerError(f"{name} must be one of {', '.join(known)}, not {value!r}")
    return Geometry(
        unit_scope=_cut(scope, layout),
        unit_set=_cut(sets, layout),
        unit_row_bytes=tuple(layout.unit_row_bytes(planes, element_bytes)),
    )


def single(row_bytes: int = 1) -> Geometry:
    """Return the geometry of one table with one set: what a dense twin and small tests need."""
    return Geometry(unit_scope=(0,), unit_set=(0,), unit_row_bytes=(row_bytes,))
