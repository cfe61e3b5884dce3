"""Figures of extents: they show the rows of one recipe, and mark what was published."""

from __future__ import annotations

from pathlib import Path

import pytest
from recordings import row_of
from test_figures import make_rows, read_csv

from kvsim.errors import FigureError
from kvsim.figures import FIGURES, _extents, draw, style

LAYOUT = str(Path(__file__).parents[2] / "experiments" / "05-extents" / "bench-evict.json")
RULES = ("lru", "page_aligned", "chain_aware")
BASE = {"workload.kind": "extents", "layout": LAYOUT}


@pytest.fixture(scope="module")
def rows():
    """Small runs of every recipe."""
    found = []
    for rule in RULES:
        for stride in (1, 2, 4):
            for queue in ("head_first", "tail_first"):
                keys = {
                    **BASE,
                    "extents.stride": stride,
                    "extents.queue": queue,
                    "extents.victims": rule,
                }
                found.append(row_of(keys))
                if queue == "head_first":
                    # None of these belongs into the figure.
                    found.append(row_of(keys, extents__chain_pages=256))
                    found += [row_of(keys, extents__top_up=False)] if rule != "lru" else []
        for tokens in (16, 32):
            for pinned in (0, 20, 100):
                for seed in (1, 2):
                    keys = {
                        **BASE,
                        "pages.tokens": tokens,
                        "seed": seed,
                        "extents.recipe": "random",
                        "extents.pool_pages": 4000,
                        "extents.cached_pages": 500,
                        "extents.evict_pages": 100,
                        "extents.pinned_pages": pinned,
                        "extents.victims": rule,
                    }
                    found.append(row_of(keys))
        for seed in (1, 2):
            keys = {
                **BASE,
                "seed": seed,
                "extents.recipe": "idle",
                "extents.cached_pages": 200,
                "extents.requests": 60,
                "extents.victims": rule,
            }
            found.append(row_of(keys))
    return found


NAMES = {
    "extents_against_stride": ("stride", 18),
    "extents_eligible": ("random", 12 + 12),
    "extents_idle": ("idle", 6),
}
EACH = pytest.mark.parametrize("name", NAMES)


def drawn(name, rows):
    with style.context():
        return FIGURES[name].draw(FIGURES[name].select(rows))


@EACH
def test_csv_equals_the_selected_rows(name, rows, tmp_path):
    recipe, count = NAMES[name]
    others = make_rows()
    paths = draw(name, [*others, *rows], tmp_path)
    assert [path.name for path in paths] == [f"{name}.pdf", f"{name}.png", f"{name}.csv"]
    data = FIGURES[name].select(rows)
    assert len(data) == count
    assert {row["recipe"] for row in data} == {recipe}
    written = read_csv(paths[2])
    assert list(written[0]) == list(FIGURES[name].COLUMNS) == list(data[0])
    assert written == [{k: "" if v is None else str(v) for k, v in row.items()} for row in data]


@EACH
def test_the_order_of_rows_does_not_matter(name, rows, tmp_path):
    assert FIGURES[name].select([*rows[::-1], *rows]) == FIGURES[name].select(rows)
    first = [path.read_bytes() for path in draw(name, rows, tmp_path)]
    assert [path.read_bytes() for path in draw(name, rows[::-1], tmp_path)] == first


@EACH
def test_rows_that_are_missing_are_named_and_nothing_is_written(name, rows, tmp_path):
    recipe, _ = NAMES[name]
    for given in ([], make_rows(), [row for row in rows if row["recipe"] != recipe]):
        with pytest.raises(FigureError, match=f"needs completed rows with recipe {recipe}"):
            draw(name, given, tmp_path)
    strange = [{**row, "victims": "newest first"} for row in rows]
    with pytest.raises(FigureError, match="no colour for victims newest first"):
        draw(name, strange, tmp_path)
    refused = [{**row, "outcome": "infeasible"} for row in rows]
    with pytest.raises(FigureError, match="needs completed rows"):
        draw(name, refused, tmp_path)
    assert not list(tmp_path.iterdir())


def lines(axes, marker=None):
    """Return the points of every line, or of those with a marker."""
    return [
        list(zip(*map(list, line.get_data()), strict=True))
        for line in axes.lines
        if marker is None or line.get_marker() == marker
    ]


def test_lines_are_the_rows_and_crosses_what_was_published(rows):
    data = FIGURES["extents_against_stride"].select(rows)
    figure = drawn("extents_against_stride", rows)
    upper, lower = figure.axes
    shown = lines(upper)
    for rule in RULES:
        for queue in ("head_first", "tail_first"):
            mine = [row for row in data if (row["victims"], row["queue"]) == (rule, queue)]
            assert [(r["stride"], r["emptied_extents_total"]) for r in mine] in shown
            wanted = [(row["stride"], row["unreachable_pages"] / 512) for row in mine]
            assert wanted in lines(lower)
    (crosses,) = lines(upper, "x")
    assert set(crosses) == {(1, 27), (2, 24), (4, 16), (1, 28), (2, 28), (4, 28)}
    # The control: without them in the rows there are none.
    bare = [{**row, "published_emptied_extents": None} for row in rows]
    assert lines(drawn("extents_against_stride", bare).axes[0], "x") == [[]]
    text = " ".join(figure.get_supxlabel().split())
    assert "65,536 cached tokens in 33 extents" in text
    assert "chains of 1,024 tokens" in text


def test_eligible_extents_are_means_over_seeds(rows):
    data = FIGURES["extents_eligible"].select(rows)
    left, middle, right = drawn("extents_eligible", rows).axes

    def means(column, **values):
        some = [row for row in data if all(row[k] == v for k, v in values.items())]
        fractions = sorted({row["pinned_fraction"] for row in some})
        both = [[row[column] for row in some if row["pinned_fraction"] == f] for f in fractions]
        assert all(len(pair) == 2 for pair in both)
        return [(f, sum(pair) / 2) for f, pair in zip(fractions, both, strict=True)]

    for size in (128, 64):
        wanted = means("eligible_extents", pages_per_extent=size, victims="page_aligned")
        assert wanted in lines(left)
    ruled = {row["pages_per_extent"] for row in data if row["victims"] == "lru"}
    assert len(ruled) == 1
    for rule in RULES:
        wanted = means("emptied_extents_total", pages_per_extent=min(ruled), victims=rule)
        assert wanted in lines(middle)
    assert len(right.lines) == len(RULES)


def test_idle_servers_are_dots_and_a_floor(rows):
    data = FIGURES["extents_idle"].select(rows)
    left, _ = drawn("extents_idle", rows).axes
    seen = sorted(x for line in left.lines[1:] for x, _ in zip(*line.get_data(), strict=True))
    assert seen == sorted(row["used_extents"] for row in data)
    assert left.lines[0].get_xdata()[0] == max(row["packed_floor_extents"] for row in data)


def test_one_stride_or_one_pinned_fraction_is_no_figure(rows):
    some = [row for row in rows if row["stride"] in (None, 2) and row["pinned_pages"] in (None, 20)]
    with pytest.raises(FigureError, match="more than one stride"):
        FIGURES["extents_against_stride"].select(some)
    with pytest.raises(FigureError, match="more than one pinned fraction"):
        FIGURES["extents_eligible"].select(some)
    alone = [row for row in rows if row["victims"] != "page_aligned"]
    with pytest.raises(FigureError, match="needs rows with victims page_aligned"):
        FIGURES["extents_eligible"].select(alone)


def test_every_rule_has_a_look():
    assert set(_extents.COLORS) == set(_extents.MARKERS) == set(_extents.RULES) == set(RULES)
