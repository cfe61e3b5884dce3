"""A fixed pool: every page is mapped at the start, and nothing goes back, as in vLLM.

It knows page ids and one size; freeing a page makes room inside the pool and nowhere else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvsim.paging.physical.model import Figures, Meter, Parameters, TakenPages, parameter


@dataclass(frozen=True, kw_only=True)
class FixedPoolParameters(Parameters):
    """Parameters of a fixed pool."""

    pages: int = parameter(doc="Pages of the pool, null pages included.", lowest=1)
    page_bytes: int = parameter(doc="Bytes of a page over all layers, K and V.", lowest=1)
    null_pages: int = parameter(
        1, doc="First pages, which no table gets.", source="vLLM v1, BlockPool: block 0 is null"
    )


class FixedPool:
    """Pages that stay mapped, whoever holds them.

    Source: vLLM (Kwon et al., 2023; the v1 engine), whose pool is one allocation per layer made
    at start-up; a freed block returns to a queue inside it and never to the device.
    """

    def __init__(self, parameters: FixedPoolParameters) -> None:
        self.parameters = parameters
        self._taken = TakenPages(parameters.pages, parameters.null_pages)
        self._meter = Meter()
        self._meter.map(parameters.pages * parameters.page_bytes)

    def take(self, pages: Sequence[int]) -> None:
        """Take pages.

        Raises
        ------
        LedgerError
            If a page is taken, unknown, null or named twice. Nothing is changed.
        """
        self._taken.take(self._taken.to_take(pages))

    def let_go(self, pages: Sequence[int]) -> None:
        """Let go of pages.

        Raises
        ------
        LedgerError
            If a page is not taken or named twice. Nothing is changed.
        """
        self._taken.let_go(self._taken.to_let_go(pages))

    def figures(self) -> Figures:
        """Return where the bytes are; nothing is ever parked or returned."""
        return self._meter.figures(self._taken.count * self.parameters.page_bytes, 0)

    def counters(self) -> dict[str, int]:
        """Return flows and the peak."""
        return self._taken.counters() | self._meter.counters()

    def check(self) -> None:
        """Raise LedgerError unless a recount confirms every number."""
        self._taken.check()
        self._meter.check(self.figures(), self.parameters.pages * self.parameters.page_bytes)
