"""The protocol of an eviction policy: a frozen dataclass with one pure method, `score`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from kvsim.policies.view import View

GRANULARITIES = ("token", "window", "page", "page_completion")
SETS = ("shared", "layer", "head")


@dataclass(frozen=True)
class Policy:
    """Base of all policies. The fields of a subclass are its parameters in a scenario.

    Attributes
    ----------
    signals : tuple of str
        What `score` reads from the view beside positions: see `kvsim.policies.view.SIGNALS`.
    paper : str
        Where the method comes from.
    sets : tuple of str
        Kinds of sets that the method's own definition allows.
    granularities : tuple of str
        Granularities that make sense for it.
    static : bool
        Whether the order of eviction is that of arrival, the first few protected tokens aside:
        then the kernel of the step loop takes the victims. The loop asks the policy with a
        probe before it believes this (`kvsim.eviction.arrival`).
    before_paging : bool
        Whether victims of the prompt are chosen before it is appended, and never are appended.
    kind : {"evict", "merge", "encode", "summarise"}
        Which verb the method needs.
    reconstructed : bool
        Whether a detail had to be assumed because no source gives it.
    """

    signals: ClassVar[tuple[str, ...]] = ()
    paper: ClassVar[str] = ""
    sets: ClassVar[tuple[str, ...]] = SETS
    granularities: ClassVar[tuple[str, ...]] = GRANULARITIES
    static: ClassVar[bool] = False
    before_paging: ClassVar[bool] = False
    kind: ClassVar[str] = "evict"
    reconstructed: ClassVar[bool] = False

    def score(self, view: View) -> np.ndarray:
        """Return scores, higher is kept, broadcastable to [layers, kv_heads, tokens]."""
        raise TypeError(f"{type(self).__name__} has no method score")

    def protected(self, view: View) -> np.ndarray:
        """Return which columns must be kept whatever the scores, bool [tokens]."""
        return np.zeros(view.tokens, np.bool_)
