"""Paged caches in real mappings: after every verb, what is in memory is what the ledger says.

Each cache runs beside a twin in NumPy's memory, and returned extents are counted a second time.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from mapped_twins import EXTENTS, LAYOUTS, MIB, PAGE_TOKENS, Recount, Twins, needs_linux

from kvsim.layout.families import dense, glm_dsa, mla
from kvsim.tensors.buffers import OS_PAGE_BYTES, available_bytes
from kvsim.tensors.mapped import mapped_cache
from kvsim.tensors.rope import Rope
from kvsim.tensors.shape import CacheShape

pytestmark = needs_linux


def lived(twins: Twins, granularity: str) -> None:
    """Let sequences come, share, lose most tokens and go, so that pages are used again."""
    first, second = twins.both("open"), twins.both("open")
    twins.append(first, 600)
    twins.append(second, 500)
    twins.evict(first, granularity, 0.25)
    fork = twins.both("fork", second)
    twins.append(fork, 40)
    twins.evict(fork, granularity, 0.6)
    twins.both("free", first)
    # The pages of the first are used again: by the queue's order the oldest of them.
    third = twins.both("open")
    twins.append(third, 700)
    twins.evict(third, granularity, 0.25)
    twins.append(third, 30)
    twins.compare()
    data = twins.both("swap_out", third)
    twins.both("swap_in", data)
    twins.both("free", second)
    twins.evict(fork, granularity, 0.5)
    twins.compare()


@pytest.mark.parametrize("extent_bytes", EXTENTS.values(), ids=EXTENTS)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("compaction", ["none", "forward", "hole_fill", "rebuild"])
@pytest.mark.parametrize("granularity", ["token", "window", "page"])
def test_mincore_sees_what_the_ledger_maps(granularity, compaction, layout, extent_bytes):
    positions = "renumber" if compaction in ("forward", "rebuild") else "keep"
    twins = Twins(130, layout, extent_bytes, compaction=compaction, positions=positions)
    lived(twins, granularity)
    extents = twins.memory.extents
    if extent_bytes == OS_PAGE_BYTES:
        # A page has whole pages of the operating system: mapped is held, to the byte.
        assert extents.mapped_bytes == twins.mapped.ledger.held_bytes
        assert extents.empty_mapped_bytes == 0
        assert extents.returned_extents_total > 0
    for sequence in twins.mapped.ledger.sequences():
        twins.both("free", sequence)
    assert sum(twins.memory.resident_bytes().values()) == 0
    assert extents.returned_extents_total == extents.mapped_extents_total > 0


def test_page_eviction_at_a_quarter_returns_every_emptied_page_by_the_os_page():
    returned = {}
    for layout, (name, size) in itertools.product(LAYOUTS, EXTENTS.items()):
        twins = Twins(64, layout, size)
        sequence = twins.both("open")
        twins.append(sequence, 1024)
        twins.evict(sequence, "page", 0.25)
        assert twins.mapped.ledger.held_pages == 16
        returned[layout, name] = twins.memory.extents.returned_bytes_total
    gone = 48 * PAGE_TOKENS * 2 * 3 * 8 * 64 * 4
    assert returned["page_major", "OS page"] == returned["layer_major", "OS page"] == gone
    # 32 pages share an extent in one layout and 64, all there are, in the other.
    assert returned["layer_major", "2 MiB"] == 0
    assert returned["page_major", "2 MiB"] < gone / 2


@pytest.mark.parametrize("families", ["mla", "glm"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_families_have_buffers_of_their_own(families, layout):
    shapes = {
        "mla": CacheShape(mla(3, 128, 64), (Rope(64),), "kv_raw", 1024),
        "glm": CacheShape(glm_dsa(3, 4, 32, 32, 64, 64, [0, 2]), (Rope(32),), "kv_raw", 1024),
    }
    twins = Twins(120, layout, OS_PAGE_BYTES, shapes[families], positions="renumber")
    first, second = twins.both("open"), twins.both("open")
    twins.append(first, 300)
    twins.append(second, 200)
    twins.both("evict_span", first, 20, 150)
    fork = twins.both("fork", second)
    twins.both("evict_span", fork, 0, 100)
    twins.both("free", first)
    twins.append(second, 220)
    twins.compare()
    assert twins.memory.extents.returned_extents_total > 0


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_page_table_for_each_layer(layout):
    # In layer_major a layer's pages live in its own buffers alone, in page_major in all.
    shape = CacheShape(dense([2, 4, 2], 64, 64), (Rope(64),), "kv_raw", 1024)
    twins = Twins(150, layout, OS_PAGE_BYTES, shape, scope="layer", sets="layer")
    sequence = twins.both("open")
    twins.append(sequence, 400)
    for _ in range(2):
        slots = [twins.mapped.ledger.rows(sequence, which)[0] for which in range(3)]
        gone = [twins.rng.permutation(np.unique(s // PAGE_TOKENS))[:8] for s in slots]
        victims = [s[np.isin(s // PAGE_TOKENS, g)] for s, g in zip(slots, gone, strict=True)]
        specs = {spec.scope for spec in twins.memory.extents.buffers}
        assert specs == ({None} if layout == "page_major" else {0, 1, 2})
        for cache in (twins.mapped, twins.heap):
            cache.evict(sequence, victims)
        extents = twins.memory.extents
        assert twins.memory.check_resident() == extents.mapped_bytes
        twins.mapped.check()
        for unit in range(8):
            ours, theirs = (c.unit_rows(sequence, unit) for c in (twins.mapped, twins.heap))
            assert all(np.array_equal(ours[p], theirs[p]) for p in ours)
    assert extents.returned_extents_total > 0


def test_closing_gives_everything_back_although_arrays_are_about():
    twins = Twins(64, "layer_major", 2 * MIB)
    twins.append(twins.both("open"), 500)
    plane = twins.mapped.store.planes[0]["K"]
    buffers = list(twins.memory._buffers)
    assert sum(buffer.resident_bytes() for buffer in buffers) > 0
    views = [buffer.array(np.uint8) for buffer in buffers]
    twins.memory.close()
    twins.memory.close()
    assert not plane[:500].any()
    assert not any(view[:OS_PAGE_BYTES].any() for view in views)


# The size that is asked for: 1 GiB of planes, as Llama-3.2-1B has them in float32.


@pytest.mark.parametrize(
    "layout", [pytest.param("page_major", marks=pytest.mark.nightly), "layer_major"]
)
def test_a_gibibyte_of_planes(layout):
    if available_bytes() < 3 << 30:
        pytest.skip("needs 3 GiB of memory")
    shape = CacheShape(dense([8] * 16, 64, 64), (Rope(64),), "raw_only", 1 << 15)
    cache, memory = mapped_cache(
        shape, PAGE_TOKENS, 1024, layout=layout, extent_bytes=2 * MIB, compaction="forward"
    )
    recount = Recount(cache, memory)
    rng = np.random.default_rng(2)
    # The same rows again and again: what they hold is not the question here.
    rows = rng.standard_normal((1024, 8192), dtype=np.float32)
    sequence, other = cache.open(), cache.open()
    for owner, times in ((sequence, 12), (other, 4)):
        for _ in range(times):
            cache.append(owner, [{"k": rows, "v": rows}])
    recount.check()
    assert memory.check_resident() == 1 << 30
    pages = rng.permutation(768)[:576]
    slots, _ = cache.ledger.rows(sequence, 0)
    cache.evict(sequence, [slots[np.isin(slots // PAGE_TOKENS, pages)]])
    recount.check()
    emptied = memory.extents.returned_bytes_total
    # 4 pages in an extent come free together now and then, and 64 never.
    assert (emptied > 100 * MIB) if layout == "page_major" else (emptied == 0)
    assert cache.ledger.held_pages == 448
    # Single tokens leave holes in every page; moving forward empties the table's last pages.
    slots, _ = cache.ledger.rows(other, 0)
    cache.evict(other, [np.sort(rng.permutation(slots)[:3072])])
    recount.check()
    cache.free(sequence)
    recount.check()
    again = cache.open()
    for _ in range(3):
        cache.append(again, [{"k": rows, "v": rows}])
    recount.check()
    assert memory.extents.returned_bytes_total >= (512 << 20)
    memory.close()
