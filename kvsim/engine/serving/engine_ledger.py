"""The ledger of an engine, whose kernels are handed its arrays."""

from __future__ import annotations

from kvsim.paging import Ledger
from kvsim.paging import fields as f
from kvsim.paging.arrays import Arrays


class EngineLedger(Ledger):
    """A ledger whose arrays an engine hands to its own kernels."""

    @property
    def arrays(self) -> Arrays:
        """The arrays as they are now; growing replaces some of them."""
        return self._arrays

    def make_room(self, what: int, need: int) -> None:
        """Grow one of the arrays, as a verb does that a kernel answered with GROW."""
        self._flush()
        self._grow(what, need)

    def new_pages_first(self, before: int) -> None:
        """Move the pages that growing added from the queue's tail to its head.

        An unlimited pool has memory for the asking, so it does not reclaim cached pages.
        """
        pages = self._arrays.pages
        sentinel = pages.shape[1] - 1
        last_old = int(pages[f.PREVIOUS, before])
        if last_old == sentinel:
            return
        first_old, last_new = int(pages[f.NEXT, sentinel]), int(pages[f.PREVIOUS, sentinel])
        pages[f.NEXT, sentinel], pages[f.PREVIOUS, before] = before, sentinel
        pages[f.NEXT, last_new], pages[f.PREVIOUS, first_old] = first_old, last_new
        pages[f.NEXT, last_old], pages[f.PREVIOUS, sentinel] = sentinel, last_old
