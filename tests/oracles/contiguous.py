"""The contiguous oracle: per sequence and unit one list of (position, row). Knows no page.

Written from the rules of the design. A new token's position is one past the last that its table
still retains, so that evicting the last tokens takes their positions back. Compaction is not
here: it changes no row and no order. Renumbering makes every position a rank.
"""

from __future__ import annotations

from copy import deepcopy


class Contiguous:
    """A cache without pages.

    Parameters
    ----------
    unit_scope, unit_set : sequences of int
        For each unit, the table that numbers its positions, and the set that it evicts with.
    """

    def __init__(self, unit_scope, unit_set):
        self.unit_scope = tuple(unit_scope)
        self.unit_set = tuple(unit_set)
        self.rows = {}

    def open(self, sequence):
        """Start an empty sequence."""
        self.rows[sequence] = [[] for _ in self.unit_scope]

    def units_of(self, scope):
        """Return the units whose positions one table numbers."""
        return [unit for unit, s in enumerate(self.unit_scope) if s == scope]

    def next_position(self, sequence, scope):
        """Return one past the last position that any unit of a table retains."""
        lists = [self.rows[sequence][unit] for unit in self.units_of(scope)]
        return max((position + 1 for rows in lists for position, _ in rows), default=0)

    def append(self, sequence, rows):
        """Append tokens; `rows[unit]` lists one row per token."""
        first = [self.next_position(sequence, scope) for scope in self.unit_scope]
        for unit, new in enumerate(rows):
            self.rows[sequence][unit] += [(first[unit] + i, row) for i, row in enumerate(new)]

    def fork(self, parent, child):
        """Copy everything: what is shared is not this oracle's business."""
        self.rows[child] = deepcopy(self.rows[parent])

    def evict(self, sequence, victims):
        """Drop tokens; `victims[set]` lists positions."""
        for unit, which in enumerate(self.unit_set):
            gone = set(victims[which])
            kept = [(p, row) for p, row in self.rows[sequence][unit] if p not in gone]
            self.rows[sequence][unit] = kept

    def renumber(self, sequence, by_row):
        """Make every position a rank.

        Where rows move on their own it is the rank among the unit's own rows, else among all
        positions that some unit of the table retains, because there a position is the slot's.
        """
        rows = self.rows[sequence]
        ranks = []
        for unit, scope in enumerate(self.unit_scope):
            among = [unit] if by_row else self.units_of(scope)
            positions = sorted({position for u in among for position, _ in rows[u]})
            ranks.append({position: rank for rank, position in enumerate(positions)})
        for unit, rank in enumerate(ranks):
            rows[unit] = [(rank[position], row) for position, row in rows[unit]]

    def free(self, sequence):
        """Forget a sequence."""
        del self.rows[sequence]
