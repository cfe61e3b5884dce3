"""KeyDiff: drop the keys that resemble the others most."""

from dataclasses import dataclass

import numpy as np

from kvsim.policies.base import Policy
from kvsim.policies.view import View


@dataclass(frozen=True)
class KeyDiff(Policy):
    """Score_j = -cos(k_j, anchor), where anchor = mean of k / ||k|| over what the set retains.

    Paper: Park et al., KeyDiff, arXiv 2504.15364. Deviation: the paper is block-iterative, it
    evicts after each block of the prompt; here `budget.when` says when (`chunk` comes closest).
    A key of length 0 has cosine 0.
    """

    signals = ("keys",)
    paper = "arXiv 2504.15364"

    def score(self, view: View) -> np.ndarray:
        mine = np.broadcast_to(view.retained, (*view.unit_shape, view.tokens))
        scores = np.empty(mine.shape)
        for unit in np.ndindex(*view.unit_shape):
            keys = view.keys[unit].astype(np.float64)
            length = np.sqrt((keys * keys).sum(axis=1, keepdims=True))
            keys /= np.where(length > 0, length, 1.0)
            anchor = keys[mine[unit]].sum(axis=0)
            size = np.sqrt((anchor * anchor).sum())
            scores[unit] = -(keys * anchor).sum(axis=1) / (size if size > 0 else 1.0)
        return scores
