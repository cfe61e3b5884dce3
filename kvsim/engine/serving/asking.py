"""Victims of any policy that needs no signals: the eviction loop, asked sequence by sequence.

A recorded trace has lengths and keys but no attention, so a policy that scores by attention has
nothing to go by here.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kvsim.engine.serving import fields as s
from kvsim.engine.serving.engine import ServingEngine
from kvsim.errors import NotApplicable
from kvsim.eviction import EvictionLoop, Rules
from kvsim.eviction.state import Tracked
from kvsim.paging import Ledger, single
from kvsim.paging import fields as f
from kvsim.policies import Policy


class NoSignals:
    """Signals of a workload that has none."""

    def extend(self, tokens: int) -> None:
        """Nothing is known of new tokens."""

    def observe(self, columns: np.ndarray) -> dict[str, Any]:
        """Return no signal at all."""
        return {}

    def next_query(self, appended: int) -> np.ndarray:
        """Refuse: there is no query."""
        raise NotApplicable("a trace has no attention")

    def fork(self, sequence: int) -> NoSignals:
        """A fork has no signals either."""
        return self


class Asking:
    """Calls an eviction loop for the sequences of an engine.

    Parameters
    ----------
    policy : Policy
    name : str
    rules : Rules
    set_shape, unit_shape : tuple of int
    rng : numpy.random.Generator

    Raises
    ------
    NotApplicable
        If the policy declares a signal.
    """

    def __init__(
        self,
        policy: Policy,
        name: str,
        rules: Rules,
        set_shape: tuple[int, int],
        unit_shape: tuple[int, int],
        rng: np.random.Generator,
    ) -> None:
        if policy.signals:
            raise NotApplicable(
                f"policy {name} needs {', '.join(policy.signals)}, which a trace of requests "
                "does not have"
            )
        if policy.kind != "evict" or policy.before_paging:
            raise NotApplicable(f"policy {name} does more than choose victims of paged tokens")
        self._arguments = (policy, name, rules, set_shape, unit_shape, rng)
        self._loop: EvictionLoop | None = None
        self._lives: dict[int, tuple[int, int]] = {}

    def __call__(self, engine: ServingEngine, sequence: int, request: int) -> int:
        """Evict from a sequence down to its budget, and compact; return how many tokens went."""
        if self._loop is None:
            policy, name, rules, set_shape, unit_shape, rng = self._arguments
            # The twin that counts what dense sequences would hold is never asked here.
            dense = Ledger(single(), engine.ledger.page_tokens)
            self._loop = EvictionLoop(
                engine.ledger, dense, policy, name, rules, set_shape, unit_shape, rng
            )
        loop, row = self._loop, engine.rows[request]
        life = (request, int(row[s.PREEMPTIONS]))
        if self._lives.get(sequence) != life and not row[s.SPARSE]:
            # The number was another sequence's, or this one was computed anew. What was evicted
            # from before is neither: a swap does not end it, and what it lacks is remembered.
            self._lives[sequence] = life
            none = [np.zeros(0, np.int64) for _ in range(engine.ledger.geometry.sets)]
            loop.tracked[sequence] = Tracked(signals=NoSignals(), tokens=none)
        state = loop.tracked[sequence]
        written = int(row[s.INPUT] + row[s.GENERATED]) - (row[s.OUTPUT] > 0)
        state.add(int(written) - state.appended)
        before = engine.ledger.total(f.EVICTED_ROWS_TOTAL)
        loop.evict(sequence)
        return (engine.ledger.total(f.EVICTED_ROWS_TOTAL) - before) // engine.ledger.geometry.units
