"""kvcached's published figures, computed on the model: none of the numbers came from kvsim.

The recipes are those of its benchmarks bench_evict, bench_frag and bench_idle_footprint, as the
reference, section 3, restates them.
"""

from __future__ import annotations

import random

import pytest
from idle_footprint import ROWS, idle

from kvsim.paging.physical.kvcached import Kvcached, KvcachedParameters

KIB = 1024

# (stride, first touched page): extents freed in order of use.
IN_ORDER_OF_USE = {
    (1, 1): 27,
    (2, 1): 24,
    (4, 1): 16,
    (8, 1): 1,
    # The other parity: multiples of the stride.
    (2, 2): 23,
    (4, 4): 15,
    (8, 8): 0,
}


def evicted(stride: int, first: int, page_aligned: bool) -> int:
    """Cache 4,096 pages, touch some, evict down to 512; return how many extents that frees."""
    model = Kvcached(KvcachedParameters(pages=8192, page_bytes=16 * KIB, layers=8))
    pages = model.allocate(4096)
    assert pages == list(range(1, 4097))
    assert model.used_extents == 33
    touched = range(first, 4097, stride)
    cached = [page for page in pages if page not in touched] + list(touched)
    model.let_go(model.victims(cached, 4096 - 512, page_aligned))
    model.check()
    assert model.figures().held_bytes == 512 * 16 * KIB * 8 * 2
    return 33 - model.used_extents


@pytest.mark.parametrize(("stride", "first"), IN_ORDER_OF_USE)
def test_bench_evict(stride, first):
    assert evicted(stride, first, page_aligned=False) == IN_ORDER_OF_USE[stride, first]
    assert evicted(stride, first, page_aligned=True) == 28


def test_bench_evict_in_gigabytes():
    """As published, in GiB of two digits."""
    extent = Kvcached(KvcachedParameters(pages=8192, page_bytes=16 * KIB, layers=8)).whole_bytes
    published = [f"{extents * extent / 2**30:.2f}" for extents in (27, 24, 16, 1, 28)]
    assert published == ["0.84", "0.75", "0.50", "0.03", "0.88"]


@pytest.mark.parametrize("stride", [1, 2, 4, 8, 16])
def test_bench_frag(stride):
    """Of 16,384 pages every so many-th stays, 1,024 in all: what they pin over what they are."""
    model = Kvcached(KvcachedParameters(pages=65536, page_bytes=16 * KIB, layers=16, null_pages=0))
    pages = model.allocate(16384)
    kept = pages[::stride][:1024]
    staying = set(kept)
    model.let_go([page for page in pages if page not in staying])
    model.trim()
    model.check()
    figures = model.figures()
    assert figures.mapped_bytes == stride * figures.held_bytes


# Running pages: eligible extents, extents in use, extents freed for budgets of 4, 16, 64, 128.
SIMULATED = {
    0: (86, 87, (3, 6, 14, 21)),
    200: (8, 89, (1, 2, 5, 8)),
    1000: (0, 89, (0, 0, 0, 0)),
}


def scattered(active: int) -> tuple[Kvcached, list[int]]:
    """Return a model with 1,000 cached pages and some running ones, and the cached in order."""
    model = Kvcached(KvcachedParameters(pages=14_016, page_bytes=32 * KIB, layers=36))
    rng = random.Random(7)
    free = list(range(1, 14_000))

    def take(count: int) -> list[int]:
        nonlocal free
        picks = rng.sample(range(min(len(free), 73 * 64)), count)
        # A set of small integers, as the benchmark's own loop goes through it.
        chosen = set(picks)
        pages = [free[place] for place in chosen]
        free = [page for place, page in enumerate(free) if place not in chosen]
        model.take(pages)
        return pages

    cached: list[int] = []
    while len(cached) < 1000:
        cached += take(min(rng.randint(8, 64), 1000 - len(cached)))
    if active:
        take(active)
    return model, cached


@pytest.mark.parametrize("place", range(4), ids=["4", "16", "64", "128"])
@pytest.mark.parametrize("active", SIMULATED)
def test_sim_eviction(active, place):
    eligible, used, freed = SIMULATED[active]
    model, cached = scattered(active)
    assert (len(model.eligible_extents(cached)), model.used_extents) == (eligible, used)
    model.let_go(model.victims(cached, (4, 16, 64, 128)[place]))
    model.check()
    assert used - model.used_extents == freed[place]


@pytest.fixture(scope="module")
def idle_extents():
    return {row: idle(row).model.used_extents for row in ROWS}


def test_idle_footprint(idle_extents):
    """The published run held 73, 37 and 22 extents; the packed floor is 16."""
    before = idle_extents["before"]
    assert idle_extents["page-aligned victims"] / before == pytest.approx(37 / 73, abs=0.1)
    assert idle_extents["best fit too"] / before == pytest.approx(22 / 73, abs=0.1)
    assert min(idle_extents.values()) >= 16


def test_decode_lengths_that_do_not_differ_scatter_less(idle_extents):
    """The control: the published run held 27 instead of 73 where every decode took 4 tokens."""
    short = idle("before", decode_tokens=(4, 4)).model.used_extents
    assert short < 0.6 * idle_extents["before"]
