"""Extents that are mapped exactly while a held page overlaps them, as a model with four figures.

It gives `Extents`, which maps the memory of real rows, the interface of the other models. There
is no reserve and no choice of pages: what a table needs is mapped, and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kvsim.errors import LedgerError
from kvsim.paging.physical.extents import BufferSpec, Extents
from kvsim.paging.physical.model import MIB, Figures, Meter, Parameters, TakenPages, parameter


@dataclass(frozen=True, kw_only=True)
class ExtentsParameters(Parameters):
    """Parameters of extents that are mapped exactly."""

    pages: int = parameter(doc="Page ids that there are, null pages included.", lowest=1)
    page_bytes: int = parameter(doc="Bytes of a page in one buffer of one layer.", lowest=1)
    layers: int = parameter(doc="Layers.", lowest=1)
    buffers: int = parameter(
        2, doc="Buffers of a layer.", source="K and V; an MLA latent has one", lowest=1
    )
    extent_bytes: int = parameter(
        2 * MIB,
        doc="Bytes of an extent.",
        source="what CUDA maps at once; vAttention also has 64 KiB and more",
        lowest=1,
    )
    compound: bool = parameter(
        False, doc="One buffer holds a page's layers and planes side by side."
    )
    null_pages: int = parameter(0, doc="First pages, which no table gets and which are not mapped.")


class MappedExactly:
    """`Extents` told of pages in order. A page may straddle extents; it then keeps both mapped.

    Source: vAttention (Prabhu et al., 2024), without its deferred unmapping.
    """

    def __init__(self, parameters: ExtentsParameters) -> None:
        self.parameters = p = parameters
        copies = p.layers * p.buffers
        self._page_bytes = p.page_bytes * copies
        if p.compound:
            buffers = [BufferSpec("compound", self._page_bytes)]
        else:
            buffers = [BufferSpec(f"buffer.{number}", p.page_bytes) for number in range(copies)]
        self.extents = Extents(buffers, p.extent_bytes)
        self.extents.resize(p.pages)
        self._held = np.zeros(p.pages, bool)
        self._taken = TakenPages(p.pages, p.null_pages)
        self._meter = Meter()

    def take(self, pages: Sequence[int]) -> None:
        """Take pages, mapping what they overlap.

        Raises
        ------
        LedgerError
            If a page is taken, unknown, null or named twice. Nothing is changed.
        """
        ids = self._taken.to_take(pages)
        self._taken.take(ids)
        self._update(ids, True)

    def let_go(self, pages: Sequence[int]) -> None:
        """Let go of pages, returning what no held page overlaps any more.

        Raises
        ------
        LedgerError
            If a page is not taken or named twice. Nothing is changed.
        """
        ids = self._taken.to_let_go(pages)
        self._taken.let_go(ids)
        self._update(ids, False)

    def _update(self, ids: list[int], held: bool) -> None:
        self._held[ids] = held
        orders = self.extents.update(self._held)
        size = self.extents.extent_bytes
        self._meter.map(size * sum(count for _, _, count in orders.map))
        self._meter.give_back(size * sum(count for _, _, count in orders.give_back))

    def figures(self) -> Figures:
        """Return where the bytes are; nothing is parked."""
        return self._meter.figures(self._taken.count * self._page_bytes, 0)

    def counters(self) -> dict[str, int]:
        """Return flows of extents, pages and bytes, and the peak."""
        return {
            "mapped_extents_total": self.extents.mapped_extents_total,
            "returned_extents_total": self.extents.returned_extents_total,
        } | (self._taken.counters() | self._meter.counters())

    def check(self) -> None:
        """Raise LedgerError unless a recount confirms every number."""
        self._taken.check()
        if np.flatnonzero(self._held).tolist() != self._taken.ids():
            raise LedgerError("check failed: pages are held that are not taken")
        self.extents.recount(self._held)
        self._meter.check(self.figures(), self.extents.mapped_bytes)
