"""What may happen between two steps from outside: a request is cancelled, or forks."""

from __future__ import annotations

from kvsim.engine.serving import fields as s
from kvsim.engine.serving.members import (
    begin_anew,
    catch_up,
    drop,
    enter,
    exit_running,
    next_look,
    start_decoding,
    strike,
)
from kvsim.engine.serving.radix_steps import insert_leaving
from kvsim.engine.serving.waiting import leave
from kvsim.jit import kernel
from kvsim.paging import fields as f
from kvsim.paging.lifecycle import fork, free
from kvsim.paging.segments import reserve


@kernel
def cancel(arrays, serving, request):
    """Take a request out of the engine, whatever it does; tell whether it was still there."""
    state, requests = serving.state, serving.requests
    status = requests[request, s.STATUS]
    if status in (s.FINISHED_STATUS, s.CANCELLED_STATUS):
        return False
    if status in (s.PREFILLS, s.DECODES):
        wrote = drop(arrays, serving, request)
        if state[s.PREFIX] == s.RADIX:
            insert_leaving(arrays, serving, request, status == s.DECODES, wrote)
        exit_running(state, serving.running, request)
    elif status in (s.QUEUED, s.SWAPPED):
        leave(serving, request)
    if requests[request, s.SEQUENCE] >= 0:
        free(arrays, requests[request, s.SEQUENCE])
    begin_anew(requests, request)
    requests[request, s.STATUS] = s.CANCELLED_STATUS
    requests[request, s.LAST_NS] = state[s.NOW]
    state[s.CANCELLED] += 1
    # A waiting request may be admitted now that did not fit before.
    state[s.BLOCKED] = -1
    return True


@kernel
def adopt(arrays, serving, parent, child, since):
    """Make a row of `requests` a fork of a decoding member, sharing all its pages.

    The caller has seen to it that a seat, a table row and the arena entries are there.
    """
    scalars, tables, _, entries, dead, holders, position, _, _ = arrays
    state, requests = serving.state, serving.requests
    page_tokens = scalars[f.PAGE_TOKENS]
    catch_up(scalars, tables, requests, parent, since)
    answer = fork(arrays, requests[parent, s.SEQUENCE])
    if answer != f.OK:
        return answer
    sequence = scalars[f.MEMBER]
    scalars[f.MEMBER] = 0
    total = requests[child, s.INPUT] + requests[child, s.OUTPUT]
    capacity = (total + page_tokens - 1) // page_tokens
    reserve(scalars, tables, entries, dead, holders, position, sequence, capacity)
    requests[child, s.SEQUENCE] = sequence
    if requests[parent, s.TOUCH] > since:
        # Its last page is shared now, so its next row needs a copy.
        strike(requests, serving.calendar, parent)
        next_look(tables, state, requests, serving.calendar, parent)
    for field in (
        s.GENERATED,
        s.COMPUTED,
        s.SPARSE,
        s.DONE_PAGES,
        s.HIT_TOKENS,
        s.SCHEDULED_NS,
        s.BEST,
    ):
        requests[child, field] = requests[parent, field]
    enter(state, requests, serving.running, child)
    start_decoding(scalars, tables, state, requests, serving.calendar, child, since)
    return f.OK
