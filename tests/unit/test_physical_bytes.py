"""PyTorch's caching allocator and CUDA's pool: byte maps as a recount, and known behaviour."""

from __future__ import annotations

import numpy as np
import pytest

from kvsim.errors import LedgerError, MemoryRefused
from kvsim.paging.physical.async_pool import AsyncPool, AsyncPoolParameters
from kvsim.paging.physical.blocks import FREE, HELD, UNMAPPED, Blocks
from kvsim.paging.physical.caching_allocator import CachingAllocator, CachingAllocatorParameters

KIB, MIB = 2**10, 2**20

# Small units, so that every path is taken often.
TINY = {
    "round_bytes": 8,
    "small_limit_bytes": 32,
    "small_segment_bytes": 64,
    "large_segment_bytes": 256,
    "large_limit_bytes": 128,
    "large_round_bytes": 64,
}


def torch(**values) -> CachingAllocator:
    return CachingAllocator(CachingAllocatorParameters(**values))


def cuda(**values) -> AsyncPool:
    return AsyncPool(AsyncPoolParameters(**values))


def lay_out(model) -> list[Blocks]:
    return [model._blocks] if isinstance(model, AsyncPool) else [model._small, model._large]


def recount(model, granules: dict[int, int] | None) -> tuple[int, int]:
    """Return mapped and parked bytes, found segment by segment, one block after the other."""
    mapped = parked = 0
    for number, blocks in enumerate(lay_out(model)):
        for head in [block for block in blocks if block.before is None]:
            chain = [head]
            while chain[-1].after is not None:
                chain.append(chain[-1].after)
            there = [block for block in chain if block.state != UNMAPPED]
            mapped += sum(block.size_bytes for block in there)
            if granules is None:
                if all(block.state == FREE for block in chain):
                    parked += sum(block.size_bytes for block in chain)
                continue
            # Granules that only free bytes cover, one granule at a time.
            size = granules[number]
            busy, seen = set(), set()
            for block in there:
                first = block.address - head.address
                touched = range(first // size, (first + block.size_bytes - 1) // size + 1)
                seen |= set(touched)
                if block.state == HELD:
                    busy |= set(touched)
            parked += size * len(seen - busy)
    return mapped, parked


CASES = {
    "segments": lambda: torch(**TINY),
    "a small device": lambda: torch(**TINY, capacity_bytes=2048),
    "large blocks are not split": lambda: torch(**TINY, max_split_bytes=300),
    "expandable": lambda: torch(**TINY, expandable_segments=True),
    "expandable, small device": lambda: torch(
        **TINY, expandable_segments=True, capacity_bytes=2048
    ),
    "async": lambda: cuda(align_bytes=8, chunk_bytes=64),
    "async, small device": lambda: cuda(align_bytes=8, chunk_bytes=64, capacity_bytes=2048),
    "async that keeps": lambda: cuda(align_bytes=8, chunk_bytes=64, release_threshold_bytes=512),
}


@pytest.mark.parametrize("name", CASES)
def test_random_sizes_against_a_recount(name):
    rng = np.random.default_rng(len(name))
    model = CASES[name]()
    granules = {0: 64, 1: 256} if "expandable" in name else None
    held: dict[int, int] = {}
    refused = 0
    for step in range(600):
        if rng.random() < (0.65 if step % 120 < 60 else 0.3):
            size = int(rng.integers(1, rng.choice([33, 129, 700])))
            before = model.figures()
            try:
                address = model.allocate(size)
            except MemoryRefused:
                refused += 1
                assert model.figures() == before
                # Even an emptied device has no such room, one segment or some granules at most.
                assert before.mapped_bytes - before.parked_bytes + size + 512 > 2048
            else:
                # No two allocations share a byte.
                assert all(address + size <= a or a + s <= address for a, s in held.items())
                held[address] = size
        elif held:
            address = int(rng.choice(list(held)))
            model.free(address)
            del held[address]
        if step % 50 == 49:
            parked = model.figures().parked_bytes
            mapped = model.figures().mapped_bytes
            if isinstance(model, AsyncPool):
                given = model.synchronize()
                keep = model.parameters.release_threshold_bytes
                assert given <= parked
                assert model.figures().parked_bytes == 0 or mapped - given <= keep
                assert mapped - given + 700 + 64 > min(keep, mapped)
            else:
                assert model.empty_cache() == parked
                assert model.figures().parked_bytes == 0
        model.check()
        figures = model.figures()
        assert figures.held_bytes == sum(held.values())
        assert (figures.mapped_bytes, figures.parked_bytes) == recount(model, granules)
        if model.parameters.capacity_bytes:
            assert figures.mapped_bytes <= 2048
    assert (refused > 0) == ("small device" in name)
    for address in held:
        model.free(address)
    model.synchronize() if isinstance(model, AsyncPool) else model.empty_cache()
    model.check()
    keep = 512 if name == "async that keeps" else 0
    assert model.figures().mapped_bytes <= keep


@pytest.mark.parametrize(
    ("size", "block", "segment"),
    [
        (1, 512, 2 * MIB),
        (513, 1024, 2 * MIB),
        (MIB, MIB, 2 * MIB),
        (MIB + 1, MIB + 512, 20 * MIB),
        (10 * MIB - 512, 10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB, 10 * MIB),
        (21 * MIB + 1, 21 * MIB + 512, 22 * MIB),
    ],
)
def test_pytorch_rounds_and_picks_segments(size, block, segment):
    model = torch()
    model.allocate(size)
    assert model.rounded(size) == block
    assert model.figures() == (size, segment - size, 0, 0)


def test_pytorch_keeps_what_is_freed_until_its_cache_is_emptied():
    model = torch()
    first, second = model.allocate(MIB), model.allocate(MIB)
    assert model.figures().mapped_bytes == 2 * MIB
    model.free(first)
    assert model.figures() == (MIB, MIB, 0, 0)
    assert model.empty_cache() == 0
    model.free(second)
    assert model.figures() == (0, 0, 2 * MIB, 0)
    assert model.empty_cache() == 2 * MIB
    assert model.figures() == (0, 0, 0, 2 * MIB)


def test_pytorch_does_not_split_off_a_megabyte_or_less_from_a_large_block():
    model = torch()
    model.allocate(19 * MIB)
    assert model.counters()["splits_total"] == 0
    model.allocate(19 * MIB - 512)
    # From 10 MiB on, each has a segment of its own, rounded up to 2 MiB.
    assert model.figures().mapped_bytes == 40 * MIB
    assert model.counters()["splits_total"] == 1


def test_pytorch_splits_a_small_block_to_the_last_512_bytes():
    model = torch()
    for size in (MIB, MIB - 512, 512):
        model.allocate(size)
    assert model.figures() == (2 * MIB, 0, 0, 0)


@pytest.mark.parametrize(("size", "more"), [(30, 30), (50, 50), (80, 80), (82, 0), (100, 0)])
def test_pytorch_saves_a_block_that_is_not_split_for_sizes_near_its_own(size, more):
    model = torch(max_split_bytes=40 * MIB)
    model.free(model.allocate(100 * MIB))
    model.allocate(size * MIB)
    assert model.figures().mapped_bytes == (100 + more) * MIB
    assert model.counters()["splits_total"] == 0


def test_expandable_segments_use_up_holes_before_the_block_that_can_grow():
    model = torch(expandable_segments=True)
    hole = model.allocate(12 * MIB)
    model.allocate(2 * MIB)
    # Behind it lie 6 MiB that are mapped and could grow; the hole has 12 and cannot.
    model.free(hole)
    assert model.allocate(4 * MIB) == hole


def test_expandable_segments_return_what_segments_cannot():
    """A small allocation in a large freed block pins a segment, or one granule of it."""
    left = {}
    for expandable in (False, True):
        model = torch(expandable_segments=expandable)
        model.free(model.allocate(100 * MIB))
        model.allocate(2 * MIB)
        model.empty_cache()
        model.check()
        left[expandable] = model.figures().mapped_bytes
    assert left == {False: 100 * MIB, True: 20 * MIB}


def test_expandable_segments_grow_in_place():
    """Freed neighbours serve a larger size with a little more memory; segments cannot."""
    grown = {}
    for expandable in (False, True):
        model = torch(expandable_segments=expandable)
        for address in [model.allocate(40 * MIB) for _ in range(2)]:
            model.free(address)
        model.allocate(100 * MIB)
        model.check()
        grown[expandable] = model.figures().mapped_bytes
    assert grown == {False: 180 * MIB, True: 100 * MIB}


def test_a_full_device_empties_the_cache_first():
    model = torch(capacity_bytes=24 * MIB)
    model.free(model.allocate(20 * MIB))
    model.allocate(22 * MIB)
    assert model.figures().mapped_bytes == 22 * MIB
    with pytest.raises(MemoryRefused):
        model.allocate(4 * MIB)
    model.check()


def test_emptying_the_cache_does_not_help_where_the_run_itself_is_cached():
    """40 MiB of the run are parked: emptied, they would have to be mapped again."""
    model = torch(capacity_bytes=60 * MIB, expandable_segments=True)
    model.free(model.allocate(40 * MIB))
    with pytest.raises(MemoryRefused):
        model.allocate(70 * MIB)
    assert model.figures() == (0, 0, 40 * MIB, 0)
    model.allocate(60 * MIB)
    assert model.figures() == (60 * MIB, 0, 0, 0)
    model.check()


@pytest.mark.parametrize(
    ("threshold", "left"), [(0, 0), (3 * MIB, 2 * MIB), (4 * MIB, 4 * MIB), (64 * MIB, 8 * MIB)]
)
def test_cuda_returns_at_synchronisations_down_to_its_threshold(threshold, left):
    model = cuda(release_threshold_bytes=threshold)
    addresses = [model.allocate(2 * MIB) for _ in range(4)]
    for address in addresses:
        model.free(address)
    assert model.figures() == (0, 0, 8 * MIB, 0)
    model.synchronize()
    assert model.figures() == (0, 0, left, 8 * MIB - left)
    assert model.trim_to(0) == left


def test_the_newest_chunk_goes_back_first():
    model = cuda()
    for address in [model.allocate(2 * MIB), model.allocate(6 * MIB)]:
        model.free(address)
    assert model.trim_to(7 * MIB) == 6 * MIB


def test_a_held_allocation_pins_its_chunk():
    model = cuda()
    addresses = [model.allocate(MIB) for _ in range(4)]
    model.free(addresses[0])
    model.free(addresses[3])
    assert model.synchronize() == 0
    assert model.figures() == (2 * MIB, 2 * MIB, 0, 0)


BAD = [
    (torch, {"round_bytes": 0}),
    (torch, {"round_bytes": 3}),
    (torch, {"capacity_bytes": -1}),
    (torch, {"small_limit_bytes": 4 * MIB}),
    (torch, {"large_limit_bytes": 40 * MIB}),
    (torch, {"max_split_bytes": MIB}),
    (torch, {"expandable_segments": "yes"}),
    (torch, {"expandable_segments": True, "max_split_bytes": 40 * MIB}),
    (cuda, {"align_bytes": 3}),
    (cuda, {"release_threshold_bytes": 0.5}),
]


@pytest.mark.parametrize(
    ("make", "values"), BAD, ids=lambda one: getattr(one, "__name__", str(one))
)
def test_bad_parameters(make, values):
    with pytest.raises(LedgerError):
        make(**values)


@pytest.mark.parametrize("make", [torch, cuda])
def test_refused_verbs(make):
    model = make()
    address = model.allocate(1000)
    for call in (
        lambda: model.allocate(0),
        lambda: model.allocate(1.5),
        lambda: model.allocate(2**62),
        lambda: model.free(address + 1),
        lambda: model.free(None),
    ):
        with pytest.raises(LedgerError):
            call()
    model.free(address)
    with pytest.raises(LedgerError):
        model.free(address)
    model.check()


TAMPERED = {
    "asked": lambda m, b: setattr(m, "_asked_bytes", 1),
    "a gap": lambda m, b: setattr(next(iter(b)), "size_bytes", 8),
    "a link": lambda m, b: setattr(next(iter(b)).after, "before", None),
    "not merged": lambda m, b: setattr(next(iter(b)), "state", FREE),
    "a free block unknown": lambda m, b: b._free.clear(),
    "mapped": lambda m, b: m._meter.map(1),
}


@pytest.mark.parametrize("spoil", TAMPERED.values(), ids=TAMPERED.keys())
@pytest.mark.parametrize("make", [torch, cuda])
def test_check_notices(make, spoil):
    model = make()
    model.allocate(1000)
    model.check()
    spoil(model, lay_out(model)[0])
    with pytest.raises(LedgerError, match="check failed"):
        model.check()
