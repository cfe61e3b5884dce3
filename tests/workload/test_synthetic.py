"""The synthetic process: rows against the definition, one value by hand, and what bytes depend on.

The definition is evaluated here in O(tokens²) with NumPy alone, from the saliences.
"""

from __future__ import annotations

import csv
import dataclasses
from pathlib import Path

import numpy as np
import pytest
from recordings import write_recording

from kvsim.errors import WorkloadError
from kvsim.lab import reading
from kvsim.lab.run import run
from kvsim.policies import Attention
from kvsim.workload.synthetic import WINDOW, Process, SyntheticSignals
from kvsim.workload.synthetic_process import MOST_SPREAD, draw_units
from kvsim.workload.synthetic_rows import attend
from kvsim.workload.synthetic_tokens import BLOCK, decayed

PARTS = ("cumulative", "last", "window")
EVERYTHING = SyntheticSignals.provides
UNITS = (2, 3)
DEFAULT = Process()


def signals(appended=0, *, process=DEFAULT, seed=7, sequence=0, needs=EVERYTHING, **options):
    made = SyntheticSignals(process, UNITS, seed, sequence, Attention, needs, **options)
    made.extend(appended)
    return made


def blob(made, columns=None):
    """Return all bytes that the signals of these tokens consist of."""
    columns = np.arange(made.appended) if columns is None else columns
    found = made.observe(columns)
    attention = found.pop("attention")
    arrays = [getattr(attention, part) for part in PARTS] + [found[name] for name in sorted(found)]
    return [np.ascontiguousarray(array).tobytes() for array in arrays]


def rows(made, queries):
    """Return the rows of these first queries by the definition, float64 [units, query, token]."""
    tokens = made._tokens
    tokens.reach(queries)
    units, process = tokens.units, made._tokens._process
    age = np.subtract.outer(np.arange(queries), np.arange(queries))
    reach = 1.0, process.short_tokens, process.long_tokens
    g = sum(
        units.amplitude[part][:, None, None]
        * (np.exp(-np.maximum(age, 0) / reach[part]) if part else np.ones(age.shape))
        for part in range(3)
    )
    numerator = tokens.salience[:, None, :queries].astype(np.float64) * g * (age >= 0)
    return numerator / numerator.sum(axis=2, keepdims=True)


def same(have, want, rtol=2e-6):
    np.testing.assert_allclose(have.reshape(want.shape), want, rtol=rtol, atol=1e-12)


@pytest.mark.parametrize("appended", [1, 5, WINDOW, WINDOW + 1, BLOCK, BLOCK + 1, 200, 256])
def test_signals_are_the_sums_of_the_rows_by_the_definition(appended):
    made = signals(appended)
    wanted = rows(made, appended + 1)
    got = made.observe(np.arange(appended))["attention"]
    so_far = wanted[:, :appended, :appended]
    same(got.cumulative, so_far.sum(axis=1))
    same(got.last, so_far[:, -1])
    same(got.window, so_far[:, -WINDOW:].mean(axis=1))
    same(made.next_query(appended), wanted[:, appended, :appended])
    # A query gives 1 in all; the next one keeps some for itself.
    assert got.cumulative.sum(axis=2) == pytest.approx(appended, rel=1e-5)
    assert got.window.sum(axis=2) == pytest.approx(1, rel=1e-5)
    assert (made.next_query(appended).sum(axis=2) < 1).all()


def test_three_tokens_by_hand():
    # All weights 1, and g = c everywhere: row q gives 1 / (q + 1) to each token.
    flat = Process(spread=0.0, sinks=0, recency_short=0.0, recency_long=0.0, mixture_sd=0.0)
    made = signals(3, process=flat)
    got = made.observe(np.arange(3))["attention"]
    assert got.cumulative[1, 2] == pytest.approx([1 + 1 / 2 + 1 / 3, 1 / 2 + 1 / 3, 1 / 3])
    assert got.last[0, 0] == pytest.approx([1 / 3] * 3)
    assert got.window[0, 0] == pytest.approx([11 / 18, 5 / 18, 2 / 18])
    assert made.next_query(3)[0, 0] == pytest.approx([1 / 4] * 3)
    assert made.next_query(2)[0, 0] == pytest.approx([1 / 3] * 2)


