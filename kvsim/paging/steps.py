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
    """
    scalars, tables, pages, entries, _, holders, position, scopes, _ = arrays
    count = sequences.shape[0]
    flags = holders.shape[0] + position.shape[0]
    plain = scalars[f.UNITS] == 1 and flags == 0
    page_tokens = scalars[f.PAGE_TOKENS]
    limit = min(scalars[f.CEILING], scalars[f.PAGES])
    # Members 0..n-1 append, members n..2n-1 evict: both halves can be resumed.
    begun = scalars[f.STEP]
    late = scalars[f.MEMBER]
    first = late
    for step in range(scalars[f.STEP], steps):
        quick = np.int64(0)
        for member in range(first, count):
            # Unsigned: a signed index pays for a test whether it counts from the end.
            sequence = sequences[np.uint64(member)]
            row = np.uint64(sequence)
            # The two common cases of one table without flags stand here and not in a function
            # of their own: handing the arrays over costs more than the append.
            room = tables[row, f.ROOM]
            if plain and room > 0:
                # A slot in a page that the table has to itself.
                tables[row, f.ROOM] = room - 1
                tables[row, f.CURSOR] += 1
                quick += 1
                continue
            entry = tables[row, f.ENTRIES]
            if (
                plain
                and scalars[f.HELD] < limit
                and entry < tables[row, f.CAPACITY]
                and tables[row, f.CURSOR] == entry * page_tokens
            ):
                # A fresh page, and room for it everywhere.
                at = np.uint64(tables[row, f.START] + entry)
                entries[f.PAGE, at] = allocate(scalars, pages, scopes, 0)
                entries[f.DEAD_IN, at] = 0
                tables[row, f.ENTRIES] = entry + 1
                tables[row, f.NAMED] += 1
                tables[row, f.ROOM] = page_tokens - 1
                tables[row, f.CURSOR] += 1
                quick += 1
                continue
            answer = append(arrays, sequence, 1, placed)
            if answer != f.OK:
                scalars[f.APPENDED_TOTAL] += quick
                settle(scalars, appended, begun, late, step, member)
                return answer
        scalars[f.APPENDED_TOTAL] += quick
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
    settle(scalars, appended, begun, late, steps, 0)
    return f.OK
