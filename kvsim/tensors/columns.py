"""Which elements of a family's flat rows belong to which plane and which scope unit.

A token arrives as `k`, its keys before rotation, and `v`; planes hold parts of them, and a scope
unit holds the parts of its own (layer, head) rows.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from kvsim.layout import PLANES
from kvsim.paging import Geometry
from kvsim.tensors.shape import CacheShape


class ScopeColumns(NamedTuple):
    """What one scope unit holds of its family.

    Attributes
    ----------
    family : int
    into : dict
        For each plane, the columns of the family's plane that the scope unit holds, int64.
    of_set : dict
        For each set in the scope unit and each plane, which of those columns are the set's, bool.
    """

    family: int
    into: dict[str, np.ndarray]
    of_set: dict[int, dict[str, np.ndarray]]


def given_columns(shape: CacheShape) -> list[dict[str, np.ndarray]]:
    """Return, for each family and plane, the columns of `k` (or `v`) that the plane holds."""
    found = []
    for number, family in enumerate(shape.families):
        planes: dict[str, list[np.ndarray]] = {}
        key = value = 0
        for row in family.rows:
            for plane, width in row.widths(shape.planes).items():
                end = value + width if plane == "V" else key + row.carried + row.raw
                planes.setdefault(plane, []).append(np.arange(end - width, end))
            key += row.carried + row.raw
            value += row.value
        found.append(
            {
                p: np.concatenate(planes[p])
                for p in PLANES[shape.planes]
                if shape.elements(number, p)
            }
        )
    return found


def scope_columns(shape: CacheShape, geometry: Geometry) -> list[ScopeColumns]:
    """Return what each scope unit holds; a scope unit never spans families."""
    firsts = np.cumsum([0, *(len(family.rows) for family in shape.families)])
    found = []
    for scope in range(geometry.scope_units):
        units = [u for u, where in enumerate(geometry.unit_scope) if where == scope]
        family = int(np.searchsorted(firsts, units[0], side="right")) - 1
        into = {}
        of_set: dict[int, dict[str, np.ndarray]] = {w: {} for w in geometry.inner_sets[scope]}
        for plane, offsets in shape.offsets[family].items():
            rows = np.array(units) - int(firsts[family])
            into[plane] = np.concatenate(
                [np.arange(offsets[row], offsets[row + 1]) for row in rows]
            )
            owners = np.repeat([geometry.unit_set[unit] for unit in units], np.diff(offsets)[rows])
            for which, columns in of_set.items():
                columns[plane] = owners == which
        found.append(ScopeColumns(family, into, of_set))
    return found
