"""Cached pages of a serving engine: chains that were cut, and a cap on how many there are.

A page is found only through the one before it in its prompt, its parent. A cached page whose
parent no page holds any more is an *orphan*; it and all behind it are *unreachable*. Both are
counted from the ledger's arrays and from the requests' keys, and nothing is changed by that.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kvsim.engine.serving import fields as s
from kvsim.engine.serving.engine import ServingEngine
from kvsim.errors import ScenarioError
from kvsim.lab.scenario import Scenario
from kvsim.lab.studies.serving_memory import buffer_page_bytes, extent_bytes
from kvsim.layout import KVLayout
from kvsim.paging import fields as f
from kvsim.paging.physical.kvcached_victims import (
    GONE,
    Broken,
    chain_aware,
    ends_of_chains,
    oldest,
    page_aligned,
)


def parents_of_keys(engine: ServingEngine) -> np.ndarray:
    """Return for each key that of the page before it, int64 [keys]; -1 for first pages."""
    rows, given_keys = engine.rows, engine.serving.keys
    full = (rows[:, s.INPUT] + rows[:, s.OUTPUT]) // engine.ledger.page_tokens
    row = np.repeat(np.arange(full.size), full)
    page = np.arange(row.size) - np.repeat(np.cumsum(full) - full, full)
    given = page < rows[row, s.KEY_COUNT]
    own = np.where(page < rows[row, s.PROMPT_PAGES], rows[row, s.PROMPT_KEY], rows[row, s.OWN_KEY])
    keys = own + page
    keys[given] = given_keys[(rows[row, s.KEYS] + page)[given]]
    behind = np.flatnonzero(page > 0)
    parents = np.full(engine.serving.page_of.size, -1, np.int64)
    parents[keys[behind]] = keys[behind - 1]
    return parents


def in_order_of_use(engine: ServingEngine) -> list[int]:
    """Return the cached pages as the queue has them, the next to be reclaimed first."""
    pages = engine.ledger.arrays.pages
    after, state = pages[f.NEXT].tolist(), pages[f.STATE].tolist()
    sentinel = len(after) - 1
    found, page = [], after[sentinel]
    while page != sentinel:
        if state[page] == f.CACHED_PAGE:
            found.append(page)
        page = after[page]
    return found


class Chains:
    """Which page stands before each in the prefix index of one engine.

    Attributes
    ----------
    orphan_pages_peak : int
        The most orphans that `__call__` ever saw.
    """

    def __init__(self, engine: ServingEngine) -> None:
        self._count = engine.count
        self._parents = parents_of_keys(engine)
        self.orphan_pages_peak = 0

    def above(self, engine: ServingEngine) -> np.ndarray:
        """Return the page before each page, int64 [pages + 2].

        The last but one place stands for the beginning of a chain and the last one for a page
        that is gone; both lead to themselves. A page without a key is behind one that is gone.
        """
        if engine.count != self._count:
            # Requests came that were not known before.
            self._count = engine.count
            self._parents = parents_of_keys(engine)
        pages, page_of = engine.ledger.arrays.pages, engine.serving.page_of
        count = pages.shape[1] - 1
        keyed = np.flatnonzero(pages[f.KEY, :count])
        parents = self._parents[pages[f.KEY, keyed] - 1]
        # What is read for a first page is not used.
        page = page_of[parents].astype(np.int64)
        there = (page >= 0) & (pages[f.KEY, page] == parents + 1)
        above = np.full(count + 2, count + 1, np.int64)
        above[count] = count
        above[keyed] = np.where(parents < 0, count, np.where(there, page, count + 1))
        return above

    def broken(self, engine: ServingEngine) -> Broken:
        """Count the cached pages that cannot be hit."""
        above = self.above(engine)
        count = above.size - 2
        cached = engine.ledger.arrays.pages[f.STATE, :count] == f.CACHED_PAGE
        orphans = int((cached & (above[:count] == count + 1)).sum())
        # Twice as far up each time, so that the longest chain takes few rounds.
        for _ in range(count.bit_length()):
            above = above[above]
        return Broken(orphans, int((cached & (above[:count] == count + 1)).sum()))

    def mapping(self, engine: ServingEngine) -> dict[int, int]:
        """Return the page before each one that has a key, or `GONE`; first pages are left out."""
        above = self.above(engine)
        count = above.size - 2
        keyed = np.flatnonzero(engine.ledger.arrays.pages[f.KEY, :count])
        found = zip(keyed.tolist(), above[keyed].tolist(), strict=True)
        return {page: GONE if up > count else up for page, up in found if up != count}

    def __call__(self, engine: ServingEngine) -> None:
        """Look at the orphans there are."""
        self.orphan_pages_peak = max(self.orphan_pages_peak, self.broken(engine).orphan_pages)

    def columns(self, engine: ServingEngine) -> dict[str, int]:
        """Return the counts at the end of a run, and the peak over all looks and this one."""
        self(engine)
        return {**self.broken(engine)._asdict(), "orphan_pages_peak": self.orphan_pages_peak}


class Cap:
    """Trims the cached pages of an engine to a number, by one of three rules.

    Parameters
    ----------
    scenario : Scenario
    layout : KVLayout
    chains : Chains
        Of the engine that is trimmed.

    Attributes
    ----------
    trimmed_pages_total : int
    trimmed_extents_total : int
        Extents in which nothing was left, right after a trimming took pages of theirs.
    """

    def __init__(self, scenario: Scenario, layout: KVLayout, chains: Chains) -> None:
        self.cap_pages = scenario.prefix.cap_pages
        self.rule = scenario.prefix.victims
        self.pages_per_extent = pages_per_extent(scenario, layout)
        self.chains = chains
        self.trimmed_pages_total = self.trimmed_extents_total = 0

    def __call__(self, engine: ServingEngine) -> None:
        """Take what is above the cap."""
        excess = engine.ledger.total(f.CACHED) - self.cap_pages
        if excess <= 0:
            return
        victims = self.victims(engine, in_order_of_use(engine), excess)
        engine.forget_cached(victims)
        self.trimmed_pages_total += len(victims)
        if self.pages_per_extent:
            touched = np.unique(np.array(victims, np.int64) // self.pages_per_extent)
            left = np.bincount(
                self._taken(engine) // self.pages_per_extent, minlength=touched[-1] + 1
            )
            self.trimmed_extents_total += int((left[touched] == 0).sum())

    def victims(self, engine: ServingEngine, cached: Sequence[int], count: int) -> list[int]:
        """Return `count` of the cached pages, which are given in order of use."""
        if self.rule == "lru":
            return list(cached[:count])
        eligible = self._eligible(engine, cached)
        if self.rule == "page_aligned":
            found = page_aligned(cached, eligible, count)
            return found + oldest(cached, found, count - len(found))
        parents = self.chains.mapping(engine)
        found = chain_aware(cached, eligible, count, parents)
        return found + ends_of_chains(cached, found, count - len(found), parents)

    def columns(self) -> dict[str, int | None]:
        """Return the flows; extents are null where a page may lie in two of them."""
        extents = self.trimmed_extents_total if self.pages_per_extent else None
        return {
            "trimmed_pages_total": self.trimmed_pages_total,
            "trimmed_extents_total": extents,
        }

    def _taken(self, engine: ServingEngine) -> np.ndarray:
        state = engine.ledger.arrays.pages[f.STATE, :-1]
        return np.flatnonzero((state == f.HELD_PAGE) | (state == f.CACHED_PAGE))

    def _eligible(self, engine: ServingEngine, cached: Sequence[int]) -> dict[int, list[int]]:
        """Return the extents that hold nothing but cached pages, with those in order of use."""
        state = engine.ledger.arrays.pages[f.STATE, :-1]
        held = np.flatnonzero(state == f.HELD_PAGE) // self.pages_per_extent
        pinned = set(held.tolist())
        found: dict[int, list[int]] = {}
        for page in cached:
            extent = page // self.pages_per_extent
            if extent not in pinned:
                found.setdefault(extent, []).append(page)
        return found


def pages_per_extent(scenario: Scenario, layout: KVLayout) -> int:
    """Return how many whole pages an extent of one buffer holds, 0 if that is no whole number."""
    page, size = buffer_page_bytes(scenario, layout), extent_bytes(scenario)
    return 0 if size % page else size // page


def check(scenario: Scenario, layout: KVLayout) -> None:
    """Refuse keys of [prefix] that contradict each other.

    Raises
    ------
    ScenarioError
        Naming the key.
    """
    prefix = scenario.prefix
    if not prefix.cap_pages:
        if prefix.victims != "lru":
            raise ScenarioError("prefix.victims: without prefix.cap_pages nothing is trimmed")
        return
    if prefix.cache == "none":
        raise ScenarioError("prefix.cap_pages: without prefix.cache no page is cached")
    if prefix.cache == "radix":
        raise ScenarioError(
            "prefix.cap_pages: a radix tree is evicted in whole leaves; it has no cap"
        )
    if prefix.victims != "lru" and not pages_per_extent(scenario, layout):
        raise ScenarioError(
            f"prefix.victims: {prefix.victims} needs whole pages in an extent of "
            f"{extent_bytes(scenario)} bytes, and a page of one buffer has "
            f"{buffer_page_bytes(scenario, layout)}"
        )
