"""The angles of every position of a cache: one table per rotation, shared by all who rotate.

The paged cache, the contiguous one and the decoder read the same tables, so that rows can differ
only by how they were moved, and never by how a cosine was computed.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from kvsim.tensors.memory import check_fits
from kvsim.tensors.rope import Rope, Tables, tables
from kvsim.tensors.shape import CacheShape


def position_tables(rope: Rope, positions: int) -> Tables:
    """Return cos and sin of every position, each in the regime of the length that it ends.

    Only longrope has two regimes: a position p is rotated as in a context of p + 1 tokens, so a
    row's bits depend on its position alone and not on what was appended with it.

    Returns
    -------
    Tables
        float32 [positions, dim / 2].
    """
    found = tables(rope, positions)
    if rope.regime(positions) == "short":
        return found
    long = np.array([rope.regime(position + 1) == "long" for position in range(positions)])
    beyond = tables(rope, positions, "long")
    return Tables(*(np.where(long[:, None], b, a) for a, b in zip(found, beyond, strict=True)))


class RotationTables(NamedTuple):
    """All rotation tables of a cache, one behind the other, as the kernels read them.

    Attributes
    ----------
    cosines, sines : float32 [n]
    at, halves : int64 [table]
        Where each table begins, and the pairs of one position in it.
    """

    cosines: np.ndarray
    sines: np.ndarray
    at: np.ndarray
    halves: np.ndarray


def rotation_tables(shape: CacheShape) -> RotationTables:
    """Return the tables of every distinct rope of a shape, up to its highest position.

    Raises
    ------
    MemoryRefused
        If they are larger than the memory that is available.
    """
    pairs = sum(rope.dim // 2 for rope in dict.fromkeys(shape.ropes))
    # Angles in float64, their cosines and sines, and both once more behind one another.
    check_fits("of rotations", 32 * pairs * shape.max_positions)
    every = [position_tables(one, shape.max_positions) for one in dict.fromkeys(shape.ropes)]
    halves = np.array([table.cos.shape[1] for table in every], np.int64)
    sizes = [table.cos.size for table in every]
    return RotationTables(
        cosines=np.concatenate([table.cos.ravel() for table in every]),
        sines=np.concatenate([table.sin.ravel() for table in every]),
        at=np.cumsum([0, *sizes[:-1]]).astype(np.int64),
        halves=halves,
    )
