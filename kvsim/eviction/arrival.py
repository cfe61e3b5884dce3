"""Whether a policy evicts in the order of arrival, so that the step kernel may take the victims."""

from __future__ import annotations

import numpy as np

from kvsim.policies import registry
from kvsim.policies.base import Policy
from kvsim.policies.view import View

PROBE_TOKENS = 512


def arrival_sinks(policy: Policy, name: str) -> int | None:
    """Return how many first tokens a policy protects if it evicts oldest first, else None.

    A policy that says `static` is not believed but asked: its scores must rise from token to
    token, alike in every unit, and what it protects must be the first tokens alone. Whoever
    fails the question is scored in Python at each step.

    Raises
    ------
    PolicyError
        If its scores or its mask cannot be used.
    """
    if not policy.static or policy.signals:
        return None
    tokens = np.arange(PROBE_TOKENS)
    view = View(
        positions=tokens,
        ages=PROBE_TOKENS - tokens,
        retained=np.ones((2, 2, PROBE_TOKENS), np.bool_),
        set_shape=(2, 2),
        unit_shape=(2, 2),
        rng=np.random.default_rng(0),
    )
    scores = registry.scores(policy, view, name)
    guarded = registry.protected(policy, view, name)
    sinks = int(np.count_nonzero(guarded))
    rises = bool((np.diff(scores, axis=-1) > 0).all()) and bool((scores == scores[0, 0]).all())
    return sinks if rises and guarded[:sinks].all() and sinks < PROBE_TOKENS else None
