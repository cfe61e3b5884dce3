"""The loop that turns a policy's scores into evictions on the ledger."""

from kvsim.eviction.loop import EvictionLoop
from kvsim.eviction.state import RowSource, Rules, Signals

__all__ = ["EvictionLoop", "RowSource", "Rules", "Signals"]
