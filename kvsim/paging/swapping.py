"""A sequence of one table whose pages are given up while its rows wait in host memory.

Its table row stays, under a number that no open sequence has; its liveness stays with it.
"""

from __future__ import annotations

import numpy as np

from kvsim.jit import kernel
from kvsim.paging import fields as f
from kvsim.paging.pool import allocate, let_go

IN_HOST = -2  # stands in an entry whose page is in host memory, and marks the sequence


@kernel
def swap_out(arrays, sequence):
    """Let go of a sequence's pages, last page first; return how many it had."""
    scalars, tables, pages, entries, _, _, _, scopes, _ = arrays
    start = tables[sequence, f.START]
    count = np.int64(0)
    for entry in range(start + tables[sequence, f.ENTRIES] - 1, start - 1, -1):
        page = np.int64(entries[f.PAGE, entry])
        if page >= 0:
            let_go(scalars, pages, scopes, 0, page, f.FINISHED_TOTAL)
            entries[f.PAGE, entry] = IN_HOST
            count += 1
    tables[sequence, f.NAMED] = 0
    tables[sequence, f.ROOM] = 0
    tables[sequence, f.SEQUENCE] = IN_HOST
    return count


@kernel
def swap_in(arrays, sequence):
    """Take a page of its own for each that was swapped out. The caller has checked the room."""
    scalars, tables, pages, entries, _, _, _, scopes, _ = arrays
    start = tables[sequence, f.START]
    count = np.int64(0)
    for entry in range(start, start + tables[sequence, f.ENTRIES]):
        if entries[f.PAGE, entry] == IN_HOST:
            entries[f.PAGE, entry] = allocate(scalars, pages, scopes, 0)
            count += 1
    tables[sequence, f.NAMED] = count
    tables[sequence, f.SEQUENCE] = sequence
    return count
