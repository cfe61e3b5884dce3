"""Victims by extent: three rules against dumb ones that count everything anew, and their limits."""

from __future__ import annotations

import numpy as np
import pytest

from kvsim.errors import LedgerError
from kvsim.paging.physical.kvcached import Kvcached, KvcachedParameters
from kvsim.paging.physical.kvcached_victims import (
    GONE,
    broken,
    chain_aware,
    ends_of_chains,
    page_aligned,
    unreachable,
)

MIB = 2**20


def reached(page: int, parents: dict[int, int], gone: set[int]) -> bool:
    """Walk from a page to the first of its chain."""
    while page not in gone:
        if page not in parents:
            return True
        page = parents[page]
    return False


def dumb_unreachable(cached: list[int], parents: dict[int, int], gone: set[int]) -> set[int]:
    return {page for page in cached if not reached(page, parents, gone | {GONE})}


def dumb_chain_aware(cached, eligible, count, parents) -> list[int]:
    """The rule as its docstring has it: what is cut off is counted from scratch each time."""
    found: list[int] = []
    left = dict(eligible)
    while True:
        best = None
        for extent, ids in left.items():
            if len(found) + len(ids) > count:
                continue
            outside = [page for page in cached if page not in found and page not in ids]
            before = dumb_unreachable(outside, parents, set(found))
            after = dumb_unreachable(outside, parents, {*found, *ids})
            key = (len(after - before), len(ids), max(map(cached.index, ids)))
            if best is None or key < best[0]:
                best = (key, extent)
        if best is None:
            return found
        found += left.pop(best[1])


