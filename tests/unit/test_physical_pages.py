"""Models that are told of pages, against dumb recounts; sequences reserved contiguously."""

from __future__ import annotations

import numpy as np
import pytest

from kvsim.errors import CeilingExceeded, LedgerError, MemoryRefused
from kvsim.paging.physical.async_pool import AsyncPool, AsyncPoolParameters
from kvsim.paging.physical.contiguous import Contiguous, ContiguousParameters
from kvsim.paging.physical.fixed_pool import FixedPool, FixedPoolParameters
from kvsim.paging.physical.mapped_exactly import ExtentsParameters, MappedExactly
from kvsim.paging.physical.page_by_page import PageByPage
from kvsim.paging.physical.slab import Slab, SlabParameters
from kvsim.paging.physical.token_pool import TokenPool, TokenPoolParameters

PAGES = 50
SIZE = 24


def slab(parked: int = 0, null: int = 0) -> Slab:
    return Slab(
        SlabParameters(
            pages=PAGES, page_bytes=SIZE, slab_pages=8, parked_slabs=parked, null_pages=null
        )
    )


def mapped(compound: bool) -> MappedExactly:
    # Extents that a page does not divide: pages straddle.
    return MappedExactly(
        ExtentsParameters(
            pages=PAGES, page_bytes=SIZE, layers=3, extent_bytes=64, compound=compound
        )
    )


def fixed() -> FixedPool:
    return FixedPool(FixedPoolParameters(pages=PAGES, page_bytes=SIZE))


def tokens() -> TokenPool:
    return TokenPool(TokenPoolParameters(slots=PAGES, token_bytes=SIZE))


def by_page() -> PageByPage:
    pool = AsyncPool(AsyncPoolParameters(align_bytes=8, chunk_bytes=64))
    return PageByPage(pool, PAGES, SIZE)


MODELS = {
    "fixed": fixed,
    "tokens": tokens,
    "slab": slab,
    "slab that parks": lambda: slab(2),
    "slab with null pages": lambda: slab(1, 3),
    "extents": lambda: mapped(False),
    "extents, compound": lambda: mapped(True),
    "page by page": by_page,
}


