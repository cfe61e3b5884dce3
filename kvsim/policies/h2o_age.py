"""H2O with the sum of attention divided by how many queries could attend to the token."""

from dataclasses import dataclass

import numpy as np

from kvsim.policies.base import Policy
from kvsim.policies.view import View


@dataclass(frozen=True)
class H2OAge(Policy):
    """Score_j = (sum over queries q of A[h, q, j]) / (T - position_j).

    Source: the age-normalised variant of H2O (arXiv 2306.14048) that kvpress calls
    ObservedAttention. Deviation: kvpress protects no recent window; here the scenario's
    `selection.protect_recent` decides.
    """

    signals = ("attention",)
    paper = "arXiv 2306.14048, kvpress ObservedAttention"

    def score(self, view: View) -> np.ndarray:
        return view.attention.cumulative / view.ages
