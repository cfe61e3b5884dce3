"""Rotation: frequencies against formulas in plain Python, bits against what was measured.

The shares of changed elements are those that semantics.md measured at head_dim 128; the data are
other random numbers, so they are held within a few percent.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from kvsim.errors import LayoutError, RotationError
from kvsim.tensors.rope import CANONICAL_NAN, Rope, rope_of_facts, rotate, rows, tables

LLAMA = {"theta": 5e5, "type": "llama3", "partial": 1.0, "factor": 32.0, "original_max": 8192}
GPT_OSS = {"theta": 15e4, "type": "yarn", "partial": 1.0, "factor": 32.0, "original_max": 4096}
DEEPSEEK = {"theta": 1e4, "type": "yarn", "partial": 1.0, "factor": 40, "original_max": 4096}
LAGUNA = {"theta": 5e5, "type": "yarn", "partial": 0.5, "factor": 32.0, "original_max": 8192}
GEMMA_3 = {"theta": 1e6, "type": "linear", "partial": 1.0, "factor": 8.0}
GEMMA_4 = {"theta": 1e6, "type": "proportional", "partial": 0.25}
PHI = {
    "theta": 1e4,
    "type": "longrope",
    "partial": 0.75,
    "original_max": 4096,
    "factor": 32.0,
    "short_factors": [1.0] * 48,
    "long_factors": [1.0 + pair / 4 for pair in range(48)],
}


def plain(dim, theta):
    return [theta ** (-2 * pair / dim) for pair in range(dim // 2)]


def llama3(dim, theta, factor, original, low=1.0, high=4.0):
    """Llama 3.1 by wavelengths, as its authors wrote it down."""
    found = []
    for frequency in plain(dim, theta):
        wavelength = 2 * math.pi / frequency
        if wavelength < original / high:
            found.append(frequency)
        elif wavelength > original / low:
            found.append(frequency / factor)
        else:
            smooth = (original / wavelength - low) / (high - low)
            found.append((1 - smooth) * frequency / factor + smooth * frequency)
    return found


def yarn_ends(dim, theta, original, fast=32.0, slow=1.0):
    """The pairs whose wavelength fits `fast` and `slow` times into the original context."""
    return [dim / 2 * math.log(original / (2 * math.pi * turns), theta) for turns in (fast, slow)]


def yarn(dim, theta, factor, first, last):
    found = []
    for pair, frequency in enumerate(plain(dim, theta)):
        kept = 1 - min(max((pair - first) / (last - first), 0.0), 1.0)
        found.append(kept * frequency + (1 - kept) * frequency / factor)
    return found


def close(rope, expected, regime="short"):
    assert rope.inverse_frequencies(regime).dtype == np.float64
    assert rope.inverse_frequencies(regime).tolist() == pytest.approx(expected, rel=1e-13, abs=0)


def test_llama_3_2_1b():
    rope = rope_of_facts(LLAMA, 64)
    close(rope, llama3(64, 5e5, 32.0, 8192))
    assert rope.attention() == 1.0
    # All three parts are there: kept, blended, divided.
    slowed = np.array(plain(64, 5e5)) / rope.inverse_frequencies()
    assert slowed[0] == 1.0
    assert 1.0 < slowed[17] < 32.0
    assert slowed[-1] == pytest.approx(32.0)


def test_llama_band_of_no_width_has_no_blend():
    rope = Rope(128, 5e5, "llama3", 16.0, 8192, low_freq_factor=1.0, high_freq_factor=1.0)
    slowed = np.array(plain(128, 5e5)) / rope.inverse_frequencies()
    assert set(slowed.round(9)) == {1.0, 16.0}


def test_gpt_oss_20b_keeps_fractional_ends():
    rope = rope_of_facts({**GPT_OSS, "truncate": False}, 64)
    first, last = yarn_ends(64, 15e4, 4096)
    assert (first, last) == pytest.approx((8.0928, 17.3980), abs=1e-3)
    close(rope, yarn(64, 15e4, 32.0, first, last))
    assert rope.attention() == pytest.approx(1.3465735902799727, rel=1e-15)
    # The catalogue is silent about it, and whole pairs give other frequencies.
    close(rope_of_facts(GPT_OSS, 64), yarn(64, 15e4, 32.0, 8, 18))


def test_deepseek_v3():
    ends = yarn_ends(64, 1e4, 4096)
    assert (math.floor(ends[0]), math.ceil(ends[1])) == (10, 23)
    close(rope_of_facts(DEEPSEEK, 64), yarn(64, 1e4, 40.0, 10, 23))
    assert rope_of_facts(DEEPSEEK, 64).attention() == 0.1 * math.log(40) + 1
    weighed = rope_of_facts({**DEEPSEEK, "mscale": 1.0, "mscale_all_dim": 1.0}, 64)
    assert weighed.attention() == 1.0
    weighed = rope_of_facts({**DEEPSEEK, "mscale": 0.707, "mscale_all_dim": 1.0}, 64)
    assert weighed.attention() == pytest.approx(
        (0.1 * 0.707 * math.log(40) + 1) / (0.1 * math.log(40) + 1)
    )


def test_laguna_turns_half_of_the_head():
    rope = rope_of_facts(LAGUNA, 128)
    assert rope.dim == 64
    first, last = yarn_ends(64, 5e5, 8192)
    close(rope, yarn(64, 5e5, 32.0, math.floor(first), math.ceil(last)))


def test_yarn_without_a_ramp_steps_from_plain_to_divided():
    # Both ends are pair 0: the ramp of width 0.001 puts every later pair beyond it.
    rope = Rope(8, 1e4, "yarn", 4.0, 6, beta_fast=1.0, beta_slow=1.0)
    close(rope, [1.0, *(frequency / 4 for frequency in plain(8, 1e4)[1:])])


def test_yarn_ends_are_clamped_where_the_common_implementation_does():
    # At theta 10 one turn falls on pair 12.5 of 4: the ramp ends at 2 * 4 - 1.
    rope = Rope(8, 10.0, "yarn", 4.0, 8192, beta_fast=512.0)
    assert yarn_ends(8, 10.0, 8192, 512.0) == pytest.approx((1.6238, 12.4608), abs=1e-4)
    close(rope, yarn(8, 10.0, 4.0, 1, 7))
    # Fractional ends that coincide: the first whole pair behind them is divided in full.
    rope = Rope(8, 10.0, "yarn", 4.0, 8192, beta_fast=512.0, beta_slow=512.0, truncate=False)
    frequencies = plain(8, 10.0)
    close(rope, frequencies[:2] + [frequency / 4 for frequency in frequencies[2:]])


def test_gemma_3_27b_divides_all():
    close(rope_of_facts(GEMMA_3, 128), [frequency / 8 for frequency in plain(128, 1e6)])


def test_gemma_4_spreads_over_the_head_and_turns_a_quarter():
    rope = rope_of_facts(GEMMA_4, 512)
    assert rope.dim == 512
    close(rope, plain(512, 1e6)[:64] + [0.0] * 192)
    # A share that is no whole number of pairs is rounded down: 2.8 of 8.
    assert np.count_nonzero(Rope(16, scaling="proportional", share=0.35).inverse_frequencies()) == 2
    halved = rope_of_facts({**GEMMA_4, "factor": 2.0}, 512)
    close(halved, [frequency / 2 for frequency in plain(512, 1e6)[:64]] + [0.0] * 192)


def test_longrope_has_two_regimes():
    rope = rope_of_facts(PHI, 128)
    assert rope.dim == 96
    close(rope, plain(96, 1e4))
    longer = [frequency / (1 + pair / 4) for pair, frequency in enumerate(plain(96, 1e4))]
    close(rope, longer, "long")
    assert rope.attention() == math.sqrt(1 + math.log(32) / math.log(4096))
    assert replace(rope, factor=1.0).attention() == 1.0
    assert [rope.regime(length) for length in (0, 4096, 4097)] == ["short", "short", "long"]
    assert Rope(8).regime(10**9) == "short"
    with pytest.raises(RotationError, match="no regime 'long'"):
        Rope(8).inverse_frequencies("long")
    with pytest.raises(RotationError, match="no regime 'middle'"):
        tables(rope, 4, "middle")


REFUSED = {
    "Command-A (03-2025, 111B)": "theta is unknown",
    "MiMo-V2.5": "theta is unknown",
    "Phi-4-mini": "short_factors is unknown",
}


def test_every_model_of_the_catalogue_builds_or_is_refused_by_name(shared):
    models = json.loads((shared / "models.json").read_text())
    refused = {}
    for model in models:
        entry = model["rope"]
        entries = [entry] if "theta" in entry else list(entry.values())
        for layer in model["layers"]:
            # A whole key where there is one: `partial` is a share of it.
            width = layer.get("k_head_dim") or layer.get("rope_dim")
            for facts in entries:
                try:
                    rope = rope_of_facts(facts, width)
                except LayoutError as error:
                    refused[model["name"]] = str(error)
                    continue
                assert 0 < rope.dim <= width
                assert np.isfinite(rope.inverse_frequencies()).all()
                assert layer.get("k_head_dim") is None or layer.get("rope_dim") in (None, rope.dim)
    assert len(models) == 36
    assert set(refused) == set(REFUSED)
    for name, reason in REFUSED.items():
        assert reason in refused[name]


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ({"type": "default"}, "theta is unknown"),
        ({"theta": None}, "theta is unknown"),
        ({"theta": 1e4, "partial": None}, "partial is unknown"),
        ({"theta": 1e4, "type": None}, "type is unknown"),
        ({"theta": 1e4, "type": "dynamic"}, "not 'dynamic'"),
        ({"theta": 1e4, "type": "linear"}, "factor is unknown"),
        ({**LLAMA, "original_max": None}, "original_max is unknown"),
        ({**PHI, "long_factors": None}, "long_factors is unknown"),
        ({**PHI, "factor": None}, "factor is unknown"),
        ({"theta": "1e4"}, "theta must be finite numbers, not '1e4'"),
        ({"theta": math.nan}, "theta must be finite numbers"),
        ({**PHI, "short_factors": ["a"] * 48}, "short_factors must be finite numbers"),
        ({"theta": 1e4, "partial": 0.5, "rotary_dim": 32}, "rotary_dim is 32"),
    ],
)
def test_facts_that_are_missing_or_contradict_are_refused(facts, reason):
    with pytest.raises(LayoutError, match=reason):
        rope_of_facts(facts, 128)


def test_facts_without_a_type_are_plain():
    assert rope_of_facts({"theta": 1e4}, 64) == Rope(64)
    assert rope_of_facts({"theta": 5e6, "partial": 0.5, "rotary_dim": 64}, 128) == Rope(64, 5e6)


@pytest.mark.parametrize(
    "wrong",
    [
        {"dim": 7},
        {"dim": -2},
        {"theta": 0.0},
        {"theta": -1.0},
        {"theta": math.inf},
        {"theta": math.nan},
        {"factor": 0.0},
        {"factor": math.nan},
        {"attention_factor": 0.0},
        {"scaling": "dynamic"},
        {"scaling": "llama3"},
        {"scaling": "yarn", "original_context": 1},
        {"scaling": "yarn", "original_context": 64, "theta": 1.0},
        {"scaling": "yarn", "original_context": 64, "mscale": -1.0},
        {"low_freq_factor": 5.0, "high_freq_factor": 4.0},
        {"beta_fast": 1.0, "beta_slow": 2.0},
        {"share": 0.0},
        {"share": 1.5},
        {"scaling": "longrope", "original_context": 64},
        {"scaling": "longrope", "original_context": 64, "short_factors": (1.0,) * 4},
        {
            "scaling": "longrope",
            "original_context": 64,
            "short_factors": (1.0,) * 4,
            "long_factors": (1.0, 1.0, 0.0, 1.0),
        },
    ],
)
def test_parameters_that_are_no_rotation_are_refused(wrong):
    with pytest.raises(RotationError):
        Rope(**{"dim": 8, **wrong})


def test_tables_are_float64_numbers_cast_once():
    rope = Rope(16, 1e4)
    turns = tables(rope, 3)
    for position in range(3):
        for pair, frequency in enumerate(rope.inverse_frequencies().tolist()):
            assert turns.cos[position, pair] == np.float32(math.cos(position * frequency))
            assert turns.sin[position, pair] == np.float32(math.sin(position * frequency))
    for table in turns:
        assert table.dtype == np.float32
        assert table.flags.c_contiguous


def test_a_longer_table_begins_with_the_same_bits():
    longer = tables(Rope(96, 1e4), 9001)
    for length in (1, 5, 4096, 4097, 8193):
        shorter = tables(Rope(96, 1e4), length)
        for ours, theirs in zip(shorter, longer, strict=True):
            assert np.array_equal(ours.view(np.uint32), theirs[:length].view(np.uint32))


def test_attention_factor_multiplies_in_float32():
    plain_turns = tables(replace(rope_of_facts(GPT_OSS, 64), attention_factor=1.0), 100)
    turns = tables(rope_of_facts(GPT_OSS, 64), 100)
    factor = np.float32(0.1 * math.log(32) + 1)
    for ours, theirs in zip(turns, plain_turns, strict=True):
        assert ours.dtype == np.float32
        assert np.array_equal(ours, theirs * factor)


def test_tables_of_nothing():
    assert tables(Rope(0), 5).cos.shape == (5, 0)
    assert tables(Rope(8), 0).sin.shape == (0, 4)
    with pytest.raises(RotationError, match="-1"):
        tables(Rope(8), -1)
    empty = np.empty((3, 0), np.float32)
    assert rotate(empty, empty, empty, "half_split").shape == (3, 0)


def test_rows_of_positions():
    turns = tables(Rope(8), 10)
    picked = rows(turns, np.array([[9, 0], [3, 3]]))
    assert picked.cos.shape == (2, 2, 4)
    assert np.array_equal(picked.sin[1, 0], turns.sin[3])
    assert rows(turns, np.array([], np.float64)).cos.shape == (0, 4)
    assert rows(turns, np.array(4)).cos.shape == (4,)


@pytest.mark.parametrize(
    ("positions", "named"),
    [
        (np.array([0, -1]), "position -1 "),
        (np.array([0, 10]), "position 10 "),
        (np.array([-(2**63)]), "position -9223372036854775808 "),
        (np.array([2**63 - 1]), "position 9223372036854775807 "),
        (np.array([2**64 - 1], np.uint64), "position 18446744073709551615 "),
        (np.array([2**70]), "not object"),
        (np.array([1.0]), "not float64"),
        (np.array([True]), "not bool"),
    ],
)
def test_positions_outside_the_tables_are_refused(positions, named):
    with pytest.raises(RotationError, match=named):
        rows(tables(Rope(8), 10), positions)


def test_pairings_read_and_write_where_they_say():
    window = np.array([1, 2, 3, 4, 5, 6], np.float32)
    cos, sin = np.zeros(3, np.float32), np.ones(3, np.float32)
    # A quarter turn: (a, b) becomes (-b, a).
    assert rotate(window, cos, sin, "half_split").tolist() == [-4, -5, -6, 1, 2, 3]
    assert rotate(window, cos, sin, "interleaved").tolist() == [-2, 1, -4, 3, -6, 5]
    assert rotate(window, cos, sin, "interleaved_to_half").tolist() == [-2, -4, -6, 1, 3, 5]


def test_pairings_agree_on_permuted_elements():
    rng = np.random.default_rng(3)
    window = rng.standard_normal((5, 2, 16), dtype=np.float32)
    turns = rows(tables(Rope(16), 100), rng.integers(0, 100, (5, 1)))
    order = np.arange(16).reshape(8, 2).T.reshape(-1)
    split = rotate(np.ascontiguousarray(window[..., order]), *turns, "half_split")
    assert np.array_equal(rotate(window, *turns, "interleaved_to_half"), split)
    assert np.array_equal(rotate(window, *turns, "interleaved")[..., order], split)


def test_each_product_and_sum_is_rounded_on_its_own():
    rng = np.random.default_rng(4)
    window = rng.standard_normal((7, 8), dtype=np.float32)
    turns = rows(tables(Rope(8), 50), rng.integers(0, 50, 7))
    turned = rotate(window, *turns, "half_split")
    for token in range(7):
        for pair in range(4):
            a, b = window[token, pair], window[token, pair + 4]
            cos, sin = turns.cos[token, pair], turns.sin[token, pair]
            assert turned[token, pair] == np.float32(a * cos) - np.float32(b * sin)
            assert turned[token, pair + 4] == np.float32(b * cos) + np.float32(a * sin)


def test_every_nan_is_stored_as_one():
    payloads = np.array([0x7FC00000, 0xFFC00000, 0x7F800001, 0xFFFFFFFF, 0x7FC12345], np.uint32)
    window = np.zeros((5, 4), np.float32)
    window.view(np.uint32)[:, 1] = payloads
    turns = rows(tables(Rope(4), 9), np.full(5, 7))
    for pairing in ("half_split", "interleaved", "interleaved_to_half"):
        turned = rotate(window, *turns, pairing)
        bits = turned.view(np.uint32)[np.isnan(turned)]
        assert bits.size == 10
        assert (bits == CANONICAL_NAN).all()
    # Infinity minus infinity, whose NaN has its sign set on common machines.
    window = np.full((1, 2), np.inf, np.float32)
    turned = rotate(window, np.ones((1, 1), np.float32), np.ones((1, 1), np.float32), "half_split")
    assert turned.view(np.uint32).tolist() == [[CANONICAL_NAN, 0x7F800000]]


def test_frequency_zero_keeps_finite_values_and_nothing_else():
    rope = rope_of_facts(GEMMA_4, 16)
    turns = rows(tables(rope, 100), np.array([99]))
    window = np.random.default_rng(5).standard_normal((1, 16), dtype=np.float32)
    turned = rotate(window, *turns, "half_split")
    still = np.r_[2:8, 10:16]
    assert np.array_equal(turned[:, still].view(np.uint32), window[:, still].view(np.uint32))
    assert (turned[:, [0, 1, 8, 9]] != window[:, [0, 1, 8, 9]]).all()
    window[0, 4], window[0, 5], window[0, 13] = np.inf, -0.0, -0.0
    turned = rotate(window, *turns, "half_split")
    # The infinity stays, its partner is lost; -0 minus -0 * 0 is +0.
    assert turned[0, 4] == np.inf
    assert turned.view(np.uint32)[0, 12] == CANONICAL_NAN
    assert turned.view(np.uint32)[0, 5] == 0


def test_windows_that_do_not_fit_are_refused():
    window, half = np.zeros((3, 8), np.float32), np.zeros((3, 4), np.float32)
    for arguments in (
        (window, half, half, "crosswise"),
        (window.astype(np.float64), half, half, "half_split"),
        (window, half.astype(np.float64), half, "half_split"),
        (window, half, half[:2], "half_split"),
        (window[:, :7], half, half, "half_split"),
        (window, half[:2], half[:2], "half_split"),
        (window, np.float32(1), np.float32(0), "half_split"),
    ):
        with pytest.raises(RotationError):
            rotate(*arguments)


# What was measured at head_dim 128 on N(0, 1) numbers.

TOKENS = 1024


@pytest.fixture(scope="module", params=[1e4, 1e6])
def head(request):
    """Keys, the tables, and positions at which the keys stand."""
    rng = np.random.default_rng(11)
    keys = rng.standard_normal((TOKENS, 128), dtype=np.float32)
    return keys, tables(Rope(128, request.param), 8192), rng.integers(1024, 8192, TOKENS), rng


def back(keys, turns, difference):
    step = rows(turns, difference)
    return rotate(keys, step.cos, -step.sin, "half_split")


def changed(ours, theirs):
    return np.mean(ours.view(np.uint32) != theirs.view(np.uint32))


def test_composing_two_rotations_changes_more_than_half(head):
    keys, turns, positions, rng = head
    difference = rng.integers(1, 1024, TOKENS)
    once = rotate(keys, *rows(turns, positions - difference), "half_split")
    twice = back(rotate(keys, *rows(turns, positions), "half_split"), turns, difference)
    assert 0.53 <= changed(once, twice) <= 0.58
    assert 4e-7 <= np.abs(once - twice).max() <= 1.2e-6


@pytest.mark.parametrize(("spans", "share"), [("equal", 0.87), ("random", 0.78)])
def test_ten_corrections_change_most(head, spans, share):
    """The 87% of semantics.md are those of equal spans: random ones cancel some of the error."""
    keys, turns, positions, rng = head
    drifted = rotate(keys, *rows(turns, positions), "half_split")
    for _ in range(10):
        equal = np.full(TOKENS, 16)
        difference = equal if spans == "equal" else rng.integers(1, 100, TOKENS)
        positions = positions - difference
        drifted = back(drifted, turns, difference)
    exact = rotate(keys, *rows(turns, positions), "half_split")
    assert changed(exact, drifted) == pytest.approx(share, abs=0.02)
    assert 1e-6 <= np.abs(exact - drifted).max() <= 3e-6


def test_a_fused_multiply_add_changes_a_quarter(head):
    """Control: the first product exact, one rounding at the end."""
    keys, turns, positions, _ = head
    cos, sin = (table.astype(np.float64) for table in rows(turns, positions))
    a, b = keys[:, :64].astype(np.float64), keys[:, 64:].astype(np.float64)
    rounded = [(x * sin).astype(np.float32).astype(np.float64) for x in (b, a)]
    fused = np.concatenate([a * cos - rounded[0], b * cos + rounded[1]], axis=1)
    pinned = rotate(keys, *rows(turns, positions), "half_split")
    assert changed(pinned, fused.astype(np.float32)) == pytest.approx(0.26, abs=0.02)


def test_an_angle_in_float32_is_off_at_large_positions():
    inverse = Rope(128).inverse_frequencies()
    angle = (np.float32(1e5) * inverse.astype(np.float32)).astype(np.float64)
    error = np.abs(np.cos(angle) - np.cos(1e5 * inverse)).max()
    assert error == pytest.approx(5e-3, rel=0.1)
    # Ours is off by one rounding of the result.
    cast = tables(Rope(128), 100_001).cos[100_000]
    assert np.abs(cast - np.cos(1e5 * inverse)).max() < 2.0**-24
