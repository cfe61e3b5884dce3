"""Decoding members: who leaves, and who needs a page for its next row.

A member's table is looked at only when the room of its last page is used up or its last token
is generated; the calendar says when. Where tables have flags, or a policy evicts at every step,
every member is looked at in every step, and the same code does it.
"""

from __future__ import annotations

import numpy as np

from kvsim.engine.serving import fields as s
from kvsim.engine.serving.members import (
    catch_up,
    exit_running,
    in_order,
    note,
    preempt,
    readable,
    strike,
    victim_of_preemption,
)
from kvsim.engine.serving.publishing import publish_rows
from kvsim.engine.serving.victims import evict_to_budget
from kvsim.jit import kernel
from kvsim.paging import fields as f
from kvsim.paging.append import append
from kvsim.paging.lifecycle import free
from kvsim.paging.pool import allocate
from kvsim.paging.prefix import forget


@kernel
def next_look(arrays, serving, request):
    """Put a decoding member that is up to date onto the calendar."""
    _, tables, _, _, _, holders, position, _, _ = arrays
    state, requests = serving.state, serving.requests
    ahead = np.int64(0)
    if state[s.WHEN] != s.EVERY_STEP and holders.shape[0] + position.shape[0] == 0:
        left = requests[request, s.OUTPUT] - requests[request, s.GENERATED]
        ahead = min(tables[requests[request, s.SEQUENCE], f.ROOM], left)
    note(serving, request, requests[request, s.SINCE] + ahead)


@kernel
def start_decoding(arrays, serving, request, since):
    """Let a member whose rows are all computed write its next row in step `since`."""
    scalars, tables, _, _, _, _, _, _, _ = arrays
    state, requests = serving.state, serving.requests
    requests[request, s.STATUS] = s.DECODES
    requests[request, s.SINCE] = since
    state[s.DECODING] += 1
    state[s.LATE_READS] += readable(
        tables, requests[request, s.SEQUENCE], scalars[f.PAGE_TOKENS]
    )
    next_look(arrays, serving, request)


@kernel
def finish(arrays, serving, request):
    """Let a member leave whose last token was generated at the end of the last step."""
    scalars, tables, _, _, _, _, _, _, _ = arrays
    state, requests = serving.state, serving.requests
    sequence = requests[request, s.SEQUENCE]
    publish_rows(arrays, serving, request, tables[sequence, f.CURSOR])
    state[s.READS] -= readable(tables, sequence, scalars[f.PAGE_TOKENS])
    state[s.DECODING] -= 1
    free(arrays, sequence)
    exit_running(serving, request)
    requests[request, s.LAST_NS] = state[s.NOW]
    requests[request, s.STATUS] = s.FINISHED_STATUS
    requests[request, s.SEQUENCE] = -1
    state[s.FINISHED] += 1


@kernel
def let_leave(arrays, serving):
    """Free the members that generated their last token in the step before."""
    state, requests, calendar, today = (
        serving.state,
        serving.requests,
        serving.calendar,
        serving.today,
    )
    step = state[s.STEP]
    last = calendar.shape[1] - 1
    day = step % calendar.shape[0]
    leaving = np.int64(0)
    stay = np.int64(0)
    for at in range(calendar[day, last]):
        member = np.int64(calendar[day, at])
        generated = requests[member, s.GENERATED] + step - requests[member, s.SINCE]
        if generated == requests[member, s.OUTPUT]:
            today[leaving] = member
            leaving += 1
        else:
            calendar[day, stay] = member
            stay += 1
    calendar[day, last] = stay
    in_order(requests, today, 0, leaving)
    for at in range(leaving):
        catch_up(arrays, serving, today[at], step)
        finish(arrays, serving, today[at])


@kernel
def press(arrays, serving, members, done, count):
    """Evict from every decoding member that holds more than its budget; return the new count.

    members[done:count] are those that still have to be looked at in this step; evicted ones join
    them, because what room they had is gone.
    """
    scalars, tables, _, _, _, _, _, _, _ = arrays
    state, requests, running = serving.state, serving.requests, serving.running
    step = state[s.STEP]
    state[s.PRESSED] = 1
    for at in range(state[s.RUNNING]):
        member = running[at]
        if requests[member, s.STATUS] != s.DECODES:
            continue
        wrote = requests[member, s.SINCE] > step
        sequence = requests[member, s.SEQUENCE]
        if not wrote:
            catch_up(arrays, serving, member, step)
        old = readable(tables, sequence, scalars[f.PAGE_TOKENS])
        if evict_to_budget(arrays, serving, member):
            state[s.READS] += readable(tables, sequence, scalars[f.PAGE_TOKENS]) - old
            if wrote:
                strike(serving, member)
                note(serving, member, step + 1)
            elif requests[member, s.TOUCH] > step:
                strike(serving, member)
                requests[member, s.TOUCH] = step
                members[count] = member
                count += 1
    in_order(requests, members, done, count)
    return count


