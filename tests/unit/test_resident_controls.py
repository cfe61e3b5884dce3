"""Controls of resident memory: the comparison with the machine can fail."""

from __future__ import annotations

import pytest
from mapped_twins import PAGE_TOKENS, Twins, needs_linux

from kvsim.errors import LedgerError
from kvsim.tensors.buffers import OS_PAGE_BYTES

pytestmark = needs_linux


@pytest.mark.parametrize("write", [True, False], ids=["written", "read"])
def test_a_stray_access_is_seen(write):
    twins = Twins(64, "layer_major", OS_PAGE_BYTES)
    sequence = twins.both("open")
    twins.append(sequence, 300)
    plane = twins.mapped.store.planes[1]["V"]
    stray = 40 * PAGE_TOKENS
    if write:
        plane[stray, 0] = 1
    else:
        assert plane[stray, 0] == 0
    with pytest.raises(LedgerError, match=r"buffer kv\.V\.1: of its unmapped extents .* 4096 "):
        twins.memory.check_resident()
    with pytest.raises(AssertionError):
        twins.recount.check()


def test_memory_that_goes_behind_the_ledgers_back_is_seen():
    twins = Twins(64, "page_major", OS_PAGE_BYTES)
    twins.append(twins.both("open"), 300)
    twins.memory._buffers[0].give_back(0, OS_PAGE_BYTES)
    with pytest.raises(LedgerError, match=r"buffer kv\.K: of its mapped extents 0 to"):
        twins.memory.check_resident()


def test_an_order_that_is_not_carried_out_is_seen(monkeypatch):
    twins = Twins(64, "page_major", OS_PAGE_BYTES)
    sequence = twins.both("open")
    twins.append(sequence, 300)
    monkeypatch.setattr(twins.memory, "give_back", lambda orders: None)
    with pytest.raises(AssertionError):
        twins.evict(sequence, "page", 0.25)
