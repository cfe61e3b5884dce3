"""What lossy re-rotation costs: the measurement, its figure, and the page that tells of it."""

from __future__ import annotations

import csv
import math
import re

import numpy as np
import pytest
import quantized_tables as page

from kvsim.cli import drift as command
from kvsim.errors import FigureError, LayoutError
from kvsim.figures import FIGURES, draw, style
from kvsim.seeds import stream
from kvsim.tensors.contiguous import ContiguousCache
from kvsim.tensors.decoder import CONFIGS, TinyDecoder
from kvsim.tensors.drift import (
    KEPT_TOKENS,
    KEY_ROPE,
    KEY_SHAPE,
    KeptTokens,
    logit_drift,
    measure,
    spans_of,
)
from kvsim.tensors.quantized import KINDS
from kvsim.tensors.quantized_keys import drift

NAME = "quantized_drift"


@pytest.fixture(scope="module")
def measured():
    return measure("equal", 3, 2)


@pytest.mark.parametrize("name", ["dense", "hybrid", "nope", "partial", "interleaved"])
def test_exact_float32_keys_give_the_contiguous_caches_logits(name):
    decoder = TinyDecoder(CONFIGS[name], stream(1, "test"))
    oracle = ContiguousCache(decoder.shape())
    for token in range(30):
        decoder.step(oracle, token)
    rows = oracle.rows(0)
    rows = [{"k": rows["k_raw"], "v": rows["V"]}]
    exact, lossy = (
        KeptTokens("float32", mode, CONFIGS[name], 10**6) for mode in ("shadow", "lossy")
    )
    for cache in (exact, lossy):
        cache.append(rows)
    for first, count in ((4, 7), (0, 2), (11, 3)):
        for cache in (oracle, exact, lossy):
            cache.evict_span(first, count)
        assert exact.next_position == oracle.next_position
        for token in (5, 40):
            ours, theirs = (decoder.next_logits(cache, token) for cache in (exact, oracle))
            assert np.array_equal(ours.view(np.uint32), theirs.view(np.uint32))
    # The control: the comparison sees a composed rotation.
    control = decoder.next_logits(lossy, 5)
    assert not np.array_equal(control.view(np.uint32), decoder.next_logits(oracle, 5).view("u4"))


def test_only_the_last_tokens_are_attended_to():
    decoder = TinyDecoder(CONFIGS["dense"], stream(1, "test"))
    source = ContiguousCache(decoder.shape())
    for token in range(20):
        decoder.step(source, token)
    rows = source.rows(0)
    cache = KeptTokens("int8", "shadow", CONFIGS["dense"], 6)
    cache.append([{"k": rows["k_raw"], "v": rows["V"]}])
    shown = cache.rows()
    assert shown["positions"].tolist() == list(range(14, 20))
    assert np.array_equal(shown["V"], rows["V"][14:])
    # What goes from in front of them leaves them, at other positions.
    cache.evict_span(3, 5)
    assert cache.rows()["positions"].tolist() == list(range(9, 15))
    assert np.array_equal(cache.rows()["V"], rows["V"][14:])
    assert not np.array_equal(cache.rows()["K"], shown["K"])


def test_a_latent_has_no_keys_per_head():
    with pytest.raises(LayoutError, match="latent"):
        KeptTokens("int8", "lossy", CONFIGS["mla"], 8)


def test_spans():
    assert spans_of("equal", 3, 1) == [16, 16, 16]
    drawn = spans_of("random", 4000, 1)
    assert (min(drawn), max(drawn)) == (1, 31)
    assert math.isclose(np.mean(drawn), 16, abs_tol=0.5)
    assert spans_of("random", 20, 1) == drawn[:20] != spans_of("random", 20, 2)
    with pytest.raises(LayoutError, match="one of equal, random"):
        spans_of("some", 3, 1)


def test_rows_hold_both_drifts(measured):
    assert [(row["keys"], row["evictions"]) for row in measured] == [
        (kind, evictions) for kind in KINDS for evictions in (1, 2)
    ]
    assert [row["evicted_tokens"] for row in measured[:2]] == [16, 32]
    raw = stream(3, "workload", 1).standard_normal((32 + KEPT_TOKENS, *KEY_SHAPE), np.float32)
    logits = logit_drift([16, 16], 3, kinds=["int8"])["int8"]
    keys = drift("int8", KEY_ROPE, raw, [16, 16])
    for row, of_keys, of_logits in zip(measured[2:4], keys, logits, strict=True):
        assert row["keys_codes_changed"] == of_keys.codes_changed
        assert row["logits_error_max"] == of_logits.error_max
        assert set(row) == set(FIGURES[NAME].COLUMNS)


def test_float32_keys_cost_only_what_composing_does(measured):
    for row in measured[:2]:
        assert row["logits_exact_loss_max"] == row["keys_exact_loss_max"] == 0
        assert row["logits_error_max"] == row["logits_loss_max"] > 0
        assert row["logits_error_max"] < 1e-5
    for row in measured[2:]:
        assert row["logits_exact_loss_max"] > 1e-4
        assert row["logits_error_max"] > 1e-4


# The figure


def test_the_csv_holds_the_selected_rows(measured, tmp_path):
    paths = draw(NAME, [*reversed(measured), measured[0]], tmp_path)
    assert [path.name for path in paths] == [f"{NAME}.pdf", f"{NAME}.png", f"{NAME}.csv"]
    with paths[2].open(newline="") as file:
        written = list(csv.DictReader(file))
    assert written == [{name: str(value) for name, value in row.items()} for row in measured]
    assert list(written[0]) == list(FIGURES[NAME].COLUMNS)


