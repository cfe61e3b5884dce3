"""What a trace holds: lengths, times, sharing, and the slots its last pages would waste.

Counts are exact and come from one reading; only lengths (16 bytes a request) and one entry for
each distinct id or prefix are kept. Shares are fractions of 1.
"""

from __future__ import annotations

from array import array
from pathlib import Path
from typing import Any

import numpy as np

from kvsim.workload.rounding import lost_tokens
from kvsim.workload.traces.chains import Chains
from kvsim.workload.traces.numbering import Numbering
from kvsim.workload.traces.reading import Tally, Trace
from kvsim.workload.traces.reblock import Reblocker, weights
from kvsim.workload.traces.request import Request

# Where ids have no size of their own; vLLM's default.
PAGE_TOKENS = 16
WASTE_PAGE_TOKENS = (8, 16, 32, 64, 128, 256, 512)


def tail_waste(lengths: np.ndarray, page_tokens: int) -> float:
    """Return the share of slots that sequences of these lengths leave empty on their last pages.

    Parameters
    ----------
    lengths : int64 [sequences]
        Tokens of each when it is complete; nothing is shared.
    """
    slots = int((-(-lengths // page_tokens) * page_tokens).sum())
    return (slots - int(lengths.sum())) / slots


def quantile(ordered: np.ndarray, share: float) -> int:
    """Return the value above `share` of the others: the element at floor(n * share)."""
    return int(ordered[min(int(ordered.size * share), ordered.size - 1)])


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


class _Seen:
    """Which ids earlier requests had."""

    def __init__(self) -> None:
        self._number = Numbering()
        self._seen = np.zeros(0, dtype=np.bool_)
        self.distinct = 0
        self.total = 0

    def __call__(self, ids: np.ndarray) -> np.ndarray:
        """Return which ids came up in an earlier request, bool [n], and remember all."""
        numbers = self._number(ids)
        if self._number.size > self._seen.size:
            self._seen = np.append(
                self._seen, np.zeros(2 * self._number.size - self._seen.size, dtype=np.bool_)
            )
        known = self._seen[numbers]
        new = numbers[~known]
        self._seen[new] = True
        # An id that a request has twice is distinct once.
        self.distinct += np.unique(new).size
        self.total += ids.size
        return known


class _Blocks:
    """Sharing of the file's own ids, and what it loses in pages of another size."""

    def __init__(self, block_tokens: int, page_tokens: int) -> None:
        self._block_tokens = block_tokens
        self._page_tokens = page_tokens
        self._lost_tokens = 0
        self._seen = _Seen()
        self._chains = Chains()
        self.prefix = self.leading_tokens = self.prefix_tokens = 0
        self.seen = self.seen_tokens = self.tokens = 0

    def add(self, request: Request) -> None:
        ids = request.hash_ids
        sizes = weights(request, ids.size, self._block_tokens)
        known = self._seen(ids)
        before = self._chains.count
        nodes = self._chains(ids)
        # Chained numbers: what an earlier request had is a beginning.
        prefix = int(np.count_nonzero(nodes < before))
        leading = int(known.argmin()) if known.size and not known.all() else known.size
        self.seen += int(np.count_nonzero(known))
        self.seen_tokens += int(sizes[known].sum())
        self.leading_tokens += int(sizes[:leading].sum())
        self.prefix += prefix
        prefix_tokens = int(sizes[:prefix].sum())
        self.prefix_tokens += prefix_tokens
        self._lost_tokens += lost_tokens(prefix_tokens, request.input_tokens, self._page_tokens)
        self.tokens += int(sizes.sum())

    def figures(self) -> dict[str, Any]:
        return {
            "blocks": self._seen.total,
            "distinct_blocks": self._seen.distinct,
            "block_sharing": _share(self.seen, self._seen.total),
            "block_sharing_tokens": _share(self.seen_tokens, self.tokens),
            "leading_sharing_tokens": _share(self.leading_tokens, self.tokens),
            "prefix_sharing": _share(self.prefix, self._seen.total),
            "prefix_sharing_tokens": _share(self.prefix_tokens, self.tokens),
        }

    def rounding_lost_tokens(self) -> int | None:
        """What hits lose because they are whole pages; None where blocks are no part of them."""
        known = 0 < self._block_tokens <= self._page_tokens
        return self._lost_tokens if known else None


class _Conversations:
    """Conversations one after another in the file, each with a clock of its own.

    Durations are those of the main agent; a request diverges when it does not begin with all of
    the request before it in the file, a sub-agent's included.
    """

    def __init__(self) -> None:
        self._spans: dict[int, tuple[int, int]] = {}
        self._current = -1
        self._last = np.zeros(0, dtype=np.int64)
        self.diverging = 0

    def add(self, request: Request) -> None:
        if not request.agent:
            when = request.arrival_ns
            least, most = self._spans.get(request.conversation, (when, when))
            self._spans[request.conversation] = (min(least, when), max(most, when))
        ids = request.hash_ids
        if request.conversation == self._current:
            size = self._last.size
            self.diverging += not np.array_equal(ids[:size], self._last)
        self._current, self._last = request.conversation, ids

    def figures(self) -> dict[str, Any]:
        spans = np.sort([most - least for least, most in self._spans.values()])
        return {
            "conversations": len(self._spans),
            "conversation_duration_p50_s": quantile(spans, 0.5) / 1e9,
            "conversation_duration_max_s": int(spans[-1]) / 1e9,
            "diverging_requests": self.diverging,
        }


def _lengths_of(name: str, lengths: np.ndarray) -> dict[str, Any]:
    ordered = np.sort(lengths)
    return {
        f"{name}_tokens_mean": float(ordered.sum() / ordered.size),
        f"{name}_tokens_p50": quantile(ordered, 0.5),
        f"{name}_tokens_p99": quantile(ordered, 0.99),
        f"{name}_tokens_max": int(ordered[-1]),
    }


def stats(
    path: str | Path, page_tokens: int | None = None, *, skip_bad: bool = False
) -> dict[str, Any]:
    """Return the figures of a trace.

    Blank lines and times that go back are facts about a file, so they are reported and not
    refused; everything else that is wrong is.

    Parameters
    ----------
    page_tokens : int, optional
        By default the trace's block size, or 16.
    skip_bad : bool
        Leave out what is wrong, and count it under `skipped`.

    Raises
    ------
    WorkloadError
        Naming file and line; or if pages of this size cannot be made of the trace's blocks.
    """
    trace = Trace(path)
    size = page_tokens or trace.block_tokens or PAGE_TOKENS
    tally = Tally()
    pages = Reblocker(trace.block_tokens, size) if trace.has_ids else None
    if pages is not None and trace.block_tokens == size:
        pages = None
    blocks, shared = _Blocks(trace.block_tokens, size), _Seen()
    conversations = _Conversations()
    inputs, outputs = array("q"), array("q")
    first = last = None
    for request in trace.requests(skip_bad=skip_bad, order="file", tally=tally, blank="count"):
        inputs.append(request.input_tokens)
        outputs.append(request.output_tokens)
        when = request.arrival_ns
        first = when if first is None else min(first, when)
        last = when if last is None else max(last, when)
        if trace.has_ids:
            blocks.add(request)
        if pages is not None:
            shared(pages(request))
        if trace.clock == "conversation":
            conversations.add(request)
    prompts, decodes = np.frombuffer(inputs, np.int64), np.frombuffer(outputs, np.int64)
    duration_ns = None
    if trace.clock == "trace" and first is not None and last is not None:
        duration_ns = last - first
    found: dict[str, Any] = {
        "format": trace.format,
        "requests": tally.requests,
        "input_tokens": int(prompts.sum()),
        "output_tokens": int(decodes.sum()),
        "duration_s": None if duration_ns is None else duration_ns / 1e9,
        "requests_per_s": tally.requests / (duration_ns / 1e9) if duration_ns else None,
        "sorted": tally.unsorted == 0,
        "unsorted_requests": tally.unsorted,
        "blank_lines": tally.blank_lines,
        "skipped": tally.skipped,
        **_lengths_of("input", prompts),
        **_lengths_of("output", decodes),
    }
    if trace.clock == "conversation":
        found |= conversations.figures()
    own = blocks.figures() if trace.has_ids else {}
    found["block_tokens"] = trace.block_tokens or None
    found |= own
    found["page_tokens"] = size
    found["pages"] = found["distinct_pages"] = found["sharing"] = None
    if trace.has_ids:
        total, distinct = shared.total, shared.distinct
        if pages is None:
            total, distinct = own["blocks"], own["distinct_blocks"]
        found["pages"], found["distinct_pages"] = total, distinct
        found["sharing"] = _share(total - distinct, total)
    found["rounding_lost_tokens"] = blocks.rounding_lost_tokens() if trace.has_ids else None
    complete = prompts + decodes
    found["tail_waste"] = tail_waste(complete, size)
    found["input_tail_waste"] = tail_waste(prompts, size)
    found["tail_waste_by_page_tokens"] = {
        str(each): tail_waste(complete, each) for each in WASTE_PAGE_TOKENS
    }
    found["caveat"] = None if pages is None else pages.caveat
    return found
