"""Real mappings: what is mapped is what mincore sees, and what is given back is gone."""

from __future__ import annotations

import ctypes
import gc
import mmap
import os
import subprocess
import sys
import weakref
from pathlib import Path

import numpy as np
import pytest

from kvsim.errors import LedgerError, MemoryRefused
from kvsim.paging.physical import BufferSpec, Extents
from kvsim.tensors import buffers as module
from kvsim.tensors.buffers import OS_PAGE_BYTES, Buffer, allocate, available_bytes

ROOT = Path(__file__).parents[2]
OS = OS_PAGE_BYTES
MIB = 1 << 20
linux = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux's madvise and mincore")


def process_bytes() -> tuple[int, int]:
    """Return the address space and the resident memory of this process."""
    size, resident = Path("/proc/self/statm").read_text().split()[:2]
    return int(size) * OS, int(resident) * OS


def smaps(address: int) -> dict[str, list[str]]:
    """Return the fields of the mapping that holds an address."""
    fields: dict[str, list[str]] = {}
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        head, *rest = line.split()
        if not head.endswith(":"):
            low, _, high = head.partition("-")
            inside = int(low, 16) <= address < int(high, 16)
        elif inside:
            fields[head[:-1]] = rest
    return fields


class SharedBuffer(Buffer):
    """The control: Python's default mapping, which is shared and keeps what is given back."""

    def __init__(self, size_bytes: int) -> None:
        super().__init__(size_bytes)
        self.close()
        self._mapping = mmap.mmap(-1, self.size_bytes)
        self._mapping.madvise(mmap.MADV_NOHUGEPAGE)
        self._address = np.frombuffer(self._mapping, np.uint8).ctypes.data


