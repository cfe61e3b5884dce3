"""Where each row of a slot stands in each plane: the table that the move kernels read.

A block is what shares a buffer per plane: a whole family (page-major) or one of its layers
(layer-major). A lane is one (layer, head) of a block, as a scope unit's slots hold it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from kvsim.layout.families import PAIRINGS
from kvsim.paging import Geometry
from kvsim.tensors.shape import CacheShape

#: How planes may be laid out: one buffer per family and plane, or one per layer as well.
LAYOUTS = ("page_major", "layer_major")

# Columns of a lane.
KEY_AT = 0  # first element in the key plane; a key is its carried elements, then its raw ones
CARRIED = 1
RAW_AT = 2  # first element in the k_raw plane
RAW = 3  # elements that the k_raw plane holds of this row
ROPE_FROM = 4  # first rotated element, counted inside the raw part
ROPE_DIM = 5
VALUE_AT = 6
VALUE = 7
TABLE = 8  # which rotation table
PAIRING = 9  # index into PAIRINGS
KEY = 10  # elements that the key plane holds of this row
UNIT = 11  # the ledger's unit
LANE_FIELDS = 12


class Block(NamedTuple):
    """One block of a family, without memory.

    Attributes
    ----------
    family : int
    layer : int
        The layer, or -1 for all of the family's.
    elements : dict
        Elements of one slot in each plane of the block: the most of any scope unit.
    lanes : int64 [lane, LANE_FIELDS]
        The lanes of each (scope unit, set), one behind the other.
    starts : int64 [scope unit * inner sets + 1]
        Where the lanes of each (scope unit, set) begin.
    """

    family: int
    layer: int
    elements: dict[str, int]
    lanes: np.ndarray
    starts: np.ndarray


def blocks(shape: CacheShape, geometry: Geometry, layout: str) -> list[Block]:
    """Return the blocks of a cache, family by family.

    Parameters
    ----------
    shape : CacheShape
    geometry : Geometry
        Its units are those of the shape, in their order.
    layout : {"page_major", "layer_major"}
    """
    found = []
    for number, family in enumerate(shape.families):
        layers = family.layers if layout == "layer_major" else (-1,)
        for layer in layers:
            found.append(_block(shape, geometry, number, layer))
    return found


def _block(shape: CacheShape, geometry: Geometry, family: int, layer: int) -> Block:
    tables = {rope: number for number, rope in enumerate(dict.fromkeys(shape.ropes))}
    elements: dict[str, int] = {}
    lanes: list[list[int]] = []
    starts = [0]
    for scope, inner in enumerate(geometry.inner_sets):
        used = {"K": 0, "k_raw": 0, "V": 0}
        # Units stand in their own order, whichever set they are of, so that a family's rows of
        # one slot can be written and gathered in one piece.
        standing = {}
        for unit, (where, row) in enumerate(shape.units):
            if geometry.unit_scope[unit] != scope or where != family:
                continue
            if layer not in (-1, row.layer):
                continue
            widths = row.widths(shape.planes)
            lane = [0] * LANE_FIELDS
            lane[KEY_AT], lane[RAW_AT], lane[VALUE_AT] = used["K"], used["k_raw"], used["V"]
            lane[KEY], lane[RAW], lane[VALUE] = (widths.get(p, 0) for p in ("K", "k_raw", "V"))
            lane[CARRIED] = row.carried if "K" in widths else 0
            lane[ROPE_FROM], lane[ROPE_DIM] = row.rope_from, row.rope_dim
            lane[TABLE] = tables[shape.rope_of(row)]
            lane[PAIRING] = PAIRINGS.index(row.pairing)
            lane[UNIT] = unit
            standing[unit] = lane
            for plane, width in widths.items():
                used[plane] += width
        for which in inner:
            lanes.extend(
                lane for unit, lane in standing.items() if geometry.unit_set[unit] == which
            )
            starts.append(len(lanes))
        for plane, width in used.items():
            elements[plane] = max(elements.get(plane, 0), width)
    table = np.array(lanes, np.int64).reshape(len(lanes), LANE_FIELDS)
    return Block(family, layer, elements, table, np.array(starts, np.int64))
