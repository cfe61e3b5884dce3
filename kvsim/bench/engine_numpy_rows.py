"""The arrays of the NumPy baseline: block tables as one rectangle, a free stack, and evictions.

Knows rows of the rectangle and the columns of decoding members; knows no requests' order, no
admission and no time. Nothing is shared, so a page has one owner and no refcount.
"""

from __future__ import annotations

import numpy as np

from kvsim.bench.engine_report import NEVER, Terms

# Rows of the array of decoding members: the request; its row in the block tables; one past its
# last row; slots left in its last page; tokens left to generate; tokens appended so far; live
# rows; pages that its table let go of. APPENDED and LIVE are kept only where every step evicts.
NUMBER, ROW, CURSOR, ROOM, LEFT, APPENDED, LIVE, NULLS = range(8)
FIELDS = 8


class Rows:
    """One row for each seat: its pages, and under an eviction the priorities of its tokens.

    Parameters
    ----------
    terms : Terms
    page_tokens : int
    longest : int
        Tokens of the longest request.

    Attributes
    ----------
    tables : int64 [seats, entries]
        Pages, -1 where there is none.
    left, held : int
        Pages that the ceiling still allows, and pages that are held.
    priority : int64 [seats, positions]
        The priority of each position of a member.
    scores, position : int64 [seats, candidates]
        Priorities and positions of the live rows that may go, without order and without gaps,
        so that a step looks at few more of them than there are; NEVER behind them.
    candidates : int64 [seats]
        How many there are.
    alive : int64 [seats, entries]
        Live rows behind each entry.
    """

    def __init__(self, terms: Terms, page_tokens: int, longest: int) -> None:
        self.size = page_tokens
        self.eviction = terms.eviction
        seats = terms.max_running
        entries = -(-longest // page_tokens)
        self.tables = np.full((seats, entries), -1, np.int64)
        # Unlimited pages are as many as all seats can name.
        self.pages = terms.ceiling_pages or seats * entries
        self.stack = np.arange(self.pages, dtype=np.int64)[::-1].copy()
        self.left = self.pages
        self.seats = list(range(seats))[::-1]
        self.allocated_total = self.freed_total = self.evicted_total = 0
        if terms.eviction is not None:
            self.priority = np.full((seats, longest), NEVER, np.int64)
            self.scores = np.full((seats, 0), NEVER, np.int64)
            self.position = np.zeros((seats, 0), np.int64)
            self.candidates = np.zeros(seats, np.int64)
            self.alive = np.zeros((seats, entries), np.int64)

    @property
    def held(self) -> int:
        """Pages that somebody holds."""
        return self.pages - self.left

    def seat(self) -> int:
        """Return an empty row."""
        return self.seats.pop()

    def extend(self, row: int | np.ndarray, entries: np.ndarray) -> None:
        """Take a page for each entry, of one row or of a row each."""
        self.left -= entries.size
        self.tables[row, entries] = self.stack[self.left : self.left + entries.size]
        self.allocated_total += entries.size

    def _put(self, pages: np.ndarray) -> None:
        self.stack[self.left : self.left + pages.size] = pages
        self.left += pages.size

    def free(self, row: int, cursor: int) -> None:
        """Let go of all pages of a row, and empty it."""
        pages = self.tables[row, : -(-cursor // self.size)]
        self._put(pages[pages >= 0])
        self.tables[row] = -1
        if self.eviction is not None:
            self.scores[row, : self.candidates[row]] = NEVER
            self.candidates[row] = 0
        self.seats.append(row)

    def evict_first(self, state: np.ndarray, column: int, longest: int) -> None:
        """Evict from one member whose prefill is complete.

        Parameters
        ----------
        state : int64 [FIELDS, decoding]
        column : int
        longest : int
            Tokens that it has at its end, at most.
        """
        eviction = self.eviction
        assert eviction is not None
        number, row, cursor = state[[NUMBER, ROW, CURSOR], column].tolist()
        full, rest = divmod(cursor, self.size)
        alive = self.alive[row]
        alive[:] = 0
        alive[:full] = self.size
        if rest:
            alive[full] = rest
        self.priority[row, :longest] = eviction.priorities(number, 0, longest)
        first, last = eviction.sinks, cursor - eviction.recent
        if first >= last:
            return
        priority = self.priority[row, first:last]
        count = max(0, min(cursor - eviction.kept(cursor), last - first))
        order = np.argsort(priority, kind="stable")
        stay = np.sort(order[count:])
        self._widen(stay.size)
        self.scores[row, : stay.size] = priority[stay]
        self.position[row, : stay.size] = first + stay
        self.candidates[row] = stay.size
        if not count:
            return
        alive -= np.bincount((first + order[:count]) // self.size, minlength=alive.size)
        state[LIVE, column] -= count
        self.evicted_total += count
        # Entries above the member's own were empty before, and have no page.
        entries = np.flatnonzero((alive == 0) & (self.tables[row] >= 0))
        self._let_go(np.full(entries.size, row), entries)
        state[NULLS, column] += entries.size
        if not eviction.recent:
            self._rewind(state, column)

    def evict_each(self, state: np.ndarray) -> None:
        """Note the row that each member wrote, and evict from all of them at once.

        Parameters
        ----------
        state : int64 [FIELDS, decoding], a view
        """
        eviction = self.eviction
        assert eviction is not None
        rows = state[ROW]
        written = state[CURSOR] - 1
        self.alive[rows, written // self.size] += 1
        state[APPENDED] += 1
        state[LIVE] += 1
        offered = written - eviction.recent
        if int(offered.min()) >= eviction.sinks:
            self._offer(rows, offered)
        else:
            able = offered >= eviction.sinks
            self._offer(rows[able], offered[able])
        if eviction.tokens:
            excess = state[LIVE] - eviction.tokens
        else:
            excess = state[LIVE] - (eviction.fraction * state[APPENDED]).astype(np.int64)
        due = np.flatnonzero(excess > 0)
        while due.size:
            row = rows[due]
            able = self.candidates[row] > 0
            if not able.all():
                due, row = due[able], row[able]
                if not due.size:
                    break
            # Looking at every row in place is cheaper than copying most of them out.
            if 2 * due.size >= self.scores.shape[0]:
                which = self.scores.argmin(axis=1)[row]
            else:
                which = self.scores[row].argmin(axis=1)
            victim = self.position[row, which]
            # The last candidate takes the victim's place.
            last = self.candidates[row] - 1
            self.candidates[row] = last
            self.position[row, which] = self.position[row, last]
            self.scores[row, which] = self.scores[row, last]
            self.scores[row, last] = NEVER
            entry = victim // self.size
            self.alive[row, entry] -= 1
            state[LIVE, due] -= 1
            self.evicted_total += due.size
            empty = np.flatnonzero(self.alive[row, entry] == 0)
            if empty.size:
                self._let_go(row[empty], entry[empty])
                state[NULLS, due[empty]] += 1
            if not eviction.recent:
                for column in due[victim == state[CURSOR, due] - 1].tolist():
                    self._rewind(state, column)
            excess[due] -= 1
            due = due[excess[due] > 0]

    def _offer(self, rows: np.ndarray, positions: np.ndarray) -> None:
        """Add one candidate to each of these rows."""
        at = self.candidates[rows]
        self._widen(int(at.max(initial=0)) + 1)
        self.scores[rows, at] = self.priority[rows, positions]
        self.position[rows, at] = positions
        self.candidates[rows] = at + 1

    def _widen(self, candidates: int) -> None:
        """Make room for so many candidates in each row, and for a few more.

        The arrays are never a slice of wider ones, which NumPy would copy before it looks.
        """
        more = candidates - self.scores.shape[1]
        if more > 0:
            added = ((0, 0), (0, more + 63))
            self.scores = np.pad(self.scores, added, constant_values=NEVER)
            self.position = np.pad(self.position, added)

    def _let_go(self, rows: np.ndarray, entries: np.ndarray) -> None:
        """Free pages that have no live row left."""
        self._put(self.tables[rows, entries])
        self.tables[rows, entries] = -1
        self.freed_total += entries.size

    def _rewind(self, state: np.ndarray, column: int) -> None:
        """Set a cursor to one past the last live row, where no recent row is protected."""
        assert self.eviction is not None
        row, cursor = state[[ROW, CURSOR], column].tolist()
        sinks = self.eviction.sinks
        live = self.position[row, : self.candidates[row]]
        after = int(live.max()) + 1 if live.size else min(sinks, cursor)
        # What is behind has no live row, so its entries are empty.
        state[NULLS, column] -= -(-cursor // self.size) - -(-after // self.size)
        state[CURSOR, column] = after
        state[ROOM, column] = -after % self.size
