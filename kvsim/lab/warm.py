"""Calling every kernel once, on nothing, so that forked workers inherit compiled code."""

from __future__ import annotations

import numpy as np

from kvsim.paging import Geometry, Ledger, Order


def warm() -> None:
    """Compile or load the kernels. The kernels' types do not depend on the geometry."""
    ledger = Ledger(Geometry((0, 0), (0, 1), (1, 1)), 2, ordering=Order(compaction="hole_fill"))
    parent = ledger.open()
    ledger.append(parent, 3)
    child = ledger.fork(parent)
    ledger.append(child, 1)
    ledger.evict(parent, [np.array([0]), np.array([0])])
    ledger.compact(parent)
    ledger.advance(np.array([child]))
    ledger.rows(parent, 0)
    ledger.slots()
    ledger.floors()
    ledger.free(parent)
