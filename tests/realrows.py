"""Small paged caches with real rows, driven by hand beside a contiguous cache.

Quick without compiled kernels, since that is how the mutants run.
"""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from differential.paged_agreement import same
from differential.paged_rows import rows_of
from differential.rowstore import digest
from spliced import DENSE, ROPES

from kvsim.layout.families import dense
from kvsim.tensors.contiguous import ContiguousCache
from kvsim.tensors.paged_cache import PagedCache
from kvsim.tensors.rope import Rope
from kvsim.tensors.shape import CacheShape

# One head of two elements, where only pages are counted.
TINY = CacheShape(dense([1], 2, 2), (Rope(2),), max_positions=1200)
NOBODY = np.empty(0, np.int64)


def shape(planes="kv_raw", families=DENSE, ropes=ROPES, max_positions=64):
    """Return a shape, by default of fak's sizes."""
    return CacheShape(families, ropes, planes, max_positions)


class Pair:
    """A paged cache, and a contiguous one for each of its sequences.

    Parameters
    ----------
    tokens : int
        Appended to the first sequence.
    of : CacheShape, optional
    page_tokens : int
    hard : bool
        Whether rows hold NaN, infinities and denormals.
    **options
        Of PagedCache.
    """

    def __init__(self, tokens=7, of=None, page_tokens=4, hard=False, **options):
        self.shape = of or shape()
        self.hard = hard
        self.rng = np.random.default_rng(tokens)
        self.cache = PagedCache(self.shape, page_tokens, **options)
        self.ledger = self.cache.ledger
        self.positions = options.get("positions", "keep")
        self.truths = {}
        self.first = self.open()
        self.given = self.append(self.first, tokens)

    def open(self):
        """Open a sequence in both."""
        number = self.cache.open()
        self.truths[number] = ContiguousCache(self.shape, self.positions)
        return number

    def append(self, sequence, tokens):
        """Append the same rows to both; return them."""
        rows = rows_of(self.shape, tokens, self.rng, self.hard)
        self.cache.append(sequence, rows)
        self.truths[sequence].append(rows)
        return rows

    def fork(self, parent, verb="fork"):
        """Fork or clone in both."""
        child = getattr(self.cache, verb)(parent)
        self.truths[child] = self.truths[parent].fork()
        return child

    def evict(self, sequence, first, count):
        """Evict a span from both; return the receipt."""
        receipt = self.cache.evict_span(sequence, first, count)
        self.truths[sequence].evict_span(first, count)
        self.check()
        return receipt

    def swap(self, sequence):
        """Swap a sequence out and in again; return its new number."""
        truth = self.truths.pop(sequence)
        number = self.cache.swap_in(self.cache.swap_out(sequence))
        self.truths[number] = truth
        self.check()
        return number

    def check(self):
        """Assert that every sequence has equal rows in both, and recount."""
        self.cache.check()
        for number, truth in self.truths.items():
            for family in range(len(self.shape.families)):
                same(self.cache.rows(number, family), truth.rows(family))


def state(cache):
    """Hash every array of a cache's ledger and every byte of its planes."""
    total = hashlib.sha256(digest(cache.ledger).encode())
    for planes in cache.store.planes:
        for name, plane in sorted(planes.items()):
            total.update(f"{name} {plane.shape}".encode())
            total.update(plane.tobytes())
    return total.hexdigest()


def refused(error, cache, call, *arguments, match=None):
    """Call what must be refused, find everything as it was, and return the error."""
    before = state(cache)
    with pytest.raises(error, match=match) as refusal:
        call(*arguments)
    assert state(cache) == before
    cache.check()
    return refusal.value
