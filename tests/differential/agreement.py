"""What must be equal after every verb: tables, sets, rows, counters, census and floors."""

from __future__ import annotations

import numpy as np

from kvsim.paging import fields as f

FLOWS = {
    "appended_slots_total": f.APPENDED_TOTAL,
    "evicted_rows_total": f.EVICTED_ROWS_TOTAL,
    "evicted_bytes_total": f.EVICTED_BYTES_TOTAL,
    "freed_pages_total": f.FREED_TOTAL,
    "finished_pages_total": f.FINISHED_TOTAL,
    "allocated_pages_total": f.ALLOCATED_TOTAL,
    "cow_pages_total": f.COW_TOTAL,
    "copied_rows_total": f.COPIED_ROWS_TOTAL,
    "copied_bytes_total": f.COPIED_BYTES_TOTAL,
    "rotated_rows_total": f.ROTATED_ROWS_TOTAL,
    "extra_pages_peak": f.EXTRA_PEAK,
    "held_pages_peak": f.HELD_PEAK,
}


def agree(step):
    """Assert that the ledger of a Lockstep equals its oracles, and that its own check passes."""
    step.ledger.check()
    step.pages.settle(queue_of(step.ledger))
    agree_counts(step.ledger, step.pages)
    for sequence in step.sequences():
        agree_tables(step, sequence)
        agree_rows(step, sequence)


def queue_of(ledger):
    """Walk a ledger's queue from its head; a loop would be longer than the pool."""
    links = ledger._arrays.pages[f.NEXT].tolist()
    sentinel, queue = len(links) - 1, []
    page = links[sentinel]
    while page != sentinel and len(queue) < sentinel:
        queue.append(page)
        page = links[page]
    return queue


def agree_counts(ledger, pages):
    """Assert equal stocks, flows, census and floors."""
    assert ledger.sequences() == sorted(pages.tables)
    assert {name: ledger.total(field) for name, field in FLOWS.items()} == pages.flows
    held = pages.held()
    refcounts = ledger.refcounts()
    assert {int(p): int(refcounts[p]) for p in np.flatnonzero(refcounts)} == {
        number: page.references for number, page in held.items()
    }
    assert ledger.held_pages == len(held)
    assert ledger._arrays.scopes[:, f.HELD_IN].tolist() == pages.held_by_scope()
    assert ledger.held_bytes == pages.held_bytes()
    assert ledger.metadata_bytes == pages.metadata_bytes()
    if pages.ceiling:
        assert ledger.free_pages == pages.room()
    slots = ledger.slots()
    assert (slots.live, slots.dead, slots.tail) == pages.census()
    floors = ledger.floors()
    assert (floors.row_pages, floors.slot_pages, floors.live_row_bytes) == pages.floors()


def agree_tables(step, sequence):
    """Assert equal entries, cursors and dead flags in every table of a sequence."""
    ledger = step.ledger
    for scope, table in enumerate(step.pages.tables[sequence]):
        expected = [-1 if page is None else page.number for page in table.entries]
        assert ledger.pages_of(sequence, scope).tolist() == expected
        assert ledger.cursor(sequence, scope) == table.cursor
        first = ledger.table(sequence, scope, f.START) * step.page_tokens
        flags = ledger._arrays.dead[first : first + table.cursor]
        assert set(np.flatnonzero(flags).tolist()) == table.dead()
        assert ledger.table(sequence, scope, f.DEAD) == len(table.dead())


def agree_rows(step, sequence):
    """Assert equal sets, and that each unit's pages hold the contiguous oracle's rows in order."""
    for unit, scope in enumerate(step.unit_scope):
        which = step.unit_set[unit]
        slots, positions = step.ledger.rows(sequence, which, scope)
        flags = step.ledger.retained(sequence, which, scope)
        assert np.flatnonzero(flags).tolist() == sorted(slots.tolist())
        assert slots.tolist() == step.retained(sequence, which)
        expected = step.cache.rows[sequence][unit]
        assert positions.tolist() == [position for position, _ in expected]
        if step.store is not None:
            step.agree_stored(unit, step.physical(sequence, scope, slots), expected)
    for scope in step.pages.scopes:
        following = step.cache.next_position(sequence, scope)
        assert step.ledger.next_position(sequence, scope) == following
