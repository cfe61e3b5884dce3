"""Blocks: pieces of address space that are split and merged, as allocators of sizes keep them.

It knows addresses and sizes; no rounding, no pools, no limit. What they cost is the models'
business.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass

from kvsim.errors import LedgerError

HELD, FREE, UNMAPPED = "held", "free", "unmapped"


@dataclass(eq=False, slots=True)
class Block:
    """Bytes [address, address + size_bytes), with neighbours in the same segment.

    `asked_bytes` is what the caller wanted of a held block.
    """

    address: int
    size_bytes: int
    state: str
    asked_bytes: int = 0
    before: Block | None = None
    after: Block | None = None

    @property
    def alone(self) -> bool:
        """Whether the block is its whole segment."""
        return self.before is None and self.after is None


class Blocks:
    """Segments, each cut into blocks without gaps; free neighbours are always merged.

    Best fit finds the smallest free block that is large enough, ties to the lowest address.
    """

    def __init__(self) -> None:
        self._at: dict[int, Block] = {}
        self._free: list[tuple[int, int]] = []

    def __iter__(self) -> Iterator[Block]:
        return iter(self._at.values())

    def free_blocks(self) -> list[Block]:
        """Return the free blocks, by size and address."""
        return [self._at[address] for _, address in self._free]

    def held(self, address: int) -> Block | None:
        """Return the held block that begins at an address."""
        block = self._at.get(address)
        return block if block is not None and block.state == HELD else None

    def add(self, address: int, size_bytes: int, state: str) -> Block:
        """Add a segment of one block."""
        block = Block(address, size_bytes, state)
        self._at[address] = block
        self._index(block)
        return block

    def remove(self, block: Block) -> None:
        """Remove a segment of one block."""
        self._unindex(block)
        del self._at[block.address]

    def best(self, size_bytes: int, below_bytes: int = 0) -> Block | None:
        """Return the best fit for a size, among blocks below another size if that is given."""
        place = bisect_left(self._free, (size_bytes, -1))
        if place == len(self._free) or (below_bytes and self._free[place][0] >= below_bytes):
            return None
        return self._at[self._free[place][1]]

    def fitting(self, size_bytes: int) -> Iterator[Block]:
        """Yield the free blocks that are large enough, by size and address."""
        for _, address in self._free[bisect_left(self._free, (size_bytes, -1)) :]:
            yield self._at[address]

    def cut(self, block: Block, size_bytes: int) -> None:
        """Cut a block in two, the first of so many bytes; both keep its state."""
        self._unindex(block)
        rest = Block(block.address + size_bytes, block.size_bytes - size_bytes, block.state)
        block.size_bytes = size_bytes
        rest.before, rest.after, block.after = block, block.after, rest
        if rest.after is not None:
            rest.after.before = rest
        self._at[rest.address] = rest
        self._index(block)
        self._index(rest)

    def turn(self, block: Block, state: str, asked_bytes: int = 0) -> Block:
        """Give a block another state and return it, merged with neighbours in that state."""
        self._unindex(block)
        block.state, block.asked_bytes = state, asked_bytes
        self._index(block)
        if state != HELD:
            if block.after is not None and block.after.state == state:
                self._merge(block)
            if block.before is not None and block.before.state == state:
                block = block.before
                self._merge(block)
        return block

    def _merge(self, block: Block) -> None:
        """Join a block with the one after it."""
        other = block.after
        assert other is not None
        self._unindex(block)
        self._unindex(other)
        del self._at[other.address]
        block.size_bytes += other.size_bytes
        block.after = other.after
        if block.after is not None:
            block.after.before = block
        self._index(block)

    def _index(self, block: Block) -> None:
        if block.state == FREE:
            insort(self._free, (block.size_bytes, block.address))

    def _unindex(self, block: Block) -> None:
        if block.state == FREE:
            self._free.pop(bisect_left(self._free, (block.size_bytes, block.address)))

    def check(self) -> None:
        """Raise LedgerError unless blocks fit together and the free ones are all known."""
        free = []
        for address, block in self._at.items():
            after = block.after
            if address != block.address or block.size_bytes < 1:
                raise LedgerError(f"check failed: the block at {address} is not there")
            if block.asked_bytes > block.size_bytes or (block.state != HELD and block.asked_bytes):
                raise LedgerError(f"check failed: the block at {address} holds what it cannot")
            if after is not None:
                if after.before is not block or after.address != address + block.size_bytes:
                    raise LedgerError(f"check failed: a gap behind the block at {address}")
                if after.state == block.state != HELD:
                    raise LedgerError(f"check failed: the block at {address} should be merged")
            if block.state == FREE:
                free.append((block.size_bytes, address))
        if sorted(free) != self._free:
            raise LedgerError("check failed: the list of free blocks is wrong")
