"""Tokens that whole pages lose, worked out by hand and against beginnings written out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvsim.workload.request_loading import from_trace
from kvsim.workload.traces.stats import stats


def _write(folder: Path, *prompts: tuple[int, list[int]], **more: Any) -> Path:
    """Write prompts of (tokens, ids of 4-token blocks), a second apart."""
    path = folder / "trace.jsonl"
    path.write_text(
        "".join(
            json.dumps(
                {
                    "timestamp": 1000 * number,
                    "input_length": tokens,
                    "output_length": 1,
                    "block_size": 4,
                    "hash_ids": ids,
                }
                | {name: values[number] for name, values in more.items()}
            )
            + "\n"
            for number, (tokens, ids) in enumerate(prompts)
        )
    )
    return path


@pytest.mark.parametrize(
    ("page_tokens", "prompts", "lost"),
    [
        # 12 tokens came up before: a page of 8 serves 8 of them.
        (8, [(12, [1, 2, 3]), (16, [1, 2, 3, 4])], 4),
        # All 8 came up before, and the last one is computed all the same: no page is left.
        (8, [(12, [1, 2, 3]), (8, [1, 2])], 7),
        # One token more, and the page is a hit.
        (8, [(12, [1, 2, 3]), (9, [1, 2])], 0),
        # The same id behind another beginning is not the same content.
        (8, [(12, [1, 2, 3]), (12, [9, 2, 3])], 0),
        # The longest beginning counts, whichever request had it; so does each later request.
        (8, [(8, [1, 2]), (20, [1, 2, 3, 4, 5]), (12, [1, 2, 3]), (14, [1, 2, 3])], 0 + 3 + 4),
        # The second lost all 7 and the third 4.
        (16, [(8, [1, 2]), (8, [1, 2]), (13, [1, 2, 6]), (5, [3])], 7 + 8),
        # Blocks as large as a page: the loss is that of the last token alone.
        (4, [(8, [1, 2]), (8, [1, 2]), (9, [1, 2])], 3),
        # A last block that is not full has an id here: 6 tokens came up, 5 can be hits.
        (4, [(6, [1, 2]), (6, [1, 2]), (6, [1, 3])], 1),
    ],
)
def test_by_hand(
    tmp_path: Path, page_tokens: int, prompts: list[tuple[int, list[int]]], lost: int
) -> None:
    trace = _write(tmp_path, *prompts)
    assert from_trace(trace, page_tokens).rounding_lost_tokens == lost
    # In the order of the file, which is that of the arrivals here.
    assert stats(trace, page_tokens)["rounding_lost_tokens"] == lost


def test_earlier_means_arrived_earlier(tmp_path: Path) -> None:
    # Conversations begin within a microsecond of each other, and their own clocks decide: the
    # second line arrives first. It finds nothing; of the first line 12 tokens came up, 11 count.
    trace = _write(
        tmp_path,
        (12, [1, 2, 3]),
        (16, [1, 2, 3, 4]),
        timestamp=[5000, 0],
        clock=["conversation", "conversation"],
        conversation=[0, 1],
    )
    rng = np.random.default_rng(3)
    loaded = from_trace(trace, 8, rate_per_s=1e9, rng=rng)
    assert loaded.requests.input_tokens.tolist() == [16, 12]
    assert loaded.rounding_lost_tokens == 3
    # The order of the file: 12 of the second line's 16 came up.
    assert stats(trace, 8)["rounding_lost_tokens"] == 4


def test_only_the_requests_that_are_read_count(tmp_path: Path) -> None:
    trace = _write(tmp_path, (12, [1, 2, 3]), (16, [1, 2, 3, 4]), (12, [1, 2, 3]))
    assert from_trace(trace, 8).rounding_lost_tokens == 4 + 3
    assert from_trace(trace, 8, limit=2).rounding_lost_tokens == 4
    assert from_trace(trace, 8, limit=1).rounding_lost_tokens == 0


def test_null_where_ids_are_no_part_of_a_page(tmp_path: Path) -> None:
    trace = _write(tmp_path, (12, [1, 2, 3]), (16, [1, 2, 3, 4]))
    assert from_trace(trace, 2).rounding_lost_tokens is None
    assert stats(trace, 2)["rounding_lost_tokens"] is None
    lengths = tmp_path / "lengths.csv"
    lengths.write_text("num_prefill_tokens,num_decode_tokens\n5,2\n")
    loaded = from_trace(lengths, 4, rate_per_s=1.0, rng=np.random.default_rng(1))
    assert loaded.rounding_lost_tokens is None
    assert stats(lengths, 4)["rounding_lost_tokens"] is None


@pytest.mark.parametrize("seed", range(10))
def test_against_beginnings_written_out(tmp_path: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    prompts = []
    for _ in range(60):
        ids = rng.permutation(3)[: rng.integers(1, 4)].tolist()
        prompts.append((4 * len(ids) - int(rng.integers(0, 4)), ids))
    prompts = [(n, ids if n % 4 else ids[: n // 4]) for n, ids in prompts]
    for page_tokens in (4, 8, 12):
        earlier: set[tuple[int, ...]] = set()
        lost = 0
        for tokens, ids in prompts:
            beginnings = [tuple(ids[:end]) for end in range(1, len(ids) + 1)]
            seen = min(4 * max([len(b) for b in beginnings if b in earlier], default=0), tokens - 1)
            lost += seen - seen // page_tokens * page_tokens
            earlier.update(beginnings)
        trace = _write(tmp_path, *prompts)
        assert from_trace(trace, page_tokens).rounding_lost_tokens == lost
        assert stats(trace, page_tokens)["rounding_lost_tokens"] == lost
