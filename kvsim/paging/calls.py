"""How a ledger calls its kernels: growing arrays, handing plans to the store, naming refusals."""

from __future__ import annotations

from typing import Any

import numpy as np

from kvsim.errors import CeilingExceeded, LedgerError, MemoryRefused
from kvsim.paging import arrays as memory
from kvsim.paging import fields as f
from kvsim.paging.readings import Readings
from kvsim.paging.store import Physical, Store


class BadVictim(Exception):
    """A kernel's answer on its way to a message that names the victim."""

    def __init__(self, index: int) -> None:
        self.index = index
        super().__init__(index)

    def locate(self, lists: list[np.ndarray]) -> tuple[int, int]:
        """Return the set and the slot that the index speaks of."""
        index = self.index
        for which, slots in enumerate(lists):
            if index < slots.size:
                return which, int(slots[index])
            index -= slots.size
        raise IndexError(self.index)


class Calls(Readings):
    """The plumbing between a ledger's verbs and the kernels."""

    store: Store
    physical_model: Physical | None
    _undoable = False

    def _call(self, verb: str, function: Any, *arguments: Any) -> None:
        scalars = self._scalars
        while True:
            answer = function(self._arrays, *arguments)
            if answer in (f.OK, f.POLICY_DUE):
                break
            need = int(scalars[f.NEED])
            what = int(scalars[f.GROW_WHAT])
            scalars[f.NEED] = scalars[f.GROW_WHAT] = 0
            if answer == f.CEILING_HIT:
                self._flush()
                raise CeilingExceeded(verb, need, self.free_pages)
            if answer == f.BAD_VICTIM:
                raise BadVictim(need)
            self._flush()
            self._grow(what, need)
        self._flush()

    def _grow(self, what: int, need: int) -> None:
        """Make room in one of the arrays, and in the store; without memory for it, in none."""
        pages = int(self._scalars[f.PAGES])
        try:
            larger = memory.grown(self._arrays, what, need)
            if what == f.GROW_PAGES:
                self.store.resize(int(self._scalars[f.PAGES]))
                if self.physical_model is not None:
                    self.physical_model.resize(int(self._scalars[f.PAGES]))
        except LedgerError:
            self._scalars[f.PAGES] = pages
            raise
        except MemoryError:
            self._scalars[f.PAGES] = pages
            raise MemoryRefused("there is no memory for a larger pool") from None
        self._arrays = larger

    def _flush(self) -> None:
        """Let the store carry out what was decided: map, move, and only then give back."""
        orders = None
        moves = int(self._scalars[f.PLAN])
        # While a verb can still be undone its pages keep their memory: what is given back is
        # lost. Once there are moves it can no longer be refused.
        if self.physical_model is not None and (moves or not self._undoable):
            orders = self.physical_model.update(*self._held_by())
            self.store.map(orders)
        if moves:
            self.store.apply(self._arrays.plan[:, :moves])
            self._scalars[f.PLAN] = 0
        if orders is not None:
            self.store.give_back(orders)

    def _held_by(self) -> tuple[np.ndarray, np.ndarray | None]:
        """Return which pages are held, and the scope unit of each where there are several."""
        pages = self._arrays.pages[:, :-1]
        owner = pages[f.OWNER] if self._units > 1 else None
        return pages[f.REFCOUNT] > 0, owner

    def swap_peak(self, peak: int) -> int:
        """Set EXTRA_PEAK and return what it was, so that one verb's own peak can be read."""
        before = int(self._scalars[f.EXTRA_PEAK])
        self._scalars[f.EXTRA_PEAK] = peak
        return before

    def copy_of_arrays(self) -> memory.Arrays:
        """Return a copy of everything, for `put_back` to undo a verb made of several.

        No memory is given back until `put_back` or `keep` ends this.
        """
        self._undoable = True
        return memory.Arrays(*(array.copy() for array in self._arrays))

    def put_back(self, saved: memory.Arrays) -> None:
        """Be as when the arrays were copied. Only before any move reached the store."""
        self._undoable = False
        self._arrays = saved
        self._scalars = saved.scalars

    def keep(self) -> None:
        """Stay as it is since the arrays were copied, and give back what that leaves free."""
        self._undoable = False
        self._flush()

    def _taken_number(self) -> int:
        number = int(self._scalars[f.MEMBER])
        self._scalars[f.MEMBER] = 0
        return number

    def _check_open(self, sequence: int) -> None:
        tables = self._arrays.tables
        try:
            row = sequence * self._units
            there = 0 <= row < tables.shape[0] and tables[row, f.SEQUENCE] == sequence
        except (TypeError, ValueError, IndexError):
            raise LedgerError(f"a sequence has a whole number, not {sequence!r:.60}") from None
        if not there:
            raise LedgerError(f"sequence {sequence} is not open")

    def sequence_is_open(self, sequence: int) -> None:
        """Raise LedgerError unless the sequence is open."""
        self._check_open(sequence)

    def _check_batch(self, sequences: np.ndarray) -> None:
        tables = self._arrays.tables
        rows = sequences * self._units
        if sequences.size and not (
            sequences.min() >= 0
            and rows.max() < tables.shape[0]
            and (tables[rows, f.SEQUENCE] == sequences).all()
        ):
            raise LedgerError("a sequence of the batch is not open")

    def _scratch(self, appends: int = 0) -> np.ndarray:
        """Return room for one number a position, where positions are ranked at all.

        `appends` tokens may be added to a table before the ranking.
        """
        if self.ordering.compaction == "none" and not self._arrays.position.shape[0]:
            return np.empty(0, np.int64)
        tables = self._arrays.tables
        size = int(tables[:, f.CURSOR].max())
        if self._arrays.position.shape[0]:
            size = max(size, int(tables[:, f.NEXT_POSITION :].max()))
        return np.empty(size + appends + 1, np.int64)