def test_a_sink_takes_its_share_and_recency_its_own():
    one = Process(spread=0.0, sinks=1, sink_share=0.25, sink_sd=0.0, mixture_sd=0.0)
    last = signals(4096, process=one).observe(np.arange(4096))["attention"].last
    others = last[..., 1:].sum(axis=2)
    assert last[..., 0] == pytest.approx(0.25, abs=0.003)
    # 44% falls off within 7 tokens: three times that hold 1 - e**-3 of it, and a little else.
    near = last[..., -21:].sum(axis=2) / others
    assert near == pytest.approx(0.44 * (1 - np.exp(-3)) + 0.17 * 21 / 270, abs=0.01)


def test_query_heads_multiply_the_sum_and_nothing_else():
    one, three = signals(100), signals(100, query_heads=3)
    got, plain = (made.observe(np.arange(100))["attention"] for made in (three, one))
    assert (got.cumulative == plain.cumulative * np.float32(3)).all()
    assert (got.last == plain.last).all()
    assert (got.window == plain.window).all()


@pytest.mark.parametrize("pieces", [[1] * 150, [64, 64, 22], [63, 2, 63, 22], [149, 1], [0, 150]])
def test_bytes_do_not_depend_on_how_many_tokens_come_at_a_time(pieces):
    made = signals()
    for piece in pieces:
        made.extend(piece)
    assert made.appended == 150
    assert blob(made) == blob(signals(150))
    assert made.next_query(150).tobytes() == signals(150).next_query(150).tobytes()


def test_bytes_do_not_depend_on_what_was_asked_before():
    asked = signals()
    for piece in (3, 61, 40, 1, 1, 64):
        asked.extend(piece)
        asked.next_query(asked.appended)
        asked.next_query(1)
        asked.observe(np.arange(0, asked.appended, 2))
        asked.observe(np.arange(asked.appended))
        asked.fork(99).extend(5)
    assert blob(asked) == blob(signals(170))
    assert asked.next_query(7).tobytes() == signals(7).next_query(7).tobytes()


def test_a_chunk_sees_only_the_queries_so_far():
    made = signals(100)
    before = blob(made)
    made.extend(30)
    assert blob(made, np.arange(100)) != before
    assert blob(signals(100)) == before


