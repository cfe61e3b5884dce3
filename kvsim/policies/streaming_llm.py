"""StreamingLLM: keep the first tokens, the attention sinks, and the most recent ones."""

from dataclasses import dataclass

import numpy as np

from kvsim.policies.base import Policy
from kvsim.policies.view import View


@dataclass(frozen=True)
class StreamingLLM(Policy):
    """Score = position; the first `n_sink` tokens are protected, not scored.

    Paper: Xiao et al., Efficient Streaming Language Models with Attention Sinks,
    arXiv 2309.17453. Deviation: the paper re-assigns positions inside the cache; here that is
    the scenario's `compaction.positions`. The sinks join the protected mask, so that the mean
    of a page cannot lose them.

    Parameters
    ----------
    n_sink : int
        Tokens at the start that are always kept.
    """

    n_sink: int = 4

    paper = "arXiv 2309.17453"
    static = True

    def __post_init__(self) -> None:
        if self.n_sink < 0:
            raise ValueError(f"n_sink must not be negative, not {self.n_sink}")

    def score(self, view: View) -> np.ndarray:
        return view.positions.astype(np.float64)

    def protected(self, view: View) -> np.ndarray:
        return view.positions < self.n_sink
