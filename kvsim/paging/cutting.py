"""Ending a table at an earlier slot: what a fork of an earlier point begins with."""

from __future__ import annotations

import numpy as np

from kvsim.jit import kernel
from kvsim.paging import fields as f
from kvsim.paging.pool import let_go


@kernel
def cut(scalars, tables, pages, entries, scopes, table, rows):
    """Let a table of one set end with its first `rows` slots, none of which is dead.

    Slots have no flags but `dead`. Pages behind the new end are let go of.
    """
    page_tokens = scalars[f.PAGE_TOKENS]
    keep = (rows + page_tokens - 1) // page_tokens
    start = tables[table, f.START]
    for entry in range(tables[table, f.ENTRIES] - 1, keep - 1, -1):
        page = np.int64(entries[f.PAGE, start + entry])
        let_go(scalars, pages, scopes, 0, page, f.FINISHED_TOTAL)
        tables[table, f.NAMED] -= 1
    tables[table, f.ENTRIES] = keep
    tables[table, f.CURSOR] = rows
    tables[table, f.ROOM] = 0
    tables[table, f.HOLE] = min(tables[table, f.HOLE], keep)
    tables[table, f.OLDEST] = min(tables[table, f.OLDEST], rows)
