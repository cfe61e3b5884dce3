"""The running order, the calendar of members that have to be looked at, and preemption."""

from __future__ import annotations

import numpy as np

from kvsim.engine.serving import fields as s
from kvsim.engine.serving.waiting import before, join
from kvsim.jit import kernel
from kvsim.paging import fields as f
from kvsim.paging.lifecycle import free
from kvsim.paging.pool import let_go
from kvsim.paging.prefix import forget
from kvsim.paging.segments import size_class
from kvsim.paging.swapping import swap_out


@kernel
def enter(state, requests, running, request):
    """Put a request at the end of the running order."""
    running[state[s.RUNNING]] = request
    requests[request, s.RANK] = state[s.STAMP]
    state[s.STAMP] += 1
    state[s.RUNNING] += 1
    state[s.MOST_RUNNING] = max(state[s.MOST_RUNNING], state[s.RUNNING])


@kernel
def exit_running(state, running, request):
    """Take a request out of the running order."""
    at = state[s.RUNNING] - 1
    while running[at] != request:
        at -= 1
    for later in range(at, state[s.RUNNING] - 1):
        running[later] = running[later + 1]
    state[s.RUNNING] -= 1


@kernel
def first_prefilling(state, requests, running):
    """Return where the first prefilling member stands: most often near the end of the order."""
    at = state[s.RUNNING]
    missing = state[s.PREFILLING]
    while missing > 0:
        at -= 1
        missing -= requests[running[at], s.STATUS] == s.PREFILLS
    return at


@kernel
def note(requests, calendar, request, step):
    """Write down that a member has to be looked at in a step, at most page_tokens ahead."""
    last = calendar.shape[1] - 1
    day = step % calendar.shape[0]
    requests[request, s.TOUCH] = step
    calendar[day, calendar[day, last]] = request
    calendar[day, last] += 1


@kernel
def strike(requests, calendar, request):
    """Take a member off the calendar, if it stands there."""
    last = calendar.shape[1] - 1
    day = requests[request, s.TOUCH] % calendar.shape[0]
    for at in range(calendar[day, last]):
        if calendar[day, at] == request:
            calendar[day, last] -= 1
            calendar[day, at] = calendar[day, calendar[day, last]]
            break


@kernel
def next_look(tables, state, requests, calendar, request):
    """Put a decoding member that is up to date onto the calendar."""
    ahead = np.int64(0)
    if not state[s.TOUCH_ALL]:
        left = requests[request, s.OUTPUT] - requests[request, s.GENERATED]
        ahead = min(tables[requests[request, s.SEQUENCE], f.ROOM], left)
    note(requests, calendar, request, requests[request, s.SINCE] + ahead)


@kernel
def in_order(requests, members, first, count):
    """Sort members[first:count] by running order; they nearly are, so by insertion."""
    for place in range(first + 1, count):
        member = members[place]
        rank = requests[member, s.RANK]
        at = place
        while at > first and requests[members[at - 1], s.RANK] > rank:
            members[at] = members[at - 1]
            at -= 1
        members[at] = member


@kernel
def readable(tables, sequence, page_tokens):
    """Return how many slots a reader of a sequence reads: all below the cursor in its pages."""
    gone = tables[sequence, f.ENTRIES] - tables[sequence, f.NAMED]
    return tables[sequence, f.CURSOR] - gone * page_tokens


@kernel
def catch_up(scalars, tables, requests, request, step):
    """Write into a decoding member's table what it appended in the steps before `step`.

    If it has its row of `step` already, nothing is written; GENERATED still counts the tokens
    generated before `step` afterwards. Returns the rows written, -1 in that case.
    """
    used = step - requests[request, s.SINCE]
    requests[request, s.GENERATED] += used
    requests[request, s.SINCE] = step
    if used > 0:
        sequence = requests[request, s.SEQUENCE]
        tables[sequence, f.CURSOR] += used
        tables[sequence, f.ROOM] -= used
        scalars[f.APPENDED_TOTAL] += used
    return used


@kernel
def start_decoding(scalars, tables, state, requests, calendar, request, since):
    """Let a member whose rows are all computed write its next row in step `since`."""
    requests[request, s.STATUS] = s.DECODES
    requests[request, s.SINCE] = since
    state[s.DECODING] += 1
    sequence = requests[request, s.SEQUENCE]
    state[s.LATE_READS] += readable(tables, sequence, scalars[f.PAGE_TOKENS])
    next_look(tables, state, requests, calendar, request)


