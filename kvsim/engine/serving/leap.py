"""The step loop: whole steps until a time, a number of steps, or something only Python can do.

The rules are those of docs/serving.md, in its order. What can be answered with GROW is asked for
before a step begins or an admission changes anything, so that the same call goes on afterwards.
"""

from __future__ import annotations

import numpy as np

from kvsim.engine.costs.roofline import step_ns
from kvsim.engine.serving import fields as s
from kvsim.engine.serving.decoding import finish, leavers, look, press_first
from kvsim.engine.serving.events import adopt
from kvsim.engine.serving.members import (
    first_prefilling,
    fork_entries,
    next_look,
    readable,
    start_decoding,
    strike,
)
from kvsim.engine.serving.prefilling import admit, prefill
from kvsim.engine.serving.victims import evict_newly_old, evict_to_budget, evicts_singly
from kvsim.engine.serving.waiting import arrive
from kvsim.jit import kernel
from kvsim.paging import fields as f
from kvsim.paging.moves import rows_of
from kvsim.paging.prefix import set_ceiling


@kernel
def room_for_a_step(scalars, state, entries):
    """Answer GROW unless the arrays have room for whatever the next step may need."""
    members = state[s.MAX_RUNNING]
    pages = 4 * members + state[s.STEP_TOKENS] // scalars[f.PAGE_TOKENS] + 8
    taken = scalars[f.HELD] + scalars[f.CACHED] + scalars[f.PARKED]
    if scalars[f.CEILING] > scalars[f.PAGES] and taken + pages > scalars[f.PAGES]:
        scalars[f.GROW_WHAT] = f.GROW_PAGES
        # Beyond the held ones, so cached pages are asked for once more: they stay.
        scalars[f.NEED] = pages + scalars[f.CACHED] + scalars[f.PARKED]
        return s.GROW
    if scalars[f.ARENA_TOP] + state[s.FORK_ENTRIES] > entries.shape[1]:
        scalars[f.GROW_WHAT] = f.GROW_ARENA
        scalars[f.NEED] = state[s.FORK_ENTRIES]
        return s.GROW
    return f.OK


@kernel
def duration(scalars, scopes, state, cost):
    """Work out how long the step under way takes, and book what it read."""
    reads = state[s.READS] + state[s.WROTE]
    state[s.READS] = reads
    state[s.READS_TOTAL] += reads
    copied = scalars[f.COPIED_BYTES_TOTAL] - state[s.MOVED_BEFORE]
    turned = scalars[f.ROTATED_ROWS_TOTAL] - state[s.TURNED_BEFORE]
    moved = np.int64(0)
    host = np.int64(0)
    if copied or turned or state[s.HOST_PAGES]:
        state[s.MOVED_BEFORE] = scalars[f.COPIED_BYTES_TOTAL]
        state[s.TURNED_BEFORE] = scalars[f.ROTATED_ROWS_TOTAL]
        token_bytes = rows_of(scalars, scopes, 0, f.BYTES)
        plane_bytes = token_bytes // (rows_of(scalars, scopes, 0, f.ROWS) * state[s.PLANES])
        # A moved row is read and written; a rotation reads one plane and writes another.
        moved = 2 * (copied + turned * plane_bytes)
        host = state[s.HOST_PAGES] * token_bytes * scalars[f.PAGE_TOKENS]
    return step_ns(
        cost,
        state[s.WROTE],
        reads,
        state[s.CHUNK_TOKENS],
        state[s.CHUNK_READS],
        state[s.CHUNK_PAIRS],
        moved,
        host,
    )


@kernel
def complete(arrays, serving, scalars, tables, state, requests, calendar, request):
    """Let a member whose known tokens are all computed generate one and decode, with its forks."""
    first = requests[request, s.GENERATED] == 0
    state[s.PREFILLING] -= 1
    state[s.FORK_ENTRIES] -= fork_entries(requests, request, scalars[f.PAGE_TOKENS])
    if first:
        state[s.FORK_SEATS] -= requests[request, s.SAMPLES] - 1
    if requests[request, s.OUTPUT] > 0:
        requests[request, s.GENERATED] += 1
        state[s.GENERATED_TOTAL] += 1
        if requests[request, s.FIRST_NS] < 0:
            requests[request, s.FIRST_NS] = state[s.NOW]
    start_decoding(scalars, tables, state, requests, calendar, request, state[s.STEP])
    if first and requests[request, s.OUTPUT] > 0:
        for sample in range(requests[request, s.SAMPLES] - 1):
            child = requests[request, s.FIRST_CHILD] + sample
            adopt(arrays, serving, request, child, state[s.STEP])
            requests[child, s.FIRST_NS] = state[s.NOW]
            state[s.GENERATED_TOTAL] += 1


