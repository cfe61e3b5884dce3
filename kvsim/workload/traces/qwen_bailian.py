"""Qwen-Bailian's traces: JSON lines with ids of 16-token blocks, times in seconds, and turns.

Format: github.com/alibaba-edu/qwen-bailian-usagetraces-anon. Every request has its own
`chat_id`; a later turn names the turn before it as `parent_chat_id`, -1 for none. A parent may
have arrived before the trace began, so one that is not in the file is no fault.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from kvsim.workload.traces.formats import SECOND_NS, Fault, hashed, time_of
from kvsim.workload.traces.request import BadRecord, Problem, Request
from kvsim.workload.traces.values import parse_object, whole


class QwenBailian:
    """A reading of a Qwen-Bailian trace. A conversation is named by the first turn in the file."""

    name = "qwen-bailian"
    clock = "trace"
    block_tokens = 16
    has_ids = True

    def __init__(self, first: Mapping[str, Any], path: Path) -> None:
        self.found_at_once: list[Problem] = []
        self._roots: dict[int, int] = {}

    @staticmethod
    def recognises(record: Mapping[str, Any]) -> bool:
        """Whether the object says which turn it continues."""
        return record.keys() >= {"chat_id", "parent_chat_id", "hash_ids"}

    def read(self, text: str) -> Iterator[Request | Fault]:
        """Yield the request of a line."""
        record = parse_object(text)
        chat, parent = whole(record, "chat_id"), whole(record, "parent_chat_id", -1)
        if chat in self._roots:
            raise BadRecord(f"chat_id {chat} stands twice in the file")
        arrival_ns = time_of(record, "timestamp", SECOND_NS)
        request = hashed(record, arrival_ns, self.block_tokens, "either")
        root = self._roots[chat] = self._roots.get(parent, chat)
        yield request._replace(request_id=chat, conversation=root, parent=parent)
