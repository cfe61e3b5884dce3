"""Decoding members: who leaves, and who needs a page for its next row.

A member's table is looked at only when the room of its last page is used up or its last token
is generated; the calendar says when. Where tables have flags, or a policy evicts at every step,
every member is looked at in every step, and the same code does it.

Helpers of the hot path take the arrays that they need: a bundle handed over costs more than
most of them do.
"""

from __future__ import annotations

import numpy as np

from kvsim.engine.serving import fields as s
from kvsim.engine.serving.members import (
    catch_up,
    exit_running,
    in_order,
    next_look,
    note,
    preempt,
    readable,
    strike,
    victim_of_preemption,
)
from kvsim.engine.serving.publishing import publish_rows, publish_until
from kvsim.engine.serving.victims import evict_to_budget
from kvsim.jit import kernel
from kvsim.paging import fields as f
from kvsim.paging.append import append
from kvsim.paging.lifecycle import free_tables
from kvsim.paging.pool import allocate
from kvsim.paging.prefix import forget


@kernel
def finish(scalars, tables, pages, entries, scopes, state, requests, running, request):
    """Let a member leave whose last token was generated at the end of the last step."""
    page_tokens = scalars[f.PAGE_TOKENS]
    sequence = requests[request, s.SEQUENCE]
    catch_up(scalars, tables, requests, request, state[s.STEP])
    state[s.READS] -= readable(tables, sequence, page_tokens)
    state[s.DECODING] -= 1
    free_tables(scalars, tables, pages, entries, scopes, sequence)
    exit_running(state, running, request)
    requests[request, s.LAST_NS] = state[s.NOW]
    requests[request, s.STATUS] = s.FINISHED_STATUS
    requests[request, s.SEQUENCE] = -1
    state[s.FINISHED] += 1


@kernel
def leavers(requests, calendar, today, step):
    """Take the members off the calendar that generated their last token in the step before.

    They come into `today`, in running order; returns how many they are.
    """
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
    return leaving


@kernel
def press(arrays, serving, members, done, count, rank):
    """Evict from every decoding member that holds more than its budget; return the new count.

    members[done:count] are those that still have to be looked at in this step; evicted ones join
    them, because what room they had is gone. Members that stand before `rank` in the running
    order have written their rows of this step.
    """
    scalars, tables, pages, entries, _, _, _, _, _ = arrays
    state, requests, running = serving.state, serving.requests, serving.running
    calendar = serving.calendar
    step = state[s.STEP]
    page_tokens = scalars[f.PAGE_TOKENS]
    state[s.PRESSED] = 1
    for at in range(state[s.RUNNING]):
        member = running[at]
        if requests[member, s.STATUS] != s.DECODES:
            continue
        sequence = requests[member, s.SEQUENCE]
        wrote = requests[member, s.SINCE] > step or requests[member, s.RANK] < rank
        if requests[member, s.SINCE] <= step:
            catch_up(scalars, tables, requests, member, step + wrote)
        old = readable(tables, sequence, page_tokens)
        filled = np.int64(-1)
        published = requests[member, s.DONE_PAGES]
        if wrote and published > 0 and published * page_tokens == tables[sequence, f.CURSOR]:
            filled = np.int64(entries[f.PAGE, tables[sequence, f.START] + published - 1])
        sparse = requests[member, s.SPARSE]
        if evict_to_budget(arrays, serving, member):
            state[s.READS] += readable(tables, sequence, page_tokens) - old
            if filled >= 0 and not sparse:
                # Its row of this step is computed without what has just been evicted, or not at
                # all: the page that the row fills is not what a dense prefill would make.
                forget(scalars, pages, filled)
                requests[member, s.DONE_PAGES] = published - 1
            if wrote:
                strike(requests, calendar, member)
                note(requests, calendar, member, step + 1)
            elif requests[member, s.TOUCH] > step:
                strike(requests, calendar, member)
                requests[member, s.TOUCH] = step
                members[count] = member
                count += 1
    in_order(requests, members, done, count)
    return count


@kernel
def press_first(arrays, serving):
    """Begin a step with an eviction under pressure, which the step before asked for."""
    state, requests, today = serving.state, serving.requests, serving.today
    count = press(arrays, serving, today, 0, 0, -1)
    for at in range(count):
        note(requests, serving.calendar, today[at], requests[today[at], s.TOUCH])
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
def find_room(arrays, serving, member, at, count, placed):
    """Write a member's row after making room for it; return whether, and the new count of today.

    The arena and the plan have room, so what is missing is pages: the policy evicts if it may,
    then members are preempted.
    """
    state, requests, today = serving.state, serving.requests, serving.today
    answer = write_row(arrays, serving, member, placed)
    while answer != f.OK:
        if state[s.PRESSURE] and not state[s.PRESSED]:
            count = press(arrays, serving, today, at, count, requests[member, s.RANK])
        else:
            victim = victim_of_preemption(serving)
            preempt(arrays, serving, victim)
            if victim == member:
                return False, count
        answer = write_row(arrays, serving, member, placed)
    return True, count


