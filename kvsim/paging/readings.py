"""What can be read off a ledger: stocks, flows, tables, samples. Changes nothing."""

from __future__ import annotations

import numpy as np

from kvsim.paging import census
from kvsim.paging import fields as f
from kvsim.paging.arrays import Arrays
from kvsim.paging.geometry import Geometry
from kvsim.paging.ordering import Order
from kvsim.paging.samples import Floors, Slots, count_slots, floors, slot_states


class Readings:
    """The reading half of a ledger; `Ledger` adds the verbs."""

    geometry: Geometry
    ordering: Order
    page_tokens: int
    _arrays: Arrays
    _scalars: np.ndarray
    _units: int

    # Stocks and flows

    @property
    def held_pages(self) -> int:
        """Pages with a refcount above 0, over all scope units."""
        return int(self._scalars[f.HELD])

    @property
    def held_bytes(self) -> int:
        """Bytes of the held pages, each at its scope unit's width."""
        held = self._arrays.scopes[:, f.HELD_IN]
        return int(held @ self.geometry.page_row_bytes()) * self.page_tokens

    @property
    def free_pages(self) -> int:
        """Pages that the ceiling leaves."""
        return int(self._scalars[f.CEILING] - self._scalars[f.HELD])

    @property
    def room_pages(self) -> int:
        """Pages that the pool's arrays, and the store, have room for."""
        return int(self._scalars[f.PAGES])

    def total(self, field: int) -> int:
        """Return one of the flows named ``*_TOTAL`` or peaks named ``*_PEAK`` in `fields`."""
        return int(self._scalars[field])

    def sequences(self) -> list[int]:
        """Open sequences, ascending."""
        return np.flatnonzero(self._arrays.tables[:: self._units, f.SEQUENCE] >= 0).tolist()

    def table(self, sequence: int, scope: int, field: int) -> int:
        """Return one field of a sequence's table."""
        return int(self._arrays.tables[sequence * self._units + scope, field])

    def cursor(self, sequence: int, scope: int = 0) -> int:
        """Return the next slot that the table of a scope unit will write."""
        return self.table(sequence, scope, f.CURSOR)

    def pages_of(self, sequence: int, scope: int = 0) -> np.ndarray:
        """Return a table's pages, int64 [entries], -1 where an interior page was let go."""
        start = self.table(sequence, scope, f.START)
        entries = self.table(sequence, scope, f.ENTRIES)
        return self._arrays.entries[f.PAGE, start : start + entries].astype(np.int64)

    def named_pages(self, sequence: int, shared: bool = False) -> int:
        """Count the pages that a sequence's tables name, or those of them that others name too."""
        count = 0
        for scope in range(self._units):
            pages = self.pages_of(sequence, scope)
            pages = pages[pages >= 0]
            if shared:
                pages = pages[self._arrays.pages[f.REFCOUNT, pages] > 1]
            count += pages.size
        return count

    def slots_are_positions(self, sequence: int) -> bool:
        """Tell whether all sets retain all slots below one cursor, each at its own number."""
        if self._arrays.position.shape[0] or self._arrays.holders.shape[0]:
            return False
        tables = self._arrays.tables[sequence * self._units : (sequence + 1) * self._units]
        alike = (tables[:, f.CURSOR] == tables[0, f.CURSOR]).all()
        return bool(alike) and not tables[:, f.DEAD].any()

    def refcounts(self) -> np.ndarray:
        """Return the refcount of each page, int32 [pages]."""
        return self._arrays.pages[f.REFCOUNT, :-1].copy()

    def retained(self, sequence: int, which: int, scope: int | None = None) -> np.ndarray:
        """Return which slots a set retains, bool [cursor].

        Tables of a set that spans several scope units agree; unless `scope` names one, the
        first of them answers.
        """
        if scope is None:
            scope = self.geometry.first_scope_of(which)
        kept = np.zeros(self.cursor(sequence, scope), np.bool_)
        member = self.geometry.inner_sets[scope].index(which)
        census.retained_slots(self._arrays, sequence * self._units + scope, member, kept)
        return kept

    def rows(
        self, sequence: int, which: int, scope: int | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return what a set retains in ascending position: its slots and their positions.

        Returns
        -------
        slots, positions : int64 [retained]
        """
        if scope is None:
            scope = self.geometry.first_scope_of(which)
        slots = np.flatnonzero(self.retained(sequence, which, scope))
        if self._arrays.position.shape[0]:
            found = np.empty(self.cursor(sequence, scope), np.int64)
            member = self.geometry.inner_sets[scope].index(which)
            census.stored_positions(self._arrays, sequence * self._units + scope, member, found)
            positions = found[slots]
            order = np.argsort(positions, kind="stable")
            return slots[order], positions[order]
        if self._scalars[f.RENUMBER]:
            # The position is the rank among the table's live slots, whoever retains them.
            base = self.table(sequence, scope, f.START) * self.page_tokens
            dead = self._arrays.dead[base : base + self.cursor(sequence, scope)]
            return slots, (np.cumsum(dead == 0) - 1)[slots]
        return slots, slots

    def physical(self, sequence: int, scope: int, slots: np.ndarray) -> np.ndarray:
        """Return the physical slots, `page * page_tokens + offset`, of a table's slots."""
        pages = self.pages_of(sequence, scope)[slots // self.page_tokens]
        return pages * self.page_tokens + slots % self.page_tokens

    def next_position(self, sequence: int, scope: int = 0) -> int:
        """Return the position that the next token gets in the table of a scope unit."""
        if self._arrays.position.shape[0]:
            row = sequence * self._units + scope
            return int(self._arrays.tables[row, f.NEXT_POSITION :].max())
        cursor = self.cursor(sequence, scope)
        if self._scalars[f.RENUMBER]:
            return cursor - self.table(sequence, scope, f.DEAD)
        return cursor

    def page_map(self) -> np.ndarray:
        """Return the state of every slot, uint8 [pages, page_tokens].

        0 tail, 1 dead, 2 live, 3 in a page that is not held.
        """
        return slot_states(self._arrays)

    def slots(self) -> Slots:
        """Take a census of the physical slots of all held pages."""
        return count_slots(self._arrays)

    def floors(self) -> Floors:
        """Count the fewest pages that could hold what is retained."""
        return floors(self._arrays, self.geometry)

    @property
    def logical_pages(self) -> int:
        """Pages named by tables: a shared page counts once in each."""
        tables = self._arrays.tables[self._arrays.tables[:, f.SEQUENCE] >= 0]
        return int(tables[:, f.NAMED].sum())

    @property
    def logical_live_slots(self) -> int:
        """Live slots summed over tables: a shared slot counts once in each."""
        tables = self._arrays.tables[self._arrays.tables[:, f.SEQUENCE] >= 0]
        return int((tables[:, f.CURSOR] - tables[:, f.DEAD]).sum())

    @property
    def retained_rows(self) -> int:
        """(token, layer, head) rows that sets retain, summed over sequences."""
        rows = 0
        for sequence in self.sequences():
            for scope, inner in enumerate(self.geometry.inner_sets):
                for member, which in enumerate(inner):
                    units = int(
                        self._arrays.scopes[scope, f.SET_COLUMNS + f.PER_SET * member + f.ROWS]
                    )
                    rows += units * int(np.count_nonzero(self.retained(sequence, which, scope)))
        return rows

    @property
    def metadata_bytes(self) -> int:
        """Bytes of bookkeeping: 4 a table entry, 1 a slot's dead flag, 1 a (set, slot) holder
        and 4 a stored position."""
        tables = self._arrays.tables[self._arrays.tables[:, f.SEQUENCE] >= 0]
        slots = int(tables[:, f.CURSOR].sum())
        entries = int(tables[:, f.ENTRIES].sum())
        sets = self._arrays.holders.shape[0]
        return 4 * entries + slots * (1 + sets + 4 * self._arrays.position.shape[0])
