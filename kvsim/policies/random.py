"""Random: the control that every claim about a policy has to beat."""

from dataclasses import dataclass

import numpy as np

from kvsim.policies.base import Policy
from kvsim.policies.view import View


@dataclass(frozen=True)
class Random(Policy):
    """Score_j is uniform in [0, 1), drawn once per set and token from the policy's stream.

    Source: none; the null model in which holes are independent and uniform.
    """

    paper = "control"

    def score(self, view: View) -> np.ndarray:
        return view.rng.random((*view.set_shape, view.tokens))
