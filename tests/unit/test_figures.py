"""Figures show the rows they are given: no more, no less, and the same way every time."""

from __future__ import annotations

import ast
import csv
import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest

import kvsim.figures as figures
from kvsim.errors import FigureError, ResultsError
from kvsim.figures import FIGURES, _Figures, _rows, draw, draw_all, style

PAIRS = [("shared", "sequence"), ("layer", "layer"), ("head", "sequence")]
NAMES = ["freed_against_evicted", "held_against_budget", "mass_against_held"]


def make_rows(
    policies=("h2o", "snapkv"),
    granularities=("token", "page"),
    pairs=PAIRS,
    budgets=(0.6, 0.25),
    page_tokens=(16,),
    seeds=(7,),
):
    """Rows of a made-up shape: token granularity holds more than its budget, page meets it."""
    rows = []
    product = itertools.product(policies, granularities, pairs, page_tokens, budgets, seeds)
    for policy, granularity, (sets, scope), size, budget, seed in product:
        dense = 4096 // size
        excess = 0.0 if granularity == "page" else (1 - budget) * (0.8 if policy == "h2o" else 0.5)
        held = round(dense * min(1.0, budget + excess)) - seed % 3
        rows.append(
            {
                "run_id": f"{len(rows):012x}",
                "seed": seed,
                "layout": "SmolLM2-135M",
                "policy": policy,
                "granularity": granularity,
                "sets": sets,
                "scope": scope,
                "page_tokens": size,
                "budget_fraction": budget,
                "ceiling_pages": 0,
                "when": "prefill_end",
                "compaction": "none",
                "compaction_unit": "slot",
                "positions": "keep",
                "append": "tail",
                "tokens": 4096,
                "retained_tokens": 4096 * budget,
                "evicted_tokens_total": 4096 * (1 - budget),
                "held_pages": held,
                "dense_pages": dense,
                "held_fraction": held / dense,
                "held_bytes": held * size * 23040,
                "dense_bytes": dense * size * 23040,
                "charged_fraction": held / dense + 0.003,
                "retained_mass": 0.7 + 0.3 * budget,
                "budget_met": granularity == "page",
                "outcome": "completed",
                "outcome_reason": None,
            }
        )
    return rows


def small_rows():
    """Rows of one panel, for tests about files and not about panels."""
    return make_rows(granularities=("token",), pairs=PAIRS[:1])


def refused(row, outcome="not_applicable"):
    """The same run with an outcome that leaves its numbers null."""
    numbers = [c for c in row if c.endswith(("_pages", "_bytes", "_fraction", "_mass", "_total"))]
    nulls = {c: None for c in numbers if c not in ("ceiling_pages", "budget_fraction")}
    return {**row, **nulls, "run_id": row["run_id"] + "x", "outcome": outcome}


