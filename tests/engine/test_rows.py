"""Whole runs on tiny recordings: the columns of a row by hand, and outcomes that are no crash."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from recordings import arrays, row_of, tiny

from kvsim.errors import ScenarioError

ROOT = Path(__file__).parents[2]

# Two heads that want opposite tokens: by `cum`, head 0 keeps the oldest and head 1 the newest.
CUM = [[[6, 5, 4, 3, 2, 1], [1, 2, 3, 4, 5, 6]]]
LAST = [[[4, 1, 1, 1, 1, 0], [0, 1, 1, 1, 1, 4]]]


@pytest.fixture
def opposite(tmp_path):
    """Six tokens, one layer, two heads, one token a page, nothing protected."""
    made = {
        "cum": np.array(CUM, np.float32),
        "last": np.array(LAST, np.float32),
        "snap": np.array(LAST, np.float32),
        "knorm": np.array(CUM, np.float32),
    }
    return {**tiny(tmp_path, made), "pages.tokens": 1, "selection.protect_recent": 0}


NOTHING_LEFT = ", and nothing is left to evict"


def test_a_row_by_hand(opposite):
    # Each head keeps two of six: tokens 0 and 1 here, 4 and 5 there. Rows are 16 bytes a head.
    row = row_of(opposite, selection__sets="head", budget__fraction=1 / 3)
    wanted = {
        "outcome": "completed",
        "tokens": 6,
        "retained_tokens": 2.0,
        "evicted_tokens_total": 4.0,
        "live_slots": 4,
        "dead_slots": 0,
        "tail_slots": 0,
        "held_pages": 4,
        "held_pages_peak": 4,
        "freed_pages_total": 2,
        "dense_pages": 6,
        "packed_floor_pages": 2,
        "packed_floor_slot_pages": 4,
        "held_bytes": 4 * 32,
        "dense_bytes": 6 * 32,
        "held_fraction": 4 / 6,
        "evicted_bytes_total": 2 * 4 * 16,
        "reclaim_efficiency": (6 - 4) * 32 / (2 * 4 * 16),
        "fragmentation": 0.0,
        "row_fragmentation": 1 - 2 * 2 * 16 / (4 * 32),
        # Six entries of 4 bytes, six dead flags, and six holders for each of two sets.
        "metadata_bytes": 6 * 4 + 6 + 2 * 6,
        "charged_fraction": (4 * 32 + 42) / (6 * 32),
        "retained_mass": (5 / 8 + 5 / 8) / 2,
        "copied_rows_total": 0,
        "extra_pages_peak": 0,
        "steps": 1,
        "layers_counted": "1/1",
    }
    assert {name: row[name] for name in wanted} == wanted
    for name, value in wanted.items():
        assert type(row[name]) is type(value), name


@pytest.mark.parametrize(
    ("sets", "scope", "fraction", "held", "met"),
    [
        # Allowed: ceil(f * 6) pages and one more for each table.
        ("head", "sequence", 1 / 3, 4, False),
        ("head", "sequence", 0.5, 6, False),
        ("head", "sequence", 4 / 6, 6, False),
        ("head", "sequence", 5 / 6, 6, True),
        ("head", "sequence", 1 / 6, 2, True),
        ("head", "head", 1 / 3, 4, True),
        ("shared", "sequence", 1 / 3, 2, True),
        ("shared", "head", 1 / 3, 4, True),
    ],
)
def test_budget_met_by_hand(opposite, sets, scope, fraction, held, met):
    row = row_of(opposite, selection__sets=sets, pages__scope=scope, budget__fraction=fraction)
    assert row["held_pages"] == held
    assert row["budget_met"] is met


@pytest.mark.parametrize(("window", "held"), [(1, 2), (2, 2), (3, 3), (4, 2), (5, 6)])
def test_windows_are_floored_and_one_of_them_is_allowed_for(opposite, window, held):
    # Two of six are to be kept: four windows of 1, two of 2, one of 3 or 4, none of 5 may go.
    row = row_of(
        opposite,
        policy__name="streaming_llm",
        policy__n_sink=0,
        selection__granularity="window",
        selection__window_tokens=window,
        budget__fraction=1 / 3,
    )
    assert row["held_pages"] == held
    # Allowed: two pages, and as many as a window has.
    assert held <= 2 + window
    assert row["budget_met"] is True


def test_a_budget_in_tokens_is_a_fraction_of_the_prompt(opposite):
    by_tokens = row_of(opposite, selection__sets="head", budget__tokens=2)
    by_fraction = row_of(opposite, selection__sets="head", budget__fraction=1 / 3)
    differing = {k for k in by_tokens if by_tokens[k] != by_fraction[k]}
    assert differing == {"run_id", "budget_tokens"}


def test_a_budget_that_keeps_everything_evicts_nothing(opposite):
    for budget in ({"budget__fraction": 1.0}, {"budget__tokens": 6}, {"budget__tokens": 600}):
        row = row_of(opposite, **budget)
        assert row["held_fraction"] == 1.0
        assert row["reclaim_efficiency"] is None
        assert row["retained_mass"] == 1.0
        assert row["budget_met"] is True


def test_a_budget_that_keeps_nothing_frees_everything(opposite):
    row = row_of(opposite, budget__fraction=0.01)
    assert row["held_pages"] == row["live_slots"] == row["packed_floor_pages"] == 0
    assert row["held_fraction"] == row["retained_mass"] == row["fragmentation"] == 0.0
    assert row["reclaim_efficiency"] == 1.0


def test_protected_tokens_are_part_of_the_budget(opposite):
    row = row_of(
        opposite, selection__protect_recent=1, selection__protect_sinks=1, budget__tokens=3
    )
    assert row["retained_tokens"] == 3.0
    assert row["budget_met"] is True


def test_more_protected_than_kept_is_an_infeasible_row(opposite):
    row = row_of(opposite, selection__protect_recent=4, budget__fraction=0.5)
    assert row["outcome"] == "infeasible"
    assert row["outcome_reason"] == "4 tokens are protected and the budget keeps 3"
    # Nothing was measured, and nothing is pretended: null, not zero.
    assert row["held_pages"] is row["retained_mass"] is row["budget_met"] is None
    assert row["budget_fraction"] == 0.5


@pytest.mark.parametrize("key", ["pool__ceiling_pages", "pool__ceiling_bytes"])
def test_a_ceiling_that_the_prompt_does_not_fit_is_an_infeasible_row(opposite, key):
    page = 1 if key.endswith("pages") else 32
    row = row_of(opposite, **{key: 5 * page})
    assert row["outcome"] == "infeasible"
    assert row["outcome_reason"] == "append needs 6 pages and the ceiling leaves 5" + NOTHING_LEFT
    row = row_of(opposite, **{key: 6 * page})
    assert row["outcome"] == "completed"
    assert row["held_pages"] == 3


def test_a_ceiling_counts_the_pages_of_all_tables(opposite):
    row = row_of(opposite, pages__scope="head", pool__ceiling_pages=11)
    assert row["outcome_reason"] == "append needs 12 pages and the ceiling leaves 11" + NOTHING_LEFT
    assert row_of(opposite, pages__scope="head", pool__ceiling_pages=12)["held_pages"] == 6


def test_forks_of_one_prompt_fit_where_sequences_do_not(opposite):
    assert row_of(opposite, workload__forks=3, pool__ceiling_pages=6)["outcome"] == "completed"
    row = row_of(opposite, workload__sequences=2, pool__ceiling_pages=8)
    # The first sequence holds three after its eviction, and five are left for six.
    assert row["outcome_reason"] == "append needs 6 pages and the ceiling leaves 5" + NOTHING_LEFT


def test_a_ceiling_below_one_page_is_a_mistake_and_no_row(opposite):
    with pytest.raises(ScenarioError, match="31 is below one page of 32 bytes"):
        row_of(opposite, pool__ceiling_bytes=31)


def test_a_policy_that_its_own_definition_rules_out_is_not_applicable(opposite):
    row = row_of(opposite, policy__name="tova", selection__sets="head")
    assert row["outcome"] == "not_applicable"
    assert "sets must be shared or layer, not head" in row["outcome_reason"]
    assert row["held_pages"] is None
    assert row_of(opposite, policy__name="tova", selection__sets="layer")["outcome"] == "completed"


def test_a_signal_that_a_recording_lacks_is_not_applicable(opposite, tmp_path):
    mine = tmp_path / "mine.py"
    mine.write_text(
        "from dataclasses import dataclass\n\nfrom kvsim.policies import Policy\n\n\n"
        "@dataclass(frozen=True)\nclass Mine(Policy):\n    signals = ('hidden',)\n"
    )
    row = row_of(opposite, policy__name=str(mine))
    assert row["outcome"] == "not_applicable"
    assert row["outcome_reason"] == "mine needs hidden, which the workload does not have"


def test_decode_steps_of_a_recording_are_a_mistake(opposite):
    with pytest.raises(ScenarioError, match=r"workload\.decode_tokens"):
        row_of(opposite, workload__decode_tokens=1)


def test_sequences_and_forks_in_a_row(opposite):
    row = row_of(opposite, workload__sequences=2, workload__forks=2, budget__fraction=1 / 3)
    # Six tables of two families: forks share what they keep, since they keep the same.
    assert row["tokens"] == 36
    assert row["retained_tokens"] == 12.0
    assert row["evicted_tokens_total"] == 24.0
    assert row["dense_pages"] == 12
    assert row["held_pages"] == row["live_slots"] == 4
    assert row["logical_live_slots"] == 12
    assert row["freed_pages_total"] == 8
    assert row["packed_floor_pages"] == 4


# Sets that are no finer than what one table covers.
COARSE = [("shared", "sequence"), ("shared", "head"), ("layer", "layer"), ("head", "head")]


@pytest.fixture(scope="module")
def medium(tmp_path_factory):
    """A prompt that fills neither its last page nor its last window."""
    return tiny(tmp_path_factory.mktemp("medium"), arrays(2, 2, 203, seed=4))


@pytest.mark.parametrize("fraction", [0.05, 0.1, 0.25, 0.3, 0.5, 0.9])
@pytest.mark.parametrize(("sets", "scope"), COARSE)
def test_whole_runs_meet_every_budget_when_sets_are_no_finer_than_the_scope(
    sets, scope, fraction, medium
):
    runs = [("page", tokens, 16) for tokens in (1, 8, 16)]
    runs += [("window", tokens, window) for tokens in (1, 8, 16) for window in (16, 32)]
    for granularity, page_tokens, window in runs:
        row = row_of(
            medium,
            policy__name="h2o",
            pages__tokens=page_tokens,
            pages__scope=scope,
            selection__sets=sets,
            selection__granularity=granularity,
            selection__window_tokens=window,
            selection__protect_recent=5,
            budget__fraction=fraction,
        )
        assert row["budget_met"] is True, (granularity, page_tokens, window)
        # Whole pages go with their tokens: evicted and freed are one quantity.
        evicted = row["evicted_tokens_total"]
        assert row["freed_pages_total"] * page_tokens == evicted * row["dense_pages"] // (
            -(-203 // page_tokens)
        )


def test_whole_runs_of_sets_finer_than_the_scope_may_miss_the_budget(medium):
    # The control of the test above: four heads agree on few pages.
    row = row_of(
        medium,
        pages__tokens=8,
        selection__sets="head",
        selection__granularity="page",
        selection__protect_recent=5,
        budget__fraction=0.25,
    )
    assert row["budget_met"] is False


def test_whole_runs_miss_the_budget_where_protection_leaves_too_few_of_them(medium):
    # The sinks and the newest tokens each hold a whole page; that is reported, not hidden.
    row = row_of(
        medium,
        policy__name="streaming_llm",
        pages__tokens=1,
        selection__granularity="window",
        selection__protect_recent=0,
        budget__fraction=0.02,
    )
    # 199 tokens are over, twelve windows; the first holds the sinks and one is incomplete.
    assert row["evicted_tokens_total"] == 11 * 16
    assert row["budget_met"] is False


SMALL = [
    {"policy__name": "random", "workload__forks": 2, "workload__sequences": 2},
    {"policy__name": "snapkv", "selection__sets": "head", "pages__scope": "head"},
    {"policy__name": "h2o", "selection__sets": "head", "selection__granularity": "page"},
    {"policy__name": "tova", "selection__granularity": "page_completion"},
    {"policy__name": "h2o_age", "selection__sets": "layer", "selection__granularity": "window"},
    {"policy__name": "knorm", "pool__ceiling_pages": 3},
]
CHILD = """
import json, sys
sys.path.insert(0, "tests")
from recordings import row_of
keys, changes = json.load(sys.stdin)
print(json.dumps([row_of(keys, **change) for change in changes]))
"""


def test_rows_are_the_same_bytes_without_compiled_kernels(tmp_path):
    keys = {**tiny(tmp_path, arrays(2, 2, 90)), "selection.protect_recent": 8, "pages.tokens": 4}
    texts = []
    for disabled in ("0", "1"):
        done = subprocess.run(
            [sys.executable, "-c", CHILD],
            input=json.dumps([keys, SMALL]),
            env={**os.environ, "NUMBA_DISABLE_JIT": disabled},
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        )
        texts.append(done.stdout)
    assert texts[0] == texts[1]
    rows = json.loads(texts[0])
    assert [row["outcome"] for row in rows] == ["completed"] * 5 + ["infeasible"]
