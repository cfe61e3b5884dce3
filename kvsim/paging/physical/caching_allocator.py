"""PyTorch's caching allocator: segments that stay after what was in them is freed.

It knows sizes and addresses, one device and one stream; no pages and no time. Left out:
rounding to powers of two, garbage collection by age, several streams, and graph pools.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvsim.errors import LedgerError, MemoryRefused
from kvsim.paging.physical.blocks import FREE, HELD, UNMAPPED, Block, Blocks
from kvsim.paging.physical.model import MIB, Figures, Meter, Parameters, parameter
from kvsim.paging.sizes import whole

_SOURCE = "PyTorch: CUDACachingAllocator, {}"
# Address space of an expandable segment; far more than any device has, and never mapped whole.
_REACH_BYTES = 2**46


@dataclass(frozen=True, kw_only=True)
class CachingAllocatorParameters(Parameters):
    """Parameters of PyTorch's caching allocator; the defaults are its constants."""

    capacity_bytes: int = parameter(0, doc="Memory of the device; 0 means unlimited.")
    round_bytes: int = parameter(
        512, doc="Sizes are rounded up to this.", source=_SOURCE.format("kMinBlockSize"), lowest=1
    )
    small_limit_bytes: int = parameter(
        MIB, doc="Largest size of the small pool.", source=_SOURCE.format("kSmallSize"), lowest=1
    )
    small_segment_bytes: int = parameter(
        2 * MIB,
        doc="Segment of the small pool.",
        source=_SOURCE.format("kSmallBuffer"),
        lowest=1,
    )
    large_segment_bytes: int = parameter(
        20 * MIB,
        doc="Segment of the large pool, for sizes below large_limit_bytes.",
        source=_SOURCE.format("kLargeBuffer"),
        lowest=1,
    )
    large_limit_bytes: int = parameter(
        10 * MIB,
        doc="From this size on, a segment is the size rounded up.",
        source=_SOURCE.format("kMinLargeAlloc"),
        lowest=1,
    )
    large_round_bytes: int = parameter(
        2 * MIB, doc="What it is rounded up to.", source=_SOURCE.format("kRoundLarge"), lowest=1
    )
    max_split_bytes: int = parameter(
        0,
        doc="Blocks from this size on are not split; 0 means that all may be.",
        source="PyTorch: max_split_size_mb, unlimited by default",
    )
    expandable_segments: bool = parameter(
        False,
        doc="One segment per pool, which grows by small or large segments' worth.",
        source="PyTorch: expandable_segments, off by default",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.small_limit_bytes > min(self.small_segment_bytes, self.large_segment_bytes):
            raise LedgerError("small_limit_bytes passes a segment")
        if self.large_limit_bytes > self.large_segment_bytes:
            raise LedgerError("large_limit_bytes passes large_segment_bytes")
        if self.max_split_bytes and self.max_split_bytes <= self.large_segment_bytes:
            raise LedgerError("max_split_bytes must be above large_segment_bytes")
        if self.max_split_bytes and self.expandable_segments:
            raise LedgerError("max_split_bytes is not modelled with expandable_segments")
        if self.small_segment_bytes % self.round_bytes:
            raise LedgerError("round_bytes must divide small_segment_bytes")


def _up(size_bytes: int, unit_bytes: int) -> int:
    return -(-size_bytes // unit_bytes) * unit_bytes


class CachingAllocator:
    """Two pools, small and large, of segments cut into blocks, best fit.

    A freed block merges with free neighbours and stays; only `empty_cache` returns memory, and
    then whole segments (expandable: whole granules of free blocks). Such memory is parked.
    Source: PyTorch's CUDACachingAllocator.
    """

    def __init__(self, parameters: CachingAllocatorParameters) -> None:
        self.parameters = parameters
        self._small, self._large = Blocks(), Blocks()
        self._asked_bytes = 0
        self._next_address = 0
        self._heads: dict[int, Block] = {}
        self._flows = dict.fromkeys(
            ("allocations_total", "frees_total", "device_allocations_total", "splits_total"), 0
        )
        self._meter = Meter()

    def rounded(self, size_bytes: int) -> int:
        """Return the size of the block that serves a size, when it is split exactly."""
        return _up(max(1, size_bytes), self.parameters.round_bytes)

    def _is_small(self, rounded: int) -> bool:
        return rounded <= self.parameters.small_limit_bytes

    def _segment_bytes(self, rounded: int) -> int:
        p = self.parameters
        if self._is_small(rounded):
            return p.small_segment_bytes
        if rounded < p.large_limit_bytes:
            return p.large_segment_bytes
        return _up(rounded, p.large_round_bytes)

    def _granule_bytes(self, blocks: Blocks) -> int:
        p = self.parameters
        return p.small_segment_bytes if blocks is self._small else p.large_segment_bytes

    def allocate(self, size_bytes: int) -> int:
        """Return the address of a block of at least that many bytes.

        Raises
        ------
        LedgerError
            If the size is no positive integer.
        MemoryRefused
            If the device has too little memory, even once the cache is emptied. Nothing is
            changed.
        """
        size_bytes = whole("size_bytes", size_bytes, lowest=1)
        rounded = self.rounded(size_bytes)
        blocks = self._small if self._is_small(rounded) else self._large
        block = self._cached(blocks, rounded)
        if block is None and self.parameters.expandable_segments:
            block = self._expanded(blocks, rounded)
        elif block is None:
            segment_bytes = self._segment_bytes(rounded)
            self._make_room(segment_bytes)
            block = blocks.add(self._next_address, segment_bytes, FREE)
            self._next_address += segment_bytes
            self._flows["device_allocations_total"] += 1
            self._meter.map(segment_bytes)
        if self._splits(blocks, block.size_bytes - rounded, rounded):
            blocks.cut(block, rounded)
            self._flows["splits_total"] += 1
        blocks.turn(block, HELD, size_bytes)
        self._asked_bytes += size_bytes
        self._flows["allocations_total"] += 1
        return block.address

    def _cached(self, blocks: Blocks, rounded: int) -> Block | None:
        """Return a free block for a size, if there is one that may serve it."""
        most = self.parameters.max_split_bytes
        if most and rounded < most:
            return blocks.best(rounded, below_bytes=most)
        block = blocks.best(rounded)
        if block and self.parameters.expandable_segments:
            # A block counts as large as it could grow, so that others are used up before it.
            larger = blocks.fitting(rounded)
            next(larger)
            for other in larger:
                if self._reach(other) >= self._reach(block):
                    break
                block = other
            return block
        # A block that will not be split must not waste more than a large segment.
        if most and block and block.size_bytes >= rounded + self.parameters.large_segment_bytes:
            return None
        return block

    @staticmethod
    def _reach(block: Block) -> int:
        after = block.after
        more = after.size_bytes if after is not None and after.state == UNMAPPED else 0
        return block.size_bytes + more

    def _splits(self, blocks: Blocks, rest_bytes: int, rounded: int) -> bool:
        p = self.parameters
        if blocks is self._small or p.expandable_segments:
            return rest_bytes >= p.round_bytes
        return not 0 < p.max_split_bytes <= rounded and rest_bytes > p.small_limit_bytes

    def _make_room(self, more_bytes: int) -> None:
        """Empty the cache if the device is full, or refuse if that would not do."""
        capacity = self.parameters.capacity_bytes
        if not capacity or self._meter.mapped_bytes + more_bytes <= capacity:
            return
        if self._meter.mapped_bytes - self.figures().parked_bytes + more_bytes > capacity:
            raise MemoryRefused(f"{more_bytes} more bytes pass a device of {capacity}")
        self.empty_cache()

    # -- expandable segments

    def _expanded(self, blocks: Blocks, rounded: int) -> Block:
        """Return a free block of at least that size, mapping behind a free block or in a gap."""
        granule = self._granule_bytes(blocks)
        start, wanted = self._gap(blocks, rounded, granule)
        capacity = self.parameters.capacity_bytes
        if capacity and self._meter.mapped_bytes + wanted > capacity:
            # Emptying the cache takes from the run itself too, which then must be mapped again.
            self._make_room(self._gap(blocks, rounded, granule, emptied=True)[1])
            start, _ = self._gap(blocks, rounded, granule)
        block = start
        while block.state != FREE or block.size_bytes < rounded:
            empty = block if block.state == UNMAPPED else block.after
            assert empty is not None
            have = block.size_bytes if block.state == FREE else 0
            size = min(empty.size_bytes, _up(rounded - have, granule))
            if size < empty.size_bytes:
                blocks.cut(empty, size)
            block = blocks.turn(empty, FREE)
            self._flows["device_allocations_total"] += size // granule
            self._meter.map(size)
        return block

    def _gap(
        self, blocks: Blocks, rounded: int, granule: int, emptied: bool = False
    ) -> tuple[Block, int]:
        """Return the first block of the lowest run that has room, and the bytes it must map.

        With `emptied`, as if the cache had been emptied before.
        """
        head = self._heads.get(id(blocks))
        if head is None:
            head = blocks.add(self._next_address, _REACH_BYTES // granule * granule, UNMAPPED)
            self._next_address += _REACH_BYTES
            self._heads[id(blocks)] = head
        start: Block | None = None
        room = wanted = 0
        block: Block | None = head
        while block is not None:
            if block.state == HELD:
                start, room, wanted = None, 0, 0
            else:
                start = start or block
                first, gone = block.address, 0
                if block.state == UNMAPPED:
                    gone = block.size_bytes
                elif emptied:
                    first, gone = self._returnable(blocks, block)
                lead = first - block.address if gone else 0
                wanted += min(gone, _up(rounded - room - lead, granule))
                room += block.size_bytes
                if room >= rounded:
                    return start, wanted
            block = block.after
        raise MemoryRefused(f"{rounded} bytes pass the address space of a segment")

    # -- giving back

    def free(self, address: int) -> None:
        """Free a block; it merges with free neighbours and stays mapped.

        Raises
        ------
        LedgerError
            If no held block begins there.
        """
        for blocks in (self._small, self._large):
            block = blocks.held(address)
            if block is not None:
                self._asked_bytes -= block.asked_bytes
                self._flows["frees_total"] += 1
                blocks.turn(block, FREE)
                return
        raise LedgerError(f"nothing is held at address {address!r:.60}")

    def _returnable(self, blocks: Blocks, block: Block) -> tuple[int, int]:
        """Return which bytes of a free block could go back, as (address, size)."""
        if not self.parameters.expandable_segments:
            return block.address, block.size_bytes if block.alone else 0
        granule = self._granule_bytes(blocks)
        origin = self._heads[id(blocks)].address
        first = origin + _up(block.address - origin, granule)
        last = origin + (block.address + block.size_bytes - origin) // granule * granule
        return first, max(0, last - first)

    def empty_cache(self) -> int:
        """Return every parked byte to the device; return how many those were."""
        given = 0
        for blocks in (self._small, self._large):
            for block in blocks.free_blocks():
                address, size = self._returnable(blocks, block)
                if not size:
                    continue
                given += size
                if not self.parameters.expandable_segments:
                    blocks.remove(block)
                    continue
                if address > block.address:
                    blocks.cut(block, address - block.address)
                    assert block.after is not None
                    block = block.after
                if size < block.size_bytes:
                    blocks.cut(block, size)
                blocks.turn(block, UNMAPPED)
        self._meter.give_back(given)
        return given

    def figures(self) -> Figures:
        """Return where the bytes are. Held is what was asked for; rounding counts as empty."""
        parked = sum(
            self._returnable(blocks, block)[1]
            for blocks in (self._small, self._large)
            for block in blocks.free_blocks()
        )
        return self._meter.figures(self._asked_bytes, parked)

    def counters(self) -> dict[str, int]:
        """Return flows and the peak."""
        return self._flows | self._meter.counters()

    def check(self) -> None:
        """Raise LedgerError unless a recount confirms every number."""
        asked = mapped = 0
        for blocks in (self._small, self._large):
            blocks.check()
            asked += sum(block.asked_bytes for block in blocks)
            mapped += sum(block.size_bytes for block in blocks if block.state != UNMAPPED)
        if asked != self._asked_bytes:
            raise LedgerError(f"check failed: {asked} bytes are held, not {self._asked_bytes}")
        self._meter.check(self.figures(), mapped)
