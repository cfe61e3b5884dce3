"""Watching which moves the kernel for whole cache lines really carries out.

A case that asks for that kernel proves something about it only if it ran. Knows the arguments of
`moving.move_streaming`; the kernel itself is not touched.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from kvsim.paging import fields as f
from kvsim.tensors import lanes as n
from kvsim.tensors import moving


@dataclass
class Streamed:
    """What was seen.

    Attributes
    ----------
    moves : int
        Moves that the kernel was called for; one of several blocks counts once in each.
    rotations : int
        Those of them that turned keys.
    """

    moves: int = 0
    rotations: int = 0


@contextmanager
def streamed_moves() -> Iterator[Streamed]:
    """Count what stores hand to the streaming kernel for as long as the context lasts."""
    seen = Streamed()
    real: Any = moving.move_streaming

    def watched(key: Any, raw: Any, value: Any, plan: np.ndarray, moves: int, *rest: Any) -> None:
        real(key, raw, value, plan, moves, *rest)
        seen.moves += moves
        lanes = rest[0]
        if (lanes[:, n.KEY] > 0).any() and (lanes[:, n.ROPE_DIM] > 0).any():
            seen.rotations += int((plan[f.POSITION, :moves] >= 0).sum())

    moving.move_streaming = watched
    try:
        yield seen
    finally:
        moving.move_streaming = real
