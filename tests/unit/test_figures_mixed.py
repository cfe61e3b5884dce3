"""Figures of mixed sweeps: which rows are shown where settings differ, and how long it takes."""

from __future__ import annotations

import time

import pytest
from test_figures import NAMES, make_rows

from kvsim.figures import FIGURES, _rows, draw


def test_a_run_that_recorded_its_page_map_counts_once():
    rows = make_rows()
    twin = {**rows[0], "run_id": "twin", "page_map": "maps/twin.npz"}
    assert FIGURES["held_against_budget"].select([*rows, twin]) == FIGURES[
        "held_against_budget"
    ].select(rows)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("column", "usual", "other"),
    [
        ("forks", 0, 7),
        ("planes", "kv", "kv_raw"),
        ("store", "counting", "array"),
        ("protect_recent", 64, 0),
        ("when", "prefill_end", "step"),
        ("workload", "recorded", "synthetic"),
    ],
)
def test_a_mixed_sweep_is_shown_at_one_setting(name, column, usual, other):
    rows = [{**row, column: usual} for row in make_rows()]
    # More of the others, with another number of tokens: neither may win over the usual setting.
    others = [
        {**row, column: other, "tokens": 9999, "run_id": f"{row['run_id']}-{column}"}
        for row in make_rows(seeds=(1, 2, 3))
    ]
    data = FIGURES[name].select([*others, *rows])
    assert data == FIGURES[name].select(rows)
    assert len(data) == len(rows)
    alone = FIGURES[name].select(others)
    assert str(other) in _rows.settings(alone)


def test_requests_keep_all_seeds_although_each_has_other_tokens():
    rows = [
        {**row, "workload": "requests", "tokens": 4096 + row["seed"]}
        for row in make_rows(seeds=(1, 2))
    ]
    data = FIGURES["held_against_budget"].select(rows)
    assert len(data) == len(rows)
    assert "4,097 to 4,098 tokens" in _rows.settings(data)


@pytest.mark.nightly
def test_thousands_of_rows_are_drawn_in_seconds(tmp_path):
    policies = ("h2o", "h2o_age", "tova", "snapkv", "knorm", "streaming_llm", "random")
    pairs = [("shared", "sequence"), ("layer", "layer"), ("head", "head")]
    pairs += [("layer", "sequence"), ("head", "sequence")]
    base = make_rows(policies, _rows.GRANULARITIES, pairs, (0.6, 0.5, 0.4, 0.3, 0.25))
    rows = [
        {
            **row,
            "compaction": kind,
            "compaction_unit": unit,
            "run_id": f"{row['run_id']}{kind}{unit}",
        }
        for row in base
        for kind in ("none", "forward", "hole_fill")
        for unit in ("slot", "row")
        if (kind, unit) != ("none", "row")
    ]
    assert len(rows) == 3500
    start = time.process_time()
    for name in NAMES:
        draw(name, rows, tmp_path)
    # The demand is 15 s on one core, the import of the plotting libraries included.
    assert time.process_time() - start < 15
