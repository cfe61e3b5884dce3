"""The page pool: refcounts and one queue of free and cached pages. Knows nothing about tokens.

The queue is an intrusive doubly linked list inside `pages`, closed by the sentinel in the last
column, so that a page leaves it from any place in O(1).
"""

from __future__ import annotations

import numpy as np

from kvsim.paging.fields import (
    ALLOCATED_TOTAL,
    FREE_PAGE,
    HELD,
    HELD_IN,
    HELD_PAGE,
    LIFO,
    NEXT,
    ORDER,
    PAGES,
    PREVIOUS,
    REFCOUNT,
    STATE,
)
from kvsim.paging.jit import kernel


@kernel
def unlink(pages, page):
    """Take a page out of the queue, wherever it stands."""
    before = pages[PREVIOUS, page]
    after = pages[NEXT, page]
    pages[NEXT, before] = after
    pages[PREVIOUS, after] = before


@kernel
def enqueue(scalars, pages, page):
    """Put a page into the queue: at the tail under FIFO, at the head under LIFO."""
    sentinel = scalars[PAGES]
    if scalars[ORDER] == LIFO:
        before = sentinel
        after = np.int64(pages[NEXT, sentinel])
    else:
        before = np.int64(pages[PREVIOUS, sentinel])
        after = sentinel
    pages[PREVIOUS, page] = before
    pages[NEXT, page] = after
    pages[NEXT, before] = page
    pages[PREVIOUS, after] = page


@kernel
def allocate(scalars, pages, scopes, scope):
    """Take the page at the head of the queue. The caller has checked that there is one."""
    page = np.int64(pages[NEXT, scalars[PAGES]])
    unlink(pages, page)
    pages[REFCOUNT, page] = 1
    pages[STATE, page] = HELD_PAGE
    scalars[HELD] += 1
    scalars[ALLOCATED_TOTAL] += 1
    scopes[scope, HELD_IN] += 1
    return page


@kernel
def let_go(scalars, pages, scopes, scope, page, flow):
    """Drop one reference; at 0 the page is freed and `flow` counts it."""
    left = np.int64(pages[REFCOUNT, page]) - 1
    pages[REFCOUNT, page] = left
    if left == 0:
        pages[STATE, page] = FREE_PAGE
        scalars[HELD] -= 1
        scalars[flow] += 1
        scopes[scope, HELD_IN] -= 1
        enqueue(scalars, pages, page)
