"""Victims of policies whose order is fixed when a token is appended, taken in the kernel.

Oldest first, or fixed random priorities; single tokens, or whole runs of them by the mean of
their live tokens. A slot's number is its position here: tokens are appended at the tail only.
"""

from __future__ import annotations

import numpy as np

from kvsim.engine.serving import fields as s
from kvsim.engine.serving.candidates import put, put_and_take, take
from kvsim.jit import kernel
from kvsim.paging import fields as f
from kvsim.paging.eviction import evict, evict_one

_FIRST = np.uint64(0x9E3779B97F4A7C15)
_SECOND = np.uint64(0xBF58476D1CE4E5B9)
_THIRD = np.uint64(0x94D049BB133111EB)
_30, _27, _31, _1 = np.uint64(30), np.uint64(27), np.uint64(31), np.uint64(1)


@kernel
def priority_of(seed, number, slot):
    """Return the fixed priority of a token, an int64 of at least 0 (splitmix64's finisher).

    Source: Steele, Lea, Flood, Fast splittable pseudorandom number generators, OOPSLA 2014.
    """
    x = np.uint64(number) * _FIRST + np.uint64(slot) * _SECOND + np.uint64(seed) * _THIRD
    x = (x ^ (x >> _30)) * _SECOND
    x = (x ^ (x >> _27)) * _THIRD
    return np.int64((x ^ (x >> _31)) >> _1)