@kernel
def look(
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
    tomorrow,
    keys,
    page_of,
    plain,
):
    """Let every member write its row of this step that needs more for it than room it has.

    `plain` says that a slot has no flag but `dead`. The bundles are for what happens seldom.
    """
    page_tokens = scalars[f.PAGE_TOKENS]
    publishes = state[s.PREFIX] != s.NO_CACHE
    all_alike = state[s.TOUCH_ALL]
    step = state[s.STEP]
    last = calendar.shape[1] - 1
    days = calendar.shape[0]
    day = step % days
    count = np.int64(calendar[day, last])
    for place in range(count):
        today[place] = calendar[day, place]
    calendar[day, last] = 0
    in_order(requests, today, 0, count)
    # Who has room for its row of this step, but for no other, may fill a page with it.
    filling = np.int64(0)
    filled = np.int64(0)
    if publishes:
        ahead = (step + 1) % days
        filling = np.int64(calendar[ahead, last])
        for place in range(filling):
            tomorrow[place] = calendar[ahead, place]
        in_order(requests, tomorrow, 0, filling)
    at = np.int64(0)
    while at < count:
        member = today[at]
        at += 1
        if requests[member, s.STATUS] != s.DECODES:
            # Preempted since this step began.
            continue
        sequence = requests[member, s.SEQUENCE]
        used = step - requests[member, s.SINCE]
        generated = requests[member, s.GENERATED] + used
        cursor = tables[sequence, f.CURSOR] + used
        room = tables[sequence, f.ROOM] - used
        scalars[f.APPENDED_TOTAL] += used
        if filled < filling:
            filled = publish_until(
                tables,
                pages,
                entries,
                state,
                requests,
                keys,
                page_of,
                page_tokens,
                tomorrow,
                filled,
                filling,
                requests[member, s.RANK],
            )
        entry = tables[sequence, f.ENTRIES]
        if plain and room > 0:
            room -= 1
            scalars[f.APPENDED_TOTAL] += 1
        elif (
            plain
            and scalars[f.HELD] < scalars[f.CEILING]
            and entry < tables[sequence, f.CAPACITY]
            and cursor == entry * page_tokens
        ):
            # Stands here and not in a function of its own: handing the arrays over costs more
            # than taking the page.
            fresh = tables[sequence, f.START] + entry
            entries[f.PAGE, fresh] = allocate(scalars, pages, scopes, 0)
            entries[f.DEAD_IN, fresh] = 0
            tables[sequence, f.ENTRIES] = entry + 1
            tables[sequence, f.NAMED] += 1
            room = page_tokens - 1
            scalars[f.APPENDED_TOTAL] += 1
        else:
            requests[member, s.SINCE] = step
            requests[member, s.GENERATED] = generated
            tables[sequence, f.CURSOR] = cursor
            tables[sequence, f.ROOM] = room
            written, count = find_room(arrays, serving, member, at, count, placed)
            if not written:
                continue
            requests[member, s.SINCE] = step + 1
            requests[member, s.GENERATED] = generated + 1
            cursor = tables[sequence, f.CURSOR]
            if publishes and cursor % page_tokens == 0:
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
                    cursor,
                )
            next_look(tables, state, requests, calendar, member)
            continue
        tables[sequence, f.CURSOR] = cursor + 1
        tables[sequence, f.ROOM] = room
        requests[member, s.SINCE] = step + 1
        requests[member, s.GENERATED] = generated + 1
        if publishes and (cursor + 1) % page_tokens == 0:
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
                cursor + 1,
            )
        touch = step + 1
        if not all_alike:
            touch += min(room, requests[member, s.OUTPUT] - generated - 1)
        requests[member, s.TOUCH] = touch
        day = touch % days
        calendar[day, calendar[day, last]] = member
        calendar[day, last] += 1
    if filled < filling:
        publish_until(
            tables,
            pages,
            entries,
            state,
            requests,
            keys,
            page_of,
            page_tokens,
            tomorrow,
            filled,
            filling,
            state[s.STAMP],
        )
