"""The loop view -> score -> select -> evict, for every sequence of one ledger.

The loop remembers which token each retained row is; the ledger alone decides what is live,
empty and freed. Beside the ledger runs its dense twin: the same verbs without any eviction.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from kvsim.errors import LedgerError
from kvsim.paging import Ledger
from kvsim.policies import registry
from kvsim.policies.base import Policy
from kvsim.policies.selection import Places, Target, select
from kvsim.policies.view import View


class Signals(Protocol):
    """What a workload tells about a sequence's tokens."""

    def observe(self, columns: np.ndarray) -> dict[str, Any]:
        """Return the signals of these tokens, as keyword arguments of a View."""

    def next_query(self, appended: int) -> np.ndarray:
        """Return the next query's attention, [layers, kv_heads, appended]."""


@dataclass(frozen=True)
class Rules:
    """How victims are chosen and how much is kept.

    Attributes
    ----------
    granularity : {"token", "window", "page", "page_completion"}
    window_tokens, protect_recent, protect_sinks : int
    fraction : float
        Share of the dense footprint that is kept, unless `tokens` is given.
    tokens : int
        Tokens that each set keeps; 0 means that `fraction` decides.
    """

    granularity: str
    window_tokens: int
    protect_recent: int
    protect_sinks: int
    fraction: float
    tokens: int

    def target(self, appended: int) -> Target:
        """Return what is kept of `appended` tokens."""
        if self.tokens:
            return Target(kept=self.tokens, fraction=self.tokens / appended)
        return Target(kept=int(self.fraction * appended), fraction=self.fraction)


@dataclass
class Tracked:
    """What the loop knows of one sequence.

    Attributes
    ----------
    signals : Signals
    appended : int
        Tokens appended so far.
    tokens : list of int64 arrays
        For each set, the tokens that it retains, in the order of their positions.
    """

    signals: Signals
    appended: int = 0
    tokens: list[np.ndarray] = field(default_factory=list)


