"""One sequence of a paged cache, as a decoder sees a cache."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from kvsim.tensors.paged_cache import PagedCache


class SequenceView:
    """One sequence of a paged cache, with what a decoder asks of a cache."""

    def __init__(self, cache: PagedCache, sequence: int) -> None:
        self._cache = cache
        self.sequence = sequence

    @property
    def next_position(self) -> int:
        """The position that the next token gets."""
        return self._cache.next_position(self.sequence)

    def rows(self, family: int = 0) -> dict[str, np.ndarray]:
        """Return the rows of a family in ascending position."""
        return self._cache.rows(self.sequence, family)

    def append(self, rows: Sequence[Mapping[str, np.ndarray]]) -> None:
        """Append tokens whose keys are not rotated yet."""
        self._cache.append(self.sequence, rows)
