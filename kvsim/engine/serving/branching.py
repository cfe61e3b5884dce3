"""Forks that come from outside between two steps: branches of a conversation, and beams.

A branch goes on from any point of a decoding member with tokens of its own; a beam that is given
up becomes a copy of another one. Both share pages and copy on write.
"""

from __future__ import annotations

from kvsim.engine.serving import fields as s
from kvsim.engine.serving.members import catch_up, enter, next_look, readable, strike
from kvsim.jit import kernel
from kvsim.paging import fields as f
from kvsim.paging.cutting import cut
from kvsim.paging.lifecycle import fork, free
from kvsim.paging.moves import copy_on_write
from kvsim.paging.segments import missing, reserve


@kernel
def arena_for(scalars, state, entries, needed):
    """Answer GROW unless the arena has room for a fork that moves to `needed` entries."""
    segments = 2 * missing(0, needed)
    if scalars[f.ARENA_TOP] + state[s.FORK_ENTRIES] + segments > entries.shape[1]:
        scalars[f.GROW_WHAT] = f.GROW_ARENA
        scalars[f.NEED] = state[s.FORK_ENTRIES] + segments
        return f.GROW
    return f.OK


@kernel
def last_page_is_known(scalars, tables, pages, entries, sequence, rows):
    """Tell whether a page that `rows` slots of a sequence end in the middle of has a key."""
    page_tokens = scalars[f.PAGE_TOKENS]
    at = tables[sequence, f.START] + rows // page_tokens
    return rows % page_tokens > 0 and pages[f.KEY, entries[f.PAGE, at]] > 0


@kernel
def branch(arrays, serving, parent, child, rows):
    """Let a row of `requests` prefill behind the first `rows` rows of a decoding member.

    A member that was evicted from is shared as it is, whatever `rows` says. The caller has seen
    to it that there is a seat and a table row, and that a shorter branch is of a member without
    dead slots and without flags. Answers GROW, or CEILING_HIT where a page cannot be copied;
    nothing is changed then.
    """
    scalars, tables, pages, entries, dead, holders, position, scopes, plan = arrays
    state, requests = serving.state, serving.requests
    page_tokens = scalars[f.PAGE_TOKENS]
    total = requests[child, s.INPUT] + requests[child, s.OUTPUT]
    capacity = (total + page_tokens - 1) // page_tokens
    catch_up(scalars, tables, requests, parent, state[s.STEP])
    source = requests[parent, s.SEQUENCE]
    whole = requests[parent, s.SPARSE] > 0
    # A page with a key is never written: the branch gets a copy of its own at once.
    copies = not whole and last_page_is_known(scalars, tables, pages, entries, source, rows)
    if copies and scalars[f.HELD] >= scalars[f.CEILING]:
        return f.CEILING_HIT
    needed = max(capacity, tables[source, f.ENTRIES])
    if arena_for(scalars, state, entries, needed) != f.OK:
        return f.GROW
    answer = fork(arrays, source)
    if answer != f.OK:
        return answer
    sequence = scalars[f.MEMBER]
    scalars[f.MEMBER] = 0
    if not whole and rows < tables[sequence, f.CURSOR]:
        cut(scalars, tables, pages, entries, scopes, sequence, rows)
    reserve(scalars, tables, entries, dead, holders, position, sequence, needed)
    if copies:
        entry = rows // page_tokens
        copy_on_write(
            scalars, tables, pages, entries, scopes, plan, sequence, entry, rows % page_tokens
        )
        scalars[f.PLAN] = 0
    strike(requests, serving.calendar, parent)
    next_look(tables, state, requests, serving.calendar, parent)
    requests[child, s.SPARSE] = requests[parent, s.SPARSE]
    requests[child, s.DONE_PAGES] = min(requests[parent, s.DONE_PAGES], rows // page_tokens)
    requests[child, s.SCHEDULED_NS] = state[s.NOW]
    requests[child, s.SEQUENCE] = sequence
    requests[child, s.STATUS] = s.PREFILLS
    requests[child, s.COMPUTED] = rows
    requests[child, s.BEST] = rows
    requests[child, s.HIT_TOKENS] = rows
    state[s.PREFILLING] += 1
    enter(state, requests, serving.running, child)
    return f.OK


@kernel
def rejoin(arrays, serving, lost, by):
    """Let a decoding member give up its rows, and go on as a fork of another one.

    Both have generated as many tokens. Answers GROW with nothing changed.
    """
    scalars, tables, _, entries, dead, holders, position, _, _ = arrays
    state, requests = serving.state, serving.requests
    page_tokens = scalars[f.PAGE_TOKENS]
    step = state[s.STEP]
    total = requests[lost, s.INPUT] + requests[lost, s.OUTPUT]
    capacity = (total + page_tokens - 1) // page_tokens
    for member in (lost, by):
        catch_up(scalars, tables, requests, member, step)
    source = requests[by, s.SEQUENCE]
    needed = max(capacity, tables[source, f.ENTRIES])
    if arena_for(scalars, state, entries, needed) != f.OK:
        return f.GROW
    old = requests[lost, s.SEQUENCE]
    state[s.READS] += readable(tables, source, page_tokens) - readable(tables, old, page_tokens)
    free(arrays, old)
    answer = fork(arrays, source)
    sequence = scalars[f.MEMBER]
    scalars[f.MEMBER] = 0
    reserve(scalars, tables, entries, dead, holders, position, sequence, needed)
    requests[lost, s.SEQUENCE] = sequence
    requests[lost, s.SPARSE] = requests[by, s.SPARSE]
    requests[lost, s.DONE_PAGES] = requests[by, s.DONE_PAGES]
    requests[lost, s.HEAPED] = 0
    requests[lost, s.HEAP_NEXT] = 0
    for member in (lost, by):
        strike(requests, serving.calendar, member)
        next_look(tables, state, requests, serving.calendar, member)
    return answer
