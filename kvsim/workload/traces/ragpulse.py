"""RAGPulse's trace: JSON lines whose prompts are chunks of five categories, in a fixed order.

Format: the README of github.com/flashserve/RAGPulse (arXiv 2511.12979). The trace names chunks;
five files beside it say how many tokens, at most 512, each has. Prompts are a few tokens longer
than their chunks, because of separators whose places are not told.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from kvsim.errors import WorkloadError
from kvsim.workload.traces.formats import SECOND_NS, Fault, Numbers
from kvsim.workload.traces.lines import read_lines
from kvsim.workload.traces.request import BadRecord, Problem, Request, check_lengths
from kvsim.workload.traces.values import (
    decimal,
    id_list,
    nanoseconds,
    parse_object,
    shown,
    tokens,
    whole,
)

MOST_CHUNK_TOKENS = 512


class Category(NamedTuple):
    """A part of the prompt: its key in the trace, the file of its lengths, and their id's key."""

    key: str
    file: str
    id_key: str


# In the order of the prompt.
CATEGORIES = (
    Category("sys_prompt", "1_sys_prompt.jsonl", "sys_prompt_id"),
    Category("passages_ids", "2_passages.jsonl", "passage_id"),
    Category("history", "3_history.jsonl", "history_id"),
    Category("web_search", "5_web_search.jsonl", "web_search_id"),
    Category("user_input", "4_user_input.jsonl", "user_input_id"),
)


class RagPulse:
    """A reading of RAGPulse's trace, with the lengths of all chunks in memory."""

    name = "ragpulse"
    clock = "trace"
    block_tokens = 0
    has_ids = True

    def __init__(self, first: Mapping[str, Any], path: Path) -> None:
        self.found_at_once: list[Problem] = []
        self._sessions = Numbers()
        self._category_of: dict[int, str] = {}
        self._tokens: dict[int, int] = {}
        for category in CATEGORIES:
            self._read_lengths(path.parent / category.file, category)

    @staticmethod
    def recognises(record: Mapping[str, Any]) -> bool:
        """Whether ids come in categories."""
        return record.keys() >= {"timestamp", "hash_ids"} and isinstance(record["hash_ids"], dict)

    def _read_lengths(self, path: Path, category: Category) -> None:
        if not path.is_file():
            raise WorkloadError(f"{path.name}: RAGPulse's chunk lengths are not beside the trace")
        for line in read_lines(path):
            place = f"{path.name}:{line.number}"
            if line.text is not None and not line.text.strip():
                self.found_at_once.append(Problem("blank", place, "a blank line"))
                continue
            try:
                if line.text is None:
                    raise BadRecord("not text in UTF-8")
                record = parse_object(line.text)
                chunk = whole(record, category.id_key)
                length = whole(record, "token_length", 1, MOST_CHUNK_TOKENS)
                if chunk in self._tokens:
                    raise BadRecord(f"the chunk {chunk} stands twice")
            except BadRecord as bad:
                self.found_at_once.append(Problem("record", place, str(bad)))
                continue
            self._tokens[chunk] = length
            self._category_of[chunk] = category.key

    def _chunks(self, record: Mapping[str, Any]) -> np.ndarray:
        named = record.get("hash_ids")
        if not isinstance(named, dict) or list(named) != [one.key for one in CATEGORIES]:
            keys = ", ".join(one.key for one in CATEGORIES)
            raise BadRecord(f"hash_ids must have the categories {keys}, in this order")
        parts = []
        for category in CATEGORIES:
            part = id_list(named, category.key, distinct=False)
            for chunk in part.tolist():
                if self._category_of.get(chunk) != category.key:
                    raise BadRecord(f"the chunk {chunk} has no length in {category.file}")
            parts.append(part)
        return np.concatenate(parts)

    def read(self, text: str) -> Iterator[Request | Fault]:
        """Yield the request of a line."""
        record = parse_object(text)
        stamp = record.get("timestamp")
        when = decimal(stamp, "timestamp") if isinstance(stamp, str) else stamp
        arrival_ns = nanoseconds(when, "timestamp", SECOND_NS)
        input_tokens = tokens(record, "input_length", 1)
        output_tokens = tokens(record, "output_length", 0)
        check_lengths(input_tokens, output_tokens)
        chunks = self._chunks(record)
        sizes = np.array([self._tokens[chunk] for chunk in chunks.tolist()], dtype=np.int64)
        if not 0 <= input_tokens - int(sizes.sum()) <= MOST_CHUNK_TOKENS:
            raise BadRecord(
                f"input_length {input_tokens} contradicts chunks of {sizes.sum()} tokens"
            )
        session = record.get("session_id")
        if type(session) is not str:
            raise BadRecord(f"session_id must be a name, not {shown(session)}")
        yield Request(
            arrival_ns,
            input_tokens,
            output_tokens,
            chunks,
            chunk_tokens=sizes,
            conversation=self._sessions(session),
        )
