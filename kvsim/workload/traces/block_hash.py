"""Block-hash JSON lines: every record says its block size. What `kvsim trace convert` writes.

Read by kvcache-simulator and written by LLMServingSim too: `input_length`, `hash_ids`,
`block_size`; `timestamp` in milliseconds and `output_length` stand in all records or in none.
`convert` adds what other formats know: `hash_rounding` ("up" where a partial last block has an
id), `request_id`, `conversation`, `parent`, `agent`, and `clock` = "conversation" where times
begin anew in each.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from kvsim.workload.traces.formats import MILLISECOND_NS, Fault, hashed, time_of
from kvsim.workload.traces.request import MOST_TOKENS, BadRecord, Problem, Request
from kvsim.workload.traces.values import parse_object, shown, whole

ROUNDINGS = ("up", "down")
OPTIONAL = ("timestamp", "output_length", "clock")


class BlockHash:
    """A reading of block-hash lines: the first record fixes the block size and the keys."""

    name = "block-hash"
    has_ids = True

    def __init__(self, first: Mapping[str, Any], path: Path) -> None:
        self.found_at_once: list[Problem] = []
        self.block_tokens: int = first["block_size"]
        self._present = {key: key in first for key in OPTIONAL}
        self.clock = "trace" if self._present["timestamp"] else "none"
        if self._present["timestamp"] and first.get("clock") == "conversation":
            self.clock = "conversation"
        self._numbered: set[int] = set()

    @staticmethod
    def recognises(record: Mapping[str, Any]) -> bool:
        """Whether the object has ids and a block size that can be used."""
        size = record.get("block_size")
        return (
            record.keys() >= {"hash_ids", "input_length"}
            and type(size) is int
            and 0 < size < MOST_TOKENS
        )

    def _check_keys(self, record: Mapping[str, Any]) -> None:
        size = whole(record, "block_size", 1, MOST_TOKENS)
        if size != self.block_tokens:
            raise BadRecord(f"block_size {size} after {self.block_tokens}: sizes are mixed")
        for key, expected in self._present.items():
            if (key in record) != expected:
                has = "has no" if expected else "has a"
                raise BadRecord(f"it {has} {key!r}, unlike the first record")
        if record.get("clock", "conversation") != "conversation":
            raise BadRecord(f"clock must be conversation, not {shown(record['clock'])}")

    def read(self, text: str) -> Iterator[Request | Fault]:
        """Yield the request of a line."""
        record = parse_object(text)
        self._check_keys(record)
        rounding = record.get("hash_rounding", "either")
        if rounding not in (*ROUNDINGS, "either"):
            raise BadRecord(f"hash_rounding must be up or down, not {shown(rounding)}")
        arrival_ns = 0
        if self._present["timestamp"]:
            arrival_ns = time_of(record, "timestamp", MILLISECOND_NS)
        if not self._present["output_length"]:
            record = {**record, "output_length": 0}
        request = hashed(record, arrival_ns, self.block_tokens, rounding)
        number = whole(record, "request_id", 0) if "request_id" in record else -1
        if number in self._numbered:
            raise BadRecord(f"request_id {number} stands twice in the file")
        if number >= 0:
            self._numbered.add(number)
        conversation, parent, agent = (
            whole(record, key, -1) if key in record else absent
            for key, absent in (("conversation", -1), ("parent", -1), ("agent", 0))
        )
        yield request._replace(
            request_id=number, conversation=conversation, parent=parent, agent=agent
        )
