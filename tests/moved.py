"""Small ledgers that move rows, driven by hand: rows are token numbers, keys their positions."""

from __future__ import annotations

import numpy as np
import pytest
from differential.moving import KeyedStore
from differential.rowstore import digest

from kvsim.errors import CeilingExceeded
from kvsim.paging import Geometry, Ledger, Order, single
from kvsim.paging import fields as f

TWO_SETS = Geometry(unit_scope=(0, 0), unit_set=(0, 1), unit_row_bytes=(2, 5))
TWO_TABLES = Geometry(unit_scope=(0, 1), unit_set=(0, 1), unit_row_bytes=(2, 5))
PRICES = {
    "copied": f.COPIED_ROWS_TOTAL,
    "bytes": f.COPIED_BYTES_TOTAL,
    "rotated": f.ROTATED_ROWS_TOTAL,
    "cow": f.COW_TOTAL,
    "extra": f.EXTRA_PEAK,
    "freed": f.FREED_TOTAL,
}


def started(tokens, page_tokens=4, geometry=None, ceiling=0, **ordering):
    """Return a ledger whose rows are token numbers, and its only sequence."""
    geometry = geometry or single()
    store = KeyedStore(geometry.unit_scope, geometry.unit_set, page_tokens)
    ledger = Ledger(
        geometry, page_tokens, ceiling_pages=ceiling, ordering=Order(**ordering), store=store
    )
    sequence = ledger.open()
    append(ledger, sequence, tokens)
    return ledger, sequence


def append(ledger, sequence, tokens, first=None):
    """Append rows numbered from `first`, by default from the next position, as keys are."""
    position = ledger.next_position(sequence)
    numbers = np.arange(tokens) + (position if first is None else first)
    keys = np.arange(position, position + tokens)
    block = np.stack([numbers, keys])[:, None, :]
    units = [ledger.geometry.unit_scope.count(s) for s in range(ledger.geometry.scope_units)]
    ledger.append(sequence, tokens, [np.repeat(block, count, axis=1) for count in units])


def evict(ledger, sequence, *victims):
    """Evict slots, a list for each set; one list serves all."""
    lists = victims * ledger.geometry.sets if len(victims) == 1 else victims
    ledger.evict(sequence, [np.array(slots, np.int64) for slots in lists])


def table(ledger, sequence, unit=0):
    """Return the rows of a unit's retained slots in the order of the slots."""
    which = ledger.geometry.unit_set[unit]
    slots = np.flatnonzero(ledger.retained(sequence, which))
    physical = ledger.physical(sequence, ledger.geometry.unit_scope[unit], slots)
    return dict(zip(slots.tolist(), ledger.store.rows[unit, physical].tolist(), strict=True))


def in_order(ledger, sequence, unit=0):
    """Return (rows, positions) of a unit, ascending in position."""
    which, scope = ledger.geometry.unit_set[unit], ledger.geometry.unit_scope[unit]
    slots, positions = ledger.rows(sequence, which, scope)
    physical = ledger.physical(sequence, scope, slots)
    return ledger.store.rows[unit, physical].tolist(), positions.tolist()


def prices(ledger, *names):
    """Return some of the ledger's flows."""
    return tuple(ledger.total(PRICES[name]) for name in names)


def refuse(ledger, needed, verb, *arguments):
    """Assert that a verb is refused, says what it needs, and changes no array and no row."""
    before = digest(ledger), ledger.store.rows.tobytes(), ledger.store.keys.tobytes()
    with pytest.raises(CeilingExceeded) as refusal:
        verb(*arguments)
    assert (refusal.value.needed_pages, refusal.value.free_pages) == (needed, ledger.free_pages)
    assert (digest(ledger), ledger.store.rows.tobytes(), ledger.store.keys.tobytes()) == before
