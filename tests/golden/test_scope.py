"""Recorded attention against golden_scope.csv: held fractions that were computed without kvsim.

Every value goes through the whole chain: recording, policy, selection, ledger, engine, row.
"""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from recordings import row_of

# The columns of the file, and the (sets, scope) that each stands for.
COLUMNS = {
    "sequence": ("shared", "sequence"),
    "layer": ("layer", "layer"),
    "head": ("head", "head"),
    "layer_sets_shared_pages": ("layer", "sequence"),
    "head_sets_shared_pages": ("head", "sequence"),
}
# The file calls SnapKV before its pooling `snap`.
POLICIES = {
    "h2o": {"policy.name": "h2o"},
    "snap": {"policy.name": "snapkv", "policy.kernel": 1},
}
PAGE_TOKENS = ("4", "16", "64")
FRACTIONS = ("0.6", "0.5", "0.4", "0.3", "0.25", "0.1")


@pytest.fixture(scope="module")
def golden(shared: Path) -> dict[tuple[str, str, str], dict[str, str]]:
    with (shared / "signals" / "golden_scope.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    return {(row["score"], row["page_tokens"], row["keep_fraction"]): row for row in rows}


@pytest.fixture(scope="module")
def recording(shared: Path) -> dict[str, str]:
    return {"workload.path": str(shared / "signals" / "smollm2-135m-4096.npz")}


def test_no_golden_row_is_left_out(golden):
    # The tests below are named without the file, so that they show as skipped where it is absent.
    wanted = {(s, p, f) for s in POLICIES for p in PAGE_TOKENS for f in FRACTIONS}
    assert set(golden) == wanted
    assert sum(len(row) - 3 for row in golden.values()) == 180


@pytest.mark.parametrize("fraction", FRACTIONS)
@pytest.mark.parametrize("page_tokens", PAGE_TOKENS)
@pytest.mark.parametrize("score", POLICIES)
def test_held_fraction_to_the_last_digit_shown(score, page_tokens, fraction, golden, recording):
    wanted = golden[score, page_tokens, fraction]
    kept = int(float(fraction) * 4096)
    for column, (sets, scope) in COLUMNS.items():
        row = row_of(
            recording,
            **POLICIES[score],
            pages__tokens=int(page_tokens),
            pages__scope=scope,
            selection__sets=sets,
            selection__protect_recent=64,
            budget__fraction=float(fraction),
        )
        digits = len(wanted[column].partition(".")[2])
        assert f"{row['held_fraction']:.{digits}f}" == wanted[column], column
        # Each set keeps exactly its budget, and pages are either held or were freed.
        assert row["retained_tokens"] == kept
        assert row["held_pages"] + row["freed_pages_total"] == row["dense_pages"]


def test_sets_per_head_in_shared_pages_miss_the_budget_even_page_by_page(recording):
    # The heads agree on too few pages: each drops 192 of 256, and 239 stay held.
    row = row_of(
        recording,
        policy__name="h2o",
        selection__granularity="page",
        selection__sets="head",
        pages__scope="sequence",
        budget__fraction=0.25,
    )
    assert row["budget_met"] is False
    assert row["held_pages"] == 239
    assert f"{row['held_fraction']:.3f}" == "0.934"
    assert row["retained_tokens"] == 1024
