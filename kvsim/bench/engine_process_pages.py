"""The page pool of the process-per-request baseline: plain Python counters, lists and dicts.

Knows pages, refcounts, keys and the queue; knows nothing about requests, steps or time.
"""

from __future__ import annotations

import sys
from collections import OrderedDict

from kvsim.errors import LedgerError


class Pages:
    """Refcounted pages, a queue of those that nobody holds, and a prefix index.

    The queue is kept in three parts, which together are one: a stack of pages that were put to
    its head, the pages that were never used, and the ordered pages that were put to its tail.
    Never-used pages stand before everything at the tail because the queue began with them. An
    unlimited pool has no end of them, so nothing behind them is ever taken.

    Parameters
    ----------
    ceiling_pages : int
        0 is unlimited.
    unhashed : {"head", "tail"}
        Where a freed page without a key goes.

    Attributes
    ----------
    refcount : list of int
        Of every page ever used.
    key_of, index : dict of int
        Key of a page, and page of a key: each the inverse of the other.
    tail : OrderedDict
        Pages that nobody holds, the next victim first: those with a key are cached.
    held, left : int
        Pages with a refcount above 0, and pages that the ceiling still allows.
    """

    def __init__(self, ceiling_pages: int, unhashed: str) -> None:
        self.ceiling = ceiling_pages or sys.maxsize
        self.refcount: list[int] = []
        self.key_of: dict[int, int] = {}
        self.index: dict[int, int] = {}
        self.head: list[int] = []
        self.tail: OrderedDict[int, None] = OrderedDict()
        self.held = 0
        self.left = self.ceiling
        self.allocated_total = 0
        # With unlimited pages order cannot matter, and pages without keys are best used again.
        self._to_head = unhashed == "head" or not ceiling_pages

    def allocate(self) -> int:
        """Take the page at the queue's head. The caller has checked that there is one."""
        if self.head:
            page = self.head.pop()
            self.refcount[page] = 1
        elif len(self.refcount) < self.ceiling:
            page = len(self.refcount)
            self.refcount.append(1)
        else:
            page, _ = self.tail.popitem(last=False)
            self.forget(page)
            self.refcount[page] = 1
        self.held += 1
        self.left -= 1
        self.allocated_total += 1
        return page

    def touch(self, page: int) -> None:
        """Add a reference to a page that an index found."""
        if self.refcount[page] == 0:
            del self.tail[page]
            self.held += 1
            self.left -= 1
        self.refcount[page] += 1

    def let_go(self, page: int) -> bool:
        """Drop a reference; tell whether it was the last."""
        self.refcount[page] -= 1
        if self.refcount[page]:
            return False
        self.held -= 1
        self.left += 1
        if page in self.key_of or not self._to_head:
            self.tail[page] = None
        else:
            self.head.append(page)
        return True

    def publish(self, page: int, key: int) -> None:
        """Enter a held page under a key, unless another page is there."""
        if key not in self.index:
            self.index[key] = page
            self.key_of[page] = key

    def forget(self, page: int) -> None:
        """Take a page's key away, if it has one."""
        key = self.key_of.pop(page, None)
        if key is not None:
            del self.index[key]

    def check(self, tables: list[list[int | None]]) -> None:
        """Recount everything from the block tables.

        Raises
        ------
        LedgerError
            If a refcount is not the number of table entries, a page is in two states or in
            none, or the index and the keys contradict each other.
        """
        counted = [0] * len(self.refcount)
        for table in tables:
            for page in table:
                if page is not None:
                    counted[page] += 1
        if counted != self.refcount:
            raise LedgerError("a refcount is not the number of table entries")
        held = [page for page, count in enumerate(counted) if count]
        queued = [*self.head, *self.tail]
        if sorted(held + queued) != list(range(len(counted))):
            raise LedgerError("held, free and cached pages are not the pool, each page once")
        if len(held) != self.held or self.left != self.ceiling - self.held:
            raise LedgerError("the count of held pages is wrong")
        if {key: page for page, key in self.key_of.items()} != self.index:
            raise LedgerError("the prefix index and the pages' keys are not inverse")
        if any(page in self.key_of for page in self.head):
            raise LedgerError("a page with a key went to the queue's head")
