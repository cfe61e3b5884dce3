"""The fan-out figure: physical and logical pages of forks that share one prompt."""

from __future__ import annotations

import itertools

import pytest
from test_figures import PAIRS, make_rows, read_csv

from kvsim.errors import FigureError
from kvsim.figures import FIGURES, draw, style

NAME = "cow_fanout"


def forked(
    forks=(0, 1, 3, 15),
    planes=("kv_raw", "raw_only"),
    positions=("keep", "renumber"),
    compactions=("none", "forward"),
    evict=(True, False),
    **shape,
):
    """Runs that copy all pages of every evicted table where they write, and none elsewhere."""
    shape = {"policies": ("h2o",), "pairs": PAIRS[:1], "budgets": (0.5,), **shape}
    rows = []
    product = itertools.product(make_rows(**shape), forks, planes, positions, compactions, evict)
    for base, fork, plane, position, compaction, forks_evict in product:
        writes = compaction != "none" or (plane, position) == ("kv_raw", "renumber")
        writers = 1 + fork * forks_evict
        held = base["held_pages"] * (writers if writes else 1)
        rows.append(
            {
                **base,
                "run_id": f"{len(rows):012x}",
                "forks": fork,
                "forks_evict": forks_evict,
                "planes": plane,
                "positions": position,
                "compaction": compaction,
                "tokens": base["tokens"] * (1 + fork),
                "held_pages": held,
                "logical_pages": base["held_pages"] * (1 + fork),
                "held_fraction": held / base["dense_pages"],
            }
        )
    return rows


def drawn(rows):
    with style.context():
        return FIGURES[NAME].draw(FIGURES[NAME].select(rows))


def test_csv_equals_the_selected_rows(tmp_path):
    rows = forked()
    paths = draw(NAME, rows, tmp_path)
    data = FIGURES[NAME].select(rows)
    assert len(data) == len(rows)
    assert all(row["fan_out"] == row["forks"] + 1 for row in data)
    written = read_csv(paths[2])
    assert list(written[0]) == list(FIGURES[NAME].COLUMNS) == list(data[0])
    assert written == [{k: "" if v is None else str(v) for k, v in row.items()} for row in data]


def test_the_lines_are_the_rows_of_the_csv():
    rows = forked(planes=("kv_raw",), positions=("renumber",), compactions=("none",))
    data = FIGURES[NAME].select(rows)
    upper, lower = drawn(rows).axes
    wanted = {"held_pages": [], "logical_pages": [], "dense_pages": [], "held_fraction": []}
    for granularity, evict in itertools.product(("token", "page"), (True, False)):
        line = [r for r in data if (r["granularity"], r["forks_evict"]) == (granularity, evict)]
        for column, lines in wanted.items():
            lines.append([(row["fan_out"], row[column]) for row in line])
    fractions = wanted.pop("held_fraction")
    shown = [list(zip(*line.get_data(), strict=True)) for line in upper.lines]
    assert sorted(shown) == sorted(line for lines in wanted.values() for line in lines)
    shown = [list(zip(*line.get_data(), strict=True)) for line in lower.lines]
    # The line at 1 stands beside the data.
    assert sorted(line for line in shown if line[0][0] >= 1) == sorted(fractions)
    assert [line.get_ydata()[0] for line in lower.lines if line.get_xdata()[0] == 0] == [1.0]


def test_one_policy_budget_sets_and_scope_are_shown_and_said():
    rows = forked(policies=("h2o", "snapkv"), budgets=(0.5, 0.25), pairs=PAIRS)
    data = FIGURES[NAME].select(rows)
    fixed = ("policy", "sets", "scope", "budget_fraction")
    assert {tuple(row[c] for c in fixed) for row in data} == {("h2o", "shared", "sequence", 0.5)}
    text = " ".join(drawn(rows).get_supxlabel().split())
    assert "h2o, shared sets, sequence scope, budget 0.5, a prompt of 4,096 tokens" in text


def test_token_and_page_are_shown_where_they_occur():
    rows = forked(granularities=("token", "window", "page"))
    assert {r["granularity"] for r in FIGURES[NAME].select(rows)} == {"token", "page"}
    rows = forked(granularities=("window",))
    assert {r["granularity"] for r in FIGURES[NAME].select(rows)} == {"window"}


def test_prompts_of_other_lengths_are_not_mixed():
    rows = forked()
    longer = [{**r, "tokens": r["tokens"] * 2, "run_id": r["run_id"] + "x"} for r in rows[:60]]
    assert FIGURES[NAME].select([*longer, *rows]) == FIGURES[NAME].select(rows)


def test_missing_rows_are_named_and_nothing_is_written(tmp_path):
    with pytest.raises(FigureError, match="there are no rows at all"):
        draw(NAME, [], tmp_path)
    with pytest.raises(FigureError, match="more than one number of forks"):
        draw(NAME, forked(forks=(3,)), tmp_path)
    with pytest.raises(FigureError, match=r"completed rows has logical_pages"):
        draw(NAME, [{**row, "logical_pages": None} for row in forked()], tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_rows_that_differ_in_something_unknown_are_not_mixed():
    rows = forked()
    twin = {**rows[0], "run_id": "twin", "policy_parameters": "kernel=5"}
    with pytest.raises(FigureError, match=r"differ in policy_parameters, run_id"):
        FIGURES[NAME].select([*rows, twin])


def test_where_nobody_but_the_first_is_evicted_the_caption_says_so():
    text = " ".join(drawn(forked(evict=(False,))).get_supxlabel().split())
    assert "only the first table evicted" in text


def test_a_run_that_holds_nothing_still_draws(tmp_path):
    rows = [{**row, "held_pages": 0, "held_fraction": 0.0} for row in forked(forks=(0, 1))]
    assert len(draw(NAME, rows, tmp_path)) == 3


def test_the_same_rows_give_the_same_bytes(tmp_path):
    rows = forked(planes=("kv_raw",), compactions=("none",), seeds=(1, 2))
    first = [path.read_bytes() for path in draw(NAME, rows, tmp_path)]
    second = [path.read_bytes() for path in draw(NAME, rows[::-1], tmp_path)]
    assert first == second
