"""The loop that turns a policy's scores into evictions on the ledger."""

from kvsim.eviction.loop import EvictionLoop, Rules, Signals

__all__ = ["EvictionLoop", "Rules", "Signals"]
