"""H2O: keep the heavy hitters, the tokens that received most attention so far."""

from dataclasses import dataclass

import numpy as np

from kvsim.policies.base import Policy
from kvsim.policies.view import View


@dataclass(frozen=True)
class H2O(Policy):
    """Score_j = sum over all queries q so far of A[h, q, j].

    Paper: Zhang et al., H2O: Heavy-Hitter Oracle, arXiv 2306.14048. Its window of recent
    tokens is the scenario's `selection.protect_recent`. Known defect, kept as published: the
    raw sum favours old tokens, which more queries could attend to (`h2o_age` divides).
    """

    signals = ("attention",)
    paper = "arXiv 2306.14048"

    def score(self, view: View) -> np.ndarray:
        return view.attention.cumulative
