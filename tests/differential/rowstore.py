"""A store for tests whose rows are integers, and the hash of a ledger's arrays."""

from __future__ import annotations

import hashlib

import numpy as np


def digest(ledger):
    """Hash every array of a ledger: names, shapes, types and bytes."""
    total = hashlib.sha256()
    for name, array in ledger._arrays._asdict().items():
        total.update(f"{name} {array.dtype} {array.shape}".encode())
        total.update(np.ascontiguousarray(array).tobytes())
    return total.hexdigest()


class RowStore:
    """One integer per (unit, slot), to see that moves carry the right rows to the right slots.

    Parameters
    ----------
    unit_scope, unit_set : sequences of int
        For each unit its scope unit and its set.
    page_tokens : int
        Slots in a page.
    """

    def __init__(self, unit_scope, unit_set, page_tokens):
        self.unit_scope = np.array(unit_scope)
        self.unit_set = np.array(unit_set)
        self.page_tokens = page_tokens
        self.rows = np.full((len(unit_scope), 0), -1, np.int64)

    def resize(self, pages):
        """Widen the rows. A pool never shrinks."""
        wider = np.full((self.rows.shape[0], pages * self.page_tokens), -1, np.int64)
        wider[:, : self.rows.shape[1]] = self.rows
        self.rows = wider

    def write(self, scope, slots, rows):
        """Write `rows` [unit of the scope, slot]."""
        assert slots.size == 0 or slots.min() >= 0
        self.rows[np.ix_(self.unit_scope == scope, slots)] = rows

    def apply(self, plan):
        """Carry out the moves one by one, in their order."""
        for source, target, _, scope, which in plan.T.tolist():
            assert min(source, target) >= 0
            units = self.moved_by(scope, which)
            self.rows[units, target] = self.rows[units, source]

    def moved_by(self, scope, which):
        """Return which units a move carries: all of a scope unit, or those of its set `which`."""
        units = self.unit_scope == scope
        if which >= 0:
            # A plan counts sets inside the scope unit.
            units &= self.unit_set == np.unique(self.unit_set[units])[which]
        return units
