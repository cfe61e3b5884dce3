"""Figures of serving runs: rows and series in, what is infeasible marked, slots that add up."""

from __future__ import annotations

import numpy as np
import pytest
from recordings import row_of, scenario
from test_figures import make_rows, read_csv

from kvsim.errors import FigureError
from kvsim.figures import FIGURES, draw, serving_vllm, style
from kvsim.lab.run import run

BASE = {
    "workload.kind": "poisson",
    "layout": "Llama-3.1-8B",
    "workload.requests": 24,
    "workload.rate_per_s": 40.0,
    "serving.input_tokens": 100,
    "serving.output_tokens": 60,
    "cost.device": "RTX-4090",
    "serving.sample_ms": 0.0,
}
EVICT = {
    "serving.pressure": "evict",
    "budget.fraction": 0.5,
    "policy.name": "random",
    "selection.protect_recent": 8,
}
NONE = {"budget.fraction": 1.0}
LINES = ("token", "window", "page")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Small runs of three ceilings, one of them infeasible, and runs with series in a folder."""
    folder = tmp_path_factory.mktemp("results")
    (folder / "series").mkdir()
    rows = []
    for pages in (4, 40, 400):
        rows.append(row_of({**BASE, **NONE, "pool.ceiling_pages": pages}))
        for line in LINES:
            keys = {**BASE, **EVICT, "selection.granularity": line, "pool.ceiling_pages": pages}
            rows.append(row_of(keys))
    sampled = []
    for keys in (NONE, *({**EVICT, "selection.granularity": line} for line in LINES)):
        series = {}
        keys = {**BASE, **keys, "pool.ceiling_pages": 40, "serving.sample_ms": 20.0}
        row = run(scenario(keys), series)
        np.savez(folder / row["series"], **series)
        sampled.append(row)
    return rows, sampled, folder


def series_of(row, folder):
    with np.load(folder / row["series"]) as archive:
        return {name: archive[name] for name in archive.files}


def test_slots_of_the_pool_add_up_at_every_sample(made):
    _, sampled, folder = made
    for row in sampled:
        found = series_of(row, folder)
        pages = found["cached_pages"] + found["free_pages"] + found["parked_pages"]
        slots = found["live_slots"] + found["dead_slots"] + found["tail_slots"]
        assert len(pages) > 10
        assert (found["pool_pages"] == 40).all()
        assert (slots + 16 * pages == 16 * 40).all()
        if row["pressure"] == "evict" and row["granularity"] == "token":
            assert found["dead_slots"].max() > 0


def test_pages_by_live_slots_are_the_held_pages_and_their_live_slots(made):
    _, sampled, folder = made
    for row in sampled:
        found = series_of(row, folder)
        pages = found["pages_by_live_slots"]
        assert pages.shape == (len(found["time_ns"]), 17)
        assert (pages.sum(axis=1) == found["held_pages"]).all()
        assert (pages @ np.arange(17) == found["live_slots"]).all()


def test_the_cliff_shows_every_run_and_marks_infeasible_ceilings(made, tmp_path):
    rows, _, _ = made
    paths = draw("serving_cliff", [*make_rows(), *rows], tmp_path)
    data = FIGURES["serving_cliff"].select(rows)
    assert len(data) == 12
    written = read_csv(paths[2])
    assert written == [{k: "" if v is None else str(v) for k, v in row.items()} for row in data]
    with style.context():
        figure = FIGURES["serving_cliff"].draw(data)
    crosses = [line for line in figure.axes[0].lines if line.get_marker() == "x"]
    assert [list(line.get_xdata()) for line in crosses] == [[4 * 16]] * 4
    preemptions = [line for line in figure.axes[0].lines if line.get_marker() == "P"]
    mine = [r["preemptions_total"] for r in data if r["granularity"] == "none"][1:]
    assert [list(line.get_ydata()) for line in preemptions] == [mine]
    assert mine[0] > mine[1] == 0


def test_the_order_of_rows_does_not_matter(made, tmp_path):
    rows, sampled, folder = made
    for name, given in (
        ("serving_cliff", rows),
        ("serving_area", sampled),
        ("serving_occupancy", sampled),
    ):
        first = [path.read_bytes() for path in draw(name, given, tmp_path, folder)]
        again = [path.read_bytes() for path in draw(name, given[::-1], tmp_path, folder)]
        assert first == again


def test_areas_add_up_to_the_pool(made):
    _, sampled, folder = made
    data = FIGURES["serving_area"].select(sampled, folder)
    stocks = ("live_slots", "cached_slots", "dead_slots", "tail_slots", "free_slots")
    assert {row["granularity"] for row in data} == {"none", *LINES}
    assert all(sum(row[name] for name in stocks) == row["pool_slots"] == 640 for row in data)


def test_occupancy_before_the_first_eviction_and_after_it(made):
    _, sampled, folder = made
    data = FIGURES["serving_occupancy"].select(sampled, folder)
    for row in data:
        assert (row["evicted_tokens_total"] == 0) == (row["stage"] == "before")
    stages = {row["stage"] for row in data if row["granularity"] == "page"}
    assert stages == {"before", "after"}, "whole pages leave no holes"
    one = [r for r in data if (r["granularity"], r["stage"]) == ("token", "after")]
    assert sum(row["pages"] for row in one) == one[0]["held_pages"]


def test_what_is_missing_is_named_and_nothing_is_written(made, tmp_path):
    rows, sampled, folder = made
    with pytest.raises(FigureError, match="needs rows of serving runs"):
        draw("serving_cliff", make_rows(), tmp_path)
    with pytest.raises(FigureError, match="more than one ceiling"):
        draw("serving_cliff", rows[:1], tmp_path)
    for name in ("serving_area", "serving_occupancy"):
        with pytest.raises(FigureError, match="name a time series"):
            draw(name, rows, tmp_path, folder)
        with pytest.raises(FigureError, match="cannot be read"):
            draw(name, sampled, tmp_path, tmp_path)
    with pytest.raises(FigureError, match="recorded runs of vLLM"):
        serving_vllm.select(rows)
    assert not list(tmp_path.iterdir())
