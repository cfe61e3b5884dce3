"""Buffers: anonymous private mappings whose parts are populated and given back on order.

They hold bytes and know nothing of pages, extents or rows. Python's own default, a shared
mapping, would keep its memory whatever is given back; these are private, and never made of huge
pages, so that what is resident is known to the operating system's page.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import operator
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from kvsim.errors import LedgerError, MemoryRefused

#: The page of the operating system, in bytes; mapping and giving back go by it.
OS_PAGE_BYTES = mmap.PAGESIZE

# Linux 5.14 and later; Python's mmap module does not name it.
_MADV_POPULATE_WRITE = 23
_BYTES_LIMIT = 2**63
_MEMINFO = Path("/proc/meminfo")


class Buffer:
    """One mapping of a fixed size, none of it resident until it is mapped.

    The size is address space only: it neither grows nor costs memory. A byte outside what was
    mapped must be neither written nor read, since either makes its page resident behind the
    ledger's back (`resident_bytes` shows it). After a fork, parent and child each have their
    own, copied on write.

    Parameters
    ----------
    size_bytes : int
        At least 1; rounded up to whole pages of the operating system.

    Raises
    ------
    MemoryRefused
        If the operating system gives no address space of this size.
    LedgerError
        If the platform cannot give memory back (it needs Linux's madvise and mincore).
    """

    def __init__(self, size_bytes: int) -> None:
        self._libc = _libc()
        self.size_bytes = -(-_size(size_bytes) // OS_PAGE_BYTES) * OS_PAGE_BYTES
        kind = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        try:
            self._mapping: mmap.mmap | None = mmap.mmap(-1, self.size_bytes, flags=kind)
        except (OSError, OverflowError) as error:
            raise MemoryRefused(f"cannot map {self.size_bytes} bytes: {error}") from None
        try:
            self._mapping.madvise(mmap.MADV_NOHUGEPAGE)
        except OSError as error:
            # A kernel built without huge pages refuses the word, and has nothing to switch off.
            if error.errno != errno.EINVAL:
                raise LedgerError(f"cannot do without huge pages: {error}") from None
        self._address = np.frombuffer(self._mapping, np.uint8).ctypes.data

    def array(self, dtype: Any) -> np.ndarray:
        """Return the whole buffer as a flat, writable array [size_bytes / item size].

        Aligned to the operating system's page, so to 64 bytes. The view keeps the mapping alive.
        """
        mapping = self._open()
        if self.size_bytes % np.dtype(dtype).itemsize:
            raise LedgerError(f"{self.size_bytes} bytes are no whole number of {np.dtype(dtype)}")
        return np.frombuffer(mapping, dtype)

    def map(self, first_byte: int, size_bytes: int) -> None:
        """Make a range resident: zeros where it was not, unchanged where it was.

        Raises
        ------
        LedgerError
            If the range leaves the buffer or is not of whole operating system pages.
        MemoryRefused
            If there is no memory for it. A part may be resident; nothing that was there changed.
        """
        mapping = self._check(first_byte, size_bytes)
        if not size_bytes:
            return
        try:
            mapping.madvise(_MADV_POPULATE_WRITE, first_byte, size_bytes)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise MemoryRefused(f"cannot make {size_bytes} bytes resident: {error}") from None
            self._touch(first_byte, size_bytes)

    def give_back(self, first_byte: int, size_bytes: int) -> None:
        """Give the memory of a range back; what it held is lost.

        Raises
        ------
        LedgerError
            If the range leaves the buffer or is not of whole operating system pages, or if it
            is locked into memory.
        """
        mapping = self._check(first_byte, size_bytes)
        if not size_bytes:
            return
        try:
            mapping.madvise(mmap.MADV_DONTNEED, first_byte, size_bytes)
        except OSError as error:
            raise LedgerError(f"cannot give {size_bytes} bytes back: {error}") from None

    def resident_bytes(self, first_byte: int = 0, size_bytes: int | None = None) -> int:
        """Return how many bytes of a range are in memory, by mincore; by default of the whole.

        What was moved to swap is not in memory.

        Raises
        ------
        LedgerError
            If the range leaves the buffer or is not of whole operating system pages.
        """
        if size_bytes is None:
            size_bytes = self.size_bytes - first_byte
        self._check(first_byte, size_bytes)
        states = np.zeros(size_bytes // OS_PAGE_BYTES, np.uint8)
        if not states.size:
            return 0
        start = ctypes.c_void_p(self._address + first_byte)
        if self._libc.mincore(start, ctypes.c_size_t(size_bytes), states.ctypes.data_as(_BYTES)):
            raise LedgerError(f"mincore failed: {os.strerror(ctypes.get_errno())}")
        # Only the lowest bit of each byte is defined.
        return int(np.count_nonzero(states & 1)) * OS_PAGE_BYTES

    def close(self) -> None:
        """Let go of the mapping: unmapped now, or with its last view, which stays valid.

        Closing twice is allowed; any other use afterwards is a LedgerError.
        """
        mapping, self._mapping = self._mapping, None
        if mapping is not None:
            # If views are left, unmapping under them would crash the process, and Python refuses
            # to. They own the mapping from here on, and the last of them unmaps it.
            with suppress(BufferError):
                mapping.close()

    def _open(self) -> mmap.mmap:
        if self._mapping is None:
            raise LedgerError("the buffer is closed")
        return self._mapping

    def _check(self, first_byte: int, size_bytes: int) -> mmap.mmap:
        mapping = self._open()
        past = first_byte + size_bytes
        if first_byte < 0 or size_bytes < 0 or past > self.size_bytes:
            raise LedgerError(f"bytes {first_byte} to {past} leave the {self.size_bytes} there are")
        if first_byte % OS_PAGE_BYTES or size_bytes % OS_PAGE_BYTES:
            raise LedgerError(
                f"bytes {first_byte} to {past} are not whole pages of {OS_PAGE_BYTES} bytes"
            )
        return mapping

    def _touch(self, first_byte: int, size_bytes: int) -> None:
        """Write into every page of a range what it holds already, so that it is resident."""
        view = np.frombuffer(self._open(), np.uint8)[first_byte : first_byte + size_bytes]
        one_each = view[::OS_PAGE_BYTES]
        np.bitwise_or(one_each, 0, out=one_each)


def allocate(sizes_bytes: Sequence[int]) -> list[Buffer]:
    """Return buffers of these sizes, if all of them could be resident at once.

    Raises
    ------
    MemoryRefused
        If a size is not positive or not below 2**63, or their sum is more than the memory that
        is available. Nothing was touched, and nothing stays allocated.
    LedgerError
        If the platform cannot give memory back.
    """
    sizes = [-(-_size(size) // OS_PAGE_BYTES) * OS_PAGE_BYTES for size in sizes_bytes]
    available = available_bytes()
    if sum(sizes) > available:
        raise MemoryRefused(f"buffers need {sum(sizes)} bytes, and {available} are available")
    made: list[Buffer] = []
    try:
        for size in sizes:
            made.append(Buffer(size))
    except LedgerError:
        for buffer in made:
            buffer.close()
        raise
    return made


def available_bytes() -> int:
    """Return the memory that can be had without swapping, as the operating system sees it."""
    try:
        lines = _MEMINFO.read_text().splitlines()
    except OSError:
        lines = []
    for line in lines:
        name, _, rest = line.partition(":")
        if name == "MemAvailable":
            return int(rest.split()[0]) * 1024
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        raise LedgerError("this platform does not say how much memory is available") from None


_BYTES = ctypes.POINTER(ctypes.c_ubyte)


def _libc() -> ctypes.CDLL:
    """Return the C library, or refuse a platform that cannot do what a buffer promises.

    Elsewhere than on Linux MADV_DONTNEED, where there is one, is free to keep the memory.
    """
    if sys.platform != "linux" or not hasattr(mmap, "MADV_DONTNEED"):
        raise LedgerError(f"resident memory needs Linux's madvise and mincore, not {sys.platform}")
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "mincore"):
        raise LedgerError("resident memory needs mincore, which this C library lacks")
    return libc


def _size(size_bytes: int) -> int:
    try:
        size = operator.index(size_bytes)
    except TypeError:
        raise MemoryRefused(f"a buffer has a whole number of bytes, not {size_bytes!r}") from None
    if not 0 < size < _BYTES_LIMIT - OS_PAGE_BYTES:
        raise MemoryRefused(f"a buffer of {size} bytes cannot be")
    return size
