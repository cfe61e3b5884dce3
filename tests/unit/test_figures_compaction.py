"""The compaction Pareto figure: each run against its partner without compaction."""

from __future__ import annotations

import itertools

import pytest
from test_figures import PAIRS, make_rows, read_csv

from kvsim.errors import FigureError
from kvsim.figures import FIGURES, draw, style

NAME = "compaction_pareto"
KINDS = [
    ("none", "slot"),
    ("rebuild", "slot"),
    ("forward", "row"),
    ("hole_fill", "slot"),
    ("hole_fill", "row"),
]


def compacted(kinds=KINDS, short_by=0, **shape):
    """Runs that end `short_by` pages above the floor of their unit; the row floor is the lower."""
    rows = []
    for base, (algorithm, unit) in itertools.product(make_rows(**shape), kinds):
        floors = {"row": base["held_pages"] // 4, "slot": base["held_pages"] // 2}
        held = base["held_pages"] if algorithm == "none" else floors[unit] + short_by
        rows.append(
            {
                **base,
                "run_id": f"{base['run_id']}-{algorithm}-{unit}",
                "compaction": algorithm,
                "compaction_unit": unit,
                "held_pages": held,
                "packed_floor_pages": floors["row"],
                # As in a real run: once rows have moved, whole slots could be packed tighter.
                "packed_floor_slot_pages": floors["row" if unit == "row" else "slot"],
                "copied_bytes_total": 0 if algorithm == "none" else held * 7 * 2**16,
            }
        )
    return rows


def drawn(rows):
    data = FIGURES[NAME].select(rows)
    with style.context():
        return FIGURES[NAME].draw(data)


def caption(rows):
    return " ".join(drawn(rows).get_supxlabel().split())


def test_csv_equals_the_selected_rows(tmp_path):
    rows = compacted(pairs=PAIRS[:2])
    paths = draw(NAME, rows, tmp_path)
    data = FIGURES[NAME].select(rows)
    assert len(data) == len(rows)
    written = read_csv(paths[2])
    assert list(written[0]) == list(FIGURES[NAME].COLUMNS) == list(data[0])
    assert written == [{k: "" if v is None else str(v) for k, v in row.items()} for row in data]


def test_the_points_are_the_rows_of_the_csv():
    rows = compacted(granularities=("token",), short_by=2)
    data = FIGURES[NAME].select(rows)
    found = []
    for axes in drawn(rows).axes:
        for points in axes.collections:
            # The caps of whiskers are markers of another layer.
            if type(points).__name__ == "PathCollection" and points.get_zorder() == 3:
                found += [tuple(point) for point in points.get_offsets()]
    assert sorted(found) == sorted((row["copied_mib"], row["recovered_share"]) for row in data)


def test_recovered_is_what_compaction_frees_beyond_its_partner():
    rows = compacted(policies=("h2o",), granularities=("token",), pairs=PAIRS[:1], budgets=(0.25,))
    none = next(row for row in rows if row["compaction"] == "none")
    for shown in FIGURES[NAME].select(rows):
        row = next(row for row in rows if row["run_id"] == shown["run_id"])
        assert shown["partner_run_id"] == none["run_id"]
        freed = none["held_pages"] - row["held_pages"]
        assert shown["recovered_share"] == freed / row["dense_pages"]
        assert shown["copied_mib"] == row["copied_bytes_total"] / 2**20
        if row is none:
            assert shown["floor_share"] is None
        else:
            # Of the partner, whose rows have not moved yet.
            column = {"row": "packed_floor_pages", "slot": "packed_floor_slot_pages"}
            floor = none[column[row["compaction_unit"]]]
            assert shown["floor_pages"] == floor
            assert shown["floor_share"] == (none["held_pages"] - floor) / row["dense_pages"]
            assert shown["floor_share"] == shown["recovered_share"]


def test_the_unit_of_a_run_without_compaction_does_not_matter():
    kinds = [("none", "row"), ("forward", "slot")]
    rows = compacted(kinds)
    assert len(FIGURES[NAME].select(rows)) == len(rows)


def test_runs_without_a_partner_are_left_out_and_counted():
    rows = compacted()
    assert "none left out for want of a partner" in caption(rows)
    orphaned = [
        row for row in rows if row["compaction"] != "none" or row["budget_fraction"] != 0.25
    ]
    data = FIGURES[NAME].select(orphaned)
    lost = sum(row["budget_fraction"] == 0.25 for row in orphaned)
    assert len(data) == len(orphaned) - lost
    assert {row["budget_fraction"] for row in data} == {0.6}
    assert {row["left_out_runs"] for row in data} == {lost}
    assert f"{lost} left out for want of a partner" in caption(orphaned)


@pytest.mark.parametrize("outcome", ["infeasible", "not_applicable", "failed"])
def test_a_partner_that_did_not_complete_is_no_partner(outcome):
    rows = [
        {**row, "outcome": outcome} if row["compaction"] == "none" else row for row in compacted()
    ]
    with pytest.raises(FigureError, match=r"no completed run with compaction has .* partner"):
        FIGURES[NAME].select(rows)


def test_missing_rows_are_named_and_nothing_is_written(tmp_path):
    with pytest.raises(FigureError, match="there are no rows at all"):
        draw(NAME, [], tmp_path)
    with pytest.raises(FigureError, match="needs runs with compaction"):
        draw(NAME, compacted([("none", "slot")]), tmp_path)
    with pytest.raises(FigureError, match=r"completed rows has copied_bytes_total"):
        draw(NAME, [{**row, "copied_bytes_total": None} for row in compacted()], tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_floor_that_is_missed_gets_a_whisker_and_the_caption_counts():
    fit, short = compacted(), compacted(short_by=3)
    count = sum(row["compaction"] != "none" for row in fit)
    assert f"{count} of {count} runs with compaction on their packed floor" in caption(fit)
    assert f"0 of {count} runs with compaction on their packed floor" in caption(short)
    for rows, shown in ((fit, False), (short, True)):
        labels = [text.get_text() for text in drawn(rows).legends[0].get_texts()]
        assert ("short of the packed floor" in labels) is shown


def test_seeds_are_points_of_their_own():
    rows = compacted(seeds=(1, 2))
    assert len(FIGURES[NAME].select(rows)) == len(rows)
    assert "2 seeds, a point each" in caption(rows)


def test_the_same_rows_give_the_same_bytes(tmp_path):
    rows = compacted(pairs=PAIRS[1:], short_by=1)
    first = [path.read_bytes() for path in draw(NAME, rows, tmp_path)]
    second = [path.read_bytes() for path in draw(NAME, rows[::-1], tmp_path)]
    assert first == second
