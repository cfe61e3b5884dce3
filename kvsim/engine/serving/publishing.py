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
    return requests[request, s.OWN_KEY] + page


@kernel
def publish_rows(
    tables, pages, entries, state, requests, keys, page_of, page_tokens, request, rows
):
    """Enter the full pages among the first `rows` rows of a request that were not entered yet."""
    if state[s.PREFIX] == s.NO_CACHE or requests[request, s.SPARSE]:
        return
    if state[s.PUBLISH] == s.PROMPT:
        rows = min(rows, requests[request, s.INPUT])
    start = tables[requests[request, s.SEQUENCE], f.START]
    done = requests[request, s.DONE_PAGES]
    while (done + 1) * page_tokens <= rows:
        key = key_of(requests, keys, request, done)
        page = np.int64(entries[f.PAGE, start + done])
        if publish(pages, page_of, page, key) and key < state[s.GIVEN_KEYS]:
            state[s.PUBLISHED] += 1
        done += 1
    requests[request, s.DONE_PAGES] = done


@kernel
def publish_tomorrow(arrays, serving):
    """Publish the pages of decoding members that this step's rows fill.

    They are among those whose room is used up, hence who have to be looked at in the next step.
    """
    scalars, tables, pages, entries, _, _, _, _, _ = arrays
    state, requests, calendar = serving.state, serving.requests, serving.calendar
    if state[s.PREFIX] == s.NO_CACHE:
        return
    last = calendar.shape[1] - 1
    day = (state[s.STEP] + 1) % calendar.shape[0]
    in_order_of_rank = calendar[day, last]
    for place in range(1, in_order_of_rank):
        member = calendar[day, place]
        at = place
        while at > 0 and requests[calendar[day, at - 1], s.RANK] > requests[member, s.RANK]:
            calendar[day, at] = calendar[day, at - 1]
            at -= 1
        calendar[day, at] = member
    for place in range(in_order_of_rank):
        member = np.int64(calendar[day, place])
        sequence = requests[member, s.SEQUENCE]
        ahead = state[s.STEP] + 1 - requests[member, s.SINCE]
        publish_rows(
            tables,
            pages,
            entries,
            state,
            requests,
            serving.keys,
            serving.page_of,
            scalars[f.PAGE_TOKENS],
            member,
            tables[sequence, f.CURSOR] + ahead,
        )


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
