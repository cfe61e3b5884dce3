"""TOVA: drop the token that the last query attends to least."""

from dataclasses import dataclass

import numpy as np

from kvsim.policies.base import Policy
from kvsim.policies.view import View


@dataclass(frozen=True)
class TOVA(Policy):
    """Score_j = A[:, last, j] averaged over all heads: every head keeps the same tokens.

    Paper: Oren et al., Transformers are Multi-State RNNs, arXiv 2401.06104. The method is
    defined by that average, so sets per head are not applicable. `retained_mass` is measured
    with the very row that TOVA scores by: it leads that column by construction.
    """

    signals = ("attention",)
    paper = "arXiv 2401.06104"
    sets = ("shared", "layer")

    def score(self, view: View) -> np.ndarray:
        return view.attention.last.mean(axis=1, dtype=np.float64, keepdims=True)
