"""A store that carries no rows, and takes the key of every page that a plan of moves writes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from kvsim.paging import fields as f
from kvsim.paging.arrays import Arrays
from kvsim.paging.prefix import forget
from kvsim.paging.store import CountingStore


class Unhashing(CountingStore):
    """Rule 10 of the ledger: a page written by a compaction or a renumbering loses its key.

    Parameters
    ----------
    arrays : callable () -> Arrays
        The ledger's arrays as they are when moves are carried out.
    page_tokens : int
    """

    def __init__(self, arrays: Callable[[], Arrays], page_tokens: int) -> None:
        self._arrays = arrays
        self._page_tokens = page_tokens

    def apply(self, plan: np.ndarray) -> None:
        """Forget the keys of the pages that moves go to."""
        arrays = self._arrays()
        written = np.unique(plan[f.TARGET] // self._page_tokens)
        for page in written[arrays.pages[f.KEY, written] > 0].tolist():
            forget(arrays.scalars, arrays.pages, page)
