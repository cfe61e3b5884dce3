"""The figure of resident memory: rows joined with what was measured beside them."""

from __future__ import annotations

import itertools
import json

import pytest
from test_figures import PAIRS, make_rows, read_csv

from kvsim.errors import FigureError
from kvsim.figures import FIGURES, draw, style

NAME = "resident_against_budget"


def written(folder, layouts=("page_major", "layer_major"), extents=(2 << 20, 4096), **shape):
    """Rows in which large extents of layer_major return nothing; the machine agrees with all."""
    shape = {"policies": ("h2o",), "pairs": PAIRS[:1], "budgets": (0.6, 0.25), **shape}
    rows, measured = [], []
    product = itertools.product(make_rows(**shape), layouts, extents, ("none", "forward"))
    for base, layout, size, compaction in product:
        kept = layout == "layer_major" and size > 4096 and compaction == "none"
        row = {
            **base,
            "run_id": f"{len(rows):012x}",
            "store": "array",
            "memory": "mapped",
            "window_tokens": 64,
            "plane_layout": layout,
            "extent_bytes": size,
            "compaction": compaction,
            "mapped_bytes": base["dense_bytes" if kept else "held_bytes"],
            "empty_mapped_bytes": kept * (base["dense_bytes"] - base["held_bytes"]),
            "returned_extents_total": 5 * (not kept),
            "copied_bytes_total": 0,
        }
        rows.append(row)
        seen = {"run_id": row["run_id"], "seconds": 1.5, "resident_bytes": row["mapped_bytes"]}
        measured.append(json.dumps(seen))
    (folder / "measured.jsonl").write_text("\n".join([*measured, ""]))
    return rows


def test_csv_equals_the_selected_rows(tmp_path):
    rows = written(tmp_path)
    paths = draw(NAME, rows, tmp_path / "out", tmp_path)
    data = FIGURES[NAME].select(rows, tmp_path)
    assert len(data) == len(rows)
    assert all(row["resident_share"] == row["mapped_share"] for row in data)
    found = read_csv(paths[2])
    assert list(found[0]) == list(FIGURES[NAME].COLUMNS) == list(data[0])
    assert found == [{k: "" if v is None else str(v) for k, v in row.items()} for row in data]
    assert FIGURES[NAME].select(rows[::-1], tmp_path) == data


def test_lines_are_the_ledgers_and_rings_the_machines(tmp_path):
    rows = written(tmp_path, ("layer_major",), (2 << 20,), granularities=("token",))
    # A machine that disagrees must be seen to.
    lines = (tmp_path / "measured.jsonl").read_text().splitlines()
    other = {**json.loads(lines[0]), "resident_bytes": rows[0]["dense_bytes"] // 2}
    (tmp_path / "measured.jsonl").write_text("\n".join([json.dumps(other), *lines[1:], ""]))
    with style.context():
        figure = FIGURES[NAME].draw(FIGURES[NAME].select(rows, tmp_path))
    (axes,) = figure.axes
    shown = {True: [], False: []}
    for line in axes.lines[1:]:
        shown[line.get_marker() == "o"].append(
            [(x, y) for x, y in zip(*line.get_data(), strict=True)]
        )
    for compaction in ("none", "forward"):
        wanted = sorted(
            (row["budget_fraction"], row["mapped_bytes"] / row["dense_bytes"])
            for row in rows
            if row["compaction"] == compaction
        )
        assert wanted in shown[False]
        assert (wanted in shown[True]) == (compaction == "forward")
    text = " ".join(figure.get_supxlabel().split())
    assert "resident = mapped to the byte in 3 of 4 runs" in text


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "cannot be read"),
        ("", "none of the 8 completed rows"),
        ("{\n", "measured.jsonl:1 is no measurement"),
        ("[]\n", "measured.jsonl:1 is no measurement"),
        ('{"seconds": 1}\n', "measured.jsonl:1 is no measurement"),
    ],
)
def test_measurements_that_are_missing_or_damaged_are_named(tmp_path, text, says):
    rows = written(tmp_path, granularities=("token",), budgets=(0.5,))
    file = tmp_path / "measured.jsonl"
    if text is None:
        file.unlink()
    else:
        file.write_text(text)
    with pytest.raises(FigureError, match=says):
        draw(NAME, rows, tmp_path / "out", tmp_path)
    assert not (tmp_path / "out").exists()


def test_a_torn_last_line_is_left_out(tmp_path):
    rows = written(tmp_path)
    file = tmp_path / "measured.jsonl"
    file.write_text(file.read_text()[:-9])
    assert len(FIGURES[NAME].select(rows, tmp_path)) == len(rows) - 1


def test_it_needs_the_folder_of_the_rows(tmp_path):
    with pytest.raises(FigureError, match="needs the results folder"):
        draw(NAME, written(tmp_path), tmp_path)
    with pytest.raises(FigureError, match="no colour for compaction sideways"):
        draw(
            NAME,
            [{**row, "compaction": "sideways"} for row in written(tmp_path)[:1]],
            tmp_path,
            tmp_path,
        )
