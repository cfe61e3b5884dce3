"""CUDA's stream-ordered pool (cudaMallocAsync): memory returns at a synchronisation, if at all.

It knows sizes, addresses and when the device is synchronised; no pages. One pool, one stream.
How the driver cuts its memory is not documented: chunks and best fit are this model's choice.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvsim.errors import LedgerError, MemoryRefused
from kvsim.paging.physical.blocks import FREE, HELD, Blocks
from kvsim.paging.physical.model import MIB, Figures, Meter, Parameters, parameter
from kvsim.paging.sizes import whole


@dataclass(frozen=True, kw_only=True)
class AsyncPoolParameters(Parameters):
    """Parameters of a stream-ordered pool."""

    release_threshold_bytes: int = parameter(
        0,
        doc="What the pool keeps at a synchronisation.",
        source="CUDA: cudaMemPoolAttrReleaseThreshold, 0 by default",
    )
    align_bytes: int = parameter(
        256,
        doc="Sizes are rounded up to this.",
        source="CUDA programming guide: alignment of allocations",
        lowest=1,
    )
    chunk_bytes: int = parameter(
        2 * MIB,
        doc="The pool grows by multiples of this.",
        source="kvsim: what CUDA maps at once; the driver's own figure is not documented",
        lowest=1,
    )
    capacity_bytes: int = parameter(0, doc="Memory of the device; 0 means unlimited.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.chunk_bytes % self.align_bytes:
            raise LedgerError("align_bytes must divide chunk_bytes")


class AsyncPool:
    """Chunks cut into blocks, best fit; freed memory stays until `synchronize`.

    A chunk can go back only when nothing in it is held. Those chunks are parked. Source: the
    CUDA programming guide, stream-ordered memory allocator.
    """

    def __init__(self, parameters: AsyncPoolParameters) -> None:
        self.parameters = parameters
        self._blocks = Blocks()
        self._asked_bytes = 0
        self._next_address = 0
        self._flows = dict.fromkeys(("allocations_total", "frees_total", "releases_total"), 0)
        self._meter = Meter()

    def allocate(self, size_bytes: int) -> int:
        """Return the address of an allocation.

        Raises
        ------
        LedgerError
            If the size is no positive integer.
        MemoryRefused
            If the device has too little memory, even once the pool is trimmed. Nothing is changed.
        """
        size_bytes = whole("size_bytes", size_bytes, lowest=1)
        p = self.parameters
        rounded = -(-size_bytes // p.align_bytes) * p.align_bytes
        block = self._blocks.best(rounded)
        if block is None:
            chunk = -(-rounded // p.chunk_bytes) * p.chunk_bytes
            self._make_room(chunk)
            block = self._blocks.add(self._next_address, chunk, FREE)
            self._next_address += chunk
            self._meter.map(chunk)
        if block.size_bytes > rounded:
            self._blocks.cut(block, rounded)
        self._blocks.turn(block, HELD, size_bytes)
        self._asked_bytes += size_bytes
        self._flows["allocations_total"] += 1
        return block.address

    def _make_room(self, more_bytes: int) -> None:
        capacity = self.parameters.capacity_bytes
        over = self._meter.mapped_bytes + more_bytes - capacity
        if not capacity or over <= 0:
            return
        if over > self.figures().parked_bytes:
            raise MemoryRefused(f"{more_bytes} more bytes pass a device of {capacity}")
        self.trim_to(self._meter.mapped_bytes - over)

    def free(self, address: int) -> None:
        """Free an allocation. Its memory stays in the pool until a synchronisation.

        Raises
        ------
        LedgerError
            If no allocation begins there.
        """
        block = self._blocks.held(address)
        if block is None:
            raise LedgerError(f"nothing is held at address {address!r:.60}")
        self._asked_bytes -= block.asked_bytes
        self._flows["frees_total"] += 1
        self._blocks.turn(block, FREE)

    def synchronize(self) -> int:
        """Let the pool shrink to its release threshold; return the bytes that went back."""
        return self.trim_to(self.parameters.release_threshold_bytes)

    def trim_to(self, keep_bytes: int) -> int:
        """Return parked chunks, newest first, while the pool has more than `keep_bytes`.

        As cudaMemPoolTrimTo does; it may end below `keep_bytes`, since a chunk goes back whole.
        """
        whole("keep_bytes", keep_bytes)
        given = 0
        parked = [block for block in self._blocks.free_blocks() if block.alone]
        for block in sorted(parked, key=lambda block: -block.address):
            if self._meter.mapped_bytes - given <= keep_bytes:
                break
            self._blocks.remove(block)
            given += block.size_bytes
            self._flows["releases_total"] += 1
        self._meter.give_back(given)
        return given

    def figures(self) -> Figures:
        """Return where the bytes are. Held is what was asked for; rounding counts as empty."""
        parked = sum(block.size_bytes for block in self._blocks.free_blocks() if block.alone)
        return self._meter.figures(self._asked_bytes, parked)

    def counters(self) -> dict[str, int]:
        """Return flows and the peak."""
        return self._flows | self._meter.counters()

    def check(self) -> None:
        """Raise LedgerError unless a recount confirms every number."""
        self._blocks.check()
        asked = sum(block.asked_bytes for block in self._blocks)
        if asked != self._asked_bytes:
            raise LedgerError(f"check failed: {asked} bytes are held, not {self._asked_bytes}")
        self._meter.check(self.figures(), sum(block.size_bytes for block in self._blocks))