@kernel
def take_back_row(arrays, sequence):
    """Undo the row that a member wrote in the step under way."""
    scalars, tables, pages, entries, _, _, position, scopes, _ = arrays
    page_tokens = scalars[f.PAGE_TOKENS]
    tables[sequence, f.CURSOR] -= 1
    tables[sequence, f.ROOM] = 0
    for row in range(position.shape[0]):
        # The row had the last position given, and the next one is to have it again.
        tables[sequence, f.NEXT_POSITION + row] -= 1
    if tables[sequence, f.CURSOR] % page_tokens == 0:
        tables[sequence, f.ENTRIES] -= 1
        tables[sequence, f.NAMED] -= 1
        at = tables[sequence, f.START] + tables[sequence, f.ENTRIES]
        let_go(scalars, pages, scopes, 0, np.int64(entries[f.PAGE, at]), f.FINISHED_TOTAL)


@kernel
def fork_entries(requests, request, page_tokens):
    """Return how many arena entries the forks of a request may take."""
    if requests[request, s.GENERATED] > 0:
        return np.int64(0)
    total = requests[request, s.INPUT] + requests[request, s.OUTPUT]
    most = np.int64(2) << size_class((total + page_tokens - 1) // page_tokens)
    return (requests[request, s.SAMPLES] - 1) * most


@kernel
def begin_anew(requests, request):
    """Forget what a request had in the cache."""
    for field in (s.COMPUTED, s.SPARSE, s.DONE_PAGES, s.HIT_TOKENS, s.HEAPED, s.HEAP_NEXT):
        requests[request, field] = 0
    requests[request, s.SEQUENCE] = -1


@kernel
def drop(arrays, serving, request):
    """Take a member out of the step under way and off the calendar.

    Tells whether it had written its row of this step already.
    """
    scalars, tables, pages, entries, _, _, _, _, _ = arrays
    state, requests = serving.state, serving.requests
    page_tokens = scalars[f.PAGE_TOKENS]
    step = state[s.STEP]
    sequence = requests[request, s.SEQUENCE]
    if requests[request, s.STATUS] == s.DECODES:
        wrote = catch_up(scalars, tables, requests, request, step) < 0
        rows = tables[sequence, f.CURSOR] - wrote
        done = requests[request, s.DONE_PAGES]
        if not requests[request, s.SPARSE] and done * page_tokens > rows:
            # The page that its row of this step would have filled is never going to be.
            last = tables[sequence, f.START] + done - 1
            forget(scalars, pages, np.int64(entries[f.PAGE, last]))
            requests[request, s.DONE_PAGES] = done - 1
        requests[request, s.BEST] = max(requests[request, s.BEST], rows)
        state[s.READS] -= readable(tables, sequence, page_tokens) - wrote
        state[s.DECODING] -= 1
        state[s.WROTE] -= 1
        state[s.BUDGET] += 1
        strike(requests, serving.calendar, request)
        return wrote
    if requests[request, s.CHUNK_STEP] == step:
        chunk = requests[request, s.CHUNK]
        rows = requests[request, s.COMPUTED]
        state[s.BUDGET] += chunk
        state[s.CHUNK_TOKENS] -= chunk
        state[s.PREFILLED_TOTAL] -= chunk
        state[s.CHUNK_READS] -= rows
        state[s.CHUNK_PAIRS] -= (rows - chunk) * chunk + chunk * (chunk + 1) // 2
    state[s.PREFILLING] -= 1
    state[s.FORK_ENTRIES] -= fork_entries(requests, request, page_tokens)
    if requests[request, s.GENERATED] == 0:
        state[s.FORK_SEATS] -= requests[request, s.SAMPLES] - 1
    return False


@kernel
def preempt(arrays, serving, request):
    """Take a member's pages and let it wait again."""
    state, requests = serving.state, serving.requests
    decodes = requests[request, s.STATUS] == s.DECODES
    wrote = drop(arrays, serving, request)
    exit_running(state, serving.running, request)
    sequence = requests[request, s.SEQUENCE]
    if decodes and state[s.PREEMPTION] == s.SWAP:
        if wrote:
            take_back_row(arrays, sequence)
        count = swap_out(arrays, sequence)
        requests[request, s.HOST_PAGES_OF] = count
        requests[request, s.STATUS] = s.SWAPPED
        state[s.HOST_PAGES] += count
        state[s.SWAPPED_PAGES_TOTAL] += count
    else:
        free(arrays, sequence)
        begin_anew(requests, request)
        requests[request, s.STATUS] = s.QUEUED
    requests[request, s.PREEMPTIONS] += 1
    state[s.PREEMPTIONS_TOTAL] += 1
    state[s.PREEMPTED] = 1
    join(serving, request, True)


@kernel
def victim_of_preemption(serving):
    """Return the member that goes first: the last of the order, or the least urgent."""
    state, running = serving.state, serving.running
    last = running[state[s.RUNNING] - 1]
    if state[s.ADMISSION] == s.BY_PRIORITY:
        for at in range(state[s.RUNNING]):
            if before(serving.requests, last, running[at]):
                last = running[at]
    return last
