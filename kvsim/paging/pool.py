"""The page pool: refcounts and one queue of free and cached pages. Knows nothing about tokens.

The queue is an intrusive doubly linked list inside `pages`, closed by the sentinel in the last
column, so that a page leaves it from any place in O(1).
"""

from __future__ import annotations

import numpy as np

from kvsim.jit import kernel
from kvsim.paging import fields as f


@kernel
def unlink(pages, page):
    """Take a page out of the queue, wherever it stands."""
    before = np.uint64(pages[f.PREVIOUS, page])
    after = np.uint64(pages[f.NEXT, page])
    pages[f.NEXT, before] = after
    pages[f.PREVIOUS, after] = before


@kernel
def enqueue(scalars, pages, page, at_head):
    """Put a page into the queue."""
    sentinel = scalars[f.PAGES]
    if at_head:
        before = sentinel
        after = np.int64(pages[f.NEXT, sentinel])
    else:
        before = np.int64(pages[f.PREVIOUS, sentinel])
        after = sentinel
    pages[f.PREVIOUS, page] = before
    pages[f.NEXT, page] = after
    pages[f.NEXT, before] = page
    pages[f.PREVIOUS, after] = page


@kernel
def allocate(scalars, pages, scopes, scope):
    """Take the page at the head of the queue. The caller has checked that there is one."""
    page = np.int64(pages[f.NEXT, scalars[f.PAGES]])
    unlink(pages, page)
    if pages[f.KEY, page]:
        # A page that waited for a hit: whoever looks its key up finds another one here now.
        pages[f.KEY, page] = 0
        scalars[f.CACHED] -= 1
        scalars[f.RECLAIMED_TOTAL] += 1
    pages[f.REFCOUNT, page] = 1
    pages[f.STATE, page] = f.HELD_PAGE
    pages[f.OWNER, page] = scope
    scalars[f.HELD] += 1
    scalars[f.ALLOCATED_TOTAL] += 1
    scopes[scope, f.HELD_IN] += 1
    return page


@kernel
def take_ahead(scalars, tables, pages, scopes, table, count):
    """Take pages for a table before it needs them; they join the end of its chain."""
    last = np.int64(-1)
    for _ in range(tables[table, f.RESERVED]):
        last = tables[table, f.RESERVE] if last < 0 else np.int64(pages[f.NEXT, last])
    for _ in range(count):
        page = allocate(scalars, pages, scopes, tables[table, f.SCOPE])
        if last < 0:
            tables[table, f.RESERVE] = page
        else:
            pages[f.NEXT, last] = page
        last = page
    tables[table, f.RESERVED] += count


@kernel
def page_for(scalars, tables, pages, scopes, table):
    """Return a page for a table's next entry: one taken ahead, else the queue's next."""
    if tables[table, f.RESERVED] == 0:
        return allocate(scalars, pages, scopes, tables[table, f.SCOPE])
    page = tables[table, f.RESERVE]
    tables[table, f.RESERVE] = pages[f.NEXT, page]
    tables[table, f.RESERVED] -= 1
    return page


@kernel
def let_go(scalars, pages, scopes, scope, page, flow):
    """Drop one reference; at 0 the page is freed and `flow` counts it.

    With a key it stays cached, at the queue's tail; without one it goes where ORDER says.
    """
    left = np.int64(pages[f.REFCOUNT, page]) - 1
    pages[f.REFCOUNT, page] = left
    if left == 0:
        scalars[f.HELD] -= 1
        scalars[flow] += 1
        scopes[scope, f.HELD_IN] -= 1
        if pages[f.KEY, page]:
            pages[f.STATE, page] = f.CACHED_PAGE
            scalars[f.CACHED] += 1
            enqueue(scalars, pages, page, False)
        else:
            pages[f.STATE, page] = f.FREE_PAGE
            enqueue(scalars, pages, page, scalars[f.ORDER] == f.LIFO)
