"""Rounding's loss against the engine itself: a pool without a limit at two page sizes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvsim.lab import reading
from kvsim.lab.run import run

SCENARIO = Path(__file__).parents[2] / "scenarios" / "serving-pressure.toml"


def _row(trace: Path, page_tokens: int) -> dict[str, Any]:
    changes = {
        "workload.kind": "trace",
        "workload.path": str(trace),
        "pool.ceiling_pages": 0,
        "pages.tokens": page_tokens,
    }
    return run(reading.load(SCENARIO, changes))


@pytest.mark.parametrize("seed", range(3))
def test_what_an_unbounded_cache_misses_at_a_page_size(tmp_path: Path, seed: int) -> None:
    # Ids of single tokens, and minutes between requests: every earlier prompt is in the cache.
    rng = np.random.default_rng(seed)
    trunk = rng.permutation(200)
    lines = []
    for number in range(40):
        shared = int(rng.integers(0, 100))
        own = 1000 * (number + 1) + np.arange(rng.integers(0 if shared else 1, 30))
        ids = [*trunk[:shared].tolist(), *own.tolist()]
        lines.append(
            {
                "timestamp": 60_000 * number,
                "input_length": len(ids),
                "output_length": 3,
                "block_size": 1,
                "hash_ids": ids,
            }
        )
    trace = tmp_path / "tokens.jsonl"
    trace.write_text("".join(json.dumps(line) + "\n" for line in lines))
    exact, paged = _row(trace, 1), _row(trace, 16)
    assert exact["rounding_lost_tokens"] == 0
    lost = exact["hit_tokens_total"] - paged["hit_tokens_total"]
    assert paged["rounding_lost_tokens"] == lost > 0


def test_requests_without_ids_have_no_such_loss() -> None:
    row = run(reading.load(SCENARIO, {"workload.requests": 5}))
    assert row["rounding_lost_tokens"] is None
