"""Steps of a running batch: one token for each sequence, many steps in one call.

A step appends to every sequence and then evicts. Where the order of eviction is that of arrival,
the victims are taken here; for any other policy the kernel stops with POLICY_DUE after each step.
"""

from __future__ import annotations

import numpy as np

from kvsim.jit import kernel
from kvsim.paging import fields as f
from kvsim.paging.append import append
from kvsim.paging.eviction import evict
from kvsim.paging.pool import allocate

NO_EVICTION = 0
OLDEST_FIRST = 1
ASK = 2


@kernel
def oldest(arrays, sequence, sinks, recent):
    """Return the oldest live slot of a sequence that is not protected, or -1."""
    scalars, tables, _, entries, dead, _, _, _, _ = arrays
    page_tokens = scalars[f.PAGE_TOKENS]
    table = sequence * scalars[f.UNITS]
    start = tables[table, f.START]
    slot = max(tables[table, f.OLDEST], sinks)
    last = tables[table, f.CURSOR] - recent
    while slot < last:
        entry = slot // page_tokens
        if entries[f.PAGE, start + entry] < 0:
            slot = (entry + 1) * page_tokens
        elif dead[start * page_tokens + slot]:
            slot += 1
        else:
            break
    tables[table, f.OLDEST] = slot
    return slot if slot < last else np.int64(-1)


@kernel
def evict_oldest(arrays, sequence, kept, sinks, recent, starts, victims, scratch):
    """Evict the oldest tokens of a sequence until it keeps `kept`; POLICY_DUE if it cannot."""
    scalars, tables, _, _, _, _, _, _, _ = arrays
    table = sequence * scalars[f.UNITS]
    while tables[table, f.CURSOR] - tables[table, f.DEAD] > kept:
        slot = oldest(arrays, sequence, sinks, recent)
        if slot < 0:
            return f.POLICY_DUE
        for which in range(victims.shape[0]):
            victims[which] = slot
        answer = evict(arrays, sequence, starts, victims, scratch)
        if answer != f.OK:
            return answer
    return f.OK


@kernel
def settle(scalars, appended, begun, late, step, member):
    """Leave word of how far a batch came, and count the tokens of each of its members.

    It began at step `begun`, in which the members below `late` had their token already, and
    ends at step `step`, in which those below `member` have it.
    """
    scalars[f.STEP] = step
    scalars[f.MEMBER] = member
    for index in range(appended.shape[0]):
        appended[index] += step - begun + (index < member) - (index < late)


@kernel
def catch_up(scalars, tables, sequences, since, step, member):
    """Write into the tables what each member has appended since it was last looked at.

    Steps below `step` are done, and in that step the members below `member` have their token.
    `since` holds for each member the first step that its table does not know of.
    """
    for index in range(sequences.shape[0]):
        row = sequences[index]
        used = step + (index < member) - since[index]
        tables[row, f.CURSOR] += used
        tables[row, f.ROOM] -= used
        scalars[f.APPENDED_TOTAL] += used


@kernel
def enter(heads, follower, due, member):
    """Put a member into the list of those whose room is used up at a step, in ascending order."""
    before = np.int64(-1)
    after = heads[due]
    while after >= 0 and after < member:
        before = after
        after = follower[after]
    follower[member] = after
    if before < 0:
        heads[due] = member
    else:
        follower[before] = member


