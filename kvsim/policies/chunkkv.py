"""ChunkKV: keep or drop neighbouring tokens together, by their chunk's mean attention."""

from dataclasses import dataclass

import numpy as np

from kvsim.policies.base import Policy
from kvsim.policies.view import View


@dataclass(frozen=True)
class ChunkKV(Policy):
    """Score_j = mean over j's chunk of the last queries' attention, summed over a layer's heads.

    Paper: Liu et al., ChunkKV, arXiv 2502.00299, on SnapKV's scores without their pool. Heads of
    a layer share scores, and so the set. Chunks align in positions; 20 fits no 16-token page: set
    `chunk` to it. Deviation: selection picks tokens, of equals the oldest first, so chunks go
    whole but for the last one and any that `protect_recent` splits.

    Parameters
    ----------
    chunk : int
    """

    chunk: int = 20

    signals = ("attention",)
    paper = "arXiv 2502.00299"
    sets = ("shared", "layer")

    def __post_init__(self) -> None:
        if self.chunk < 1:
            raise ValueError(f"chunk must be at least 1, not {self.chunk}")

    def score(self, view: View) -> np.ndarray:
        summed = view.attention.window.sum(axis=1, dtype=np.float64, keepdims=True)
        start = np.flatnonzero(np.diff(view.positions // self.chunk, prepend=-1))
        live = np.diff(start, append=view.tokens)
        return np.repeat(np.add.reduceat(summed, start, axis=2) / live, live, axis=2)