@pytest.mark.parametrize("appended", [40, 200, 256])
def test_columns_pick_from_the_whole(appended):
    made = signals(appended)
    whole = made.observe(np.arange(appended))
    picks = np.random.default_rng(3)
    runs = [np.arange(10, 30), np.arange(0, appended - 1), np.array([appended - 1])]
    for columns in [*runs, np.sort(picks.choice(appended, appended // 2, replace=False))]:
        got = made.observe(columns)
        for part in PARTS:
            want = getattr(whole["attention"], part)[..., columns]
            assert getattr(got["attention"], part).tobytes() == want.tobytes()
        for name in ("key_norms", "value_norms"):
            assert (got[name] == whole[name][..., columns]).all()
        assert (got["keys"] == whole["keys"][:, :, columns]).all()
    empty = made.observe(np.zeros(0, np.int64))
    assert empty["attention"].window.shape == (*UNITS, 0)


def test_seeds_and_sequences_differ_and_repeat():
    kinds = [signals(80), signals(80, seed=8), signals(80, sequence=1)]
    assert len({blob(made)[0] for made in kinds}) == 3
    assert blob(signals(80)) == blob(kinds[0])
    # A seed is a model: its units are the same in every sequence.
    assert kinds[0]._tokens.units is kinds[2]._tokens.units
    assert not kinds[0]._tokens.units.spread.flags.writeable


def test_what_is_needed_is_returned_and_changes_nothing_else():
    whole = signals(90).observe(np.arange(90))
    for needs in ((), ("attention",), ("key_norms",), ("keys", "value_norms")):
        found = signals(90, needs=needs).observe(np.arange(90))
        assert set(found) == set(needs)
        for name in set(needs) - {"attention"}:
            assert found[name].tobytes() == whole[name].tobytes()
            assert found[name].dtype == np.float32
        if "attention" in found:
            got, want = found["attention"].cumulative, whole["attention"].cumulative
            assert got.tobytes() == want.tobytes()
        row = signals(90, needs=needs).next_query(90)
        assert row.tobytes() == signals(90).next_query(90).tobytes()


@pytest.mark.parametrize("at", [1, 40, BLOCK, BLOCK + 9, 2 * BLOCK])
def test_a_fork_keeps_the_past_and_draws_its_own_future(at):
    parent = signals(at)
    child, twin, other = parent.fork(5), parent.fork(5), parent.fork(6)
    assert blob(child) == blob(parent)
    for made in (parent, child, other):
        made.extend(100)
    for _ in range(100):
        twin.extend(1)
    assert blob(parent) == blob(signals(at + 100))
    assert blob(twin) == blob(child)
    saliences = [made._tokens.salience[:, : at + 100] for made in (parent, child, other)]
    for one, two in ((0, 1), (0, 2), (1, 2)):
        assert (saliences[one][:, :at] == saliences[two][:, :at]).all()
        assert (saliences[one][:, at:] != saliences[two][:, at:]).all()
    # The child's rows are still the definition's.
    same(
        child.observe(np.arange(at + 100))["attention"].cumulative,
        rows(child, at + 100).sum(axis=1),
    )


def test_a_fork_of_a_fork_inside_one_block():
    grown = signals(10).fork(1)
    grown.extend(10)
    grown = grown.fork(2)
    grown.extend(10)
    # Tokens 0 to 9, 10 to 19 and 20 to 29 come from three sequences' streams of block 0.
    drawn = [s._tokens._normal(0, 0, (2, 9), np.float64) for s in (signals(), grown)]
    owners = [signals(sequence=n)._tokens._normal(0, 0, (2, 9), np.float64) for n in (0, 1, 2)]
    assert (drawn[0] == owners[0]).all()
    for number, (start, end) in enumerate(((0, 10), (10, 20), (20, BLOCK))):
        assert (drawn[1][..., start:end] == owners[number][..., start:end]).all()


def test_a_fork_shares_nothing_that_can_change():
    parent = signals(100)
    child = parent.fork(4)
    mutable = 0
    for mine, its in ((parent, child), (parent._tokens, child._tokens)):
        for name, value in vars(mine).items():
            if isinstance(value, np.ndarray) and value.size:
                assert not np.shares_memory(value, vars(its)[name]), name
                mutable += 1
            elif isinstance(value, list):
                assert value is not vars(its)[name], name
                mutable += 1
    assert mutable == 10


def test_what_is_returned_cannot_be_written():
    found = signals(70).observe(np.arange(70))
    attention = found.pop("attention")
    arrays = [getattr(attention, part) for part in PARTS]
    for array in [*arrays, *found.values(), signals(70).next_query(70)]:
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 0


def test_key_norms_are_the_lengths_of_the_keys():
    made = signals(300, process=Process(dim=16)).observe(np.arange(300))
    assert made["keys"].shape == (*UNITS, 300, 16)
    assert np.linalg.norm(made["keys"], axis=3) == pytest.approx(made["key_norms"], rel=1e-5)


def test_keys_lean_to_a_mean_direction_and_salient_ones_less():
    made = signals(4096, needs=("attention", "keys", "value_norms"))
    tokens = made._tokens
    direction = tokens.keys[:, :4096] / np.linalg.norm(tokens.keys[:, :4096], axis=2, keepdims=True)
    cosine = (direction * tokens.units.direction[:, None]).sum(axis=2)
    assert cosine[:, 0] == pytest.approx(0, abs=1e-6)
    assert cosine[:, 1:].mean() == pytest.approx(0.6, abs=0.02)
    salience = np.log(tokens.salience[:, 1:4096])
    norms = np.log(tokens.key_norms[:, 1:4096])
    for unit in range(6):
        assert np.corrcoef(salience[unit], cosine[unit, 1:])[0, 1] == pytest.approx(-1, abs=1e-3)
        assert np.corrcoef(salience[unit], norms[unit])[0, 1] == pytest.approx(-0.25, abs=0.06)
        assert norms[unit].std() == pytest.approx(0.1, rel=0.1)
    assert tokens.key_norms[:, 0] == pytest.approx(tokens.units.key_norm * 0.3, rel=0.5)


def log_salience(process, tokens=8192, units=(6, 4)):
    made = SyntheticSignals(process, units, 5, 0, Attention, needs=())
    made.extend(tokens)
    logs = np.log(made._tokens.salience[:, :tokens].astype(np.float64))
    logs -= logs.mean(axis=1, keepdims=True)
    return (logs / made._tokens.units.spread[:, None]).reshape(*units, tokens)


def test_correlations_are_those_of_the_parameters():
    p = Process(sinks=0, shared=0.1, layer=0.5, depth_layers=3.0, passage=0.3, passage_tokens=10.0)
    z = log_salience(p)
    assert z.std() == pytest.approx(1, abs=0.03)
    heads = np.corrcoef(z[2])[np.triu_indices(4, 1)].mean()
    assert heads == pytest.approx(0.6, abs=0.04)
    for distance in (1, 3):
        pairs = [np.corrcoef(z[i, 0], z[i + distance, 1])[0, 1] for i in range(6 - distance)]
        assert np.mean(pairs) == pytest.approx(0.1 + 0.5 * np.exp(-distance / 3), abs=0.05)
    for lag in (1, 2, 5, 20):
        want = 0.7 * 0.2**lag + 0.3 * np.exp(-lag / 10)
        assert (z[..., lag:] * z[..., :-lag]).mean() == pytest.approx(want, abs=0.04)


def test_decayed_sums_by_hand_and_goes_on():
    assert decayed(np.array([1.0, 2.0, 4.0]), 0.5).tolist() == [1.0, 2.5, 5.25]
    assert decayed(np.array([[4.0]]), 0.5, np.array([2.5])).tolist() == [[5.25]]


def test_the_compiled_pass_equals_the_same_code_in_numpy():
    made = signals(150)
    compiled = blob(made)
    plain = getattr(attend, "py_func", attend)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kvsim.workload.synthetic.attend", plain)
        assert blob(made) == compiled


def test_extreme_parameters_stay_finite():
    wild = Process(
        spread=MOST_SPREAD, short_tokens=0.01, long_tokens=1e6, sinks=100, sink_share=0.9, sink_sd=4
    )
    found = signals(500, process=wild).observe(np.arange(500))
    for part in PARTS:
        assert np.isfinite(getattr(found["attention"], part)).all()
    assert np.isfinite(found["keys"]).all()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("spread", -0.1),
        ("spread", float("nan")),
        ("spread", "wide"),
        ("sinks", 1.0),
        ("sinks", True),
        ("sinks", -1),
        ("layer", 0.96),
        ("layer", 1.5),
        ("recency_short", 0.9),
        ("short_tokens", 0.0),
        ("sink_share", 0.0),
        ("dim", 0),
        ("neighbour", 1.0),
    ],
)
def test_parameters_that_cannot_be_are_refused_by_name(key, value):
    with pytest.raises(WorkloadError, match=rf"^process\.({key}|shared):? ?"):
        Process(**{key: value})


def test_every_parameter_is_documented_and_in_range():
    document = Process.__doc__ or ""
    for field in dataclasses.fields(Process):
        assert field.name in document
    assert draw_units(Process(), 4, 0).amplitude.shape == (3, 4)


def test_calls_that_cannot_be_answered_are_refused():
    made = signals(10)
    for columns in ([0, 10], [-1, 2], [3, 2], [4, 4]):
        with pytest.raises(WorkloadError, match="columns must ascend below 10"):
            made.observe(np.array(columns))
    for refused in (
        lambda: made.next_query(11),
        lambda: made.next_query(-1),
        lambda: made.extend(-1),
        lambda: made.fork(0),
        lambda: made.fork(3).fork(3),
        lambda: made.fork(-2),
        lambda: signals(needs=("queries",)),
        lambda: signals(query_heads=0),
        lambda: signals(seed=-1),
    ):
        with pytest.raises(WorkloadError):
            refused()
    assert blob(made) == blob(signals(10))


# --- the fit to the recorded model ------------------------------------------------------------

COLUMNS = {
    "sequence": ("shared", "sequence"),
    "layer": ("layer", "layer"),
    "head": ("head", "head"),
    "layer_sets_shared_pages": ("layer", "sequence"),
    "head_sets_shared_pages": ("head", "sequence"),
}
MOST_DIFFERENCE = 0.05
"""The bar; docs/synthetic.md says how far below it the defaults stay."""
FITTED = 0.015
"""What ten seeds stayed below, with some room: the worst was 0.008."""


@pytest.fixture(scope="module")
def golden(shared: Path) -> list[dict[str, str]]:
    with (shared / "signals" / "golden_scope.csv").open(newline="") as file:
        found = [row for row in csv.DictReader(file) if row["score"] == "h2o"]
    assert len(found) == 18
    return found


def prefill(seed: int, process: Process) -> Attention:
    made = SyntheticSignals(process, (30, 3), seed, 0, Attention, query_heads=3)
    made.extend(4096)
    return made.observe(np.arange(4096))["attention"]


def held(cumulative: np.ndarray, row: dict[str, str]) -> np.ndarray:
    """Return held fractions of the five columns, from scores alone: no ledger."""
    page, kept = int(row["page_tokens"]), int(float(row["keep_fraction"]) * 4096)
    scores = cumulative.astype(np.float64)

    def pages(score: np.ndarray) -> np.ndarray:
        score = score.copy()
        score[..., -64:] = np.inf
        order = np.argsort(score, axis=-1, kind="stable")[..., -kept:]
        mask = np.zeros(score.shape, bool)
        np.put_along_axis(mask, order, True, axis=-1)
        return mask.reshape(*score.shape[:-1], -1, page).any(axis=-1)

    shared, layer, head = pages(scores.mean(axis=(0, 1))), pages(scores.mean(axis=1)), pages(scores)
    return np.array(
        [
            shared.mean(),
            layer.mean(),
            head.mean(),
            layer.any(axis=0).mean(),
            head.any(axis=(0, 1)).mean(),
        ]
    )


def difference(golden: list[dict[str, str]], seed: int, process: Process) -> np.ndarray:
    """Return synthetic minus recorded, [18, 5]."""
    cumulative = prefill(seed, process).cumulative
    return np.array(
        [held(cumulative, row) - [float(row[column]) for column in COLUMNS] for row in golden]
    )


def test_h2o_curves_match_the_recorded_model_for_several_seeds(golden):
    for seed in range(5):
        off = np.abs(difference(golden, seed, Process()))
        assert off.mean() <= FITTED
        assert off.mean(axis=0).max() <= MOST_DIFFERENCE


@pytest.mark.parametrize(
    "wrong",
    [
        # Tokens without neighbours in common, layers without anything in common, no recency.
        {"passage": 0.9},
        {"shared": 0.0, "layer": 0.0},
        {"recency_short": 0.0, "recency_long": 0.0},
    ],
)
def test_another_process_does_not_match(golden, wrong):
    off = np.abs(difference(golden, 7, Process(**wrong)))
    assert off.mean() > 2 * FITTED


@pytest.mark.parametrize("seed", [7, 8])
def test_the_ledger_confirms_the_fit(golden, tmp_path, seed):
    attention = prefill(seed, Process())
    path = write_recording(
        tmp_path,
        {
            "cum": attention.cumulative,
            "last": attention.last,
            "snap": attention.window,
            "knorm": np.ones_like(attention.last),
        },
    )
    off = []
    for wanted in golden:
        direct = held(attention.cumulative, wanted)
        for (column, (sets, scope)), counted in zip(COLUMNS.items(), direct, strict=True):
            row = run(
                reading.build(
                    {
                        "workload.path": path,
                        "policy.name": "h2o",
                        "pages.tokens": int(wanted["page_tokens"]),
                        "pages.scope": scope,
                        "selection.sets": sets,
                        "budget.fraction": float(wanted["keep_fraction"]),
                    },
                    "test",
                )
            )
            assert row["held_fraction"] == pytest.approx(counted, abs=1e-12)
            off.append(abs(row["held_fraction"] - float(wanted[column])))
    assert len(off) == 90
    assert np.mean(off) <= FITTED