@linux
def test_map_write_give_back_and_map_again():
    buffer = Buffer(4 * MIB)
    rows = buffer.array(np.float32)
    assert rows.size == MIB
    assert rows.ctypes.data % 64 == 0
    assert buffer.resident_bytes() == 0
    buffer.map(MIB, MIB)
    assert buffer.resident_bytes() == MIB
    assert buffer.resident_bytes(MIB, MIB) == MIB
    inside = slice(MIB // 4, 2 * MIB // 4)
    assert not rows[inside].any()
    rows[inside] = np.arange(MIB // 4)
    # Mapping once more changes no byte, nor does an empty order.
    buffer.map(MIB, MIB)
    buffer.map(0, 0)
    buffer.give_back(MIB, 0)
    assert np.array_equal(rows[inside], np.arange(MIB // 4))
    buffer.give_back(MIB, MIB)
    assert buffer.resident_bytes() == 0
    assert buffer.resident_bytes(MIB, 0) == 0
    buffer.map(0, 4 * MIB)
    assert not rows.any()
    assert buffer.resident_bytes() == 4 * MIB
    buffer.close()


@linux
@pytest.mark.parametrize("populate", [True, False], ids=["populate", "touch"])
def test_mincore_sees_exactly_what_is_mapped(monkeypatch, populate):
    if not populate:
        # An advice that no kernel knows: as on one from before 5.14.
        monkeypatch.setattr(module, "_MADV_POPULATE_WRITE", 9_999)
    rng = np.random.default_rng(3)
    pages = 500
    buffer = Buffer(pages * OS)
    words = buffer.array(np.uint8)
    mapped = np.zeros(pages, bool)
    written = np.zeros(pages, np.uint8)
    for _ in range(300):
        first, past = sorted(rng.integers(0, pages + 1, 2).tolist())
        span = (first * OS, (past - first) * OS)
        if rng.random() < 0.5:
            buffer.map(*span)
            mapped[first:past] = True
            # Sometimes what was there is kept, so that mapping it again must not change it.
            if rng.random() < 0.5:
                fresh = rng.integers(1, 256, dtype=np.uint8)
                words[span[0] : span[0] + span[1]] = fresh
                written[first:past] = fresh
        else:
            buffer.give_back(*span)
            mapped[first:past] = False
            written[first:past] = 0
        assert buffer.resident_bytes() == int(mapped.sum()) * OS
        low, high = sorted(rng.integers(0, pages + 1, 2).tolist())
        assert buffer.resident_bytes(low * OS, (high - low) * OS) == mapped[low:high].sum() * OS
    assert 0 < mapped.sum() < pages
    by_page = words.reshape(pages, OS)
    for page in np.flatnonzero(mapped):
        assert (by_page[page] == written[page]).all()
    buffer.close()


@linux
@pytest.mark.parametrize("write", [True, False], ids=["written", "read"])
def test_a_byte_touched_outside_what_is_mapped_is_seen(write):
    # The control of the equality above: mincore would notice memory behind the ledger's back.
    buffer = Buffer(64 * OS)
    buffer.map(0, 2 * OS)
    words = buffer.array(np.uint8)
    if write:
        words[40 * OS] = 1
    else:
        assert words[40 * OS] == 0
    assert buffer.resident_bytes() == 3 * OS
    assert buffer.resident_bytes(0, 2 * OS) == 2 * OS


@linux
def test_a_shared_mapping_gives_nothing_back():
    ours, shared = Buffer(8 * MIB), SharedBuffer(8 * MIB)
    seen = {}
    for name, buffer in (("ours", ours), ("shared", shared)):
        buffer.map(0, 8 * MIB)
        words = buffer.array(np.uint8)
        words[:] = 7
        buffer.give_back(2 * MIB, 4 * MIB)
        seen[name] = (buffer.resident_bytes(), int(words[3 * MIB]))
    assert seen == {"ours": (4 * MIB, 0), "shared": (8 * MIB, 7)}


@linux
def test_smaps_agrees_and_sees_no_huge_page():
    buffer = Buffer(32 * MIB)
    # Neighbouring mappings of one kind merge, so differences are compared.
    before = smaps(buffer._address)
    buffer.map(0, 32 * MIB)
    buffer.give_back(OS, 2 * MIB)
    after = smaps(buffer._address)
    assert int(after["Rss"][0]) - int(before["Rss"][0]) == 30 * 1024
    assert after["AnonHugePages"] == ["0", "kB"]
    assert "nh" in after["VmFlags"]


@linux
@pytest.mark.parametrize("extent_bytes", [OS, 16 * OS], ids=["OS pages", "larger"])
def test_orders_of_extents_carried_out(extent_bytes):
    # The ledger's mapped bytes are what the machine sees, buffer by buffer, after every update.
    rng = np.random.default_rng(extent_bytes)
    specs = [
        BufferSpec("a", 3 * OS // 2),
        BufferSpec("b", OS // 4),
        BufferSpec("c", 5 * OS, 0),
        BufferSpec("d", 5 * OS, 1),
    ]
    extents = Extents(specs, extent_bytes)
    extents.resize(200)
    real = allocate([extents.buffer_bytes(number) for number in range(len(specs))])
    held, scope = np.zeros(200, bool), np.zeros(200, np.int64)
    for _ in range(60):
        some = rng.random(200) < rng.choice([0.01, 0.1, 0.6])
        held = np.where(some, rng.random(200) < 0.4, held)
        scope = np.where(some, rng.integers(0, 2, 200), scope)
        orders = extents.update(held, scope)
        for number, first, count in orders.map:
            real[number].map(first * extent_bytes, count * extent_bytes)
        for number, first, count in orders.give_back:
            real[number].give_back(first * extent_bytes, count * extent_bytes)
        for number, buffer in enumerate(real):
            assert buffer.resident_bytes() == extents.mapped(number).sum() * extent_bytes
        assert sum(buffer.resident_bytes() for buffer in real) == extents.mapped_bytes
    assert extents.returned_extents_total > 100
    for buffer in real:
        buffer.close()


@linux
def test_more_than_there_is_is_refused_before_it_is_touched():
    allocate([OS])[0].close()
    address_space, resident = process_bytes()
    for sizes in ([1 << 50], [OS, 1 << 50], [available_bytes() // 2 + MIB] * 3, [1 << 62]):
        with pytest.raises(MemoryRefused, match="available"):
            allocate(sizes)
    # Python may take a page of its own meanwhile; a buffer would be far larger.
    after = process_bytes()
    assert abs(after[0] - address_space) < 8 * MIB
    assert abs(after[1] - resident) < 8 * MIB


@linux
@pytest.mark.parametrize("size", [0, -1, -(2**70), 2**63, 2**63 - 1, 2**70, 1.5, "1", None])
def test_sizes_that_are_none_are_refused(size):
    with pytest.raises(MemoryRefused):
        allocate([OS, size])
    with pytest.raises(MemoryRefused):
        Buffer(size)


@linux
def test_what_the_system_refuses_leaves_nothing_behind(monkeypatch):
    # More than it will give, past our own estimate: the first buffer is let go again.
    monkeypatch.setattr(module, "available_bytes", lambda: 1 << 62)
    before = process_bytes()
    with pytest.raises(MemoryRefused, match="cannot map") as caught:
        allocate([512 * MIB, 1 << 60])
    # Even while the error, and with it the frames that made the buffer, is being looked at.
    assert process_bytes()[0] - before[0] < 8 * MIB
    assert caught.tb is not None


@linux
def test_ranges_that_do_not_fit_are_refused_and_change_nothing():
    buffer = Buffer(4 * OS)
    buffer.map(0, 2 * OS)
    buffer.array(np.uint8)[: 2 * OS] = 9
    ranges = [(-OS, OS), (0, 5 * OS), (4 * OS, OS), (0, -OS), (1, OS), (0, OS + 1), (2**70, OS)]
    for verb in (buffer.map, buffer.give_back, buffer.resident_bytes):
        for first, size in ranges:
            with pytest.raises(LedgerError):
                verb(first, size)
    assert buffer.resident_bytes() == 2 * OS
    assert (buffer.array(np.uint8)[: 2 * OS] == 9).all()
    with pytest.raises(LedgerError, match="whole number"):
        buffer.array(np.dtype([("three", np.uint8, 3)]))
    # A size is rounded up to whole pages of the operating system.
    assert Buffer(OS + 1).size_bytes == 2 * OS


@linux
def test_closing_with_and_without_views():
    start = process_bytes()[0]
    alone = Buffer(512 * MIB)
    assert process_bytes()[0] - start > 500 * MIB
    alone.close()
    alone.close()
    assert process_bytes()[0] - start < 8 * MIB
    for use in (lambda: alone.map(0, OS), lambda: alone.array(np.uint8), alone.resident_bytes):
        with pytest.raises(LedgerError, match="closed"):
            use()

    viewed = Buffer(512 * MIB)
    viewed.map(0, OS)
    view = viewed.array(np.float32)[:4]
    view[:] = 3
    viewed.close()
    # The view owns the mapping from here on: its bytes stay, and go with it.
    assert view.tolist() == [3, 3, 3, 3]
    assert process_bytes()[0] - start > 500 * MIB
    del view
    assert process_bytes()[0] - start < 8 * MIB


@linux
def test_a_forgotten_buffer_is_unmapped():
    start = process_bytes()[0]
    buffer = Buffer(512 * MIB)
    gone = weakref.ref(buffer)
    del buffer
    gc.collect()
    assert gone() is None
    assert process_bytes()[0] - start < 8 * MIB


FORKED = """
import os
import numpy as np
from kvsim.tensors.buffers import OS_PAGE_BYTES as OS, Buffer
buffer = Buffer(8 * OS)
buffer.map(0, 4 * OS)
words = buffer.array(np.uint8)
words[: 4 * OS] = 5
child = os.fork()
if not child:
    buffer.give_back(0, 2 * OS)
    words[2 * OS : 3 * OS] = 6
    buffer.map(6 * OS, OS)
    good = buffer.resident_bytes() == 3 * OS and not words[: OS].any()
    del words
    buffer.close()
    os._exit(0 if good else 1)
_, status = os.waitpid(child, 0)
assert status == 0
assert buffer.resident_bytes() == 4 * OS
assert (words[: 4 * OS] == 5).all()
"""


@linux
def test_a_fork_has_memory_of_its_own():
    done = subprocess.run([sys.executable, "-c", FORKED], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_platform_that_keeps_its_memory_is_refused(monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(module.sys, "platform", "darwin")
        with pytest.raises(LedgerError, match="madvise and mincore, not darwin"):
            Buffer(OS)
    with monkeypatch.context() as patch:
        patch.delattr(module.mmap, "MADV_DONTNEED", raising=False)
        with pytest.raises(LedgerError, match="madvise and mincore"):
            Buffer(OS)
    if sys.platform == "linux":
        monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: object())
        with pytest.raises(LedgerError, match="mincore"):
            Buffer(OS)


@linux
def test_memory_is_asked_of_the_system_where_there_is_no_meminfo(monkeypatch, tmp_path):
    usual = available_bytes()
    assert 0 < usual <= os.sysconf("SC_PHYS_PAGES") * OS
    monkeypatch.setattr(module, "_MEMINFO", tmp_path / "absent")
    free = available_bytes()
    assert 0 < free <= os.sysconf("SC_PHYS_PAGES") * OS
    monkeypatch.delattr(os, "sysconf")
    with pytest.raises(LedgerError, match="does not say"):
        available_bytes()
    old = tmp_path / "meminfo"
    old.write_text("MemTotal: 10 kB\nMemAvailable:     7 kB\n")
    monkeypatch.setattr(module, "_MEMINFO", old)
    assert available_bytes() == 7 * 1024
