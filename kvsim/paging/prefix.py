"""Pages that a prefix index may serve: keys, hits, and pages out of the pool.

A key is a number that stands for the tokens of a page and of all pages before it. The index is
`page_of`, int32 [key]: the page that was last published under a key. It is checked when it is
read: a page whose memory went to somebody else has another key, or none. Knows nothing about
requests.
"""

from __future__ import annotations

import numpy as np

from kvsim.jit import kernel
from kvsim.paging import fields as f
from kvsim.paging.pool import enqueue, unlink
from kvsim.paging.segments import reserve


@kernel
def page_with(pages, page_of, key):
    """Return the page that holds the content of a key, or -1."""
    page = np.int64(page_of[key])
    if page >= 0 and pages[f.KEY, page] == key + 1:
        return page
    return np.int64(-1)


@kernel
def publish(pages, page_of, page, key):
    """Enter a held page under a key unless another page is there; tell whether it was entered."""
    if pages[f.KEY, page] or page_with(pages, page_of, key) >= 0:
        return False
    pages[f.KEY, page] = key + 1
    page_of[key] = page
    return True


@kernel
def forget(scalars, pages, page):
    """Take a page's key away, because its content changed or its memory is wanted."""
    if pages[f.KEY, page]:
        pages[f.KEY, page] = 0
        if pages[f.STATE, page] == f.CACHED_PAGE:
            scalars[f.CACHED] -= 1
            pages[f.STATE, page] = f.FREE_PAGE
            unlink(pages, page)
            enqueue(scalars, pages, page, scalars[f.ORDER] == f.LIFO)


@kernel
def attach(
    scalars,
    tables,
    pages,
    entries,
    dead,
    holders,
    position,
    scopes,
    sequence,
    hits,
    count,
    capacity,
):
    """Let an empty sequence of one table begin with pages that a prefix index found.

    The caller has checked that the arena has a segment for `capacity` entries, and that the
    ceiling allows the pages among them which nobody holds.
    """
    page_tokens = scalars[f.PAGE_TOKENS]
    reserve(scalars, tables, entries, dead, holders, position, sequence, capacity)
    start = tables[sequence, f.START]
    for entry in range(count):
        page = hits[entry]
        if pages[f.REFCOUNT, page] == 0:
            unlink(pages, page)
            pages[f.STATE, page] = f.HELD_PAGE
            pages[f.OWNER, page] = 0
            scalars[f.CACHED] -= 1
            scalars[f.HELD] += 1
            scalars[f.REVIVED_TOTAL] += 1
            scopes[0, f.HELD_IN] += 1
        pages[f.REFCOUNT, page] += 1
        entries[f.PAGE, start + entry] = page
        entries[f.DEAD_IN, start + entry] = 0
    slots = count * page_tokens
    for row in range(holders.shape[0]):
        for slot in range(slots):
            holders[row, start * page_tokens + slot] = 1
    for row in range(position.shape[0]):
        for slot in range(slots):
            position[row, start * page_tokens + slot] = slot
        tables[sequence, f.NEXT_POSITION + row] = slots
    tables[sequence, f.ENTRIES] = count
    tables[sequence, f.NAMED] = count
    tables[sequence, f.CURSOR] = slots


@kernel
def park(scalars, pages, count):
    """Take up to `count` pages out of the pool, from the queue's head; return how many."""
    done = np.int64(0)
    while done < count:
        page = np.int64(pages[f.NEXT, scalars[f.PAGES]])
        if page == scalars[f.PAGES]:
            break
        unlink(pages, page)
        if pages[f.KEY, page]:
            pages[f.KEY, page] = 0
            scalars[f.CACHED] -= 1
            scalars[f.RECLAIMED_TOTAL] += 1
        pages[f.STATE, page] = f.PARKED_PAGE
        scalars[f.PARKED] += 1
        done += 1
    return done


@kernel
def unpark(scalars, pages, count):
    """Take up to `count` parked pages back into the pool, in ascending order."""
    page = np.int64(0)
    while count > 0 and scalars[f.PARKED] > 0:
        if pages[f.STATE, page] == f.PARKED_PAGE:
            pages[f.STATE, page] = f.FREE_PAGE
            enqueue(scalars, pages, page, scalars[f.ORDER] == f.LIFO)
            scalars[f.PARKED] -= 1
            count -= 1
        page += 1


@kernel
def set_ceiling(scalars, pages, target):
    """Bring the ceiling of a pool whose pages all exist as near to `target` as held pages allow.

    Pages above the ceiling are parked, so that free + held + cached + parked is always the pool.
    """
    ceiling = min(max(target, scalars[f.HELD]), scalars[f.PAGES])
    above = scalars[f.PAGES] - ceiling
    if above > scalars[f.PARKED]:
        park(scalars, pages, above - scalars[f.PARKED])
    elif above < scalars[f.PARKED]:
        unpark(scalars, pages, scalars[f.PARKED] - above)
    scalars[f.CEILING] = ceiling
