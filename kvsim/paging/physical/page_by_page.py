"""Pages from an allocator of sizes: each taken page is one allocation.

It knows page ids, one size, and a model that allocates. With it every trace of pages taken and
let go can be run on PyTorch's allocator or CUDA's pool.
"""

from __future__ import annotations

from collections.abc import Sequence

from kvsim.errors import LedgerError
from kvsim.paging.physical.model import ByteModel, Figures, TakenPages
from kvsim.paging.sizes import whole


class PageByPage:
    """Pages, one allocation each.

    Parameters
    ----------
    model : ByteModel
        Whose trimming verbs are called on itself.
    pages : int
        Page ids run from 0 to below this.
    page_bytes : int
        Bytes of each allocation.
    """

    def __init__(self, model: ByteModel, pages: int, page_bytes: int) -> None:
        self.model = model
        self.page_bytes = whole("page_bytes", page_bytes, lowest=1)
        self._taken = TakenPages(whole("pages", pages, lowest=1), 0)
        self._address: dict[int, int] = {}

    def take(self, pages: Sequence[int]) -> None:
        """Take pages, allocating each.

        Raises
        ------
        LedgerError
            If a page is taken, unknown or named twice, or if the model refuses. No page is taken
            then; allocations made for the pages before it are freed again, and stay cached.
        """
        ids = self._taken.to_take(pages)
        found: list[int] = []
        try:
            for _ in ids:
                found.append(self.model.allocate(self.page_bytes))
        except LedgerError:
            for address in found:
                self.model.free(address)
            raise
        self._address |= zip(ids, found, strict=True)
        self._taken.take(ids)

    def let_go(self, pages: Sequence[int]) -> None:
        """Let go of pages, freeing each.

        Raises
        ------
        LedgerError
            If a page is not taken or named twice. Nothing is changed.
        """
        ids = self._taken.to_let_go(pages)
        for page in ids:
            self.model.free(self._address.pop(page))
        self._taken.let_go(ids)

    def figures(self) -> Figures:
        """Return where the model's bytes are."""
        return self.model.figures()

    def counters(self) -> dict[str, int]:
        """Return flows of pages and the model's own counters."""
        return self._taken.counters() | self.model.counters()

    def check(self) -> None:
        """Raise LedgerError unless a recount confirms every number."""
        self._taken.check()
        self.model.check()
        if sorted(self._address) != self._taken.ids():
            raise LedgerError("check failed: taken pages are not those with an allocation")
        if self.model.figures().held_bytes != len(self._address) * self.page_bytes:
            raise LedgerError("check failed: the model holds other bytes than the pages'")
