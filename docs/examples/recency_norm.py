"""Recency norm: a small key counts for more, and everything counts for less as it ages."""

from dataclasses import dataclass

import numpy as np

from kvsim.policies import Policy, View


@dataclass(frozen=True)
class RecencyNorm(Policy):
    """Score_j = 2 ** (-age_j / half_life) / (1 + ||k_j||). Source: none; a worked example."""

    half_life: float = 4096.0

    signals = ("key_norms",)
    paper = "control"

    def __post_init__(self) -> None:
        if self.half_life <= 0:
            raise ValueError(f"half_life must be above 0, not {self.half_life}")

    def score(self, view: View) -> np.ndarray:
        return np.exp2(-view.ages / self.half_life) / (1 + view.key_norms)
