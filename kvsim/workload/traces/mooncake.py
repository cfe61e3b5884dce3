"""Mooncake's traces: JSON lines with chained ids of 512-token blocks, times in milliseconds.

Format: the README of github.com/kvcache-ai/Mooncake, FAST25-release (paper: Qin et al., FAST
2025). The last id of a prompt may stand for a partial block.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from kvsim.workload.traces.formats import MILLISECOND_NS, Fault, hashed, time_of
from kvsim.workload.traces.request import Problem, Request
from kvsim.workload.traces.values import parse_object

KEYS = {"timestamp", "input_length", "output_length", "hash_ids"}


class Mooncake:
    """A reading of a Mooncake trace."""

    name = "mooncake"
    clock = "trace"
    block_tokens = 512
    has_ids = True

    def __init__(self, first: Mapping[str, Any], path: Path) -> None:
        self.found_at_once: list[Problem] = []

    @staticmethod
    def recognises(record: Mapping[str, Any]) -> bool:
        """Whether the object has the four keys, ids in a list, and no block size of its own."""
        return (
            record.keys() >= KEYS
            and isinstance(record["hash_ids"], list)
            and "block_size" not in record
        )

    def read(self, text: str) -> Iterator[Request | Fault]:
        """Yield the request of a line."""
        record = parse_object(text)
        arrival_ns = time_of(record, "timestamp", MILLISECOND_NS)
        yield hashed(record, arrival_ns, self.block_tokens, "up")