def test_lines_are_means_of_the_rows(measured):
    other = [{**row, "seed": 4, "keys_codes_changed": 0.0} for row in measured]
    with style.context():
        figure = FIGURES[NAME].draw(FIGURES[NAME].select([*measured, *other]))
    (panels,) = [figure.axes[:3]]
    assert figure.axes[0].get_title() == "equal spans"
    lines = panels[0].get_lines()
    assert [line.get_ydata().tolist() for line in lines] == [
        [row["keys_codes_changed"] / 2 for row in measured if row["keys"] == kind] for kind in KINDS
    ]
    # float32 keys are not quantized: three dotted lines beside four.
    assert len(panels[1].get_lines()) == len(panels[2].get_lines()) == 7


def test_the_command_measures_every_kind_and_draws(monkeypatch, tmp_path):
    monkeypatch.setattr(command, "SEEDS", 1)
    monkeypatch.setattr(command, "EVICTIONS", 1)
    paths = command.main(tmp_path)
    assert {path.name for path in paths} == {f"{NAME}.pdf", f"{NAME}.png", f"{NAME}.csv"}
    with paths[2].open(newline="") as file:
        found = [(row["spans"], row["keys"]) for row in csv.DictReader(file)]
    assert found == [(spans, kind) for spans in ("equal", "random") for kind in KINDS]


def test_rows_of_other_things_are_refused(measured):
    select = FIGURES[NAME].select
    with pytest.raises(FigureError, match="needs rows of a measured drift, and none of the 1 rows"):
        select([{"policy": "h2o", "outcome": "completed"}])
    with pytest.raises(FigureError, match="unknown spans 'some'"):
        select([{**measured[0], "spans": "some"}])
    with pytest.raises(FigureError, match="would mix two rows"):
        select([measured[0], {**measured[0], "keys_codes_changed": 0.5}])
    with pytest.raises(FigureError, match="not finite"):
        select([{**measured[0], "logits_error_max": math.nan}])
    assert select([{"policy": "h2o"}, *measured]) == select(measured)


# The page


def test_the_pages_tables_are_what_the_rows_say():
    found = page.blocks()
    assert set(found) == set(page.TABLES)
    for name, text in found.items():
        assert page.TABLES[name]() == text
    # The control: another digit would be noticed.
    changed = re.sub(r"(\d)%", lambda m: f"{(int(m[1]) + 1) % 10}%", found["drift"], count=1)
    assert changed != page.drift()


def test_committed_rows_of_keys_can_be_measured_again():
    """Rotation, codes and the generator are seeded arithmetic; only logits meet a BLAS."""
    rows = {(r["spans"], r["keys"], r["seed"], r["evictions"]): r for r in page.rows()}
    spans = spans_of("random", 20, 5)
    raw = stream(5, "workload", 1).standard_normal((sum(spans) + KEPT_TOKENS, *KEY_SHAPE), "f4")
    for kind in ("float32", "int8", "e4m3_scaled"):
        for step in drift(kind, KEY_ROPE, raw, spans):
            row = rows["random", kind, 5, step.evictions]
            assert row["evicted_tokens"] == sum(spans[: step.evictions])
            # A cosine whose last float64 bit another libm rounds differently may turn one code.
            for name in ("codes_changed", "values_changed"):
                assert math.isclose(row[f"keys_{name}"], getattr(step, name), abs_tol=1e-3)
            assert math.isclose(row["keys_error_max"], step.error_max, rel_tol=0.05)


def test_committed_rows_of_logits_can_be_measured_again():
    rows = {(r["spans"], r["keys"], r["seed"], r["evictions"]): r for r in page.rows()}
    # All twenty spans: the tokens in front of those that are kept take part in their hidden state.
    found = logit_drift(spans_of("equal", 20, 0), 0, kinds=["float32", "e4m3"])
    for kind, steps in found.items():
        for number, step in enumerate(steps, 1):
            row = rows["equal", kind, 0, number]
            # float32 differences are last bits, which another BLAS shuffles.
            share = 0.05 if kind == "e4m3" else 0.5
            assert math.isclose(row["logits_error_max"], step.error_max, rel_tol=share)
            assert math.isclose(row["logits_deviation"], step.deviation, rel_tol=1e-3)
            assert math.isclose(row["logits_argmax_changed"], step.argmax_changed, abs_tol=0.04)


def test_what_the_page_says_in_words():
    rows = page.rows()
    assert {row["seed"] for row in rows} == set(range(8))

    def mean(spans, keys, evictions, column):
        wanted = (spans, keys, evictions)
        found = [r[column] for r in rows if (r["spans"], r["keys"], r["evictions"]) == wanted]
        assert len(found) == 8
        return sum(found) / 8

    assert not any(row["logits_argmax_changed"] for row in rows if row["keys"] == "float32")
    for spans in ("equal", "random"):
        for kind in KINDS[1:]:
            floor = mean(spans, kind, 1, "logits_exact_loss_max")
            assert mean(spans, kind, 1, "logits_error_max") > floor
            assert mean(spans, kind, 20, "logits_error_max") > 4 * floor
            assert mean(spans, kind, 20, "logits_argmax_changed") < 0.075
    for kind in KINDS:
        twice = mean("equal", kind, 20, "keys_error_max")
        assert 1.6 < twice / mean("random", kind, 20, "keys_error_max") < 2.1
    # semantics of fak, measured: ten successive corrections change 87%.
    assert f"{mean('equal', 'float32', 10, 'keys_codes_changed'):.0%}" == "87%"
    assert f"{mean('random', 'float32', 10, 'keys_codes_changed'):.0%}" == "76%"
    assert all(0.9 < row["logits_deviation"] < 1.2 for row in rows)
    for kind in ("int8", "e4m3_scaled"):
        assert mean("equal", kind, 1, "keys_values_changed") > 0.95
