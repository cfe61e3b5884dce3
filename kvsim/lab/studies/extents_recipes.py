"""Cached pages over kvcached's extents, laid out by a recipe: before anything is evicted.

It knows page ids, chains and order of use; no victims. The sources are two of kvcached's
benchmarks (ovg-project/kvcached), bench_evict and its simulation of eviction, with every number a
key. Chains are kvsim's: the benchmarks have none.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from kvsim.lab.studies.extents_keys import ExtentStudy
from kvsim.paging.physical.kvcached import Kvcached


@dataclass
class Cached:
    """Pages of an allocator, as an eviction finds them.

    Attributes
    ----------
    model : Kvcached
    order : list of int
        Cached pages, the least recently used first.
    parents : dict of int to int
        The page before each in its chain; first pages of chains are no keys.
    """

    model: Kvcached
    order: list[int] = field(default_factory=list)
    parents: dict[int, int] = field(default_factory=dict)

    def cache(self, chain: list[int], queue: str) -> None:
        """Put the taken pages of one request into the order of use, behind all others."""
        self.parents |= zip(chain[1:], chain, strict=False)
        self.order += chain if queue == "head_first" else chain[::-1]


def stride(study: ExtentStudy, model: Kvcached) -> Cached:
    """Cache a run of pages, then use one of every `stride` of them again, in the same order.

    Source: bench_evict. Consecutive pages, as the allocator hands them out, make chains of
    `chain_pages`.
    """
    cached = Cached(model)
    pages = model.allocate(study.cached_pages)
    for start in range(0, len(pages), study.chain_pages):
        cached.cache(pages[start : start + study.chain_pages], study.queue)
    first = 0 if study.touch == "first" else study.stride - 1
    touched = frozenset(pages[first :: study.stride])
    cached.order.sort(key=touched.__contains__)
    return cached


def spread_pages(study: ExtentStudy, model: Kvcached) -> int:
    """Return among how many of the first free pages a request's pages are drawn."""
    p = model.parameters
    reach = study.spread_extents * p.extent_bytes // p.page_bytes
    return reach or study.pool_pages


def scatter(study: ExtentStudy, model: Kvcached, rng: random.Random) -> Cached:
    """Cache requests whose pages are drawn from the first free ones, then let others run.

    Source: kvcached's simulation of eviction; with seed 7 the draws are its own. Each request is
    one chain, in the order in which its pages were drawn. The pages of running requests are drawn
    at once and are no cached page's parents.
    """
    cached = Cached(model)
    free = [page for page in range(1, study.pool_pages) if model.extent_of(page) is not None]
    reach = spread_pages(study, model)

    def take(count: int) -> list[int]:
        picks = rng.sample(range(min(len(free), reach)), count)
        pages = [free[place] for place in picks]
        model.take(pages)
        for place in sorted(picks, reverse=True):
            del free[place]
        return pages

    while len(cached.order) < study.cached_pages:
        wanted = rng.randint(study.request_pages_least, study.request_pages_most)
        rest = study.cached_pages - len(cached.order)
        cached.cache(take(min(wanted, rest)), study.queue)
    if study.pinned_pages:
        take(study.pinned_pages)
    return cached
