"""Memory of planes: aligned, zeroed, and refused before it is touched if there is not enough.

Each docstring names the bug that its test would catch.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from realrows import Pair, refused, shape
from spliced import DENSE, ROPES

from kvsim.errors import MemoryRefused
from kvsim.layout.families import dense
from kvsim.tensors.array_store import ArrayStore
from kvsim.tensors.buffers import available_bytes
from kvsim.tensors.memory import HeapMemory, check_fits
from kvsim.tensors.paged_cache import PagedCache
from kvsim.tensors.rope import Rope
from kvsim.tensors.shape import CacheShape

STATM = Path("/proc/self/statm")


def resident_bytes():
    """Return the memory of this process, or skip where nobody says."""
    if not STATM.is_file():
        pytest.skip("the operating system does not say how much memory a process has")
    return int(STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("size", [(3, 0), (5, 7), (4096, 33)])
def test_planes_are_zeroed_and_aligned(size, dtype):
    """Rows that begin in the middle of a cache line, or hold what another process left."""
    memory = HeapMemory()
    planes = [memory.plane("k", *size, np.dtype(dtype)) for _ in range(4)]
    for plane in planes:
        assert (plane.shape, plane.dtype) == (size, dtype)
        assert not plane.size or plane.ctypes.data % 64 == 0
        assert plane.flags.c_contiguous
        assert not plane.any()
    planes[0][:] = 1
    assert not any(plane.any() for plane in planes[1:])


def test_a_plane_that_grows_keeps_its_rows():
    """Rows lost or moved, or new slots that hold something."""
    memory = HeapMemory()
    old = memory.plane("k", 6, 5, np.dtype(np.float32))
    old[:] = np.arange(30).reshape(6, 5)
    new = memory.grow("k", old, 11)
    assert np.array_equal(new[:6], old)
    assert not new[6:].any()
    assert new.ctypes.data % 64 == 0


def test_more_than_there_is_is_refused_before_it_is_touched():
    """Memory that is promised and taken back by killing the process."""
    before = resident_bytes()
    slots = available_bytes() // 4 + 2**20
    with pytest.raises(
        MemoryRefused, match=r"plane k: \d+ bytes are needed and \d+ bytes of memory"
    ):
        HeapMemory().plane("k", slots, 1, np.dtype(np.float32))
    with pytest.raises(MemoryRefused):
        HeapMemory().plane("k", 2**62, 2**10, np.dtype(np.float64))
    check_fits("plane k", 4096)
    assert resident_bytes() - before < 2**24


def test_a_cache_larger_than_memory_is_refused_as_a_whole():
    """The first plane allocated and only the second refused, of a cache that is then unusable."""
    before = resident_bytes()
    wide = CacheShape(dense([8] * 16, 128, 128), (Rope(128),), max_positions=8)
    pages = available_bytes() // (16 * wide.families[0].token_bytes("kv_raw")) + 1000
    with pytest.raises(MemoryRefused):
        PagedCache(wide, 16, pages=pages)
    assert resident_bytes() - before < 2**26


@pytest.mark.parametrize("pages", [2**33, 2**40])
def test_a_pool_that_cannot_grow_so_far_stays_as_it_was(pages):
    """A pool with pages for which there is no row."""
    pair = Pair(7, pages=2)
    for _ in range(2):
        slots = [plane.shape[0] for planes in pair.cache.store.planes for plane in planes.values()]
        refused(MemoryRefused, pair.cache, pair.cache.store.resize, pages)
        assert slots == [p.shape[0] for planes in pair.cache.store.planes for p in planes.values()]
        pair.append(pair.first, 9)
        pair.check()


def test_a_reservation_beyond_memory_changes_nothing():
    """A ledger that has grown to what its store has refused."""
    wide = CacheShape(dense([8] * 16, 128, 128), (Rope(128),), max_positions=64)
    pair = Pair(3, wide, page_tokens=64, pages=1)
    # Far beyond this machine's memory, yet no more tokens than a verb may name.
    tokens = min(2**31 - 2, available_bytes() // wide.families[0].token_bytes("kv_raw") * 2)
    before = resident_bytes()
    refused(MemoryRefused, pair.cache, pair.cache.reserve, pair.first, tokens)
    assert pair.ledger.room_pages == 1
    assert pair.ledger.reserved_pages(pair.first) == 0
    assert resident_bytes() - before < 2**26
    pair.append(pair.first, 40)
    pair.check()


def test_a_store_asks_for_each_plane_by_its_own_name():
    """Two planes in one buffer where memory is told apart by names."""

    class Names(HeapMemory):
        names: list[str] = []  # noqa: RUF012

        def plane(self, name, slots, elements, dtype):
            self.names.append(name)
            return super().plane(name, slots, elements, dtype)

    of = shape(families=DENSE, ropes=ROPES)
    for layout, wanted in (
        ("page_major", ["kv.K", "kv.V", "kv.k_raw"]),
        ("layer_major", [f"kv.{p}.{layer}" for p in ("K", "V", "k_raw") for layer in (0, 1)]),
    ):
        Names.names = []
        ArrayStore(of, of.geometry(), 4, layout=layout, memory=Names())
        assert sorted(Names.names) == wanted
