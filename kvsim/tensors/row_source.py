"""Rows of tokens as a function of who they are, so that a store can be checked row by row.

A row's float32 numbers are the bits of a counter-based hash of (lineage, token, unit, plane,
element): nobody has to remember what was written to know what must be there.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kvsim.errors import LedgerError
from kvsim.paging import Geometry, Ledger
from kvsim.tensors.array_store import PLANES, ArrayStore

GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def _mix(state: np.ndarray) -> np.ndarray:
    """Return the splitmix64 finaliser of 64-bit counters (Steele, Lea, Flood 2014)."""
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))


class SeededRows:
    """Rows for every sequence and fork of a run.

    Parameters
    ----------
    geometry : Geometry
    store : ArrayStore
        Where the rows are kept, to be verified.
    elements : int
    seed : int
    """

    def __init__(self, geometry: Geometry, store: ArrayStore, elements: int, seed: int) -> None:
        self._geometry = geometry
        self._store = store
        self._elements = elements
        self._seed = seed
        self._units = [
            np.array([u for u, s in enumerate(geometry.unit_scope) if s == scope], np.int64)
            for scope in range(geometry.scope_units)
        ]
        # For each sequence, (first token, who drew it) from the oldest ancestor on.
        self._lineage: dict[int, list[tuple[int, int]]] = {}

    def fork(self, parent: int, child: int, appended: int) -> None:
        """Say that `child` has the parent's tokens up to `appended`, and its own from there."""
        self._lineage[child] = [*self._lines(parent), (appended, child)]

    def _lines(self, sequence: int) -> list[tuple[int, int]]:
        return self._lineage.setdefault(sequence, [(0, sequence)])

    def expected(self, sequence: int, tokens: np.ndarray, units: np.ndarray) -> dict[str, Any]:
        """Return the rows of these tokens in these units, {plane: float32 [n, unit, element]}."""
        owner = np.zeros(tokens.size, np.uint64)
        for first, drawer in self._lines(sequence):
            owner[tokens >= first] = drawer
        with np.errstate(over="ignore"):
            who = _mix(owner * GOLDEN + np.uint64(self._seed))
            who = _mix(who + tokens.astype(np.uint64) * GOLDEN)
            cell = _mix(who[:, None] + units.astype(np.uint64)[None] * GOLDEN)
            rows = {}
            for number, plane in enumerate(PLANES):
                counter = np.arange(self._elements, dtype=np.uint64) * np.uint64(2)
                bits = _mix(cell[..., None] + (counter + np.uint64(number)) * GOLDEN)
                # The top 23 bits as a number in [1, 2): always finite, nearly always distinct.
                word = (bits >> np.uint64(41)).astype(np.uint32) | np.uint32(0x3F800000)
                rows[plane] = word.view(np.float32)
        return rows

    def rows(self, sequence: int, first: int, tokens: int) -> list[Any]:
        """Return the rows of new tokens, for each scope unit."""
        numbers = np.arange(first, first + tokens)
        return [self.expected(sequence, numbers, units) for units in self._units]

    def chosen(self, sequence: int, kept: list[np.ndarray]) -> list[Any]:
        """Return the rows of the tokens that each set keeps of a prompt, for each scope unit."""
        blocks = []
        for units in self._units:
            parts = [
                self.expected(sequence, kept[self._geometry.unit_set[unit]], units[at : at + 1])
                for at, unit in enumerate(units.tolist())
            ]
            blocks.append({p: np.concatenate([part[p] for part in parts], axis=1) for p in PLANES})
        return blocks

    def verify(self, ledger: Ledger, tokens: dict[int, list[np.ndarray]]) -> int:
        """Compare every retained row with what its token's row must be, as integers.

        Parameters
        ----------
        ledger : Ledger
        tokens : dict
            For each sequence, the tokens that each set retains, ascending in position.

        Returns
        -------
        int
            32-bit words compared.

        Raises
        ------
        LedgerError
            At the first unit in which a word differs.
        """
        words = 0
        for sequence, kept in tokens.items():
            for unit, (scope, which) in enumerate(
                zip(self._geometry.unit_scope, self._geometry.unit_set, strict=True)
            ):
                slots, _ = ledger.rows(sequence, which, scope)
                local = int(np.searchsorted(self._units[scope], unit))
                have = self._store.gather(ledger.physical(sequence, scope, slots), local)
                want = self.expected(sequence, kept[which], np.array([unit]))
                for plane in PLANES:
                    ours = have[plane].view(np.uint32)
                    theirs = want[plane][:, 0].view(np.uint32)
                    if not np.array_equal(ours, theirs):
                        raise LedgerError(
                            f"rows differ: sequence {sequence}, unit {unit}, plane {plane}"
                        )
                    words += ours.size
        return words
