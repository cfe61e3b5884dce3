"""The step loop: whole steps until a time, a number of steps, or something only Python can do.

The rules are those of docs/serving.md, in its order. What can be answered with GROW is asked for
before a step begins or an admission changes anything, so that the same call goes on afterwards.
"""

from __future__ import annotations

from kvsim.engine.costs.roofline import step_ns
from kvsim.engine.serving import fields as s
from kvsim.engine.serving.decoding import (
    let_leave,
    look,
    next_look,
    press_first,
    start_decoding,
)
from kvsim.engine.serving.events import adopt
from kvsim.engine.serving.members import fork_entries, readable, strike
from kvsim.engine.serving.prefilling import admit, prefill
from kvsim.engine.serving.victims import evict_to_budget
from kvsim.engine.serving.waiting import arrive
from kvsim.jit import kernel
from kvsim.paging import fields as f
from kvsim.paging.moves import rows_of
from kvsim.paging.prefix import set_ceiling


@kernel
def room_for_a_step(arrays, serving):
    """Answer GROW unless the arrays have room for whatever the next step may need."""
    scalars, _, _, entries, _, _, _, _, _ = arrays
    state = serving.state
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
def duration(arrays, serving):
    """Work out how long the step under way takes, and book what it read."""
    scalars, _, _, _, _, _, _, scopes, _ = arrays
    state = serving.state
    reads = state[s.READS] + state[s.WROTE]
    state[s.READS] = reads
    state[s.READS_TOTAL] += reads
    copied = scalars[f.COPIED_BYTES_TOTAL] - state[s.MOVED_BEFORE]
    turned = scalars[f.ROTATED_ROWS_TOTAL] - state[s.TURNED_BEFORE]
    state[s.MOVED_BEFORE] = scalars[f.COPIED_BYTES_TOTAL]
    state[s.TURNED_BEFORE] = scalars[f.ROTATED_ROWS_TOTAL]
    token_bytes = rows_of(scalars, scopes, 0, f.BYTES)
    plane_bytes = token_bytes // (rows_of(scalars, scopes, 0, f.ROWS) * state[s.PLANES])
    return step_ns(
        serving.cost,
        state[s.WROTE],
        reads,
        state[s.CHUNK_TOKENS],
        state[s.CHUNK_READS],
        state[s.CHUNK_PAIRS],
        # A moved row is read and written; a rotation reads one plane and writes another.
        2 * (copied + turned * plane_bytes),
        state[s.HOST_PAGES] * token_bytes * scalars[f.PAGE_TOKENS],
    )


@kernel
def complete(arrays, serving, request):
    """Let a member whose known tokens are all computed generate one and decode, with its forks."""
    scalars, tables, _, _, _, _, _, _, _ = arrays
    state, requests = serving.state, serving.requests
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
    start_decoding(arrays, serving, request, state[s.STEP])
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
            strike(serving, request)
            next_look(arrays, serving, request)


@kernel
def after_tokens(arrays, serving):
    """End a step: tokens are generated, prefills complete, and what a policy wants is evicted."""
    state, requests, running = serving.state, serving.requests, serving.running
    state[s.GENERATED_TOTAL] += state[s.WROTE]
    if state[s.WROTE]:
        state[s.LAST_PROGRESS] = state[s.STEP]
    decoded = state[s.WROTE]
    state[s.DUE] = 0
    before = state[s.RUNNING]
    every = state[s.WHEN] == s.EVERY_STEP and state[s.EVICTION] != s.NO_EVICTION
    if state[s.PREFILLING] == 0 and not (every and decoded):
        return
    evicts = state[s.EVICTION] != s.NO_EVICTION and state[s.WHEN] != s.UNDER_PRESSURE
    for at in range(before):
        member = running[at]
        evict = every
        if requests[member, s.STATUS] == s.PREFILLS:
            known = requests[member, s.INPUT] + requests[member, s.GENERATED]
            if requests[member, s.COMPUTED] < known:
                continue
            complete(arrays, serving, member)
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
        for at in range(state[s.DUE]):
            evict_from(arrays, serving, serving.due[at])
        state[s.DUE] = 0


@kernel
def end_step(arrays, serving):
    """Sample what is sampled at the end of a step."""
    scalars, _, _, _, _, _, _, _, _ = arrays
    state = serving.state
    scalars[f.HELD_PEAK] = max(scalars[f.HELD_PEAK], scalars[f.HELD])
    state[s.READS] += state[s.LATE_READS]
    state[s.LATE_READS] = 0
    state[s.PAGE_INTEGRAL] += scalars[f.HELD]
    state[s.TOKEN_STEPS] += state[s.RUNNING]
    state[s.PHASE] = s.AT_START


@kernel
def leap(arrays, serving, until_ns, most_steps, placed):
    """Take steps until time `until_ns` or step `most_steps`; see fields for the answers."""
    scalars, _, pages, _, _, _, _, _, _ = arrays
    state, requests = serving.state, serving.requests
    while True:
        if state[s.PHASE] == s.AT_EVICTED:
            end_step(arrays, serving)
        if state[s.PHASE] == s.AT_START:
            let_leave(arrays, serving)
            if state[s.NOW] >= until_ns or state[s.STEP] >= most_steps:
                return s.UNTIL
            arrive(serving)
            if state[s.CEILING] != scalars[f.CEILING] and scalars[f.CEILING] <= scalars[f.PAGES]:
                set_ceiling(scalars, pages, state[s.CEILING])
            if room_for_a_step(arrays, serving) != f.OK:
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
            look(arrays, serving, placed)
            state[s.BUDGET] = state[s.STEP_TOKENS] - state[s.WROTE]
            if state[s.PREFILLING]:
                prefill(arrays, serving, placed)
            state[s.PHASE] = s.AT_ADMISSION
        if not state[s.PREEMPTED] and not state[s.PRESS_WANTED] and state[s.WAITING]:
            if admit(arrays, serving, placed) != f.OK:
                return s.GROW
        if state[s.WROTE] == 0 and state[s.CHUNK_TOKENS] == 0 and state[s.HOST_PAGES] == 0:
            # Nobody has a token: no step is taken.
            state[s.PHASE] = s.AT_START
            if state[s.PREEMPTED] or state[s.PRESS_WANTED]:
                continue
            if state[s.WAITING] == 0 and state[s.NEXT_ARRIVAL] == state[s.ARRIVED]:
                return s.DONE
            if state[s.WAITING] and (
                state[s.ADMISSION] == s.FCFS or state[s.NEXT_ARRIVAL] == state[s.ARRIVED]
            ):
                return s.STUCK
            arrival = requests[state[s.NEXT_ARRIVAL], s.ARRIVAL_NS]
            state[s.NOW] = max(state[s.NOW], min(arrival, until_ns))
            continue
        time = duration(arrays, serving)
        state[s.NOW] += time
        state[s.BUSY_NS] += time
        state[s.STEP] += 1
        after_tokens(arrays, serving)
        if state[s.DUE]:
            state[s.PHASE] = s.AT_EVICTED
            return s.POLICY_DUE
        end_step(arrays, serving)
        if state[s.STEP] - state[s.LAST_PROGRESS] > s.PATIENCE_STEPS:
            return s.LIVELOCK
