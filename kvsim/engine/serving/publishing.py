"""Which pages of a request enter the prefix index, and which it finds there."""

from __future__ import annotations

import numpy as np

from kvsim.engine.serving import fields as s
from kvsim.jit import kernel
from kvsim.paging import fields as f
from kvsim.paging.prefix import page_with, publish


@kernel
def key_of(requests, keys, request, page):
    """Return the key of a page of a request: given with the trace, or its own."""
    if page < requests[request, s.KEY_COUNT]:
        return np.int64(keys[requests[request, s.KEYS] + page])
    if page < requests[request, s.PROMPT_PAGES]:
        return requests[request, s.PROMPT_KEY] + page
    return requests[request, s.OWN_KEY] + page


@kernel
def publish_rows(
    tables, pages, entries, state, requests, keys, page_of, page_tokens, request, rows
):
    """Enter the full pages among the first `rows` rows of a request that were not entered yet."""
    if state[s.PREFIX] != s.BLOCKS or requests[request, s.SPARSE]:
        return
    if state[s.PUBLISH] == s.PROMPT:
        rows = min(rows, requests[request, s.INPUT])
    start = tables[requests[request, s.SEQUENCE], f.START]
    forks = requests[request, s.SAMPLES] > 1 or requests[request, s.PARENT] >= 0
    done = requests[request, s.DONE_PAGES]
    while (done + 1) * page_tokens <= rows:
        key = key_of(requests, keys, request, done)
        page = np.int64(entries[f.PAGE, start + done])
        if publish(pages, page_of, page, key) and (forks or key < state[s.GIVEN_KEYS]):
            # Others may find it; only that can give a waiting request more hits.
            state[s.PUBLISHED] += 1
        done += 1
    requests[request, s.DONE_PAGES] = done


@kernel
def publish_until(
    tables,
    pages,
    entries,
    state,
    requests,
    keys,
    page_of,
    page_tokens,
    members,
    done,
    count,
    rank,
):
    """Publish what members[done:count] fill in this step, for those that stand before `rank`.

    They are decoding members with room for their row of this step, in running order. Returns how
    many of them are done.
    """
    while done < count and requests[members[done], s.RANK] < rank:
        member = members[done]
        if requests[member, s.STATUS] == s.DECODES:
            ahead = state[s.STEP] + 1 - requests[member, s.SINCE]
            publish_rows(
                tables,
                pages,
                entries,
                state,
                requests,
                keys,
                page_of,
                page_tokens,
                member,
                tables[requests[member, s.SEQUENCE], f.CURSOR] + ahead,
            )
        done += 1
    return done


@kernel
def find_hits(pages, state, requests, keys, page_of, hits, page_tokens, request, known):
    """Find a request's leading pages in the index, into `hits`.

    Returns how many, and how many of them nobody holds.
    """
    if state[s.PREFIX] == s.NO_CACHE:
        return np.int64(0), np.int64(0)
    most = (known - 1) // page_tokens
    found = np.int64(0)
    unheld = np.int64(0)
    while found < most:
        key = key_of(requests, keys, request, found)
        page = page_with(pages, page_of, key)
        if page < 0:
            break
        hits[found] = page
        unheld += pages[f.REFCOUNT, page] == 0
        found += 1
    return found, unheld