@kernel
def nth_least(values, count, nth):
    """Return the nth least of the first `count` values, from 0; they are reordered."""
    low = np.int64(0)
    high = count - 1
    while low < high:
        pivot = values[(low + high) // 2]
        left = low
        right = high
        while left <= right:
            while values[left] < pivot:
                left += 1
            while values[right] > pivot:
                right -= 1
            if left <= right:
                values[left], values[right] = values[right], values[left]
                left += 1
                right -= 1
        if nth <= right:
            high = right
        elif nth >= left:
            low = left
        else:
            break
    return values[nth]


@kernel
def tokens_of(arrays, serving, sequence, number, first, last, wanted):
    """Choose single tokens among the live slots from first to last; return how many."""
    scalars, tables, _, entries, dead, _, _, _, _ = arrays
    state, victims, draws = serving.state, serving.victims, serving.draws
    page_tokens = scalars[f.PAGE_TOKENS]
    start = tables[sequence, f.START]
    random = state[s.EVICTION] == s.RANDOM
    found = np.int64(0)
    slot = first if random else max(first, tables[sequence, f.OLDEST])
    while slot < last and (random or found < wanted):
        if entries[f.PAGE, start + slot // page_tokens] < 0:
            slot = (slot // page_tokens + 1) * page_tokens
            continue
        if not dead[start * page_tokens + slot]:
            victims[found] = slot
            if random:
                draws[0, found] = priority_of(state[s.SEED], number, slot)
                draws[1, found] = draws[0, found]
            found += 1
        slot += 1
    if not random:
        # Nothing below it is live but for the sinks, once these victims are dead.
        tables[sequence, f.OLDEST] = slot
        return found
    if found <= wanted:
        return found
    bound = nth_least(draws[1], found, wanted - 1)
    below = np.int64(0)
    for at in range(found):
        below += draws[0, at] < bound
    # Ties: the oldest go.
    ties = wanted - below
    kept = np.int64(0)
    for at in range(found):
        if draws[0, at] < bound or (draws[0, at] == bound and ties > 0):
            ties -= draws[0, at] == bound
            victims[kept] = victims[at]
            kept += 1
    return kept


@kernel
def runs_of(arrays, serving, sequence, number, first, last, runs):
    """Choose whole runs between first and last; return how many live tokens they have."""
    scalars, tables, _, entries, dead, _, _, _, _ = arrays
    state, victims, draws = serving.state, serving.victims, serving.draws
    page_tokens = scalars[f.PAGE_TOKENS]
    start = tables[sequence, f.START]
    size = state[s.RUN_TOKENS]
    random = state[s.EVICTION] == s.RANDOM
    begin = (first + size - 1) // size
    means = serving.means
    found = np.int64(0)
    for run in range(begin, last // size):
        total = 0.0
        live = np.int64(0)
        for slot in range(run * size, (run + 1) * size):
            there = entries[f.PAGE, start + slot // page_tokens] >= 0
            if there and not dead[start * page_tokens + slot]:
                live += 1
                total += priority_of(state[s.SEED], number, slot) if random else slot
        if live:
            means[0, found] = total / live
            means[1, found] = means[0, found]
            draws[0, found] = run
            found += 1
    runs = min(runs, found)
    if runs == 0:
        return np.int64(0)
    bound = nth_least(means[1], found, runs - 1)
    below = np.int64(0)
    for at in range(found):
        below += means[0, at] < bound
    # Ties: the oldest go.
    ties = runs - below
    count = np.int64(0)
    for at in range(found):
        if means[0, at] > bound or (means[0, at] == bound and ties == 0):
            continue
        ties -= means[0, at] == bound
        run = draws[0, at]
        for slot in range(run * size, (run + 1) * size):
            there = entries[f.PAGE, start + slot // page_tokens] >= 0
            if there and not dead[start * page_tokens + slot]:
                victims[count] = slot
                count += 1
    return count


@kernel
def remember(tables, dead, entries, serving, request, page_tokens, last):
    """Put slots that have become old enough into a member's heap of candidates."""
    state, requests = serving.state, serving.requests
    sequence = requests[request, s.SEQUENCE]
    start = tables[sequence, f.START]
    base = start * page_tokens
    size = requests[request, s.HEAPED]
    slot = max(requests[request, s.HEAP_NEXT], state[s.SINKS])
    while slot < last:
        there = entries[f.PAGE, start + slot // page_tokens] >= 0
        if there and not dead[base + slot]:
            priority = priority_of(state[s.SEED], requests[request, s.NUMBER], slot)
            put(serving.candidates, base, size, priority, slot)
            size += 1
        slot += 1
    requests[request, s.HEAPED] = size
    requests[request, s.HEAP_NEXT] = slot


@kernel
def first_candidates(tables, dead, entries, serving, request, page_tokens, wanted, last):
    """Take the first candidates of a member into `victims`, ascending; return how many."""
    requests, victims = serving.requests, serving.victims
    base = tables[requests[request, s.SEQUENCE], f.START] * page_tokens
    remember(tables, dead, entries, serving, request, page_tokens, last)
    count = min(wanted, requests[request, s.HEAPED])
    for done in range(count):
        size = requests[request, s.HEAPED]
        slot = take(serving.candidates, base, size)
        requests[request, s.HEAPED] = size - 1
        at = done
        while at > 0 and victims[at - 1] > slot:
            victims[at] = victims[at - 1]
            at -= 1
        victims[at] = slot
    return count


@kernel
def budget_of(state, requests, fraction, request):
    """Return how many live tokens a member keeps."""
    if state[s.KEPT]:
        return state[s.KEPT]
    # Rows written in this life: all known tokens but the one that has no row yet.
    rows = requests[request, s.INPUT] + requests[request, s.GENERATED]
    if requests[request, s.OUTPUT] > 0:
        rows -= 1
    return np.int64(fraction * rows)


@kernel
def evicts_singly(state, flags):
    """Tell whether members that were evicted from may be handed to `evict_newly_old`.

    `flags` is how many flags a slot has but `dead`.
    """
    return (
        flags == 0
        and state[s.RUN_TOKENS] == 1
        and state[s.RECENT] > 0
        and (state[s.EVICTION] == s.OLDEST or state[s.EVICTION] == s.RANDOM)
    )


@kernel
def evict_newly_old(
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
    """Do for one member what `evict_to_budget` does, where it is one row over its budget.

    That is what a step leaves of a member that was evicted from in the step before. Takes the
    arrays that it needs, because a bundle costs more than all of this. Returns False, and
    changes nothing, where more has to be done.
    """
    sequence = requests[request, s.SEQUENCE]
    cursor = tables[sequence, f.CURSOR]
    over = cursor - tables[sequence, f.DEAD] - budget_of(state, requests, fraction, request)
    if over <= 0:
        return True
    if over > 1 or not requests[request, s.SPARSE]:
        return False
    page_tokens = scalars[f.PAGE_TOKENS]
    start = tables[sequence, f.START]
    base = start * page_tokens
    last = cursor - state[s.RECENT]
    if state[s.EVICTION] == s.RANDOM:
        newly = last - 1
        if requests[request, s.HEAP_NEXT] != newly or newly < state[s.SINKS] or dead[base + newly]:
            return False
        victim = put_and_take(
            candidates,
            base,
            requests[request, s.HEAPED],
            priority_of(state[s.SEED], requests[request, s.NUMBER], newly),
            newly,
        )
        requests[request, s.HEAP_NEXT] = last
    else:
        victim = max(state[s.SINKS], tables[sequence, f.OLDEST])
        if victim >= last or entries[f.PAGE, start + victim // page_tokens] < 0:
            return False
        if dead[base + victim]:
            return False
        tables[sequence, f.OLDEST] = victim + 1
    named = tables[sequence, f.NAMED]
    evict_one(scalars, tables, pages, entries, dead, scopes, sequence, victim)
    state[s.READS] += (tables[sequence, f.NAMED] - named) * page_tokens
    requests[request, s.EVICTED] += 1
    state[s.EVICTED_TOTAL] += 1
    return True


@kernel
def evict_to_budget(arrays, serving, request):
    """Evict from a member that is up to date until it keeps its budget; tell whether it did."""
    scalars, tables, pages, entries, dead, holders, position, scopes, _ = arrays
    state, requests, victims = serving.state, serving.requests, serving.victims
    sequence = requests[request, s.SEQUENCE]
    cursor = tables[sequence, f.CURSOR]
    live = cursor - tables[sequence, f.DEAD]
    kept = budget_of(state, requests, serving.fraction[0], request)
    if live <= kept:
        return False
    number = requests[request, s.NUMBER]
    first = state[s.SINKS]
    last = cursor - state[s.RECENT]
    size = state[s.RUN_TOKENS]
    wanted = live - kept
    if size > 1:
        count = runs_of(arrays, serving, sequence, number, first, last, wanted // size)
    elif serving.candidates.shape[0] and requests[request, s.SPARSE]:
        page_tokens = scalars[f.PAGE_TOKENS]
        count = first_candidates(tables, dead, entries, serving, request, page_tokens, wanted, last)
    else:
        # A member's first eviction takes many at once; the heap begins with what it leaves.
        count = tokens_of(arrays, serving, sequence, number, first, last, wanted)
    if count == 0:
        return False
    if count == 1 and holders.shape[0] + position.shape[0] == 0 and victims[0] < cursor - 1:
        evict_one(scalars, tables, pages, entries, dead, scopes, sequence, victims[0])
    else:
        serving.starts[1] = count
        evict(arrays, sequence, serving.starts, victims, serving.scratch)
        # A cursor that was rewound writes its slots anew, and puts them in the heap anew.
        cursor = tables[sequence, f.CURSOR]
        requests[request, s.HEAP_NEXT] = min(requests[request, s.HEAP_NEXT], cursor)
    requests[request, s.SPARSE] = 1
    requests[request, s.EVICTED] += count
    state[s.EVICTED_TOTAL] += count
    return True
