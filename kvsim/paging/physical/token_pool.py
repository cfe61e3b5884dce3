"""A token pool: pages of one token, all mapped at the start, as in SGLang at page size 1.

It knows slots and one size. No page can be partly dead, so nothing is lost to holes or tails;
nothing goes back either. Every token costs an entry of its own in the tables above it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvsim.errors import CeilingExceeded, LedgerError
from kvsim.paging.physical.model import Figures, Meter, Parameters, TakenPages, parameter
from kvsim.paging.sizes import whole


@dataclass(frozen=True, kw_only=True)
class TokenPoolParameters(Parameters):
    """Parameters of a token pool."""

    slots: int = parameter(doc="Slots of the pool, padding included.", lowest=1)
    token_bytes: int = parameter(doc="Bytes of a token over all layers, K and V.", lowest=1)
    padding_slots: int = parameter(
        1, doc="First slots, which no table gets.", source="SGLang: padded tokens write slot 0"
    )


class TokenPool:
    """Slots that stay mapped; a free slot is handed out in the order in which slots came free.

    Source: SGLang's token allocator (Zheng et al., 2024): a list of indices, first in first out.
    """

    def __init__(self, parameters: TokenPoolParameters) -> None:
        self.parameters = parameters
        self._taken = TakenPages(parameters.slots, parameters.padding_slots)
        # A dict is a queue from which any slot can also be taken out of turn.
        self._free = dict.fromkeys(range(parameters.padding_slots, parameters.slots))
        self._meter = Meter()
        self._meter.map(parameters.slots * parameters.token_bytes)

    def allocate(self, count: int) -> list[int]:
        """Take the slots that have been free longest, and return them.

        Raises
        ------
        CeilingExceeded
            If fewer are free. Nothing is changed.
        """
        whole("count", count)
        if count > len(self._free):
            raise CeilingExceeded("allocate", count, len(self._free))
        slots = [slot for slot, _ in zip(self._free, range(count), strict=False)]
        self.take(slots)
        return slots

    def take(self, pages: Sequence[int]) -> None:
        """Take slots by their ids.

        Raises
        ------
        LedgerError
            If a slot is taken, unknown, padding or named twice. Nothing is changed.
        """
        ids = self._taken.to_take(pages)
        self._taken.take(ids)
        for slot in ids:
            del self._free[slot]

    def let_go(self, pages: Sequence[int]) -> None:
        """Let go of slots, which queue in the order given.

        Raises
        ------
        LedgerError
            If a slot is not taken or named twice. Nothing is changed.
        """
        ids = self._taken.to_let_go(pages)
        self._taken.let_go(ids)
        self._free |= dict.fromkeys(ids)

    def figures(self) -> Figures:
        """Return where the bytes are; nothing is ever parked or returned."""
        return self._meter.figures(self._taken.count * self.parameters.token_bytes, 0)

    def counters(self) -> dict[str, int]:
        """Return flows and the peak."""
        return self._taken.counters() | self._meter.counters()

    def check(self) -> None:
        """Raise LedgerError unless a recount confirms every number."""
        self._taken.check()
        everything = range(self.parameters.padding_slots, self.parameters.slots)
        if sorted([*self._free, *self._taken.ids()]) != list(everything):
            raise LedgerError("check failed: a slot is neither free nor taken, or both")
        self._meter.check(self.figures(), self.parameters.slots * self.parameters.token_bytes)
