"""Extents against a recount byte by byte, and the recount against planted errors."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from kvsim.errors import LayoutError, LedgerError, MemoryRefused
from kvsim.paging.physical import BufferSpec, Extents, Orders, buffers_of
from kvsim.paging.physical import extents as module

EXTENT = 64


def by_bytes(spec: BufferSpec, owner: list[int]) -> set[int]:
    """Return the extents that hold a byte of a held page, found one byte at a time."""
    return {
        byte // EXTENT
        for page, scope in enumerate(owner)
        if scope >= 0 and spec.scope in (None, scope)
        for byte in range(page * spec.page_bytes, (page + 1) * spec.page_bytes)
    }


def expanded(runs: list[tuple[int, int, int]]) -> list[tuple[int, int]]:
    return [(buffer, extent) for buffer, first, n in runs for extent in range(first, first + n)]


def carried_out(orders: Orders, mapped: set[tuple[int, int]]) -> None:
    """Carry orders out on a set, and insist that none is idle, doubled or out of order."""
    arrived, left = expanded(orders.map), expanded(orders.give_back)
    assert arrived == sorted(set(arrived))
    assert left == sorted(set(left))
    assert not mapped & set(arrived)
    assert mapped >= set(left)
    # Runs are as long as they can be: none begins where the one before ended.
    for runs in (orders.map, orders.give_back):
        for (buffer, first, count), (other, begin, _) in itertools.pairwise(runs):
            assert (buffer, first + count) != (other, begin)
    mapped |= set(arrived)
    mapped -= set(left)


# Smaller than an extent and dividing it, equal, a multiple, and straddling either way.
SIZES = {"smaller": 16, "equal": 64, "larger": 256, "straddle": 40, "odd": 7, "straddle more": 150}


@pytest.mark.parametrize("scopes", [0, 3], ids=["one scope", "three scopes"])
@pytest.mark.parametrize("page_bytes", SIZES.values(), ids=SIZES.keys())
def test_random_pages_against_bytes(page_bytes, scopes):
    rng = np.random.default_rng([page_bytes, scopes])
    # Buffers that are mapped alike do not stand side by side, and orders ascend all the same.
    specs = [BufferSpec("all", page_bytes), BufferSpec("b", 24), BufferSpec("twin", page_bytes)]
    specs += [BufferSpec(f"s{s}", page_bytes + 8 * (s == 2), s) for s in range(scopes)]
    extents = Extents(specs, EXTENT)
    extents.resize(5)
    owner = np.full(5, -1)
    mapped: set[tuple[int, int]] = set()
    taken = given = 0
    for step in range(120):
        if step % 20 == 19:
            extents.resize(extents.pages + int(rng.integers(0, 9)))
            owner = np.concatenate([owner, np.full(extents.pages - owner.size, -1)])
        # A few pages change, or very many; some to another scope unit without being let go.
        some = rng.random(owner.size) < rng.choice([0.02, 0.2, 0.9])
        owner = np.where(some, rng.integers(-1, max(scopes, 1), owner.size), owner)
        if step % 40 == 39:
            owner[:] = -1
        held = owner >= 0
        # What stands in the scope of a page that is not held must not matter.
        stale = np.where(held, owner, rng.integers(-1, 3, owner.size)).astype(np.int32)
        given_scopes = stale if scopes else None
        orders = extents.update(held, given_scopes)
        carried_out(orders, mapped)
        wanted = {(b, e) for b, spec in enumerate(specs) for e in by_bytes(spec, owner.tolist())}
        assert mapped == wanted
        for number, spec in enumerate(specs):
            assert extents.buffer_bytes(number) % EXTENT == 0
            assert 0 <= extents.buffer_bytes(number) - extents.pages * spec.page_bytes < EXTENT
            mine = {e for b, e in wanted if b == number}
            assert set(np.flatnonzero(extents.mapped(number)).tolist()) == mine
        taken += len(expanded(orders.map))
        given += len(expanded(orders.give_back))
        covered = sum(
            spec.page_bytes * sum(s >= 0 and spec.scope in (None, s) for s in owner.tolist())
            for spec in specs
        )
        assert extents.mapped_extents == len(wanted)
        assert extents.mapped_bytes == len(wanted) * EXTENT
        assert extents.mapped_extents_total == taken
        assert extents.returned_extents_total == given
        assert extents.returned_bytes_total == given * EXTENT
        assert extents.empty_mapped_bytes == len(wanted) * EXTENT - covered
        extents.recount(held, given_scopes)
    # The patterns reached both kinds of order often.
    assert taken >= given > 50


def some_extents(rng: np.random.Generator) -> tuple[Extents, np.ndarray, np.ndarray]:
    specs = [BufferSpec("a", 40), BufferSpec("a2", 40), BufferSpec("b", 150, 1)]
    extents = Extents(specs, EXTENT)
    extents.resize(100)
    held = rng.random(100) < 0.3
    scope = rng.integers(0, 2, 100)
    extents.update(held, scope)
    extents.recount(held, scope)
    return extents, held, scope


def tampered_count(extents: Extents, at: int, by: int) -> None:
    extents._groups[at].counts[7] += by


TAMPERED = {
    "a count too high": lambda e: tampered_count(e, 0, 1),
    "a count too low": lambda e: tampered_count(e, 1, -1),
    "a buffer too long": lambda e: setattr(
        e._groups[0], "counts", np.append(e._groups[0].counts, 0)
    ),
    "a buffer too short": lambda e: setattr(e._groups[1], "counts", e._groups[1].counts[:-1]),
    "the stock of mapped extents": lambda e: setattr(e._groups[1], "mapped_extents", 3),
    "the held pages": lambda e: setattr(e._groups[0], "held_pages", 3),
    "extents mapped": lambda e: setattr(e, "mapped_extents_total", 3),
    "extents given back": lambda e: setattr(e, "returned_extents_total", 3),
}


@pytest.mark.parametrize("tamper", TAMPERED.values(), ids=TAMPERED.keys())
def test_the_recount_notices_what_is_tampered_with(tamper):
    extents, held, scope = some_extents(np.random.default_rng(5))
    tamper(extents)
    with pytest.raises(LedgerError, match="check failed"):
        extents.recount(held, scope)


@pytest.mark.parametrize("what", ["held", "scope"])
def test_the_recount_notices_pages_that_nobody_told_of(what):
    extents, held, scope = some_extents(np.random.default_rng(6))
    page = int(np.flatnonzero(held)[0])
    if what == "held":
        held[page] = False
    else:
        scope[page] = 1 - scope[page]
    with pytest.raises(LedgerError, match="not told of"):
        extents.recount(held, scope)


@pytest.mark.parametrize("slip", ["forgets the straddled extent", "touches one too many"])
def test_the_recount_notices_a_wrong_rule(monkeypatch, slip):
    right = module._Group.change

    def wrong(group, pages, signs, extent_bytes):
        true_bytes = group.page_bytes
        # As if a page ended earlier, or went on into the next extent.
        group.page_bytes = true_bytes - 8 if slip.startswith("forgets") else true_bytes + 8
        group.counts = np.append(group.counts, np.zeros(20, np.int64))
        try:
            return right(group, pages, signs, extent_bytes)
        finally:
            group.page_bytes = true_bytes
            group.counts = group.counts[:-20]

    monkeypatch.setattr(module._Group, "change", wrong)
    with pytest.raises(LedgerError, match="wrong extents"):
        some_extents(np.random.default_rng(7))


def test_nothing_changed_gives_no_orders():
    extents, held, scope = some_extents(np.random.default_rng(8))
    before = extents.mapped_extents_total
    assert extents.update(held, scope) == Orders([], [])
    assert extents.mapped_extents_total == before
    nothing = Extents([], EXTENT)
    nothing.resize(3)
    assert nothing.update(np.ones(3, bool)) == Orders([], [])
    assert nothing.mapped_bytes == nothing.empty_mapped_bytes == 0
    nothing.recount(np.ones(3, bool))


REFUSED = {
    "too few pages": (np.zeros(99, bool), np.zeros(99, np.int64)),
    "held as integers": (np.zeros(100, np.int64), np.zeros(100, np.int64)),
    "no scopes": (np.ones(100, bool), None),
    "scopes of another length": (np.ones(100, bool), np.zeros(99, np.int64)),
    "scopes as floats": (np.ones(100, bool), np.zeros(100)),
    "a held page of no scope unit": (np.ones(100, bool), np.full(100, -1)),
}


@pytest.mark.parametrize(("held", "scope"), REFUSED.values(), ids=REFUSED.keys())
def test_a_refused_update_changes_nothing(held, scope):
    extents, before, scopes = some_extents(np.random.default_rng(9))
    with pytest.raises(LedgerError):
        extents.update(held, scope)
    extents.recount(before, scopes)


def test_sizes_that_cannot_be_are_refused():
    with pytest.raises(LayoutError, match="page_bytes"):
        BufferSpec("a", 0)
    with pytest.raises(LayoutError, match="scope"):
        BufferSpec("a", 1, -1)
    with pytest.raises(LayoutError, match="extent_bytes"):
        Extents([], 0)
    extents = Extents([BufferSpec("a", 2**30)], 2 << 20)
    extents.resize(4)
    with pytest.raises(LedgerError, match="shrink"):
        extents.resize(3)
    with pytest.raises(MemoryRefused):
        extents.resize(2**33)
    assert extents.pages == 4


LLAMA = {"kv": {"K": [8 * 64 * 4] * 16, "V": [8 * 64 * 4] * 16}}


@pytest.mark.parametrize(
    ("plane_layout", "buffers", "pages_per_extent"), [("page_major", 2, 4), ("layer_major", 32, 64)]
)
def test_pages_in_an_extent_of_llama_3_2_1b(plane_layout, buffers, pages_per_extent):
    # 16 layers, 8 KV heads of 64, float32, pages of 16 tokens, extents of 2 MiB.
    specs = buffers_of(plane_layout, LLAMA, page_tokens=16)
    assert len(specs) == buffers
    extents = Extents(specs, 2 << 20)
    extents.resize(256)
    whole = np.zeros(256, bool)
    whole[: 2 * pages_per_extent] = True
    orders = extents.update(whole)
    assert orders.map == [(number, 0, 2) for number in range(buffers)]
    assert extents.empty_mapped_bytes == 0
    # One page left in the first keeps it; only the second goes back.
    whole[1 : 2 * pages_per_extent] = False
    assert extents.update(whole) == Orders([], [(number, 1, 1) for number in range(buffers)])
    page_bytes = 16 * 2 * 16 * 2048
    assert extents.empty_mapped_bytes == buffers * (2 << 20) - page_bytes
    # All pages take the same bytes in both layouts.
    assert sum(spec.page_bytes for spec in specs) == page_bytes


def test_buffers_of_names_and_scopes():
    planes = {"kv": {"K": [4, 8], "V": [4, 0]}, "index": {"K": [0, 16]}}
    assert buffers_of("page_major", planes, 2, {"kv": 0, "index": 5}) == [
        BufferSpec("kv.K", 24, 0),
        BufferSpec("kv.V", 8, 0),
        BufferSpec("index.K", 32, 5),
    ]
    # A layer that a family leaves out has no buffer.
    assert buffers_of("layer_major", planes, 2) == [
        BufferSpec("kv.K.0", 8),
        BufferSpec("kv.K.1", 16),
        BufferSpec("kv.V.0", 8),
        BufferSpec("index.K.1", 32),
    ]
    with pytest.raises(LayoutError, match="page_major, layer_major"):
        buffers_of("head_major", planes, 2)
    with pytest.raises(LayoutError, match="scope unit"):
        buffers_of("page_major", planes, 2, {"kv": 0})
    with pytest.raises(LayoutError, match="page_tokens"):
        buffers_of("page_major", planes, 0)
    with pytest.raises(LayoutError, match=r"kv\.K"):
        buffers_of("page_major", {"kv": {"K": [-4]}}, 2)
