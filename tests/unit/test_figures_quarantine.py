"""Figures of quarantines: lines are the rows, and what does not belong into them is left out."""

from __future__ import annotations

import pytest
from recordings import row_of
from test_figures import make_rows, read_csv

from kvsim.errors import FigureError
from kvsim.figures import FIGURES, _quarantine, draw, style

WAYS = list(_quarantine.WAYS)
SPAN = {
    "workload.kind": "quarantine",
    "layout": "SmolLM2-135M",
    "quarantine.prefix_tokens": 37,
    "quarantine.span_tokens": 40,
}


@pytest.fixture(scope="module")
def rows():
    """Small runs of every way."""
    found = []
    for method, sharing, planes in WAYS:
        keys = {
            **SPAN,
            "quarantine.method": method,
            "quarantine.sharing": sharing or "each",
            "store.planes": planes,
        }
        for fan_out in (1, 3):
            for suffix in (16, 64, 256):
                keys["quarantine.fan_out"] = fan_out
                keys["quarantine.suffix_tokens"] = suffix
                found.append(row_of(keys))
            # Neither tails nor other spans belong beside those.
            found.append(row_of(keys, quarantine__tail_tokens=5))
            for size in (4, 8, 32):
                found.append(row_of(keys, pages__tokens=size, quarantine__suffix_tokens=100))
    return found


# Rows that each figure shows: ways, fan-outs, suffixes or sizes.
NAMES = {"quarantine_time": 9 * 2 * 3, "quarantine_bytes": 9 * 2 * 3, "quarantine_pages": 7 * 3}
EACH = pytest.mark.parametrize("name", NAMES)


def drawn(name, rows):
    with style.context():
        return FIGURES[name].draw(FIGURES[name].select(rows))


def lines(axes):
    """Return the points of every line."""
    return [list(zip(*map(list, line.get_data()), strict=True)) for line in axes.lines]


def picked(data, way, **values):
    return [
        row
        for row in data
        if _quarantine.way(row) == way and all(row[k] == v for k, v in values.items())
    ]


@EACH
def test_csv_equals_the_selected_rows(name, rows, tmp_path):
    paths = draw(name, [*make_rows(), *rows], tmp_path)
    assert [path.name for path in paths] == [f"{name}.pdf", f"{name}.png", f"{name}.csv"]
    data = FIGURES[name].select(rows)
    assert len(data) == NAMES[name]
    assert {row["tail_tokens"] for row in data} == {0}
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
    refused = [{**row, "outcome": "infeasible"} for row in rows]
    for given in ([], make_rows(), refused):
        with pytest.raises(FigureError, match="needs completed rows of a quarantine"):
            draw(name, given, tmp_path)
    strange = [{**row, "method": "forget"} for row in rows]
    with pytest.raises(FigureError, match="has no look for forget"):
        draw(name, strange, tmp_path)
    alone = [row for row in rows if (row["suffix_tokens"], row["page_tokens"]) == (64, 16)]
    with pytest.raises(FigureError, match="needs rows of more than one"):
        draw(name, alone, tmp_path)
    assert not list(tmp_path.iterdir())


def test_times_are_lines_of_the_ways_that_take_any(rows):
    data = FIGURES["quarantine_time"].select(rows)
    figure = drawn("quarantine_time", rows)
    free = {way for way in WAYS if way[0].startswith("keep") or way[2] == "raw_only"}
    for axes, fan_out in zip(figure.axes, (1, 3), strict=True):
        shown = lines(axes)
        assert len(shown) == len(WAYS) - len(free) == 6
        for way in set(WAYS) - free:
            mine = picked(data, way, fan_out=fan_out)
            assert [(row["suffix_tokens"], row["time_ns"] / 1e6) for row in mine] in shown
    text = " ".join(figure.get_supxlabel().split())
    assert "No rows are moved by: renumber, raw only; keep; keep aligned)" in text
    with pytest.raises(FigureError, match="a method that takes time"):
        FIGURES["quarantine_time"].select([r for r in rows if _quarantine.way(r) in free])


def test_bytes_are_what_is_read_and_written_and_the_peak_is_over_planes_kv(rows):
    data = FIGURES["quarantine_bytes"].select(rows)
    axes = drawn("quarantine_bytes", rows).axes
    kept = {way: picked(data, way, fan_out=3) for way in WAYS}
    keep = {row["suffix_tokens"]: row["dense_bytes"] for row in kept["keep", None, "kv"]}
    for way, mine in kept.items():
        traffic = [
            (r["suffix_tokens"], (r["moved_bytes_total"] + r["prefill_bytes_total"]) / 2**30)
            for r in mine
        ]
        assert (traffic in lines(axes[1])) == (traffic[0][1] > 0), way
        page_bytes = mine[0]["dense_bytes"] // mine[0]["dense_pages"]
        peaks = [
            (
                r["suffix_tokens"],
                (r["dense_bytes"] + r["extra_pages_peak"] * page_bytes) / keep[r["suffix_tokens"]],
            )
            for r in mine
        ]
        flat = [number for point in peaks for number in point]
        shown = [[float(number) for point in line for number in point] for line in lines(axes[3])]
        assert any(line == pytest.approx(flat) for line in shown), way
    assert max(row["peak_over_kv"] for row in data) > 1.5


def test_pages_are_shown_for_one_sequence(rows):
    data = FIGURES["quarantine_pages"].select(rows)
    assert {(row["fan_out"], row["suffix_tokens"]) for row in data} == {(1, 100)}
    assert not [row for row in data if row["sharing"] == "once"]
    upper, lower = drawn("quarantine_pages", rows).axes
    for way in {_quarantine.way(row) for row in data}:
        mine = picked(data, way)
        freed = [(r["page_tokens"], r["net_freed_pages"] * r["page_tokens"] / 40) for r in mine]
        assert freed in lines(upper)
        assert [(r["page_tokens"], r["readable_span_tokens"]) for r in mine] in lines(lower)
    aligned = picked(data, ("keep_aligned", None, "kv"))
    # A span of slots 37 to 76.
    assert [row["readable_span_tokens"] for row in aligned] == [4, 8, 40]


def test_every_way_has_a_look_of_its_own():
    assert len({marker for _, marker, _ in _quarantine.WAYS.values()}) == len(WAYS)
