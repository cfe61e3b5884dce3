"""What mapped memory refuses, and what stays of a verb of two parts, refused in its second."""

from __future__ import annotations

import numpy as np
import pytest
from mapped_twins import MIB, PAGE_TOKENS, SHAPE, Twins, needs_linux

from kvsim.errors import CeilingExceeded, LedgerError, MemoryRefused
from kvsim.paging import Ledger
from kvsim.paging.calls import Calls
from kvsim.paging.physical import BufferSpec, Extents
from kvsim.tensors.array_store import ArrayStore
from kvsim.tensors.buffers import OS_PAGE_BYTES, available_bytes
from kvsim.tensors.mapped import MappedMemory, extents_of_shape

pytestmark = needs_linux


def refused_compaction() -> tuple[Twins, int]:
    """Evict a page of a fork's own and a token of shared ones, where the copies do not fit."""
    twins = Twins(12, "layer_major", OS_PAGE_BYTES, compaction="forward")
    parent = twins.both("open")
    twins.append(parent, 9 * PAGE_TOKENS)
    fork = twins.both("fork", parent)
    twins.append(fork, 2 * PAGE_TOKENS + 3)
    victims = np.concatenate(([1], np.arange(9 * PAGE_TOKENS, 10 * PAGE_TOKENS)))
    for cache in (twins.mapped, twins.heap):
        with pytest.raises(CeilingExceeded):
            cache.evict(fork, [victims])
    return twins, fork


def test_an_eviction_whose_compaction_is_refused_keeps_its_memory():
    twins, fork = refused_compaction()
    assert twins.memory.extents.returned_extents_total == 0
    twins.compare()
    # What is given back was lost, had it been given back at the first half.
    twins.evict(fork, "page", 1.0)
    twins.append(fork, 5)
    twins.compare()


def test_the_rows_are_lost_where_the_first_half_gives_them_back(monkeypatch):
    never = property(lambda ledger: False, lambda ledger, value: None)
    monkeypatch.setattr(Calls, "_undoable", never)
    twins, fork = refused_compaction()
    ours, theirs = (cache.rows(fork)["V"] for cache in (twins.mapped, twins.heap))
    assert not np.array_equal(ours, theirs)


def test_planes_of_a_fixed_size_do_not_grow():
    geometry = SHAPE.geometry()
    extents = extents_of_shape(
        SHAPE, geometry, PAGE_TOKENS, 4, plane_layout="page_major", extent_bytes=OS_PAGE_BYTES
    )
    memory = MappedMemory(extents)
    store = ArrayStore(SHAPE, geometry, PAGE_TOKENS, memory=memory)
    ledger = Ledger(geometry, PAGE_TOKENS, store=store, physical_model=extents, room_pages=4)
    sequence = ledger.open()
    ledger.append(sequence, 3 * PAGE_TOKENS)
    before = memory.check_resident()
    with pytest.raises(MemoryRefused, match=r"plane kv\.K .* have their size from the start"):
        ledger.append(sequence, 2 * PAGE_TOKENS)
    assert memory.check_resident() == before == extents.mapped_bytes
    ledger.check()
    ledger.append(sequence, PAGE_TOKENS)
    assert memory.check_resident() == ledger.held_bytes == before // 3 * 4


def test_what_memory_cannot_be_mapped_by_is_refused():
    with pytest.raises(LedgerError, match="whole pages of the operating system"):
        MappedMemory(Extents([BufferSpec("a", 64)], OS_PAGE_BYTES // 2))
    with pytest.raises(LedgerError, match="number of their pages"):
        MappedMemory(Extents([BufferSpec("a", 64)], OS_PAGE_BYTES))
    huge = Extents([BufferSpec("a", 2 * MIB)], OS_PAGE_BYTES)
    huge.resize(available_bytes() // MIB)
    with pytest.raises(MemoryRefused, match="available"):
        MappedMemory(huge)
    small = Extents([BufferSpec("a", 64)], OS_PAGE_BYTES)
    small.resize(1)
    memory = MappedMemory(small)
    with pytest.raises(LedgerError, match="no buffer for plane b"):
        memory.plane("b", 16, 1, np.dtype(np.float32))
