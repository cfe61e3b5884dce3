"""Contiguous reservations: a sequence gets memory for the longest that it could become.

It knows sequences, tokens and one size; there are no pages. Evicting tokens makes holes that
nothing else can use.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvsim.errors import LedgerError, MemoryRefused
from kvsim.paging.physical.model import Figures, Meter, Parameters, parameter
from kvsim.paging.sizes import whole


@dataclass(frozen=True, kw_only=True)
class ContiguousParameters(Parameters):
    """Parameters of contiguous reservations."""

    token_bytes: int = parameter(doc="Bytes of a token over all layers, K and V.", lowest=1)
    max_tokens: int = parameter(
        2048,
        doc="Tokens reserved per sequence.",
        source="OPT's context, in Kwon et al. (2023)",
        lowest=1,
    )
    slots: int = parameter(0, doc="Most reservations mapped at once; 0 means no limit.")
    free_after: bool = parameter(
        False,
        doc="Return a reservation when its sequence ends, instead of parking it for the next.",
        source="FasterTransformer: is_free_buffer_after_forward, false by default",
    )


@dataclass
class _Sequence:
    written: int = 0
    live: int = 0


class Contiguous:
    """One reservation per sequence, of `max_tokens` tokens from the start.

    Source: FasterTransformer, whose cache tensors span the longest sequence; Kwon et al. (2023)
    measure what that wastes.
    """

    def __init__(self, parameters: ContiguousParameters) -> None:
        self.parameters = parameters
        self._reserved_bytes = parameters.max_tokens * parameters.token_bytes
        self._sequences: dict[int, _Sequence] = {}
        self._parked = 0
        self._live = 0
        self._opened_total = 0
        self._meter = Meter()

    def _of(self, sequence: int) -> _Sequence:
        if sequence not in self._sequences:
            raise LedgerError(f"there is no sequence {sequence!r:.60}")
        return self._sequences[sequence]

    def open(self) -> int:
        """Reserve memory for a sequence and return its number.

        Raises
        ------
        MemoryRefused
            If all slots are in use. Nothing is changed.
        """
        slots = self.parameters.slots
        if slots and len(self._sequences) == slots:
            raise MemoryRefused(f"all {slots} reservations are in use")
        if self._parked:
            self._parked -= 1
        else:
            self._meter.map(self._reserved_bytes)
        number = self._opened_total
        self._opened_total += 1
        self._sequences[number] = _Sequence()
        return number

    def append(self, sequence: int, tokens: int) -> None:
        """Write tokens behind those that were written.

        Raises
        ------
        MemoryRefused
            If the sequence would pass its reservation. Nothing is changed.
        """
        one = self._of(sequence)
        tokens = whole("tokens", tokens)
        if one.written + tokens > self.parameters.max_tokens:
            most = self.parameters.max_tokens
            raise MemoryRefused(f"{one.written} + {tokens} tokens pass a reservation of {most}")
        one.written += tokens
        one.live += tokens
        self._live += tokens

    def evict(self, sequence: int, tokens: int) -> None:
        """Mark so many live tokens dead. Their memory stays where it is.

        Raises
        ------
        LedgerError
            If fewer are live. Nothing is changed.
        """
        one = self._of(sequence)
        tokens = whole("tokens", tokens)
        if tokens > one.live:
            raise LedgerError(f"cannot evict {tokens} of {one.live} live tokens")
        one.live -= tokens
        self._live -= tokens

    def free(self, sequence: int) -> None:
        """End a sequence; its reservation is parked or returned."""
        self._live -= self._of(sequence).live
        del self._sequences[sequence]
        if self.parameters.free_after:
            self._meter.give_back(self._reserved_bytes)
        else:
            self._parked += 1

    def trim(self) -> int:
        """Return every parked reservation to the device; return how many bytes that were."""
        given = self._parked * self._reserved_bytes
        self._parked = 0
        self._meter.give_back(given)
        return given

    def figures(self) -> Figures:
        """Return where the bytes are: live tokens are held."""
        held = self._live * self.parameters.token_bytes
        return self._meter.figures(held, self._parked * self._reserved_bytes)

    def counters(self) -> dict[str, int]:
        """Return flows, the peak, and slots that are dead or were never written."""
        written = sum(one.written for one in self._sequences.values())
        return {
            "opened_sequences_total": self._opened_total,
            "dead_slots": written - self._live,
            "tail_slots": len(self._sequences) * self.parameters.max_tokens - written,
        } | self._meter.counters()

    def check(self) -> None:
        """Raise LedgerError unless a recount confirms every number."""
        for one in self._sequences.values():
            if not 0 <= one.live <= one.written <= self.parameters.max_tokens:
                raise LedgerError(f"check failed: {one} does not fit its reservation")
        if self._live != sum(one.live for one in self._sequences.values()):
            raise LedgerError("check failed: wrong count of live tokens")
        slots = self.parameters.slots
        reservations = len(self._sequences) + self._parked
        if slots and reservations > slots:
            raise LedgerError("check failed: more reservations than slots")
        self._meter.check(self.figures(), reservations * self._reserved_bytes)
