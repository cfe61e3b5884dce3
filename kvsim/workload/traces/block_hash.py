"""Block-hash JSON lines: every record says its block size. What `kvsim trace convert` writes.

Read by kvcache-simulator and written by LLMServingSim too: `input_length`, `hash_ids`,
`block_size`; `timestamp` in milliseconds and `output_length` stand in all records or in none.
`convert` adds what other formats know: `hash_rounding` ("up" where a partial last block has an
id), `request_id`, `conversation`, `parent`, `agent`, and `clock` = "conversation" where times
begin anew in each. `kvsim trace export` adds `priority`, `samples`, `output_hash_ids` (ids of
full blocks behind those of the prompt) and `time_scale`, by which its times were multiplied.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np

from kvsim.workload.traces.formats import MILLISECOND_NS, Fault, hashed, time_of
from kvsim.workload.traces.request import MOST_TOKENS, NO_IDS, BadRecord, Problem, Request
from kvsim.workload.traces.values import id_list, parse_object, shown, whole

ROUNDINGS = ("up", "down")
OPTIONAL = ("timestamp", "output_length", "clock", "time_scale")
MOST_PRIORITY = 1 << 62


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
        # How bad it is, if it is, a line's own check says.
        self._scale = first.get("time_scale", 1)
        good = type(self._scale) in (int, Decimal) and 0 < self._scale < MOST_TOKENS
        self.time_scale = float(self._scale) if good else 1.0
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
        scale = record.get("time_scale", 1)
        if type(scale) not in (int, Decimal) or not 0 < scale < MOST_TOKENS:
            raise BadRecord(f"time_scale must be a number above 0, not {shown(scale)}")
        if scale != self._scale:
            raise BadRecord(f"time_scale {scale} after {self._scale}: they are mixed")
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
        priority = (
            whole(record, "priority", -MOST_PRIORITY, MOST_PRIORITY) if "priority" in record else 0
        )
        yield request._replace(
            request_id=number,
            conversation=conversation,
            parent=parent,
            agent=agent,
            priority=priority,
            samples=whole(record, "samples", 1, MOST_TOKENS) if "samples" in record else 0,
            output_ids=self._output_ids(record, request),
        )

    def _output_ids(self, record: Mapping[str, Any], request: Request) -> np.ndarray:
        """Return the ids of blocks behind the prompt's, which must follow each other."""
        if "output_hash_ids" not in record:
            return NO_IDS
        found = id_list(record, "output_hash_ids")
        prompt = request.input_tokens // self.block_tokens
        if request.hash_ids.size != prompt:
            raise BadRecord("output_hash_ids cannot follow the id of a block that is not full")
        full = (request.input_tokens + request.output_tokens) // self.block_tokens
        if found.size > full - prompt:
            raise BadRecord(
                f"{found.size} output hash ids, and only {full - prompt} full blocks behind "
                f"the prompt's {prompt}"
            )
        return found
