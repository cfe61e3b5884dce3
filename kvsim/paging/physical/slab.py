"""Slabs: a fixed number of neighbouring pages is mapped and returned together.

It knows page ids and sizes. A slab is a whole number of pages, so no page straddles two.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvsim.errors import LedgerError
from kvsim.paging.physical.model import Figures, Meter, Parameters, TakenPages, parameter


@dataclass(frozen=True, kw_only=True)
class SlabParameters(Parameters):
    """Parameters of a slab allocator."""

    pages: int = parameter(doc="Page ids that there are, null pages included.", lowest=1)
    page_bytes: int = parameter(doc="Bytes of a page over all layers, K and V.", lowest=1)
    slab_pages: int = parameter(
        64, doc="Pages of a slab.", source="kvsim: as many 32 KiB pages as 2 MiB hold", lowest=1
    )
    parked_slabs: int = parameter(
        0,
        doc="Empty slabs that stay mapped until trim().",
        source="Bonwick (1994) parks empty slabs until memory is wanted; kvsim returns them",
    )
    null_pages: int = parameter(0, doc="First pages, which no table gets.")


class Slab:
    """Slabs that are mapped with their first page and returned, whole, with their last.

    Source: the slab allocator of Bonwick (1994). The last slab may hold fewer pages.
    """

    def __init__(self, parameters: SlabParameters) -> None:
        self.parameters = parameters
        self._taken = TakenPages(parameters.pages, parameters.null_pages)
        self._used: dict[int, int] = {}
        self._parked: dict[int, None] = {}
        self._meter = Meter()
        for page in range(parameters.null_pages):
            self._occupy(page)

    def _slab_bytes(self, slab: int) -> int:
        first = slab * self.parameters.slab_pages
        pages = min(self.parameters.slab_pages, self.parameters.pages - first)
        return pages * self.parameters.page_bytes

    def _occupy(self, page: int) -> None:
        slab = page // self.parameters.slab_pages
        if slab not in self._used:
            if slab in self._parked:
                del self._parked[slab]
            else:
                self._meter.map(self._slab_bytes(slab))
            self._used[slab] = 0
        self._used[slab] += 1

    def take(self, pages: Sequence[int]) -> None:
        """Take pages, mapping the slabs that they need.

        Raises
        ------
        LedgerError
            If a page is taken, unknown, null or named twice. Nothing is changed.
        """
        ids = self._taken.to_take(pages)
        self._taken.take(ids)
        for page in ids:
            self._occupy(page)

    def let_go(self, pages: Sequence[int]) -> None:
        """Let go of pages; slabs that empty are parked while there is room, else returned.

        Raises
        ------
        LedgerError
            If a page is not taken or named twice. Nothing is changed.
        """
        ids = self._taken.to_let_go(pages)
        self._taken.let_go(ids)
        for page in ids:
            slab = page // self.parameters.slab_pages
            self._used[slab] -= 1
            if not self._used[slab]:
                del self._used[slab]
                if len(self._parked) < self.parameters.parked_slabs:
                    self._parked[slab] = None
                else:
                    self._meter.give_back(self._slab_bytes(slab))

    def trim(self) -> int:
        """Return every parked slab to the device; return how many bytes that were."""
        given = sum(map(self._slab_bytes, self._parked))
        self._parked.clear()
        self._meter.give_back(given)
        return given

    def figures(self) -> Figures:
        """Return where the bytes are."""
        held = self._taken.count * self.parameters.page_bytes
        return self._meter.figures(held, sum(map(self._slab_bytes, self._parked)))

    def counters(self) -> dict[str, int]:
        """Return flows, the peak, and the slabs in use and parked."""
        stocks = {"used_slabs": len(self._used), "parked_slabs": len(self._parked)}
        return stocks | self._taken.counters() | self._meter.counters()

    def check(self) -> None:
        """Raise LedgerError unless a recount confirms every number."""
        self._taken.check()
        used: dict[int, int] = {}
        for page in [*range(self.parameters.null_pages), *self._taken.ids()]:
            slab = page // self.parameters.slab_pages
            used[slab] = used.get(slab, 0) + 1
        if used != self._used or used.keys() & self._parked.keys():
            raise LedgerError("check failed: slabs in use are not those with taken pages")
        mapped = sum(map(self._slab_bytes, [*used, *self._parked]))
        self._meter.check(self.figures(), mapped)
