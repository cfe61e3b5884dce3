"""A cache in real mappings beside a twin in NumPy's memory, and a second count of its extents.

Returned extents are counted here from refcounts and byte ranges that share no code with the
extents.
"""

from __future__ import annotations

import sys

import numpy as np
import pytest

from kvsim.layout.families import dense
from kvsim.tensors.buffers import OS_PAGE_BYTES
from kvsim.tensors.mapped import MappedMemory, mapped_cache
from kvsim.tensors.paged_cache import PagedCache
from kvsim.tensors.rope import Rope
from kvsim.tensors.shape import CacheShape

needs_linux = pytest.mark.skipif(
    sys.platform != "linux", reason="needs Linux's madvise and mincore"
)
MIB = 1 << 20
LAYOUTS = ("page_major", "layer_major")
EXTENTS = {"2 MiB": 2 * MIB, "OS page": OS_PAGE_BYTES}
PAGE_TOKENS = 16

# 2 layers of 8 heads x 64: in a plane of float32 a page has 64 KiB, and 32 KiB a layer.
SHAPE = CacheShape(dense([8] * 2, 64, 64), (Rope(64),), "kv_raw", 4096)


class Recount:
    """Counts extents anew each time that the ledger gives orders, byte range by byte range."""

    def __init__(self, cache: PagedCache, memory: MappedMemory) -> None:
        self.cache, self.memory = cache, memory
        self.returned = self.mapped_total = 0
        store, geometry = cache.store, cache.ledger.geometry
        # Bytes of a page in every array that the store has, and whose pages lie there.
        self.page_bytes, self.scopes = {}, {}
        for block, planes in zip(store.blocks, store.planes, strict=True):
            for plane, array in planes.items():
                if array.size:
                    name = store.name(block, plane)
                    self.page_bytes[name] = PAGE_TOKENS * array.shape[1] * array.itemsize
                    self.scopes[name] = {
                        geometry.unit_scope[unit]
                        for unit, (family, row) in enumerate(cache.shape.units)
                        if family == block.family and block.layer in (-1, row.layer)
                    }
        self.mapped: dict[str, set[int]] = {name: set() for name in self.page_bytes}
        update = memory.extents.update

        def watched(*arguments):
            orders = update(*arguments)
            self.look()
            return orders

        memory.extents.update = watched

    def look(self) -> None:
        ledger, size = self.cache.ledger, self.memory.extents.extent_bytes
        named = [
            np.unique(
                np.concatenate(
                    [
                        np.zeros(0, np.int64),
                        *(ledger.pages_of(q, scope) for q in ledger.sequences()),
                    ]
                )
            )
            for scope in range(ledger.geometry.scope_units)
        ]
        named = [pages[pages >= 0] for pages in named]
        assert sorted(np.concatenate(named)) == np.flatnonzero(ledger.refcounts() > 0).tolist()
        for name, width in self.page_bytes.items():
            held = np.concatenate([named[scope] for scope in self.scopes[name]])
            first, last = held * width // size, (held * width + width - 1) // size
            now = set()
            for begin, end in zip(first.tolist(), last.tolist(), strict=True):
                now.update(range(begin, end + 1))
            self.returned += len(self.mapped[name] - now)
            self.mapped_total += len(now - self.mapped[name])
            self.mapped[name] = now

    def check(self) -> None:
        """Compare three counts of one thing: here, in the ledger's extents, in the machine."""
        extents = self.memory.extents
        size = extents.extent_bytes
        wanted = {name: len(numbers) * size for name, numbers in self.mapped.items()}
        assert self.memory.resident_bytes() == wanted
        assert self.memory.check_resident() == extents.mapped_bytes == sum(wanted.values())
        assert extents.returned_extents_total == self.returned
        assert extents.mapped_extents_total == self.mapped_total
        self.cache.check()


class Twins:
    """A cache in mapped memory and one in NumPy's, given the same verbs and the same rows."""

    def __init__(self, pages: int, layout: str, extent_bytes: int, shape=SHAPE, **options):
        self.rng = np.random.default_rng(4)
        self.mapped, self.memory = mapped_cache(
            shape, PAGE_TOKENS, pages, layout=layout, extent_bytes=extent_bytes, **options
        )
        self.heap = PagedCache(
            shape, PAGE_TOKENS, pages=pages, ceiling_pages=pages, layout=layout, **options
        )
        self.recount = Recount(self.mapped, self.memory)
        self.shape = shape

    def both(self, verb: str, *arguments):
        """Call a verb on both, compare what they return, and count everything again."""
        found = [getattr(cache, verb)(*arguments) for cache in (self.mapped, self.heap)]
        assert found[0] == found[1]
        self.recount.check()
        return found[0]

    def append(self, sequence: int, tokens: int) -> None:
        rows = []
        for family in self.shape.families:
            widths = {
                "k": sum(row.carried + row.raw for row in family.rows),
                "v": sum(row.value for row in family.rows),
            }
            rows.append(
                {
                    name: self.rng.standard_normal((tokens, width), np.float32).astype(family.dtype)
                    for name, width in widths.items()
                    if width
                }
            )
        self.both("append", sequence, rows)

    def evict(self, sequence: int, granularity: str, kept: float) -> None:
        """Evict at random down to a share of what is there: tokens, runs of 4, or whole pages."""
        slots, _ = self.mapped.ledger.rows(sequence, 0)
        run = {"token": 1, "window": 4, "page": PAGE_TOKENS}[granularity]
        # Whole runs of places, so that page means that a page empties.
        runs = np.unique(slots // run)
        gone = self.rng.permutation(runs)[: int((1 - kept) * runs.size)]
        victims = slots[np.isin(slots // run, gone)]
        self.both("evict", sequence, [victims] * self.mapped.ledger.geometry.sets)

    def compare(self) -> None:
        """Compare every retained row of both caches, as integers."""
        for sequence in self.mapped.ledger.sequences():
            for family in range(len(self.shape.families)):
                ours, theirs = (cache.rows(sequence, family) for cache in (self.mapped, self.heap))
                assert set(ours) == set(theirs)
                for plane, rows in ours.items():
                    bits = f"u{rows.itemsize}"
                    assert np.array_equal(rows.view(bits), theirs[plane].view(bits)), plane
        self.recount.check()
