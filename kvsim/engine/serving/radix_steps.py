"""What the step loop does to the radix tree: matches, insertions, and pages out of leaves."""

from __future__ import annotations

import numpy as np

from kvsim.engine.serving import fields as s
from kvsim.engine.serving.publishing import key_of
from kvsim.engine.serving.radix import cut, grow_leaf, make_free, touch
from kvsim.jit import kernel
from kvsim.paging import fields as f
from kvsim.paging.append import append, append_need
from kvsim.paging.pool import let_go, unlink
from kvsim.paging.prefix import page_with, publish, set_ceiling


@kernel
def free_pages(scalars, pages, tree, state, count):
    """Have `count` pages free that no key is known of, and count the leaves that this takes."""
    state[s.EVICTED_LEAVES_TOTAL] += make_free(scalars, pages, tree, count)


@kernel
def append_freeing(arrays, serving, sequence, tokens, placed):
    """Append to a sequence of one table; in radix mode, evict leaves for it before.

    What the ceiling refuses evicts nothing.
    """
    scalars, tables, pages, entries, _, _, _, _, _ = arrays
    state = serving.state
    if state[s.PREFIX] == s.RADIX:
        need, _, _ = append_need(scalars, tables, pages, entries, sequence, tokens)
        if scalars[f.HELD] + need <= scalars[f.CEILING]:
            free_pages(scalars, pages, serving.tree, state, need)
    return append(arrays, sequence, tokens, placed)


@kernel
def ceiling_freeing(scalars, pages, tree, state):
    """Bring the ceiling near to what is wanted; what is parked comes out of whole leaves."""
    if state[s.PREFIX] == s.RADIX:
        ceiling = min(max(state[s.CEILING], scalars[f.HELD]), scalars[f.PAGES])
        parked = scalars[f.PAGES] - ceiling - scalars[f.PARKED]
        free_pages(scalars, pages, tree, state, parked)
    set_ceiling(scalars, pages, state[s.CEILING])


@kernel
def matched(scalars, pages, tree, state, hits, found, fresh):
    """Book the match of a request whose table begins with its hits, and free its fresh pages.

    The node in which it stops is cut there, and the path is used. Its hits are held by now, so
    no leaf that is evicted for it is one of them.
    """
    if found > 0:
        state[s.CUTS_TOTAL] += cut(tree, hits[found - 1]) >= 0
        touch(tree, hits[found - 1])
    free_pages(scalars, pages, tree, state, fresh)


@kernel
def hold_instead(scalars, pages, entries, scopes, at, page):
    """Let an arena entry name a page of the tree; its own one with the same rows is freed."""
    let_go(scalars, pages, scopes, 0, np.int64(entries[f.PAGE, at]), f.FREED_TOTAL)
    if pages[f.REFCOUNT, page] == 0:
        unlink(pages, page)
        pages[f.STATE, page] = f.HELD_PAGE
        pages[f.OWNER, page] = 0
        scalars[f.CACHED] -= 1
        scalars[f.HELD] += 1
        scalars[f.REVIVED_TOTAL] += 1
        scopes[0, f.HELD_IN] += 1
    pages[f.REFCOUNT, page] += 1
    entries[f.PAGE, at] = page


@kernel
def insert(arrays, serving, request, rows, stays):
    """Insert a request's full pages among its first `rows` rows into the tree.

    If it stays, its table names the tree's pages from then on, and its own ones with the same
    rows are freed; if not, they have no key, and are freed with the rest of its table.
    """
    scalars, tables, pages, entries, _, _, _, scopes, _ = arrays
    state, requests, tree = serving.state, serving.requests, serving.tree
    if state[s.PUBLISH] == s.PROMPT:
        rows = min(rows, requests[request, s.INPUT])
    start = tables[requests[request, s.SEQUENCE], f.START]
    # Its pages before this one are the tree's already, and stay there while it names them.
    at = requests[request, s.DONE_PAGES]
    full = max(rows // scalars[f.PAGE_TOKENS], at)
    last = np.int64(entries[f.PAGE, start + at - 1]) if at > 0 else np.int64(-1)
    while at < full:
        key = key_of(requests, serving.keys, request, at)
        page = page_with(pages, serving.page_of, key)
        if page < 0:
            break
        if stays:
            hold_instead(scalars, pages, entries, scopes, start + at, page)
        last = page
        at += 1
    if last >= 0:
        state[s.CUTS_TOTAL] += cut(tree, last) >= 0
    if at < full:
        for entry in range(at, full):
            key = key_of(requests, serving.keys, request, entry)
            publish(pages, serving.page_of, np.int64(entries[f.PAGE, start + entry]), key)
        grow_leaf(tree, entries, start + at, full - at, last)
    touch(tree, last)
    requests[request, s.DONE_PAGES] = full if stays else 0
    # A waiting request may find other pages now, or find them held.
    state[s.BLOCKED] = -1


@kernel
def insert_chunks(arrays, serving, begin):
    """Insert what the members that prefill computed in the step that ended, in running order.

    None of them stands before the place `begin`.
    """
    state, requests, running = serving.state, serving.requests, serving.running
    for at in range(begin, state[s.RUNNING]):
        member = running[at]
        if requests[member, s.STATUS] != s.PREFILLS:
            continue
        if requests[member, s.CHUNK_STEP] == state[s.STEP] - 1:
            insert(arrays, serving, member, requests[member, s.COMPUTED], True)


@kernel
def insert_leaving(arrays, serving, request, decodes, unwritten):
    """Insert the pages of a member that leaves its table, and give up its hold on the tree.

    Its table is up to date, but for `unwritten` rows at its end that are withdrawn. What a member
    that prefills has computed was inserted when the step ended in which it was.
    """
    rows = np.int64(0)
    if decodes:
        sequence = serving.requests[request, s.SEQUENCE]
        rows = arrays.tables[sequence, f.CURSOR] - unwritten
    insert(arrays, serving, request, rows, False)