def slabs(pages) -> int:
    """Bytes of the slabs of some pages; the last slab has two pages."""
    return sum(SIZE * min(8, PAGES - 8 * s) for s in {page // 8 for page in pages})


def covered(pages, width: int) -> int:
    """Bytes of the extents that pages overlap, one byte at a time."""
    return 64 * len({byte // 64 for p in pages for byte in range(p * width, (p + 1) * width)})


# What is mapped because of the taken pages, parked memory aside, and the bytes that they hold.
MAPPED = {
    "fixed": lambda taken: (PAGES * SIZE, SIZE),
    "tokens": lambda taken: (PAGES * SIZE, SIZE),
    "slab": lambda taken: (slabs(taken), SIZE),
    "slab that parks": lambda taken: (slabs(taken), SIZE),
    "slab with null pages": lambda taken: (slabs({0, 1, 2} | taken), SIZE),
    "extents": lambda taken: (6 * covered(taken, SIZE), 6 * SIZE),
    "extents, compound": lambda taken: (covered(taken, 6 * SIZE), 6 * SIZE),
}
NULL = {"fixed": 1, "tokens": 1, "slab with null pages": 3}


@pytest.mark.parametrize("name", MODELS)
def test_random_pages_against_a_recount(name):
    rng = np.random.default_rng(len(name))
    model = MODELS[name]()
    taken: set[int] = set()
    peak = model.figures().mapped_bytes
    came_back = 0
    for step in range(300):
        room = [page for page in range(NULL.get(name, 0), PAGES) if page not in taken]
        if rng.random() < (0.7 if step % 100 < 50 else 0.3):
            some = rng.permutation(room)[: rng.integers(0, 9)].tolist()
            model.take(some)
            taken |= set(some)
        else:
            some = rng.permutation(sorted(taken))[: rng.integers(0, 12)].tolist()
            model.let_go(some)
            taken -= set(some)
        model.check()
        figures = model.figures()
        peak = max(peak, figures.mapped_bytes)
        assert figures.returned_bytes == peak - figures.mapped_bytes
        came_back = max(came_back, figures.returned_bytes)
        if name in MAPPED:
            used, width = MAPPED[name](taken)
            assert figures.held_bytes == width * len(taken)
            assert figures.held_bytes + figures.empty_bytes == used
        else:
            assert figures.held_bytes == SIZE * len(taken)
    assert (came_back == 0) == (name in ("fixed", "tokens", "page by page"))


@pytest.mark.parametrize("name", MODELS)
def test_refused_verbs_change_nothing(name):
    model = MODELS[name]()
    model.take([5, 9])
    before = model.figures(), model.counters()
    for verb, pages in (
        (model.take, [10, 5]),
        (model.take, [10, 10]),
        (model.take, [PAGES]),
        (model.take, [-1]),
        (model.take, [1.0]),
        (model.take, [True]),
        (model.take, [NULL.get(name, 0) - 1]),
        (model.let_go, [5, 6]),
        (model.let_go, [5, 5]),
    ):
        with pytest.raises(LedgerError):
            verb(pages)
        assert (model.figures(), model.counters()) == before
    model.check()


@pytest.mark.parametrize("name", MODELS)
def test_check_notices(name):
    model = MODELS[name]()
    model.take([5, 9])
    model.check()
    model._taken._taken[20] = 1
    with pytest.raises(LedgerError, match="check failed"):
        model.check()
    model._taken.count += 1
    model._taken.taken_total += 1
    if name != "fixed":
        with pytest.raises(LedgerError, match="check failed"):
            model.check()


def test_slabs_park_up_to_their_limit_and_trim():
    model = slab(parked=1)
    model.take([0, 8, 16])
    model.let_go([0, 8, 16])
    assert model.figures() == (0, 0, 8 * SIZE, 16 * SIZE)
    model.take([1])
    assert model.counters()["mapped_bytes_total"] == 24 * SIZE
    model.let_go([1])
    assert model.trim() == 8 * SIZE
    assert model.figures() == (0, 0, 0, 24 * SIZE)
    model.check()


def test_a_slot_that_came_free_first_is_handed_out_first():
    model = tokens()
    assert model.allocate(3) == [1, 2, 3]
    model.let_go([2])
    assert model.allocate(1) == [4]
    assert len(model.allocate(PAGES - 4)) == PAGES - 4
    model.let_go([7, 2])
    with pytest.raises(CeilingExceeded):
        model.allocate(3)
    assert model.allocate(2) == [7, 2]
    model.check()


def test_a_page_that_the_allocator_refuses():
    pool = AsyncPool(AsyncPoolParameters(align_bytes=8, chunk_bytes=64, capacity_bytes=128))
    model = PageByPage(pool, PAGES, SIZE)
    model.take([0, 1])
    with pytest.raises(MemoryRefused):
        model.take([2, 3, 4])
    assert model.figures().held_bytes == 2 * SIZE
    model.check()


def contiguous(**values) -> Contiguous:
    return Contiguous(ContiguousParameters(**({"token_bytes": 10, "max_tokens": 100} | values)))


@pytest.mark.parametrize("free_after", [False, True])
def test_contiguous_against_a_recount(free_after):
    rng = np.random.default_rng(3)
    model = contiguous(slots=4, free_after=free_after)
    live: dict[int, list[int]] = {}
    most = mapped_now = 0
    for _ in range(400):
        verb = rng.integers(0, 8)
        some = int(rng.choice(list(live))) if live else None
        if verb == 0 and len(live) < 4:
            live[model.open()] = [0, 0]
        elif some is not None and verb < 4:
            count = int(rng.integers(0, 101 - live[some][0]))
            model.append(some, count)
            live[some][0] += count
            live[some][1] += count
        elif some is not None and verb < 7:
            count = int(rng.integers(0, live[some][1] + 1))
            model.evict(some, count)
            live[some][1] -= count
        elif some is not None:
            model.free(some)
            del live[some]
        model.check()
        figures = model.figures()
        most = max(most, len(live))
        mapped_now = len(live) if free_after else most
        held = 10 * sum(alive for _, alive in live.values())
        parked = mapped_now - len(live)
        assert figures == (
            held,
            1000 * len(live) - held,
            1000 * parked,
            1000 * (most - mapped_now),
        )
        counters = model.counters()
        assert counters["dead_slots"] == sum(w - a for w, a in live.values())
        assert counters["tail_slots"] == sum(100 - w for w, _ in live.values())
    assert most == 4


def test_contiguous_refuses():
    model = contiguous(slots=1)
    sequence = model.open()
    model.append(sequence, 60)
    model.evict(sequence, 50)
    for verb, error in (
        (model.open, MemoryRefused),
        # Evicting made no room behind the cursor.
        (lambda: model.append(sequence, 41), MemoryRefused),
        (lambda: model.append(sequence, -1), LedgerError),
        (lambda: model.evict(sequence, 11), LedgerError),
        (lambda: model.free(7), LedgerError),
    ):
        with pytest.raises(error):
            verb()
    assert model.figures() == (100, 900, 0, 0)
    model.free(sequence)
    assert model.figures() == (0, 0, 1000, 0)
    assert model.trim() == 1000
    model.check()
    model._live = 1
    with pytest.raises(LedgerError):
        model.check()
