"""What the eviction loop is told and what it remembers: signals, rules, tracked sequences."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from kvsim.paging import Ledger
from kvsim.policies.selection import Target


class Signals(Protocol):
    """What a workload tells about one sequence's tokens."""

    def extend(self, tokens: int) -> None:
        """Say that so many more tokens are appended; signals follow the queries so far."""

    def observe(self, columns: np.ndarray) -> dict[str, Any]:
        """Return the signals of these tokens, as keyword arguments of a View."""

    def next_query(self, appended: int) -> np.ndarray:
        """Return the next query's attention, [layers, kv_heads, appended]."""

    def fork(self, sequence: int) -> Signals:
        """Return the signals of a fork, which goes on as sequence number `sequence`."""


class RowSource(Protocol):
    """Where the rows of new tokens come from, if a store keeps any."""

    def rows(self, ledger: Ledger, sequence: int, first: int, tokens: int) -> list[Any]:
        """Return the rows of tokens `first` to `first + tokens`, for each scope unit."""

    def chosen(self, ledger: Ledger, sequence: int, kept: list[np.ndarray]) -> list[Any]:
        """Return the rows of the tokens that each set keeps of a prompt, for each scope unit."""

    def fork(self, parent: int, child: int, appended: int) -> None:
        """Say that `child` continues what `parent` has appended so far."""

    def verify(self, ledger: Ledger, tokens: dict[int, list[np.ndarray]]) -> int:
        """Compare every retained row with its token's row, as integers; return words compared."""


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
            return Target(kept=self.tokens, fraction=min(1.0, self.tokens / appended))
        return Target(kept=int(self.fraction * appended), fraction=self.fraction)


@dataclass
class Tracked:
    """What the loop knows of one sequence.

    Attributes
    ----------
    signals : Signals
    appended : int
        Tokens given to the sequence so far.
    tokens : list of int64 arrays
        For each set, the tokens that it retains, in the order of their positions.
    """

    signals: Signals
    appended: int = 0
    tokens: list[np.ndarray] = field(default_factory=list)

    def add(self, count: int) -> None:
        """Remember `count` new tokens, which every set retains."""
        fresh = np.arange(self.appended, self.appended + count)
        self.tokens = [np.concatenate((kept, fresh)) for kept in self.tokens]
        self.appended += count
        self.signals.extend(count)

    def drop_oldest(self, count: int, sinks: int) -> None:
        """Forget the `count` oldest tokens of each set that are no sinks."""
        if count:
            kept = self.tokens[0]
            first = int(np.searchsorted(kept, sinks))
            remaining = np.concatenate((kept[:first], kept[first + count :]))
            self.tokens = [remaining] * len(self.tokens)