def read_csv(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_the_figures_of_the_first_part_are_there():
    assert set(NAMES) <= set(FIGURES)
    for name, module in FIGURES.items():
        assert name == module.NAME
        assert module.__doc__


@pytest.mark.parametrize("name", NAMES)
def test_csv_equals_the_selected_rows(name, tmp_path):
    rows = make_rows(pairs=PAIRS[1:])
    paths = draw(name, rows, tmp_path)
    assert [path.name for path in paths] == [f"{name}.pdf", f"{name}.png", f"{name}.csv"]
    data = FIGURES[name].select(rows)
    assert len(data) == len(rows)
    written = read_csv(paths[2])
    assert list(written[0]) == list(FIGURES[name].COLUMNS) == list(data[0])
    # As text, so that a float that is not written to its last bit would be noticed.
    assert written == [{k: "" if v is None else str(v) for k, v in row.items()} for row in data]


def test_shares_are_computed_from_the_row():
    (row,) = make_rows(("h2o",), ("token",), PAIRS[:1], (0.25,))
    (shown,) = FIGURES["freed_against_evicted"].select([row])
    assert shown["evicted_fraction"] == 0.75
    assert shown["freed_fraction"] == 1 - row["held_pages"] / row["dense_pages"]
    (shown,) = FIGURES["mass_against_held"].select([row])
    assert shown["held_mib"] == row["held_bytes"] / 2**20


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("outcome", ["infeasible", "not_applicable", "failed"])
def test_rows_that_did_not_complete_are_left_out(name, outcome):
    rows = make_rows()
    others = [refused(row, outcome) for row in make_rows(("tova",))]
    assert FIGURES[name].select([*others, *rows]) == FIGURES[name].select(rows)


@pytest.mark.parametrize("name", NAMES)
def test_the_order_of_rows_does_not_matter_and_a_repeated_row_counts_once(name):
    rows = make_rows(seeds=(1, 2))
    shown = FIGURES[name].select(rows)
    assert FIGURES[name].select([*reversed(rows), *rows]) == shown


@pytest.mark.parametrize("name", NAMES)
def test_missing_rows_are_named_and_nothing_is_written(name, tmp_path):
    with pytest.raises(FigureError, match=f"{name} needs completed rows, and there are no rows"):
        draw(name, [], tmp_path)
    with pytest.raises(FigureError, match=r"the rows are: 12 infeasible, 12 not_applicable"):
        draw(
            name,
            [refused(r, o) for r in make_rows(("h2o",)) for o in ("infeasible", "not_applicable")],
            tmp_path,
        )
    column = FIGURES[name].DRAWN[0]
    with pytest.raises(FigureError, match=rf"none of the 24 completed rows has {column}$"):
        draw(name, [{**row, column: None} for row in make_rows()], tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_draw_all_names_every_figure_that_lacks_rows_before_it_writes(tmp_path):
    rows = [{**row, "retained_mass": None, "held_fraction": None} for row in make_rows()]
    with pytest.raises(FigureError, match=r"held_against_budget: .*; mass_against_held: ") as error:
        draw_all(rows, tmp_path, NAMES)
    assert "\n" not in str(error.value)
    assert list(tmp_path.iterdir()) == []
    assert len(draw_all(rows, tmp_path, ["freed_against_evicted"])) == 3


def test_an_unknown_figure_is_refused_with_the_nearest_name(tmp_path):
    with pytest.raises(FigureError, match="did you mean held_against_budget"):
        draw("held_against_budgets", make_rows(), tmp_path)
    with pytest.raises(FigureError, match="did you mean"):
        draw_all(make_rows(), tmp_path, ["style"])


@pytest.mark.parametrize("value", ["many", True, float("nan")])
def test_a_value_that_is_no_number_is_refused_with_its_row(value):
    rows = make_rows()
    rows[3]["held_fraction"] = value
    with pytest.raises(FigureError, match="row 000000000003: held_fraction is no number"):
        FIGURES["held_against_budget"].select(rows)


def test_a_share_of_nothing_is_refused():
    rows = [{**row, "dense_pages": 0} for row in make_rows()]
    with pytest.raises(FigureError, match="a share of 0"):
        FIGURES["freed_against_evicted"].select(rows)


def test_rows_that_differ_in_something_unknown_are_not_mixed():
    rows = make_rows()
    twin = {**rows[0], "run_id": "twin", "policy_parameters": "kernel=5"}
    with pytest.raises(FigureError, match=r"twin, which differ in policy_parameters, run_id"):
        FIGURES["held_against_budget"].select([*rows, twin])


@pytest.mark.parametrize(
    ("sizes", "shown"), [((8, 16, 32), 16), ((8, 32), 8), ((64,), 64)], ids=str
)
def test_page_size_is_16_where_it_occurs_else_the_most_frequent_and_is_said(sizes, shown):
    rows = make_rows(page_tokens=sizes)
    if shown == 8:
        rows = rows[:-1]
    rows = [row for row in rows if row["page_tokens"] != 32 or row["policy"] == "h2o"]
    data = FIGURES["held_against_budget"].select(rows)
    assert {row["page_tokens"] for row in data} == {shown}
    assert f"{shown}-token pages" in _rows.settings(data)


def test_compaction_is_not_mixed_with_none_and_is_said_where_it_is_all_there_is():
    rows = make_rows()
    compacted = [{**r, "compaction": "forward", "run_id": r["run_id"] + "c"} for r in make_rows()]
    data = FIGURES["held_against_budget"].select([*compacted, *rows])
    assert {row["compaction"] for row in data} == {"none"}
    assert "no compaction" in _rows.settings(data)
    data = FIGURES["held_against_budget"].select(compacted)
    assert "compaction forward by slot" in _rows.settings(data)


def test_seeds_become_a_mean_and_a_range():
    rows = make_rows(("h2o",), ("token",), PAIRS[:1], (0.25,), seeds=(1, 2, 3))
    data = FIGURES["held_against_budget"].select(rows)
    assert len(data) == 3
    (point,) = _rows.points(data, "budget_fraction", "held_fraction")
    values = [row["held_fraction"] for row in rows]
    assert (point.y_low, point.y_high) == (min(values), max(values))
    assert point.y == pytest.approx(sum(values) / 3)
    assert point.x == point.x_low == point.x_high == 0.25
    assert "mean and range of 3 seeds" in _rows.settings(data)


@pytest.mark.parametrize("name", NAMES)
def test_the_same_rows_give_the_same_bytes(name, tmp_path):
    rows = make_rows(("h2o", "mine"), pairs=PAIRS[1:], seeds=(1, 2))
    first = [path.read_bytes() for path in draw(name, rows, tmp_path)]
    # The second drawing replaces the first, from rows in another order.
    second = [path.read_bytes() for path in draw(name, rows[::-1], tmp_path)]
    assert first == second
    assert len(list(tmp_path.iterdir())) == 3
    assert first[0].startswith(b"%PDF")
    assert b"CreationDate" not in first[0]
    assert first[1].startswith(b"\x89PNG")


def test_another_process_gives_the_same_bytes(tmp_path):
    # Another hash seed and a hostile matplotlibrc: neither may reach a file.
    here = [path.read_bytes() for path in draw("held_against_budget", small_rows(), tmp_path / "a")]
    (tmp_path / "matplotlibrc").write_text("font.size: 30\nlines.linewidth: 9\n")
    code = (
        "import sys; from pathlib import Path; sys.path.insert(0, sys.argv[1])\n"
        "from test_figures import small_rows; from kvsim.figures import draw\n"
        "draw('held_against_budget', small_rows(), Path(sys.argv[2]))"
    )
    folder = Path(__file__).parent
    environment = {**os.environ, "PYTHONHASHSEED": "12", "MATPLOTLIBRC": str(tmp_path)}
    environment["PYTHONPATH"] = str(folder.parents[1])
    arguments = [sys.executable, "-c", code, str(folder), str(tmp_path / "b")]
    subprocess.run(arguments, check=True, env=environment)
    there = sorted((tmp_path / "b").iterdir())
    assert sorted(here) == sorted(path.read_bytes() for path in there)


@pytest.mark.parametrize("name", NAMES)
def test_print_size_text_size_and_embedded_fonts(name):
    from matplotlib.text import Text

    for pairs, granularities, width in [
        (PAIRS, ("token", "page", "window"), 7.0),
        (PAIRS[:1], ("page",), 3.4),
    ]:
        data = FIGURES[name].select(make_rows(pairs=pairs, granularities=granularities))
        with style.context():
            figure = FIGURES[name].draw(data)
            pdf = style.render(figure, "pdf")
        assert figure.get_figwidth() == width
        texts = [text for text in figure.findobj(Text) if text.get_text()]
        assert min(text.get_fontsize() for text in texts) >= 7
        assert b"/FontFile2" in pdf
        assert b"/Type3" not in pdf
        # Nothing may stick out of the page; matplotlib itself hides tick labels beyond the limits.
        titles = [axes.title for axes in figure.axes]
        notes = [text for axes in figure.axes for text in axes.texts]
        legend = [text for legend in figure.legends for text in legend.get_texts()]
        for text in [*figure.texts, *titles, *notes, *legend]:
            box, page = text.get_window_extent(), figure.bbox
            assert page.x0 <= box.x0, text
            assert box.x1 <= page.x1, text
            assert page.y0 <= box.y0, text
            assert box.y1 <= page.y1, text


def test_policy_looks_are_distinct_and_stable():
    shipped = list(style.POLICIES.values())
    assert len({look.color for look in shipped}) == len({look.marker for look in shipped})
    assert len({look.color for look in shipped}) == len(shipped)
    assert not {look.color for look in shipped} & set(style.SPARE_COLORS)
    assert not {look.marker for look in shipped} & set(style.SPARE_MARKERS)
    # A look does not depend on who else is in the figure.
    alone = style.looks(["h2o"])["h2o"]
    assert style.looks(["mine", "h2o", "knorm"])["h2o"] == alone
    assert style.looks(["mine", "h2o"])["mine"] == style.looks(["mine"])["mine"]
    many = [f"policy_{i}" for i in range(20)]
    assert len(set(style.looks(many).values())) == len(many)
    assert style.looks(many) == style.looks(many[::-1])
    # More strangers than spare looks still draw.
    assert len(style.looks(f"policy_{i}" for i in range(99))) == 99


def test_sets_finer_than_the_scope_come_last():
    data = [{"sets": s, "scope": c} for c in ("sequence", "layer", "head") for s in _SETS]
    order = _rows.pairs(data)
    flags = [_rows.finer(*pair) for pair in order]
    assert flags == sorted(flags)
    assert [pair for pair, flag in zip(order, flags, strict=True) if flag] == [
        ("layer", "sequence"),
        ("head", "sequence"),
        ("head", "layer"),
    ]


_SETS = ("head", "layer", "shared")


def test_a_new_figure_file_is_found_by_itself(tmp_path, monkeypatch):
    package = tmp_path / "mine"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "_private.py").write_text("")
    (package / "style.py").write_text("")
    (package / "later.py").write_text('NAME = "later"\n')
    monkeypatch.syspath_prepend(tmp_path)
    found = _Figures([str(package)], "mine")
    assert list(found) == ["later"]
    assert "mine.later" not in sys.modules
    assert found["later"].NAME == "later"
    with pytest.raises(KeyError):
        found["style"]


def test_a_folder_that_cannot_be_written_is_one_clear_line(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    with pytest.raises(ResultsError, match="cannot write held_against_budget") as error:
        draw("held_against_budget", small_rows(), blocked)
    assert "\n" not in str(error.value)
    assert blocked.read_text() == "not a folder"


def test_a_failed_write_leaves_the_earlier_file_whole(tmp_path, monkeypatch):
    target = tmp_path / "held_against_budget.pdf"
    target.write_text("earlier")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(figures.os, "replace", full)
    with pytest.raises(ResultsError, match="No space left"):
        draw("held_against_budget", small_rows(), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [target.name]
    assert target.read_text() == "earlier"


def test_importing_the_room_imports_no_plotting_library():
    code = (
        "import sys, kvsim.figures as f; list(f.FIGURES.values())\n"
        "assert not {'matplotlib', 'seaborn', 'pandas', 'numpy'} & set(sys.modules)"
    )
    root = Path(__file__).parents[2]
    subprocess.run([sys.executable, "-c", code], check=True, cwd=root)


def test_figures_import_only_errors_and_their_own_room():
    for path in Path(figures.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            module = getattr(node, "module", None) if isinstance(node, ast.ImportFrom) else None
            if module and module.startswith("kvsim"):
                assert module.startswith(("kvsim.errors", "kvsim.figures")), path
            if isinstance(node, ast.Import):
                assert not any(alias.name.startswith("kvsim") for alias in node.names), path
                assert not any("pyplot" in alias.name for alias in node.names), path


def test_drawing_opens_no_pyplot_figure(tmp_path):
    draw("mass_against_held", small_rows(), tmp_path)
    import matplotlib.pyplot as plt

    assert plt.get_fignums() == []