@kernel
def evict_from(arrays, serving, request):
    """Evict from a decoding member that is up to date, and keep the sum of reads right."""
    scalars, tables, _, _, _, _, _, _, _ = arrays
    state, requests = serving.state, serving.requests
    sequence = requests[request, s.SEQUENCE]
    old = readable(tables, sequence, scalars[f.PAGE_TOKENS])
    if evict_to_budget(arrays, serving, request):
        state[s.READS] += readable(tables, sequence, scalars[f.PAGE_TOKENS]) - old
        if state[s.WHEN] != s.EVERY_STEP:
            # The room that its table had is not known any more.
            strike(requests, serving.calendar, request)
            next_look(tables, state, requests, serving.calendar, request)


@kernel
def evict_all_due(arrays, serving, every):
    """Evict from all members that are due."""
    scalars, tables, pages, entries, dead, holders, position, scopes, _ = arrays
    state, requests, due = serving.state, serving.requests, serving.due
    candidates, fraction = serving.candidates, serving.fraction[0]
    singly = every and evicts_singly(state, holders.shape[0] + position.shape[0])
    for at in range(state[s.DUE]):
        request = due[at]
        if not singly or not evict_newly_old(
            scalars,
            tables,
            pages,
            entries,
            dead,
            scopes,
            state,
            requests,
            candidates,
            fraction,
            request,
        ):
            evict_from(arrays, serving, request)
    state[s.DUE] = 0


@kernel
def after_tokens(arrays, serving, scalars, tables, state, requests, running, calendar):
    """Complete the prefills of a step, and evict what a policy wants after it."""
    state[s.DUE] = 0
    before = state[s.RUNNING]
    evicts = state[s.EVICTION] != s.NO_EVICTION and state[s.WHEN] != s.UNDER_PRESSURE
    every = evicts and state[s.WHEN] == s.EVERY_STEP
    begin = np.int64(0)
    if not every:
        begin = first_prefilling(state, requests, running)
    for at in range(begin, before):
        member = running[at]
        evict = every
        if requests[member, s.STATUS] == s.PREFILLS:
            known = requests[member, s.INPUT] + requests[member, s.GENERATED]
            if requests[member, s.COMPUTED] < known:
                continue
            complete(arrays, serving, scalars, tables, state, requests, calendar, member)
            evict = evicts
        if evict:
            serving.due[state[s.DUE]] = member
            state[s.DUE] += 1
    # Forks joined the order behind; they hold what their parents do.
    for at in range(before, state[s.RUNNING]):
        if evicts:
            serving.due[state[s.DUE]] = running[at]
            state[s.DUE] += 1
    if state[s.EVICTION] != s.ASK:
        evict_all_due(arrays, serving, every)


