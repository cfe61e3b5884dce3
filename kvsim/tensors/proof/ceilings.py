"""Running a verb under ceilings that leave too few pages, and under the lowest that leaves enough.

Knows that a refused verb must have changed nothing, and what "nothing" is: the hash of every array
of the ledger and of every byte of every plane.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np

from kvsim.errors import CeilingExceeded
from kvsim.paging import fields as f
from kvsim.tensors.paged_cache import PagedCache
from kvsim.tensors.proof.tally import Tally

#: A verb of two parts, evict and compact, is refused at most once by each, and then fits.
MOST_TRIES = 4


def fingerprint(cache: PagedCache) -> str:
    """Hash every array of the ledger and every plane of the store."""
    total = hashlib.sha256()
    for name, array in cache.ledger._arrays._asdict().items():
        if name == "scalars":
            array = array.copy()
            array[f.CEILING] = 0
        total.update(f"{name} {array.dtype} {array.shape}".encode())
        total.update(np.ascontiguousarray(array).data)
    for planes in cache.store.planes:
        for name, plane in planes.items():
            total.update(f"{name} {plane.dtype} {plane.shape}".encode())
            if plane.size:
                total.update(plane.data)
    return total.hexdigest()


def set_ceiling(cache: PagedCache, pages: int) -> None:
    """Let the pool hold at most so many pages from now on.

    A cache has one ceiling for life; a proof tries many on one cache.
    """
    cache.ledger._arrays.scalars[f.CEILING] = pages


def under_ceilings(cache: PagedCache, verb: Callable[[], Any], tally: Tally) -> Any:
    """Do a verb under the lowest ceiling that it fits under, and see lower ones refused.

    The first ceiling is the pages held. Each refusal says how many pages are missing; with one
    fewer than that the verb must be refused again, and with exactly that it must come further.
    After every refusal all must be as it was. Returns what the verb returns.
    """
    ledger = cache.ledger
    unlimited = int(ledger._arrays.scalars[f.CEILING])
    ceiling = ledger.held_pages
    before = fingerprint(cache)
    try:
        for _ in range(MOST_TRIES):
            set_ceiling(cache, ceiling)
            missing = _missing(cache, verb, before, tally)
            if isinstance(missing, Done):
                return missing.answer
            tally.fact(missing > 0, f"a verb was refused and misses {missing} pages")
            if missing > 1:
                set_ceiling(cache, ceiling + missing - 1)
                again = _missing(cache, verb, before, tally)
                tally.fact(again == 1, f"one page too few was answered with {again}")
                if isinstance(again, Done):
                    return again.answer
            ceiling += missing
        tally.fact(False, f"a verb was refused {MOST_TRIES} times, each time asking for more")
        set_ceiling(cache, unlimited)
        return verb()
    finally:
        set_ceiling(cache, unlimited)


class Done:
    """A verb's answer, so that it cannot be mistaken for a number of pages."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer


def _missing(cache: PagedCache, verb: Callable[[], Any], before: str, tally: Tally) -> int | Done:
    """Try a verb; return how many pages it misses, or that it is done."""
    try:
        return Done(verb())
    except CeilingExceeded as refusal:
        tally.fact(fingerprint(cache) == before, "a verb refused by the ceiling changed something")
        return refusal.needed_pages - refusal.free_pages
