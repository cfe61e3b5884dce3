"""What SimPy processes may do to an engine between two steps, beyond cancelling and ceilings.

A live request arrives, a conversation branches at any point of it, a beam is given up for another,
a background compactor moves rows. What needs more rows, keys or scratch than the trace did grows
the arrays here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from kvsim.engine.serving import branching, members, waiting
from kvsim.engine.serving import fields as s
from kvsim.engine.serving.engine import ServingEngine
from kvsim.engine.serving.publishing import key_of
from kvsim.errors import CeilingExceeded, LedgerError, WorkloadError
from kvsim.paging import fields as f


def submit(
    engine: ServingEngine,
    input_tokens: int,
    output_tokens: int,
    *,
    keys: Sequence[int] = (),
    priority: int = 0,
) -> int:
    """Let a request arrive now; return its number.

    Parameters
    ----------
    engine : ServingEngine
    input_tokens, output_tokens : int
        At least 1, and at least 0.
    keys : sequence of int
        Of its first full pages, in prefix order: those of other requests, or fewer.
    priority : int

    Raises
    ------
    WorkloadError
        If the request makes no sense. Nothing is changed.
    """
    request = _new_row(engine, input_tokens, output_tokens, keys, priority)
    engine.rows[request, s.STATUS] = s.QUEUED
    waiting.join(engine.serving, request, False)
    return request


def keys_of(engine: ServingEngine, request: int, pages: int) -> list[int]:
    """Return the keys of the first pages of a request, its own ones included."""
    rows, keys = engine.serving.requests, engine.serving.keys
    return [int(key_of(rows, keys, request, page)) for page in range(pages)]


def branch(
    engine: ServingEngine,
    parent: int,
    tokens: int,
    new_tokens: int,
    output_tokens: int,
    priority: int = 0,
) -> tuple[int, bool]:
    """Let a request arrive now that goes on from a point of another one.

    If the other one decodes, and there is a seat, the branch shares its pages at once and copies
    on write, and prefills only what it does not share. Otherwise it waits like any request, and
    finds in the prefix cache what is left there. A member that was evicted from, or whose slots
    have flags, can be branched at its end only.

    Parameters
    ----------
    engine : ServingEngine
    parent : int
    tokens : int
        Known tokens of the other one that the branch begins with, at least 1; more than there
        are means all of them. Below that it is a pull-back.
    new_tokens, output_tokens : int
        What it adds to its prompt, and generates.
    priority : int

    Returns
    -------
    request : int
    shared : bool
        Whether it shares pages with a decoding member from the start.

    Raises
    ------
    WorkloadError
        If the branch makes no sense. Nothing is changed.
    """
    if not 0 <= parent < engine.count:
        raise WorkloadError(f"a branch of request {parent}: there is no such request")
    if tokens < 1 or new_tokens < 0:
        raise WorkloadError("a branch keeps at least 1 token and adds at least none")
    rows = engine.serving.requests
    decodes = rows[parent, s.STATUS] == s.DECODES
    known = engine.known_tokens(parent)
    tokens = min(tokens, known)
    keys = keys_of(engine, parent, min(tokens // engine.ledger.page_tokens, _full(engine, parent)))
    request = _new_row(engine, tokens + new_tokens, output_tokens, keys, priority)
    rows = engine.serving.requests
    rows[request, s.NUMBER] = rows[parent, s.NUMBER]
    whole = tokens == known
    plain = engine.ledger.arrays.holders.shape[0] + engine.ledger.arrays.position.shape[0] == 0
    seat = engine.state[s.RUNNING] + engine.state[s.FORK_SEATS] < engine.state[s.MAX_RUNNING]
    if decodes and seat and (whole or (plain and not rows[parent, s.SPARSE])):
        # The last token has no row yet, and the last of a prompt is always computed.
        held = min(tokens, known - 1, int(rows[request, s.INPUT]) - 1)
        if _answered(engine, lambda: _branch(engine, parent, request, held)) == f.OK:
            return request, True
    rows[request, s.STATUS] = s.QUEUED
    waiting.join(engine.serving, request, False)
    return request, False


def rejoin(engine: ServingEngine, lost: int, by: int) -> None:
    """Let one decoding member become a copy of another: a beam that is given up.

    Raises
    ------
    LedgerError
        If one of them does not decode, or they have not generated as many tokens, or an index
        knows pages of generated tokens. Nothing is changed.
    """
    rows = engine.serving.requests
    if lost == by or not all(rows[member, s.STATUS] == s.DECODES for member in (lost, by)):
        raise LedgerError(f"beams {lost} and {by} are not two decoding members")
    if engine.known_tokens(lost) != engine.known_tokens(by):
        raise LedgerError(f"beams {lost} and {by} have not generated as many tokens")
    if engine.settings.prefix != "none" and engine.settings.publish == "all":
        raise LedgerError("beams change what they generated: set prefix.publish to prompt")
    _answered(engine, lambda: int(branching.rejoin(engine.ledger.arrays, engine.serving, lost, by)))


def compact(engine: ServingEngine, request: int) -> bool:
    """Compact a decoding member now, as the ledger's ordering says; tell whether it did.

    The bytes that it moves count for the next step. Without pages for its copies nothing is done.

    Raises
    ------
    LedgerError
        If the ordering has no compaction.
    """
    rows, tables = engine.serving.requests, engine.ledger.arrays.tables
    if rows[request, s.STATUS] != s.DECODES:
        return False
    step, page_tokens = int(engine.state[s.STEP]), engine.ledger.page_tokens
    members.catch_up(engine.ledger.arrays.scalars, tables, rows, request, step)
    sequence = int(rows[request, s.SEQUENCE])
    before = members.readable(tables, sequence, page_tokens)
    try:
        engine.ledger.compact(sequence)
    except CeilingExceeded:
        return False
    tables = engine.ledger.arrays.tables
    engine.state[s.READS] += members.readable(tables, sequence, page_tokens) - before
    members.strike(rows, engine.serving.calendar, request)
    members.next_look(tables, engine.state, rows, engine.serving.calendar, request)
    return True


def _full(engine: ServingEngine, request: int) -> int:
    row = engine.serving.requests[request]
    return int(row[s.INPUT] + row[s.OUTPUT]) // engine.ledger.page_tokens


def _branch(engine: ServingEngine, parent: int, request: int, held: int) -> int:
    return int(branching.branch(engine.ledger.arrays, engine.serving, parent, request, held))


def _answered(engine: ServingEngine, call: Callable[[], int]) -> int:
    """Call a kernel until it does not ask for larger arrays."""
    while (answer := call()) == f.GROW:
        engine.grow()
    return answer


def _new_row(
    engine: ServingEngine,
    input_tokens: int,
    output_tokens: int,
    keys: Sequence[int],
    priority: int,
) -> int:
    """Make the row of a request that arrives now, with keys of its own behind the given ones."""
    if input_tokens < 1 or output_tokens < 0:
        raise WorkloadError("a request has at least 1 input token and at least no output token")
    page_tokens = engine.ledger.page_tokens
    full = (input_tokens + output_tokens) // page_tokens
    if len(keys) > full:
        raise WorkloadError(f"a request of {full} full pages has {len(keys)} keys")
    request, first_key, own_key = engine.more_rows(
        np.array(keys, np.int32), full - len(keys), input_tokens + output_tokens
    )
    row = engine.serving.requests[request]
    row[s.ARRIVAL_NS] = engine.now_ns
    row[s.INPUT], row[s.OUTPUT], row[s.PRIORITY] = input_tokens, output_tokens, priority
    row[s.SAMPLES] = 1
    row[s.KEYS], row[s.KEY_COUNT] = first_key, len(keys)
    row[s.OWN_KEY] = row[s.PROMPT_KEY] = own_key - len(keys)
    row[s.NUMBER] = request
    row[s.PROMPT_PAGES] = input_tokens // page_tokens
    for field in (s.SEQUENCE, s.NEXT, s.PREVIOUS, s.PARENT, s.SCHEDULED_NS, s.FIRST_NS, s.LAST_NS):
        row[field] = -1
    # Whatever has a key may be found by others from now on.
    engine.state[s.GIVEN_KEYS] = np.iinfo(np.int64).max
    return request
