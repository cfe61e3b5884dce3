"""What carries out a ledger's decisions. The ledger decides in slots; a store obeys.

No code asks which store it has, and no store counts anything: the counters are the ledger's.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from kvsim.paging.physical import Orders


class Store(Protocol):
    """The place where rows live."""

    def resize(self, pages: int) -> None:
        """Make room for this many pages. Called before any slot beyond the old room is named."""

    def write(self, scope: int, slots: np.ndarray, rows: object) -> None:
        """Put new rows into slots of one scope unit.

        Parameters
        ----------
        scope : int
            The scope unit whose rows these are.
        slots : int64 [n]
            Physical slots, `page * page_tokens + offset`.
        rows : object
            The rows, in a form that the store knows; one per slot.
        """

    def apply(self, plan: np.ndarray) -> None:
        """Carry out moves in order. Cannot fail: whatever can fail was checked before.

        Parameters
        ----------
        plan : int64 [PLAN_FIELDS, n]
            Source slot, target slot, position (-1: as it is), scope unit, set (-1: all).
        """

    def map(self, orders: Orders) -> None:
        """Map what the orders say. Called before anything is written there."""

    def give_back(self, orders: Orders) -> None:
        """Give back what the orders say. Called when a verb's moves are done."""


class Physical(Protocol):
    """What decides which memory is mapped, given which pages are held. Under a ledger's pool."""

    def resize(self, pages: int) -> None:
        """Make room for this many pages."""

    def update(self, held: np.ndarray, scope_of_page: np.ndarray | None = None) -> Orders:
        """Return what to map and what to give back, now that these pages are held.

        Parameters
        ----------
        held : bool [pages]
        scope_of_page : int [pages], optional
        """

    def recount(self, held: np.ndarray, scope_of_page: np.ndarray | None = None) -> None:
        """Raise LedgerError where a count from scratch disagrees."""


class CountingStore:
    """A store without rows, for accounting alone."""

    def resize(self, pages: int) -> None:
        """Nothing to make room for."""

    def write(self, scope: int, slots: np.ndarray, rows: object) -> None:
        """Nothing to write."""

    def apply(self, plan: np.ndarray) -> None:
        """Nothing to move."""

    def map(self, orders: Orders) -> None:
        """Nothing to map."""

    def give_back(self, orders: Orders) -> None:
        """Nothing to give back."""
