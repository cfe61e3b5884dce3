"""Where planes get their memory: aligned NumPy arrays, or mappings that can be given back."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from kvsim.errors import MemoryRefused
from kvsim.paging.physical import Orders
from kvsim.tensors.buffers import OS_PAGE_BYTES, available_bytes

#: Planes begin at different offsets in a page of memory, whole cache lines apart: a processor
#: that compares the low twelve bits of addresses would take a read of one plane for a read of
#: what it has just written to another.
STAGGER_BYTES = 21 * 64


class Memory(Protocol):
    """Gives a store its planes."""

    def check(self, size_bytes: int) -> None:
        """Raise MemoryRefused unless planes of so many bytes, all together, can be had."""

    def plane(self, name: str, slots: int, elements: int, dtype: np.dtype) -> np.ndarray:
        """Return a zeroed, C-contiguous, 64-byte aligned array [slots, elements]."""

    def grow(self, name: str, old: np.ndarray, slots: int) -> np.ndarray:
        """Return the plane with more slots, its rows kept."""

    def map(self, orders: Orders) -> None:
        """Populate what the orders say."""

    def give_back(self, orders: Orders) -> None:
        """Give back what the orders say."""


class HeapMemory:
    """Planes in NumPy's memory. The operating system hands it out as it is first written."""

    def __init__(self) -> None:
        self._stagger = 0

    def check(self, size_bytes: int) -> None:
        """Raise MemoryRefused if all planes together are more than the available memory."""
        check_fits("all planes", size_bytes)

    def plane(self, name: str, slots: int, elements: int, dtype: np.dtype) -> np.ndarray:
        """Return a zeroed, C-contiguous, 64-byte aligned array [slots, elements].

        Raises
        ------
        MemoryRefused
            If it is larger than the memory that is available. Nothing is allocated.
        """
        size = slots * elements * dtype.itemsize
        check_fits(f"plane {name}", size)
        room = np.zeros(size + 2 * OS_PAGE_BYTES, np.uint8)
        start = -room.ctypes.data % OS_PAGE_BYTES + self._stagger
        self._stagger = (self._stagger + STAGGER_BYTES) % (3 * STAGGER_BYTES)
        return room[start : start + size].view(dtype).reshape(slots, elements)

    def grow(self, name: str, old: np.ndarray, slots: int) -> np.ndarray:
        """Return a larger plane with the old one's rows."""
        new = self.plane(name, slots, old.shape[1], old.dtype)
        new[: old.shape[0]] = old
        return new

    def map(self, orders: Orders) -> None:
        """Nothing: this memory is the process's own for good."""

    def give_back(self, orders: Orders) -> None:
        """Nothing: this memory is the process's own for good."""


def check_fits(name: str, size_bytes: int) -> None:
    """Raise MemoryRefused if that many bytes are more than the memory that is available."""
    there = available_bytes()
    if size_bytes > there:
        raise MemoryRefused(
            f"{name}: {size_bytes} bytes are needed and {there} bytes of memory are available"
        )
