"""Caches that are broken on purpose, for controls: a proof that cannot fail proves nothing.

The product's kernels and classes are not touched: a broken store stands between a ledger and its
real store, and a ledger's refcounts are falsified for the length of one verb.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np

from kvsim.paging import fields as f
from kvsim.paging.physical import Orders
from kvsim.tensors.array_store import ArrayStore
from kvsim.tensors.paged_cache import PagedCache
from kvsim.tensors.rope import rotate, tables


class Between:
    """Passes everything on to a real store; what inherits from it changes how plans are applied.

    Parameters
    ----------
    cache : PagedCache
        Its ledger is given this store; its rows stay those of the real one.
    """

    def __init__(self, cache: PagedCache) -> None:
        self.cache = cache
        self.real: ArrayStore = cache.store
        cache.ledger.store = self

    def resize(self, pages: int) -> None:
        """As the real store."""
        self.real.resize(pages)

    def write(self, scope: int, slots: np.ndarray, rows: object) -> None:
        """As the real store."""
        self.real.write(scope, slots, rows)

    def apply(self, plan: np.ndarray) -> None:
        """As the real store."""
        self.real.apply(plan)

    def map(self, orders: Orders) -> None:
        """As the real store."""
        self.real.map(orders)

    def give_back(self, orders: Orders) -> None:
        """As the real store."""
        self.real.give_back(orders)


class Rewriting(Between):
    """Keeps the numbers of V and not their bits: zeros lose their sign, or NaN their payload.

    Parameters
    ----------
    cache : PagedCache
    what : {"zeros", "payloads"}
    """

    def __init__(self, cache: PagedCache, what: str) -> None:
        super().__init__(cache)
        self._what = what

    def write(self, scope: int, slots: np.ndarray, rows: object) -> None:
        """Write the rows with other bits for the same numbers."""
        assert isinstance(rows, Mapping)
        values = np.array(rows["V"], copy=True)
        # As integers, so that nothing but what is meant changes.
        bits = values.view(np.uint32)
        if self._what == "zeros":
            bits[bits == 0x80000000] = 0
        else:
            bits[(bits & 0x7FFFFFFF) > 0x7F800000] = 0x7FC00000
        self.real.write(scope, slots, {**rows, "V": values})


class Composing(Between):
    """Turns keys that are rotated already by how far they moved, instead of k_raw once.

    Parameters
    ----------
    cache : PagedCache
        Of one dense family that turns whole heads, page-major.
    moved : int
        Positions that every key moves down.
    """

    def __init__(self, cache: PagedCache, moved: int) -> None:
        super().__init__(cache)
        self._moved = moved

    def apply(self, plan: np.ndarray) -> None:
        """Carry keys over as they are, then turn those that the plan rotates."""
        still = plan.copy()
        still[f.POSITION] = -1
        self.real.apply(still)
        rope = self.real.shape.ropes[0]
        turned = plan[f.TARGET][plan[f.POSITION] >= 0]
        keys = self.real.planes[0]["K"]
        heads = keys[turned].reshape(turned.size, -1, rope.dim)
        back = tables(rope, self._moved + 1)
        cos, sin = back.cos[self._moved], -back.sin[self._moved]
        keys[turned] = rotate(heads, cos, sin, "half_split").reshape(turned.size, -1)


class Stale(Between):
    """Resolves where rows go before pages are copied on write, and not after.

    Copies reach the new page, but rows that the verb moves or rotates go where the table pointed
    before: into the page that the sibling still reads.
    """

    def __init__(self, cache: PagedCache, sequence: int) -> None:
        super().__init__(cache)
        self._sequence = sequence
        self._before = cache.ledger.pages_of(sequence)

    def apply(self, plan: np.ndarray) -> None:
        """Send every row that is not a plain copy between the two pages to the old one."""
        page_tokens = self.real.page_tokens
        after = self.cache.ledger.pages_of(self._sequence)
        old_of = {
            int(new): int(old) for old, new in zip(self._before, after, strict=False) if new != old
        }
        stale = plan.copy()
        for move in range(plan.shape[1]):
            source, target, position = (int(plan[row, move]) for row in (0, 1, 2))
            old = old_of.get(target // page_tokens)
            if old is None:
                continue
            there = old * page_tokens + target % page_tokens
            if source != there or position >= 0:
                stale[f.TARGET, move] = there
        self.real.apply(stale)


@contextmanager
def no_page_looks_shared(cache: PagedCache) -> Iterator[None]:
    """Let the ledger believe that every page has one owner: copy-on-write is then skipped."""
    refcounts = cache.ledger._arrays.pages[f.REFCOUNT]
    before = refcounts.copy()
    refcounts[refcounts > 1] = 1
    try:
        yield
    finally:
        there = refcounts > 0
        refcounts[there] = before[there]