@kernel
def calendar(arrays, sequences, steps, appended, heads, follower, since, placed):
    """Take steps without eviction over tables without flags, from the start of a step.

    A table is touched only at the step at which the room of its last page is used up. Room is
    less than a page, so a calendar of page_tokens lists holds every member, and a member that
    gets a fresh page stays in its list. Within a step members go in their order, as they would
    one by one.
    """
    scalars, tables, pages, entries, _, _, _, scopes, _ = arrays
    page_tokens = scalars[f.PAGE_TOKENS]
    limit = min(scalars[f.CEILING], scalars[f.PAGES])
    begun = scalars[f.STEP]
    for due in range(page_tokens):
        heads[due] = -1
    for back in range(sequences.shape[0]):
        member = sequences.shape[0] - 1 - back
        due = (begun + tables[sequences[member], f.ROOM]) % page_tokens
        follower[member] = heads[due]
        heads[due] = member
        since[member] = begun
    for step in range(begun, steps):
        today = step % page_tokens
        member = heads[today]
        heads[today] = -1
        newest = np.int64(-1)
        while member >= 0:
            following = follower[member]
            sequence = sequences[member]
            used = step - since[member]
            tables[sequence, f.CURSOR] += used
            tables[sequence, f.ROOM] -= used
            scalars[f.APPENDED_TOTAL] += used
            since[member] = step
            entry = tables[sequence, f.ENTRIES]
            if (
                scalars[f.HELD] < limit
                and entry < tables[sequence, f.CAPACITY]
                and tables[sequence, f.RESERVED] == 0
                and tables[sequence, f.CURSOR] == entry * page_tokens
            ):
                # A fresh page, and room for it everywhere. It stands here and not in a function
                # of its own: handing the arrays over costs more than taking the page.
                at = tables[sequence, f.START] + entry
                entries[f.PAGE, at] = allocate(scalars, pages, scopes, 0)
                entries[f.DEAD_IN, at] = 0
                tables[sequence, f.ENTRIES] = entry + 1
                tables[sequence, f.NAMED] += 1
                tables[sequence, f.ROOM] = page_tokens - 1
                tables[sequence, f.CURSOR] += 1
                scalars[f.APPENDED_TOTAL] += 1
            else:
                answer = append(arrays, sequence, 1, placed)
                if answer != f.OK:
                    catch_up(scalars, tables, sequences, since, step, member)
                    settle(scalars, appended, begun, 0, step, member)
                    return answer
            since[member] = step + 1
            due = (step + 1 + tables[sequence, f.ROOM]) % page_tokens
            if due != today:
                enter(heads, follower, due, member)
            else:
                follower[member] = -1
                if newest < 0:
                    heads[today] = member
                else:
                    follower[newest] = member
                newest = member
            member = following
        scalars[f.HELD_PEAK] = max(scalars[f.HELD_PEAK], scalars[f.HELD])
    catch_up(scalars, tables, sequences, since, steps, 0)
    settle(scalars, appended, begun, 0, steps, 0)
    return f.OK


@kernel
def advance(
    arrays,
    sequences,
    steps,
    eviction,
    appended,
    fraction,
    tokens,
    sinks,
    recent,
    starts,
    victims,
    scratch,
    heads,
    follower,
    since,
    placed,
):
    """Append one token to each of `sequences`, `steps` times over, evicting after each step.

    STEP and MEMBER say how far it came: after GROW the same call goes on from there, and each
    append and each eviction is either whole or not done. POLICY_DUE comes when all sequences
    have their token and it is Python's turn to evict; that step counts as done.

    Parameters
    ----------
    eviction : int
        NO_EVICTION, OLDEST_FIRST or ASK.
    appended : int64 [n]
        Tokens that each sequence has been given so far; kept up to date here.
    fraction, tokens : float, int
        What is kept: `tokens`, or if that is 0 int(fraction * appended).
    sinks, recent : int
        Protected tokens at both ends.
    starts, victims : int64 [sets + 1], int64 [sets]
        Scratch: one victim list of length 1 a set.
    heads, follower, since : int64 [page_tokens], int64 [n], int64 [n]
        Scratch for the calendar; `follower` is shorter if a sequence stands twice.
    """
    scalars, _, _, _, _, holders, position, _, _ = arrays
    count = sequences.shape[0]
    flags = holders.shape[0] + position.shape[0]
    plain = scalars[f.UNITS] == 1 and flags == 0
    # A sequence that stands twice in a batch would have one room for two members.
    calendared = plain and eviction == NO_EVICTION and follower.shape[0] == count
    if calendared and scalars[f.MEMBER] == 0:
        return calendar(arrays, sequences, steps, appended, heads, follower, since, placed)
    # Members 0..n-1 append, members n..2n-1 evict: both halves can be resumed.
    begun = scalars[f.STEP]
    late = scalars[f.MEMBER]
    first = late
    # A step that was broken off is finished here, member by member.
    last = begun + 1 if calendared else steps
    for step in range(begun, last):
        for member in range(first, count):
            sequence = sequences[member]
            answer = append(arrays, sequence, 1, placed)
            if answer != f.OK:
                settle(scalars, appended, begun, late, step, member)
                return answer
        if eviction == ASK:
            settle(scalars, appended, begun, late, step + 1, 0)
            return f.POLICY_DUE
        if eviction == OLDEST_FIRST:
            for member in range(max(0, first - count), count):
                total = appended[member] + step + 1 - begun - (member < late)
                kept = tokens if tokens else np.int64(fraction * total)
                answer = evict_oldest(
                    arrays, sequences[member], kept, sinks, recent, starts, victims, scratch
                )
                if answer != f.OK:
                    settle(scalars, appended, begun, late, step, count + member)
                    return answer
        scalars[f.HELD_PEAK] = max(scalars[f.HELD_PEAK], scalars[f.HELD])
        first = np.int64(0)
    settle(scalars, appended, begun, late, last, 0)
    if last < steps:
        return calendar(arrays, sequences, steps, appended, heads, follower, since, placed)
    return f.OK
