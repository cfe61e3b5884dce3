"""What a proof has compared, and what did not hold. Knows arrays and sentences, no cache."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np


@dataclass
class Tally:
    """Counts of one case, or of many.

    Attributes
    ----------
    cases : int
    words_compared : int
        Elements whose bits were compared as integers.
    words_differing : int
    streamed_cases, streamed_moves, streamed_rotations : int
        Cases in which the streaming kernel moved something, its moves, and those that turned keys.
    failures : list of (case, what)
        Comparisons with a differing word, and facts that do not hold.
    """

    cases: int = 0
    words_compared: int = 0
    words_differing: int = 0
    streamed_cases: int = 0
    streamed_moves: int = 0
    streamed_rotations: int = 0
    failures: list[tuple[str, str]] = field(default_factory=list)
    case: str = ""

    def words(self, what: str, ours: np.ndarray, theirs: np.ndarray) -> int:
        """Compare two arrays bit by bit, as integers; return how many elements differ.

        Arrays of other shapes or dtypes differ in every element.
        """
        size = max(ours.size, theirs.size)
        if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
            differing = max(size, 1)
            found = f"{ours.dtype} {ours.shape} against {theirs.dtype} {theirs.shape}"
        else:
            differing = int(np.count_nonzero(integers(ours) != integers(theirs)))
            found = f"{differing} of {size} words differ"
        self.words_compared += size
        self.words_differing += differing
        if differing:
            self.failures.append((self.case, f"{what}: {found}"))
        return differing

    def planes(
        self, what: str, ours: Mapping[str, np.ndarray], theirs: Mapping[str, np.ndarray]
    ) -> None:
        """Compare planes by name; both must have the same ones."""
        self.fact(set(ours) == set(theirs), f"{what}: planes {sorted(ours)} and {sorted(theirs)}")
        for plane in sorted(set(ours) & set(theirs)):
            self.words(f"{what}, {plane}", ours[plane], theirs[plane])

    def fact(self, holds: bool, what: str) -> None:
        """Note a fact that must hold."""
        if not holds:
            self.failures.append((self.case, what))

    def add(self, other: Tally) -> None:
        """Add what another tally has counted."""
        self.cases += other.cases
        self.words_compared += other.words_compared
        self.words_differing += other.words_differing
        self.streamed_cases += other.streamed_cases
        self.streamed_moves += other.streamed_moves
        self.streamed_rotations += other.streamed_rotations
        self.failures += other.failures

    @property
    def holds(self) -> bool:
        """Whether no word differs and every fact holds."""
        return not self.words_differing and not self.failures


def integers(array: np.ndarray) -> np.ndarray:
    """Return an array's bits as unsigned integers of its own width."""
    return np.ascontiguousarray(array).view(np.dtype(f"u{array.dtype.itemsize}"))