class EvictionLoop:
    """One ledger, its dense twin, one policy, and the tokens of all its sequences.

    Parameters
    ----------
    ledger, dense : Ledger
        The ledger and its twin of scope `sequence` in which nothing is evicted.
    policy : Policy
    name : str
        The policy's name, for messages.
    rules : Rules
    set_shape, unit_shape : tuple of int
    rng : numpy.random.Generator
    """

    def __init__(
        self,
        ledger: Ledger,
        dense: Ledger,
        policy: Policy,
        name: str,
        rules: Rules,
        set_shape: tuple[int, int],
        unit_shape: tuple[int, int],
        rng: np.random.Generator,
    ) -> None:
        self.ledger = ledger
        self.dense = dense
        self.policy = policy
        self.name = name
        self.rules = rules
        self.set_shape = set_shape
        self.unit_shape = unit_shape
        self.rng = rng
        self.tracked: dict[int, Tracked] = {}

    def open(self, signals: Signals) -> int:
        """Return the number of a new sequence, the same in the ledger and in its twin."""
        sequence = self.ledger.open()
        if self.dense.open() != sequence:
            raise LedgerError("the ledger and its dense twin number sequences differently")
        empty = [np.zeros(0, np.int64) for _ in range(self.ledger.geometry.sets)]
        self.tracked[sequence] = Tracked(signals=signals, tokens=empty)
        return sequence

    def append(self, sequence: int, tokens: int) -> None:
        """Append tokens to a sequence; every set retains them."""
        self.ledger.append(sequence, tokens)
        self.dense.append(sequence, tokens)
        state = self.tracked[sequence]
        fresh = np.arange(state.appended, state.appended + tokens)
        state.tokens = [np.concatenate((kept, fresh)) for kept in state.tokens]
        state.appended += tokens

    def fork(self, parent: int) -> int:
        """Return the number of a new sequence that shares all pages of `parent`."""
        child = self.ledger.fork(parent)
        if self.dense.fork(parent) != child:
            raise LedgerError("the ledger and its dense twin number sequences differently")
        state = self.tracked[parent]
        self.tracked[child] = Tracked(state.signals, state.appended, list(state.tokens))
        return child

    def finish(self, sequence: int) -> None:
        """End a sequence."""
        self.ledger.free(sequence)
        self.dense.free(sequence)
        del self.tracked[sequence]

    def end_step(self) -> None:
        """Sample the peaks that are taken at the end of a step."""
        self.ledger.end_step()
        self.dense.end_step()

    def evict(self, sequence: int) -> None:
        """Run the loop once for one sequence.

        Raises
        ------
        PolicyError
            If the scores cannot be used. Nothing is changed.
        Infeasible
            If more tokens are protected than the budget keeps. Nothing is changed.
        """
        state = self.tracked[sequence]
        view, columns = self._view(state)
        slots = self._slots(sequence)
        for have, want in zip(slots, state.tokens, strict=True):
            if have.size != want.size:
                raise LedgerError("the ledger retains other tokens than the loop remembers")
        scores = registry.scores(self.policy, view, self.name)
        guarded = registry.protected(self.policy, view, self.name)
        # Not in place: the mask is the policy's own.
        guarded = guarded | (view.ages <= self.rules.protect_recent)
        guarded = guarded | (view.positions < self.rules.protect_sinks)
        victims = select(
            view,
            scores,
            guarded,
            self.rules.target(state.appended),
            granularity=self.rules.granularity,
            window_tokens=self.rules.window_tokens,
            places=self._places(sequence, view, columns, slots),
        ).reshape(view.sets, view.tokens)
        gone = [victims[which][columns[which]] for which in range(view.sets)]
        self.ledger.evict(sequence, [slots[which][gone[which]] for which in range(view.sets)])
        state.tokens = [kept[~out] for kept, out in zip(state.tokens, gone, strict=True)]

    def retained_mass(self) -> float | None:
        """Return the share of the next query's attention that falls on what is retained.

        Per unit, summed over what that unit's own set retains, over its total, in float64;
        averaged over units and sequences. None if some unit receives no attention at all.
        """
        shares = []
        unit_set = np.asarray(self.ledger.geometry.unit_set)
        for sequence, state in self.tracked.items():
            row = state.signals.next_query(state.appended).astype(np.float64)
            row = row.reshape(-1, state.appended)
            total = row.sum(axis=1)
            if not (total > 0).all():
                return None
            kept = np.zeros((len(state.tokens), state.appended), np.bool_)
            for which, slots in enumerate(self._slots(sequence)):
                # The tokens behind the slots that the ledger, and not the loop, calls live.
                kept[which, state.tokens[which][: slots.size]] = True
            shares.append(float(((row * kept[unit_set]).sum(axis=1) / total).mean()))
        return float(np.mean(shares)) if shares else None

    def _slots(self, sequence: int) -> list[np.ndarray]:
        """Return the slots that each set retains, ascending in position."""
        sets = range(self.ledger.geometry.sets)
        return [np.flatnonzero(self.ledger.retained(sequence, which)) for which in sets]

    def _view(self, state: Tracked) -> tuple[View, list[np.ndarray]]:
        """Return the view of a sequence, and for each set the columns that it retains."""
        retained = np.zeros((len(state.tokens), state.appended), np.bool_)
        for which, kept in enumerate(state.tokens):
            retained[which, kept] = True
        tokens = np.flatnonzero(retained.any(axis=0))
        retained = retained[:, tokens]
        columns = [np.flatnonzero(row) for row in retained]
        view = View(
            positions=tokens,
            ages=state.appended - tokens,
            retained=retained.reshape(*self.set_shape, tokens.size),
            set_shape=self.set_shape,
            unit_shape=self.unit_shape,
            rng=self.rng,
            **state.signals.observe(tokens),
        )
        for array in (view.positions, view.ages, view.retained):
            array.setflags(write=False)
        return view, columns

    def _places(
        self, sequence: int, view: View, columns: list[np.ndarray], slots: list[np.ndarray]
    ) -> Places:
        """Return where each set's columns lie in its table."""
        page_tokens = self.ledger.page_tokens
        place = np.full((view.sets, view.tokens), -1, np.int64)
        cursor = np.zeros(view.sets, np.int64)
        table = np.zeros(view.sets, np.int64)
        for which in range(view.sets):
            place[which, columns[which]] = slots[which]
            table[which] = self.ledger.geometry.first_scope_of(which)
            cursor[which] = self.ledger.cursor(sequence, int(table[which]))
        shape = self.set_shape
        places = place.reshape(*shape, view.tokens)
        dense = -(-self.tracked[sequence].appended // page_tokens)
        return Places(
            position=places,
            next_position=cursor.reshape(shape),
            entry=places // page_tokens,
            complete=(cursor // page_tokens).reshape(shape),
            table=table.reshape(shape),
            dense=np.full(shape, dense, np.int64),
            page_tokens=page_tokens,
        )
