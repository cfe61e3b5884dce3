"""Knorm: keys with a small norm attract attention, so keep those."""

from dataclasses import dataclass

import numpy as np

from kvsim.policies.base import Policy
from kvsim.policies.view import View


@dataclass(frozen=True)
class Knorm(Policy):
    """Score_j = -||k_j||, the L2 norm of the key.

    Paper: Devoto et al., A Simple and Effective L2 Norm-Based Strategy for KV Cache
    Compression, arXiv 2406.11430. Needs no attention, so it works beside fused kernels.
    """

    signals = ("key_norms",)
    paper = "arXiv 2406.11430"

    def score(self, view: View) -> np.ndarray:
        return -view.key_norms
