"""kv-cache-tester's coding-agent conversations: a JSON object each, raw or with runs of ids.

Format: trace_replay_tester.md of github.com/callanjfox/kv-cache-tester, `hash_ids`; or, with
the lists run-length coded, `hash_runs` = [[start, length], ...]. Ids of 64-token blocks are
local to a conversation, which a sub-agent shares with its parent; here each conversation gets a
range of its own. Times are seconds since the conversation, or the sub-agent, began; a sub-agent
that ran to its end stands at its end, with its duration (of the 59 in the recorded trace, all
then begin no earlier than the request before them, and those of one turn at one moment).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from kvsim.workload.traces.formats import MILLISECOND_NS, SECOND_NS, Fault, time_of
from kvsim.workload.traces.request import (
    MOST_NANOSECONDS,
    MOST_TOKENS,
    BadRecord,
    Problem,
    Request,
    check_hashes,
    check_lengths,
)
from kvsim.workload.traces.values import (
    id_list,
    nanoseconds,
    parse_object,
    shown,
    tokens,
    whole,
)

# Far above any conversation, and low enough that ranges of all of them fit into 64 bits.
MOST_LOCAL_ID = 1 << 40


def count_of(runs: Any) -> int:
    """Return how many ids [[start, length], ...] stand for, without making them.

    Raises
    ------
    BadRecord
        If a run is no pair of whole numbers.
    """
    if type(runs) is not list:
        raise BadRecord(f"hash_runs must be a list, not {shown(runs)}")
    for run in runs:
        if type(run) is not list or len(run) != 2 or set(map(type, run)) != {int}:
            raise BadRecord(f"hash_runs must list pairs of whole numbers, not {shown(run)}")
        if not (0 <= run[0] < MOST_LOCAL_ID and 0 < run[1] < MOST_TOKENS):
            raise BadRecord(f"hash_runs has the run {shown(run)}")
    return sum(length for _, length in runs)


def expand(runs: list[list[int]]) -> np.ndarray:
    """Return the ids behind runs that `count_of` has counted; refuse runs that overlap."""
    ordered = sorted(runs)
    for (start, length), (following, _) in itertools.pairwise(ordered):
        if start + length > following:
            raise BadRecord(f"hash_runs has the id {following} twice in one request")
    if not runs:
        return np.zeros(0, dtype=np.int64)
    return np.concatenate(
        [np.arange(start, start + length, dtype=np.int64) for start, length in runs]
    )


def _begun(agent: Mapping[str, Any], at_ns: int) -> int:
    """Return when a sub-agent began: its duration before it ended, or when it was launched."""
    if type(agent["requests"]) is not list:
        raise BadRecord("requests must be a list")
    duration = agent.get("duration_ms")
    if duration is None:
        return at_ns
    begun_ns = at_ns - nanoseconds(duration, "duration_ms", MILLISECOND_NS)
    if begun_ns < 0:
        raise BadRecord(f"duration_ms {shown(duration)} begins before the conversation")
    return begun_ns


class KvCacheTester:
    """A reading of conversations, one a line."""

    name = "kv-cache-tester"
    clock = "conversation"
    block_tokens = 64
    has_ids = True

    def __init__(self, first: Mapping[str, Any], path: Path) -> None:
        self.found_at_once: list[Problem] = []
        self._names: set[str] = set()
        self._conversations = 0
        self._requests = 0
        self._next_id = 0

    @staticmethod
    def recognises(record: Mapping[str, Any]) -> bool:
        """Whether the object is a conversation: a list of requests and a block size."""
        return record.keys() >= {"id", "block_size", "requests"}

    def _head(self, record: Mapping[str, Any]) -> None:
        name = record.get("id")
        if type(name) is not str:
            raise BadRecord(f"id must be a name, not {shown(name)}")
        if name in self._names:
            raise BadRecord(f"the conversation {shown(name)} stands twice in the trace")
        size = whole(record, "block_size", 1, MOST_TOKENS)
        if size != self.block_tokens:
            raise BadRecord(f"block_size must be {self.block_tokens}, not {size}")
        if record.get("hash_id_scope") != "local":
            raise BadRecord(
                f"hash_id_scope must be local, not {shown(record.get('hash_id_scope'))}"
            )
        if type(record.get("requests")) is not list:
            raise BadRecord("requests must be a list")
        self._names.add(name)

    def _ids(self, record: Mapping[str, Any], input_tokens: int) -> np.ndarray:
        if "hash_runs" in record:
            runs = record["hash_runs"]
            check_hashes(count_of(runs), input_tokens, self.block_tokens, "down")
            return expand(runs)
        ids = id_list(record, "hash_ids")
        check_hashes(ids.size, input_tokens, self.block_tokens, "down")
        if ids.size and not 0 <= ids.min() <= ids.max() < MOST_LOCAL_ID:
            raise BadRecord(f"hash_ids must be from 0 to {MOST_LOCAL_ID - 1}")
        return ids

    def read(self, text: str) -> Iterator[Request | Fault]:
        """Yield the requests of a conversation, a sub-agent's where the sub-agent stands."""
        record = parse_object(text)
        self._head(record)
        conversation, base = self._conversations, self._next_id
        self._conversations += 1
        count = agents = 0
        # The last request of each open level, and what is left of it.
        levels = [(iter(record["requests"]), 0, 0, -1)]
        while levels:
            rest, start_ns, agent, parent = levels.pop()
            one = next(rest, None)
            if one is None:
                continue
            count += 1
            try:
                if not isinstance(one, dict):
                    raise BadRecord("no JSON object")
                at_ns = start_ns + time_of(one, "t", SECOND_NS)
                if at_ns >= MOST_NANOSECONDS:
                    raise BadRecord(f"t {shown(one['t'])} is centuries away")
                if "requests" in one:
                    begun_ns = _begun(one, at_ns)
                    agents += 1
                    levels.append((rest, start_ns, agent, parent))
                    levels.append((iter(one["requests"]), begun_ns, agents, -1))
                    continue
                request = self._request(one, at_ns, base)
            except BadRecord as bad:
                levels.append((rest, start_ns, agent, parent))
                yield Fault(f"entry {count}", str(bad))
                continue
            number = self._requests
            self._requests += 1
            levels.append((rest, start_ns, agent, number))
            yield request._replace(
                request_id=number, conversation=conversation, parent=parent, agent=agent
            )

    def _request(self, record: Mapping[str, Any], at_ns: int, base: int) -> Request:
        input_tokens, output_tokens = tokens(record, "in", 1), tokens(record, "out", 0)
        check_lengths(input_tokens, output_tokens)
        ids = self._ids(record, input_tokens)
        if ids.size:
            ids += base
            self._next_id = max(self._next_id, int(ids.max()) + 1)
        return Request(at_ns, input_tokens, output_tokens, ids)
