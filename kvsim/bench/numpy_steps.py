"""Baseline: one token for each running sequence, done for the whole batch with NumPy.

It keeps what the ledger keeps for such a step (cursors, block tables, refcounts, a free stack)
and checks for shared pages, as an engine written in NumPy would.
"""

from __future__ import annotations

import numpy as np


class NumpySteps:
    """Block tables of a batch as one rectangular array.

    Parameters
    ----------
    sequences, page_tokens, pages : int
        Running sequences, slots of a page, pages of the pool.
    """

    def __init__(self, sequences: int, page_tokens: int, pages: int) -> None:
        self.page_tokens = page_tokens
        self.cursor = np.zeros(sequences, np.int64)
        self.tables = np.full((sequences, -(-pages // sequences) + 1), -1, np.int64)
        self.refcount = np.zeros(pages, np.int32)
        self.stack = np.arange(pages, dtype=np.int64)[::-1].copy()
        self.top = pages
        self.held = 0
        self.rows = np.arange(sequences)

    def prefill(self, row: int, tokens: int) -> None:
        """Give one sequence its prompt."""
        count = -(-tokens // self.page_tokens)
        self.top -= count
        pages = self.stack[self.top : self.top + count]
        self.tables[row, :count] = pages
        self.refcount[pages] = 1
        self.held += count
        self.cursor[row] = tokens

    def step(self) -> None:
        """Append one token to each sequence."""
        entry, offset = np.divmod(self.cursor, self.page_tokens)
        fresh = np.flatnonzero(offset == 0)
        within = np.flatnonzero(offset)
        current = self.tables[within, entry[within]]
        shared = within[self.refcount[current] > 1]
        for rows, old in ((fresh, None), (shared, self.tables[shared, entry[shared]])):
            if rows.size:
                self.top -= rows.size
                pages = self.stack[self.top : self.top + rows.size]
                self.tables[rows, entry[rows]] = pages
                self.refcount[pages] = 1
                self.held += rows.size
                if old is not None:
                    np.subtract.at(self.refcount, old, 1)
        self.cursor += 1
