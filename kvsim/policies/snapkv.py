"""SnapKV: attention from the last window of queries, smoothed over neighbouring tokens."""

from dataclasses import dataclass

import numpy as np

from kvsim.policies.base import Policy
from kvsim.policies.view import View


@dataclass(frozen=True)
class SnapKV(Policy):
    """Score_j = average pool, width `kernel`, of the mean of A[h, q, j] over the last queries.

    Paper: Li et al., SnapKV, arXiv 2404.14469. On a recording the pool runs over all
    positions with zero padding and divides by `kernel`; the window's own tokens are kept by
    the scenario's `selection.protect_recent`.

    Parameters
    ----------
    kernel : int
        Odd width of the pool; 1 means none.
    """

    kernel: int = 5

    signals = ("attention",)
    paper = "arXiv 2404.14469"

    def __post_init__(self) -> None:
        if self.kernel < 1 or self.kernel % 2 == 0:
            raise ValueError(f"kernel must be odd and at least 1, not {self.kernel}")

    def score(self, view: View) -> np.ndarray:
        window = view.attention.window.astype(np.float64)
        reach = self.kernel // 2
        padded = np.pad(window, ((0, 0), (0, 0), (reach, reach)))
        shifted = (padded[..., i : i + view.tokens] for i in range(self.kernel))
        return sum(shifted, np.zeros_like(window)) / self.kernel
