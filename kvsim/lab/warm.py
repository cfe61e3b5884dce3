"""Calling every kernel once, on nothing, so that forked workers inherit compiled code."""

from __future__ import annotations

import numpy as np

from kvsim.layout.families import dense
from kvsim.paging import Geometry, Ledger, Order
from kvsim.policies import Attention
from kvsim.tensors.paged_cache import PagedCache
from kvsim.tensors.rope import Rope
from kvsim.tensors.shape import CacheShape
from kvsim.workload.synthetic import SyntheticSignals
from kvsim.workload.synthetic_process import Process


def warm(synthetic: bool = False, array: bool = False) -> None:
    """Compile or load the kernels. The kernels' types do not depend on the geometry.

    Parameters
    ----------
    synthetic, array : bool
        Whether the synthetic process and the array store will be needed too.
    """
    if array:
        for width in (2, 32):
            # A row of odd width for the plain kernel, one of whole cache lines for the other.
            shape = CacheShape(dense([1], width, width, width), (Rope(width),), "kv_raw", 4)
            stored = PagedCache(shape, 2)
            parent = stored.open()
            row = np.zeros((1, width), np.float32)
            stored.append(parent, [{"k": row, "v": row}])
            stored.append(stored.fork(parent), [{"k": row, "v": row}])
    if synthetic:
        signals = SyntheticSignals(Process(), (1, 1), 0, 0, Attention)
        signals.extend(2)
        signals.observe(np.arange(2))
        signals.next_query(2)
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
