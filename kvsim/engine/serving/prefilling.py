"""Members that prefill: their chunks, and who is admitted to become one."""

from __future__ import annotations

import numpy as np

from kvsim.engine.serving import fields as s
from kvsim.engine.serving.members import (
    enter,
    first_prefilling,
    fork_entries,
    preempt,
    start_decoding,
    victim_of_preemption,
)
from kvsim.engine.serving.publishing import find_hits, publish_rows
from kvsim.engine.serving.radix_steps import append_freeing, free_pages, matched
from kvsim.engine.serving.waiting import first, leave, pop_front
from kvsim.jit import kernel
from kvsim.paging import fields as f
from kvsim.paging.append import append_alone
from kvsim.paging.lifecycle import open_tables
from kvsim.paging.prefix import attach
from kvsim.paging.segments import missing
from kvsim.paging.swapping import swap_in


@kernel
def computed(tables, pages, entries, state, requests, keys, page_of, page_tokens, request, chunk):
    """Book a chunk whose rows were appended."""
    before = requests[request, s.COMPUTED]
    requests[request, s.COMPUTED] = before + chunk
    requests[request, s.CHUNK] = chunk
    requests[request, s.CHUNK_STEP] = state[s.STEP]
    state[s.BUDGET] -= chunk
    state[s.CHUNK_TOKENS] += chunk
    state[s.CHUNK_READS] += before + chunk
    state[s.CHUNK_PAIRS] += before * chunk + chunk * (chunk + 1) // 2
    state[s.PREFILLED_TOTAL] += chunk
    if before + chunk > requests[request, s.BEST]:
        requests[request, s.BEST] = before + chunk
        state[s.LAST_PROGRESS] = state[s.STEP] + 1
    publish_rows(
        tables,
        pages,
        entries,
        state,
        requests,
        keys,
        page_of,
        page_tokens,
        request,
        before + chunk,
    )


@kernel
def prefill(arrays, serving, placed):
    """Give every prefilling member its next chunk, in running order."""
    scalars, tables, pages, entries, _, _, _, _, _ = arrays
    state, requests, running, today = (
        serving.state,
        serving.requests,
        serving.running,
        serving.today,
    )
    count = np.int64(0)
    for at in range(first_prefilling(state, requests, running), state[s.RUNNING]):
        if requests[running[at], s.STATUS] == s.PREFILLS:
            today[count] = running[at]
            count += 1
    for at in range(count):
        member = today[at]
        if requests[member, s.STATUS] != s.PREFILLS:
            continue
        known = requests[member, s.INPUT] + requests[member, s.GENERATED]
        chunk = min(known - requests[member, s.COMPUTED], state[s.BUDGET])
        if chunk <= 0:
            continue
        answer = append_freeing(arrays, serving, requests[member, s.SEQUENCE], chunk, placed)
        if answer != f.OK and state[s.PRESSURE] and not state[s.PRESSED]:
            # Decoding members have their rows already: the next step begins with an eviction.
            state[s.PRESS_WANTED] = 1
            continue
        while answer != f.OK:
            victim = victim_of_preemption(serving)
            preempt(arrays, serving, victim)
            if victim == member:
                break
            answer = append_freeing(arrays, serving, requests[member, s.SEQUENCE], chunk, placed)
        if answer == f.OK:
            scalars[f.PLAN] = 0
            computed(
                tables,
                pages,
                entries,
                state,
                requests,
                serving.keys,
                serving.page_of,
                scalars[f.PAGE_TOKENS],
                member,
                chunk,
            )


@kernel
def block(scalars, state, request, room, known):
    """Remember why the head of the queue was not admitted, so as not to look at it in vain."""
    state[s.BLOCKED_KNOWN] = known
    state[s.BLOCKED_RECLAIMED] = scalars[f.RECLAIMED_TOTAL]
    state[s.BLOCKED] = request
    state[s.BLOCKED_ROOM] = room
    state[s.BLOCKED_BUDGET] = state[s.BUDGET]
    state[s.BLOCKED_PUBLISHED] = state[s.PUBLISHED]


@kernel
def still_blocked(scalars, state, request, room):
    """Tell whether nothing has changed that could let a refused request in.

    Its need grows with the budget and falls when a shared page is published. Where the budget
    cuts its prompt, it falls too when a hit is lost: the shorter chunk ends earlier then.
    """
    whole = state[s.BLOCKED_KNOWN] <= state[s.BLOCKED_BUDGET]
    return (
        (whole or state[s.BLOCKED_RECLAIMED] == scalars[f.RECLAIMED_TOTAL])
        and state[s.BLOCKED] == request
        and room <= state[s.BLOCKED_ROOM]
        and state[s.BUDGET] >= state[s.BLOCKED_BUDGET]
        and state[s.PUBLISHED] == state[s.BLOCKED_PUBLISHED]
    )