def drawn(rng: np.random.Generator):
    """Cached pages of chains that fork, miss parents and hang on held pages; and the extents."""
    pages = rng.permutation(60).tolist()
    cached, held = pages[: rng.integers(1, 45)], pages[45:50]
    parents: dict[int, int] = {}
    for place, page in enumerate(cached):
        kind = rng.random()
        if kind < 0.7 and place:
            parents[page] = cached[rng.integers(max(0, place - 4), place)]
        elif kind < 0.75:
            parents[page] = GONE
        elif kind < 0.8:
            parents[page] = held[0]
    order = rng.permutation(cached).tolist()
    groups: dict[int, list[int]] = {}
    for page in order:
        groups.setdefault(page // 6, []).append(page)
    eligible = {extent: ids for extent, ids in groups.items() if rng.random() < 0.7}
    return order, eligible, parents


def test_the_rule_of_chains_against_a_count_from_scratch():
    rng = np.random.default_rng(11)
    differ = less = more = 0
    for _ in range(150):
        cached, eligible, parents = drawn(rng)
        count = int(rng.integers(0, len(cached) + 2))
        found = chain_aware(cached, eligible, count, parents)
        assert found == dumb_chain_aware(cached, eligible, count, parents)
        other = page_aligned(cached, eligible, count)
        differ += found != other
        mine, his = (
            len(dumb_unreachable([p for p in cached if p not in gone], parents, set(gone)))
            for gone in (found, other)
        )
        less += mine < his
        more += mine > his
    # The control: chains matter. More are lost now and then, where it takes more extents.
    assert differ > 75
    assert less > 2 * more


def test_what_cannot_be_reached_against_a_walk():
    rng = np.random.default_rng(12)
    for _ in range(100):
        cached, _, parents = drawn(rng)
        gone = set(rng.permutation(cached)[: rng.integers(0, 9)].tolist())
        left = [page for page in cached if page not in gone]
        lost = dumb_unreachable(left, parents, gone)
        assert unreachable(left, parents, gone) == lost
        orphans = sum(parents.get(page) in gone | {GONE} for page in left)
        assert broken(left, parents, gone) == (orphans, len(lost))


def test_ends_of_chains_cut_nothing_off():
    rng = np.random.default_rng(13)
    controls = 0
    for _ in range(100):
        cached, eligible, parents = drawn(rng)
        count = int(rng.integers(0, len(cached) + 2))
        chosen = chain_aware(cached, eligible, count // 2, parents)
        rest = count - len(chosen)
        found = ends_of_chains(cached, chosen, rest, parents)
        assert len(found) == min(max(0, rest), len(cached) - len(chosen))
        assert not set(found) & set(chosen)
        left = [page for page in cached if page not in chosen]
        before = dumb_unreachable(left, parents, set(chosen))
        after = dumb_unreachable(left, parents, {*chosen, *found})
        assert after - before <= set(found)
        # The unreachable go first, the oldest of them first.
        lost = [page for page in left if page in before]
        assert found[: len(lost)] == lost[:rest]
        # The control: in order of use alone, pages are cut off.
        old = left[:rest]
        controls += bool(dumb_unreachable(left, parents, {*chosen, *old}) - before - set(old))
    assert controls > 30


def test_a_chain_over_extents_is_taken_from_its_end():
    """Three extents of two pages, one chain through all: page-aligned begins with its head."""
    cached = [1, 2, 3, 4, 5, 6]
    eligible = {0: [1, 2], 1: [3, 4], 2: [5, 6]}
    parents = {2: 1, 3: 2, 4: 3, 5: 4, 6: 5}
    assert page_aligned(cached, eligible, 4) == [1, 2, 3, 4]
    assert broken([5, 6], parents, [1, 2, 3, 4]) == (1, 2)
    assert chain_aware(cached, eligible, 4, parents) == [5, 6, 3, 4]
    assert broken([1, 2], parents, [5, 6, 3, 4]) == (0, 0)


def test_an_extent_that_does_not_fit_ends_one_rule_and_not_the_other():
    cached = [1, 2, 3, 4, 5]
    eligible = {0: [1, 2, 3], 1: [4, 5]}
    parents = {4: 1}
    # Both extents; the one of three pages cuts page 4 off, the other nothing.
    assert page_aligned(cached, eligible, 3) == [4, 5]
    assert chain_aware(cached, eligible, 3, {1: 4}) == [1, 2, 3]
    assert chain_aware(cached, eligible, 4, {}) == page_aligned(cached, eligible, 4) == [4, 5]
    eligible = {0: [1, 2, 3], 1: [4]}
    parents = {2: 4}
    assert page_aligned(cached, eligible, 3) == [4]
    assert chain_aware(cached, eligible, 3, parents) == [1, 2, 3]


def test_ties_go_to_the_extent_whose_latest_use_is_oldest():
    cached = [5, 1, 6, 2]
    assert chain_aware(cached, {0: [1, 2], 2: [5, 6]}, 2, {}) == [5, 6]
    assert chain_aware([5, 1, 2, 6], {0: [1, 2], 2: [5, 6]}, 2, {}) == [1, 2]


def model() -> Kvcached:
    return Kvcached(
        KvcachedParameters(pages=64, page_bytes=MIB // 4, layers=3, reserve_min=0, reserve_max=2)
    )


def test_the_allocator_hands_its_extents_to_the_rules():
    mine = model()
    pages = mine.allocate(20)
    cached = pages[::-1]
    parents = dict(zip(pages[1:], pages, strict=False))
    # Page 0 is null, so the first extent cannot empty; the last holds 16 to 20 of eight places.
    assert mine.eligible(cached) == {2: [20, 19, 18, 17, 16], 1: [*range(15, 7, -1)]}
    assert mine.eligible_extents(cached) == [2, 1]
    whole = [20, 19, 18, 17, 16]
    assert mine.victims(cached, 7, parents=parents, top_up=False) == whole
    assert mine.victims(cached, 7, parents=parents) == [*whole, 15, 14]
    assert mine.victims(cached, 7, top_up=False) == whole
    assert mine.victims(cached, 7) == [*whole, 15, 14]
    assert mine.victims(pages, 7) == [*whole[::-1], 1, 2]
    assert mine.victims(pages, 7, parents=parents) == [*whole[::-1], 15, 14]
    assert mine.victims(pages, 7, page_aligned=False) == pages[:7]


def test_chains_in_circles_are_refused():
    mine = model()
    pages = mine.allocate(20)
    parents = {pages[2]: pages[3], pages[3]: pages[2]}
    with pytest.raises(LedgerError, match="in a circle"):
        mine.victims(pages, 7, parents=parents)
    with pytest.raises(LedgerError, match="in a circle"):
        unreachable(pages, {4: 4})
    mine.check()
