"""Rows of tokens as a function of who they are, so that a store can be checked row by row.

A row's float32 numbers are the bits of a counter-based hash of (lineage, token, unit, plane,
element): nobody has to remember what was written to know what must be there.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kvsim.errors import LedgerError
from kvsim.layout import PLANES
from kvsim.paging import Ledger
from kvsim.tensors.array_store import ArrayStore
from kvsim.tensors.rotator import Rotator

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
    store : ArrayStore
        Where the rows are kept, to be verified. Its shape has one family of dense rows.
    seed : int
    """

    def __init__(self, store: ArrayStore, seed: int) -> None:
        self._geometry = store.geometry
        self._shape = store.shape
        self._store = store
        self._seed = seed
        self._rotator = Rotator(store.shape, store.tables())
        self._units = [
            np.array([u for u, s in enumerate(self._geometry.unit_scope) if s == scope], np.int64)
            for scope in range(self._geometry.scope_units)
        ]
        # For each sequence, (first token, who drew it) from the oldest ancestor on.
        self._lineage: dict[int, list[tuple[int, int]]] = {}

    def fork(self, parent: int, child: int, appended: int) -> None:
        """Say that `child` has the parent's tokens up to `appended`, and its own from there."""
        self._lineage[child] = [*self._lines(parent), (appended, child)]

    def _lines(self, sequence: int) -> list[tuple[int, int]]:
        return self._lineage.setdefault(sequence, [(0, sequence)])

    def _drawn(self, sequence: int, tokens: np.ndarray, unit: int, plane: str) -> np.ndarray:
        """Return what the hash says of one unit, float32 [n, elements]; keys before rotation."""
        row = self._shape.families[0].rows[unit]
        elements = row.value if plane == "V" else row.raw
        owner = np.zeros(tokens.size, np.uint64)
        for first, drawer in self._lines(sequence):
            owner[tokens >= first] = drawer
        with np.errstate(over="ignore"):
            who = _mix(owner * GOLDEN + np.uint64(self._seed))
            who = _mix(who + tokens.astype(np.uint64) * GOLDEN)
            cell = _mix(who + np.uint64(unit) * GOLDEN)
            counter = np.arange(elements, dtype=np.uint64) * np.uint64(2)
            bits = _mix(cell[:, None] + (counter + np.uint64(plane == "V")) * GOLDEN)
        # The top 23 bits as a number in [1, 2): always finite, nearly always distinct.
        word = (bits >> np.uint64(41)).astype(np.uint32) | np.uint32(0x3F800000)
        return word.view(np.float32)

    def expected(
        self, sequence: int, tokens: np.ndarray, positions: np.ndarray, unit: int
    ) -> dict[str, np.ndarray]:
        """Return the stored rows of these tokens in one unit, {plane: float32 [n, elements]}.

        Parameters
        ----------
        tokens, positions : int64 [n]
            Who the tokens are, and the positions that their keys are rotated to.
        """
        raw = self._drawn(sequence, tokens, unit, "k_raw")
        made = {"k_raw": raw, "V": self._drawn(sequence, tokens, unit, "V")}
        if "K" in PLANES[self._shape.planes]:
            made["K"] = self._rotator.unit_keys(0, unit, raw, positions)
        return {plane: made[plane] for plane in PLANES[self._shape.planes]}

    def rows(self, ledger: Ledger, sequence: int, first: int, tokens: int) -> list[Any]:
        """Return the rows of new tokens, for each scope unit."""
        kept = [np.arange(first, first + tokens)] * self._geometry.sets
        blocks = []
        for scope in range(self._geometry.scope_units):
            begin = ledger.next_position(sequence, scope)
            positions = [np.arange(begin, begin + tokens)] * self._geometry.sets
            blocks.append(self._block(sequence, scope, kept, positions))
        return blocks

    def chosen(self, ledger: Ledger, sequence: int, kept: list[np.ndarray]) -> list[Any]:
        """Return the rows of the tokens that each set keeps of a prompt, for each scope unit."""
        positions = kept
        if not ledger.ordering.scattered:
            positions = [np.arange(tokens.size) for tokens in kept]
        return [
            self._block(sequence, scope, kept, positions)
            for scope in range(self._geometry.scope_units)
        ]

    def _block(
        self,
        sequence: int,
        scope: int,
        tokens: list[np.ndarray],
        positions: list[np.ndarray],
    ) -> dict[str, np.ndarray]:
        """Return the flat rows of one scope unit, given each set's tokens and positions."""
        parts = []
        for unit in self._units[scope].tolist():
            which = self._geometry.unit_set[unit]
            parts.append(self.expected(sequence, tokens[which], positions[which], unit))
        return {
            plane: np.concatenate([part[plane] for part in parts], axis=1)
            for plane in PLANES[self._shape.planes]
        }

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
                slots, positions = ledger.rows(sequence, which, scope)
                have = self._store.gather(ledger.physical(sequence, scope, slots), unit)
                want = self.expected(sequence, kept[which], positions, unit)
                for plane, rows in want.items():
                    ours = have[plane].view(np.uint32)
                    if not np.array_equal(ours, rows.view(np.uint32)):
                        raise LedgerError(
                            f"rows differ: sequence {sequence}, unit {unit}, plane {plane}"
                        )
                    words += ours.size
        return words
