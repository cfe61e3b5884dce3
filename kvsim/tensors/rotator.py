"""Rotating whole rows outside the store: new tokens before they are written, and reading raw keys.

It uses the same kernel as the moves do, so a key made here has the bits of a key made there.
"""

from __future__ import annotations

import numpy as np

from kvsim.layout.families import PAIRINGS, RowFamily
from kvsim.paging import fields as f
from kvsim.tensors import lanes as n
from kvsim.tensors import moving
from kvsim.tensors.angles import RotationTables
from kvsim.tensors.shape import CacheShape


class Rotator:
    """Turns unrotated keys of a family into rotated ones.

    Parameters
    ----------
    shape : CacheShape
    tables : RotationTables
        The store's own.
    """

    def __init__(self, shape: CacheShape, tables: RotationTables) -> None:
        self._families = shape.families
        self._tables = tables
        numbers = {rope: number for number, rope in enumerate(dict.fromkeys(shape.ropes))}
        self._lanes = [
            _flat_lanes(family, [numbers[shape.rope_of(row)] for row in family.rows])
            for family in shape.families
        ]

    def keys(self, family: int, unrotated: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """Return keys rotated at their positions.

        Parameters
        ----------
        family : int
        unrotated : [n, elements]
            Carried and raw elements of every row, in the family's order.
        positions : int64 [n]

        Returns
        -------
        array [n, elements]
            Of the family's dtype, C-contiguous.
        """
        return self._turned(family, self._lanes[family], unrotated, positions)

    def unit_keys(
        self, family: int, row: int, unrotated: np.ndarray, positions: np.ndarray
    ) -> np.ndarray:
        """Return the keys of one row of a family alone, [n, carried and raw elements]."""
        lane = self._lanes[family][row : row + 1].copy()
        lane[:, [n.KEY_AT, n.RAW_AT]] = 0
        return self._turned(family, lane, unrotated, positions)

    def _turned(
        self, family: int, lanes: np.ndarray, unrotated: np.ndarray, positions: np.ndarray
    ) -> np.ndarray:
        # A kernel is compiled for arrays that can be written, and given rows may be read-only.
        unrotated = np.require(unrotated, self._families[family].dtype, ["C", "W"])
        count = positions.size
        plan = np.zeros((f.PLAN_FIELDS, count), np.int64)
        plan[f.SOURCE] = plan[f.TARGET] = np.arange(count)
        plan[f.POSITION] = positions
        plan[f.SET_OF] = -1
        keys = np.empty_like(unrotated)
        starts = np.array([0, lanes.shape[0]], np.int64)
        nothing = np.empty((count, 0), unrotated.dtype)
        with np.errstate(over="ignore", invalid="ignore"):
            moving.move_plainly(
                keys, unrotated, nothing, plan, count, lanes, starts, 1, *self._tables
            )
        return keys


def _flat_lanes(family: RowFamily, tables: list[int]) -> np.ndarray:
    """Return lanes of a plane that holds the whole unrotated key of every row."""
    lanes = np.zeros((len(family.rows), n.LANE_FIELDS), np.int64)
    at = 0
    for lane, row, table in zip(lanes, family.rows, tables, strict=True):
        width = row.carried + row.raw
        lane[[n.KEY_AT, n.RAW_AT]] = at
        lane[[n.KEY, n.RAW]] = width
        lane[n.ROPE_FROM] = row.carried + row.rope_from
        lane[n.ROPE_DIM] = row.rope_dim
        lane[n.TABLE] = table
        lane[n.PAIRING] = PAIRINGS.index(row.pairing)
        at += width
    return lanes
