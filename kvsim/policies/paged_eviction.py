"""PagedEviction: drop weak prompt tokens before they are paged, then one whole page at a time."""

from dataclasses import dataclass

import numpy as np

from kvsim.policies.base import Policy
from kvsim.policies.view import View


@dataclass(frozen=True)
class PagedEviction(Policy):
    """Score_j = ||v_j|| / ||k_j||.

    Paper: PagedEviction, arXiv 2509.04377. Prompt: the lowest tokens are dropped before paging,
    so they are never appended. Decoding: when the newest page fills, the page with the lowest
    mean score goes; that is granularity `page` with `budget.when = "step"`. Deviation: a page goes
    when a page's worth of tokens is over the budget, which is when the newest page fills if the
    budget is whole pages. Reconstructed: that the aggregate is the mean was recalled, not read.
    """

    signals = ("key_norms", "value_norms")
    paper = "arXiv 2509.04377"
    granularities = ("page",)
    before_paging = True
    reconstructed = True

    def score(self, view: View) -> np.ndarray:
        return view.value_norms / view.key_norms