@kernel
def press_first(arrays, serving):
    """Begin a step with an eviction under pressure, which the step before asked for."""
    state, requests, today = serving.state, serving.requests, serving.today
    count = press(arrays, serving, today, 0, 0)
    for at in range(count):
        note(serving, today[at], requests[today[at], s.TOUCH])
    state[s.PRESS_WANTED] = 0


@kernel
def write_row(arrays, serving, request, placed):
    """Append one row where no fresh page at the cursor is all that it takes."""
    scalars, tables, pages, entries, _, _, _, _, _ = arrays
    page_tokens = scalars[f.PAGE_TOKENS]
    sequence = serving.requests[request, s.SEQUENCE]
    answer = append(arrays, sequence, 1, placed)
    # No store carries rows here: what a copy on write moved is counted, and that is all.
    scalars[f.PLAN] = 0
    if answer == f.OK and serving.requests[request, s.SPARSE]:
        # An eviction may have rewound the cursor into a page that was published.
        at = tables[sequence, f.START] + (tables[sequence, f.CURSOR] - 1) // page_tokens
        forget(scalars, pages, np.int64(entries[f.PAGE, at]))
    return answer


@kernel
def look(arrays, serving, placed):
    """Let every member write its row of this step that needs more for it than room it has."""
    scalars, tables, pages, entries, _, holders, position, scopes, _ = arrays
    state, requests, calendar, today = (
        serving.state,
        serving.requests,
        serving.calendar,
        serving.today,
    )
    page_tokens = scalars[f.PAGE_TOKENS]
    plain = holders.shape[0] + position.shape[0] == 0
    step = state[s.STEP]
    last = calendar.shape[1] - 1
    day = step % calendar.shape[0]
    count = np.int64(calendar[day, last])
    for at in range(count):
        today[at] = calendar[day, at]
    calendar[day, last] = 0
    in_order(requests, today, 0, count)
    at = np.int64(0)
    while at < count:
        member = today[at]
        at += 1
        if requests[member, s.STATUS] != s.DECODES:
            # Preempted since this step began.
            continue
        sequence = requests[member, s.SEQUENCE]
        catch_up(arrays, serving, member, step)
        if state[s.PREFIX]:
            publish_rows(arrays, serving, member, tables[sequence, f.CURSOR])
        entry = tables[sequence, f.ENTRIES]
        if plain and tables[sequence, f.ROOM] > 0:
            tables[sequence, f.ROOM] -= 1
            tables[sequence, f.CURSOR] += 1
            scalars[f.APPENDED_TOTAL] += 1
        elif (
            plain
            and scalars[f.HELD] < scalars[f.CEILING]
            and entry < tables[sequence, f.CAPACITY]
            and tables[sequence, f.CURSOR] == entry * page_tokens
        ):
            # Stands here and not in a function of its own: handing the arrays over costs more
            # than taking the page.
            place = tables[sequence, f.START] + entry
            entries[f.PAGE, place] = allocate(scalars, pages, scopes, 0)
            entries[f.DEAD_IN, place] = 0
            tables[sequence, f.ENTRIES] = entry + 1
            tables[sequence, f.NAMED] += 1
            tables[sequence, f.ROOM] = page_tokens - 1
            tables[sequence, f.CURSOR] += 1
            scalars[f.APPENDED_TOTAL] += 1
        else:
            answer = write_row(arrays, serving, member, placed)
            while answer != f.OK:
                # The arena and the plan have room, so it is pages that are missing.
                if state[s.PRESSURE] and not state[s.PRESSED]:
                    count = press(arrays, serving, today, at, count)
                else:
                    victim = victim_of_preemption(serving)
                    preempt(arrays, serving, victim)
                    if victim == member:
                        break
                answer = write_row(arrays, serving, member, placed)
            if answer != f.OK:
                continue
        requests[member, s.SINCE] = step + 1
        requests[member, s.GENERATED] += 1
        next_look(arrays, serving, member)
