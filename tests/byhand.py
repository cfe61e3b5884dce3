"""A ledger whose every row is watched, for small cases by hand.

Quick without compiled kernels, since that is how the mutants run.
"""

from __future__ import annotations

import numpy as np
import pytest
from differential.rowstore import RowStore, digest

from kvsim.errors import CeilingExceeded
from kvsim.paging import fields as f
from kvsim.paging.geometry import Geometry, single
from kvsim.paging.ledger import Ledger

TWO_SETS = Geometry(unit_scope=(0, 0), unit_set=(0, 1), unit_row_bytes=(2, 5))


class Watched(RowStore):
    """A row store that also keeps every move it was told to make."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.moves = []

    def apply(self, plan):
        """Note the moves, then make them."""
        self.moves += plan.T.tolist()
        super().apply(plan)


class Case:
    """One ledger with a watched store; the row of token t in unit u is 100 * u + t."""

    def __init__(self, tokens=0, page_tokens=4, geometry=None, **options):
        self.geometry = geometry or single()
        self.store = Watched(self.geometry.unit_scope, self.geometry.unit_set, page_tokens)
        self.ledger = Ledger(self.geometry, page_tokens, store=self.store, **options)
        self.fresh = 0
        self.first = self.ledger.open()
        self.append(self.first, tokens)

    def append(self, sequence, tokens):
        """Append the next tokens and recount."""
        new = np.arange(self.fresh, self.fresh + tokens)
        rows = 100 * np.arange(self.geometry.units)[:, None] + new
        units = np.array(self.geometry.unit_scope)
        self.ledger.append(
            sequence, tokens, [rows[units == s] for s in range(self.geometry.scope_units)]
        )
        self.fresh += tokens
        self.ledger.check()

    def evict(self, sequence, *lists):
        """Evict and recount."""
        self.ledger.evict(sequence, [np.array(slots, np.int64) for slots in lists])
        self.ledger.check()

    def compact(self, sequence):
        """Compact and recount."""
        self.ledger.compact(sequence)
        self.ledger.check()

    def rows(self, sequence, unit=0):
        """Return the rows that a unit retains, in ascending position."""
        scope, which = self.geometry.unit_scope[unit], self.geometry.unit_set[unit]
        slots, _ = self.ledger.rows(sequence, which, scope)
        return self.store.rows[unit, self.ledger.physical(sequence, scope, slots)].tolist()

    def positions(self, sequence, which=0):
        """Return the positions that a set retains."""
        return self.ledger.rows(sequence, which)[1].tolist()

    def total(self, name):
        """Return a flow or peak by its name."""
        return self.ledger.total(getattr(f, name))

    def refuses(self, verb, *arguments):
        """Assert that the ceiling refuses a verb and that nothing changed; return the need."""
        before = digest(self.ledger), self.store.rows.tolist()
        with pytest.raises(CeilingExceeded) as refusal:
            verb(*arguments)
        assert (digest(self.ledger), self.store.rows.tolist()) == before
        self.ledger.check()
        return refusal.value.needed_pages
