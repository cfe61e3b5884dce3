"""Everything that the engine books, counted again; Python, and independent of how it was booked."""

from __future__ import annotations

import numpy as np

from kvsim.engine.serving import fields as s
from kvsim.engine.serving import members
from kvsim.engine.serving.arrays import Serving
from kvsim.errors import LedgerError
from kvsim.paging import fields as f


def recount(
    tables: np.ndarray, state: np.ndarray, rows: np.ndarray, serving: Serving, page_tokens: int
) -> None:
    """Compare an engine's sums with what its requests and tables say.

    Parameters
    ----------
    tables : int64 [tables, fields]
        Of the ledger, brought up to date.
    state, rows : int64
    serving : Serving
    page_tokens : int

    Raises
    ------
    LedgerError
        Naming what differs.
    """
    status = rows[:, s.STATUS]
    running = serving.running[: state[s.RUNNING]]
    reads = 0
    for request in running.tolist():
        row = rows[request]
        sequence = int(row[s.SEQUENCE])
        decodes = row[s.STATUS] == s.DECODES
        if decodes:
            reads += members.readable(tables, sequence, page_tokens)
        # Every known token has a row but the one that was generated last.
        written = row[s.INPUT] + row[s.GENERATED] - 1 if decodes else row[s.COMPUTED]
        if not row[s.SPARSE] and written != tables[sequence, f.CURSOR]:
            raise LedgerError(
                f"check failed: request {request}: {tables[sequence, f.CURSOR]} rows in its "
                f"table, {written} computed"
            )
    for what, found, booked in (
        ("decoding members", (status == s.DECODES).sum(), state[s.DECODING]),
        ("prefilling members", (status == s.PREFILLS).sum(), state[s.PREFILLING]),
        (
            "waiting requests",
            ((status == s.QUEUED) | (status == s.SWAPPED)).sum(),
            state[s.WAITING],
        ),
        ("finished requests", (status == s.FINISHED_STATUS).sum(), state[s.FINISHED]),
        ("slots to read", reads, state[s.READS]),
    ):
        if int(found) != int(booked):
            raise LedgerError(f"check failed: {what}: {int(found)} counted, {booked} booked")
