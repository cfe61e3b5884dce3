"""Replays of block ids through eviction policies, without an engine: hit counts and no times."""

from kvsim.workload.replay.hits import POLICIES, hits

__all__ = ["POLICIES", "hits"]