@kernel
def leap(arrays, serving, until_ns, most_steps, placed):
    """Take steps until time `until_ns` or step `most_steps`; see fields for the answers."""
    scalars, tables, pages, entries, dead, holders, position, scopes, plan = arrays
    state, requests, running = serving.state, serving.requests, serving.running
    calendar, today, heap = serving.calendar, serving.today, serving.heap
    keys, page_of, hits, cost = serving.keys, serving.page_of, serving.hits, serving.cost
    plain = holders.shape[0] + position.shape[0] == 0
    every = state[s.WHEN] == s.EVERY_STEP and state[s.EVICTION] != s.NO_EVICTION
    phase = state[s.PHASE]
    ended = phase == s.AT_EVICTED
    while True:
        if ended:
            # What is sampled at the end of a step.
            scalars[f.HELD_PEAK] = max(scalars[f.HELD_PEAK], scalars[f.HELD])
            state[s.READS] += state[s.LATE_READS]
            state[s.LATE_READS] = 0
            state[s.PAGE_INTEGRAL] += scalars[f.HELD]
            state[s.TOKEN_STEPS] += state[s.RUNNING]
            phase = s.AT_START
            ended = False
            if state[s.STEP] - state[s.LAST_PROGRESS] >= s.PATIENCE_STEPS:
                state[s.PHASE] = phase
                return s.LIVELOCK
        if phase == s.AT_START:
            leaving = leavers(requests, calendar, today, state[s.STEP])
            for at in range(leaving):
                finish(
                    scalars,
                    tables,
                    pages,
                    entries,
                    scopes,
                    state,
                    requests,
                    running,
                    today[at],
                )
            if state[s.NOW] >= until_ns or state[s.STEP] >= most_steps:
                state[s.PHASE] = phase
                return s.UNTIL
            ahead = state[s.NEXT_ARRIVAL]
            if ahead < state[s.ARRIVED] and requests[ahead, s.ARRIVAL_NS] <= state[s.NOW]:
                arrive(state, requests, heap)
            if state[s.CEILING] != scalars[f.CEILING] and scalars[f.CEILING] <= scalars[f.PAGES]:
                set_ceiling(scalars, pages, state[s.CEILING])
            if room_for_a_step(scalars, state, entries) != f.OK:
                state[s.PHASE] = phase
                return s.GROW
            state[s.PREEMPTED] = 0
            state[s.PRESSED] = 0
            state[s.CHUNK_TOKENS] = 0
            state[s.CHUNK_READS] = 0
            state[s.CHUNK_PAIRS] = 0
            state[s.HOST_PAGES] = 0
            state[s.WROTE] = state[s.DECODING]
            if state[s.PRESS_WANTED]:
                press_first(arrays, serving)
            if state[s.DECODING]:
                look(
                    arrays,
                    serving,
                    placed,
                    scalars,
                    tables,
                    pages,
                    entries,
                    scopes,
                    state,
                    requests,
                    calendar,
                    today,
                    serving.tomorrow,
                    keys,
                    page_of,
                    plain,
                )
            state[s.BUDGET] = state[s.STEP_TOKENS] - state[s.WROTE]
            if state[s.PREFILLING]:
                prefill(arrays, serving, placed)
        if not state[s.PREEMPTED] and not state[s.PRESS_WANTED] and state[s.WAITING]:
            answer = admit(
                arrays,
                serving,
                placed,
                scalars,
                tables,
                pages,
                entries,
                dead,
                holders,
                position,
                scopes,
                plan,
                state,
                requests,
                running,
                keys,
                page_of,
                hits,
            )
            if answer != f.OK:
                state[s.PHASE] = s.AT_ADMISSION
                return s.GROW
        phase = s.AT_START
        wrote = state[s.WROTE]
        if wrote == 0 and state[s.CHUNK_TOKENS] == 0 and state[s.HOST_PAGES] == 0:
            # Nobody has a token: no step is taken.
            state[s.PHASE] = phase
            if state[s.PREEMPTED] or state[s.PRESS_WANTED]:
                continue
            if state[s.WAITING] == 0 and state[s.NEXT_ARRIVAL] == state[s.ARRIVED]:
                return s.DONE
            if state[s.WAITING]:
                return s.STUCK
            arrival = requests[state[s.NEXT_ARRIVAL], s.ARRIVAL_NS]
            state[s.NOW] = max(state[s.NOW], min(arrival, until_ns))
            continue
        time = duration(scalars, scopes, state, cost)
        state[s.NOW] += time
        state[s.BUSY_NS] += time
        state[s.STEP] += 1
        state[s.GENERATED_TOTAL] += wrote
        if wrote:
            state[s.LAST_PROGRESS] = state[s.STEP]
        if state[s.PREFILLING] or (every and wrote):
            after_tokens(arrays, serving, scalars, tables, state, requests, running, calendar)
            if state[s.DUE]:
                state[s.PHASE] = s.AT_EVICTED
                return s.POLICY_DUE
        ended = True
