"""Whole scenarios under both stores: rows equal but for the run's id and the store's name.

The run with arrays verifies every retained row bit by bit before it finishes, and fails if not.
"""

from __future__ import annotations

from itertools import combinations, product

import pytest
from recordings import arrays, row_of, scenario, tiny

from kvsim.errors import ScenarioError
from kvsim.lab.run import check

AXES = {
    "cut": (
        ("shared", "sequence"),
        ("layer", "layer"),
        ("head", "sequence"),
        ("head", "layer"),
        ("layer", "sequence"),
        ("shared", "head"),
        ("head", "head"),
    ),
    "compaction.algorithm": ("none", "rebuild", "forward", "hole_fill"),
    "compaction.unit": ("slot", "row"),
    "workload.forks": (0, 2),
    "selection.granularity": ("token", "window", "page", "page_completion"),
    "pages.append": ("tail", "reuse_holes"),
}


def pairs(case):
    """Return what a case covers: every two of its settings."""
    return set(combinations(enumerate(case), 2))


def covering():
    """Return few cases that cover every pair of values of every two axes, greedily."""
    every = list(product(*AXES.values()))
    missing = set().union(*map(pairs, every))
    chosen = []
    while missing:
        best = max(every, key=lambda case: len(pairs(case) & missing))
        chosen.append(best)
        missing -= pairs(best)
    return chosen


CASES = covering()
STORES = ("counting", "array")


@pytest.fixture(scope="module")
def recording(tmp_path_factory):
    """A recording of 2 layers, 2 heads and 45 tokens, hence a last page that is not full."""
    return tiny(tmp_path_factory.mktemp("stores"), arrays(2, 2, 45))


def keys_of(case):
    """Return the keys of a scenario."""
    settings = dict(zip(AXES, case, strict=True))
    sets, scope = settings.pop("cut")
    return {
        "selection.sets": sets,
        "pages.scope": scope,
        "pages.tokens": 4,
        "policy.name": "h2o",
        "selection.window_tokens": 4,
        "selection.protect_recent": 3,
        "budget.fraction": 0.4,
        **settings,
    }


@pytest.mark.parametrize("case", CASES, ids=str)
def test_rows_are_equal_under_both_stores(case, recording):
    """A counter kept in a store, a store that decides, or a plan that lays a row elsewhere."""
    rows = [row_of({**recording, **keys_of(case)}, store__kind=kind) for kind in STORES]
    assert [row["outcome"] for row in rows] == ["completed"] * 2
    assert rows[0]["evicted_tokens_total"] > 0
    differing = {name for name in rows[0] if rows[0][name] != rows[1][name]}
    assert differing == {"run_id", "store"}


def test_the_sample_moves_rows(recording):
    """A sample in which no case copies a row compares nothing."""
    rows = [row_of({**recording, **keys_of(case)}, store__kind="array") for case in CASES]
    for algorithm in AXES["compaction.algorithm"][1:]:
        mine = [row for row in rows if row["compaction"] == algorithm]
        assert sum(row["copied_rows_total"] for row in mine) > 100
    assert any(row["cow_pages_total"] for row in rows)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_rows_are_equal_when_keys_are_renumbered(case, recording):
    """A key left at its old position, or rotated twice: the run verifies every row at its end."""
    keys = keys_of(case) | {"compaction.positions": "renumber", "store.planes": "kv_raw"}
    rows = [row_of({**recording, **keys}, store__kind=kind) for kind in STORES]
    assert [row["outcome"] for row in rows] == ["completed"] * 2
    assert rows[0]["rotated_rows_total"] > 0
    differing = {name for name in rows[0] if rows[0][name] != rows[1][name]}
    assert differing == {"run_id", "store"}


def test_renumbering_needs_the_pre_rope_key(recording):
    """Planes that keep no pre-RoPE key counted as if they could be rotated."""
    with pytest.raises(ScenarioError, match="pre-RoPE"):
        check(scenario({**recording, "compaction.positions": "renumber", "store.planes": "kv"}))