@kernel
def admit_swapped(arrays, serving, request, room):
    """Let a request come back with its rows, if there are pages for them."""
    scalars, tables, pages, _, _, _, _, _, _ = arrays
    state, requests = serving.state, serving.requests
    count = requests[request, s.HOST_PAGES_OF]
    if count > room:
        return False
    leave(serving, request)
    if state[s.PREFIX] == s.RADIX:
        free_pages(scalars, pages, serving.tree, state, count)
    swap_in(arrays, requests[request, s.SEQUENCE])
    state[s.HOST_PAGES] += count
    state[s.SWAPPED_PAGES_TOTAL] += count
    requests[request, s.HOST_PAGES_OF] = 0
    enter(state, requests, serving.running, request)
    start_decoding(scalars, tables, state, requests, serving.calendar, request, state[s.STEP] + 1)
    return True


@kernel
def admit(
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
):
    """Admit requests from the head of the queue until one does not fit.

    Answers GROW, with nothing changed for that request, if the arena lacks entries. The bundles
    are for what happens seldom.
    """
    page_tokens = scalars[f.PAGE_TOKENS]
    while state[s.WAITING] > 0 and state[s.BUDGET] > 0:
        request = state[s.WAIT_HEAD]
        if state[s.ADMISSION] == s.BY_PRIORITY:
            request = first(serving)
        room = min(scalars[f.CEILING], scalars[f.PAGES]) - scalars[f.HELD]
        if state[s.RUNNING] > 0:
            room -= state[s.WATERMARK]
        seats = np.int64(1)
        if requests[request, s.GENERATED] == 0:
            seats = requests[request, s.SAMPLES]
        if state[s.RUNNING] + state[s.FORK_SEATS] + seats > state[s.MAX_RUNNING]:
            break
        if requests[request, s.STATUS] == s.SWAPPED:
            if not admit_swapped(arrays, serving, request, room):
                break
            continue
        if still_blocked(scalars, state, request, room):
            break
        known = requests[request, s.INPUT] + requests[request, s.GENERATED]
        found, unheld = find_hits(
            pages, state, requests, keys, page_of, hits, page_tokens, request, known
        )
        hit_tokens = found * page_tokens
        chunk = min(known - hit_tokens, state[s.BUDGET])
        need = (hit_tokens + chunk + page_tokens - 1) // page_tokens - found + unheld
        if not state[s.CHUNKED] and chunk < known - hit_tokens:
            # More budget would help here, which it never does where pages are missing.
            state[s.BLOCKED] = -1
            break
        if need > room:
            block(scalars, state, request, room, known)
            break
        total = requests[request, s.INPUT] + requests[request, s.OUTPUT]
        capacity = (total + page_tokens - 1) // page_tokens
        later = fork_entries(requests, request, page_tokens)
        segments = missing(0, capacity) + later
        if scalars[f.ARENA_TOP] + state[s.FORK_ENTRIES] + segments > entries.shape[1]:
            scalars[f.GROW_WHAT] = f.GROW_ARENA
            scalars[f.NEED] = state[s.FORK_ENTRIES] + segments
            return s.GROW
        if state[s.ADMISSION] == s.BY_PRIORITY:
            leave(serving, request)
        else:
            pop_front(state, requests)
        # Table rows were made for all seats, so this and the append cannot fail.
        open_tables(scalars, tables)
        sequence = scalars[f.MEMBER]
        scalars[f.MEMBER] = 0
        attach(
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
            found,
            capacity,
        )
        if state[s.PREFIX] == s.RADIX:
            matched(scalars, pages, serving.tree, state, hits, found, need - unheld)
        append_alone(
            scalars,
            tables,
            pages,
            entries,
            dead,
            holders,
            position,
            scopes,
            plan,
            sequence,
            chunk,
            placed,
        )
        requests[request, s.STATUS] = s.PREFILLS
        requests[request, s.SEQUENCE] = sequence
        requests[request, s.COMPUTED] = hit_tokens
        requests[request, s.DONE_PAGES] = found
        requests[request, s.HIT_TOKENS] = hit_tokens
        if requests[request, s.SCHEDULED_NS] < 0:
            requests[request, s.SCHEDULED_NS] = state[s.NOW]
        state[s.HIT_TOKENS_TOTAL] += hit_tokens
        state[s.PREFILLING] += 1
        state[s.FORK_ENTRIES] += later
        state[s.FORK_SEATS] += seats - 1
        # What it holds now costs the next one nothing, and should it come back, it is another case.
        state[s.BLOCKED] = -1
        enter(state, requests, running, request)
        computed(
            tables,
            pages,
            entries,
            state,
            requests,
            keys,
            page_of,
            page_tokens,
            request,
            chunk,
        )
    return f.OK
