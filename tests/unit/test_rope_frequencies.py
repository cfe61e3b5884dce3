"""Frequencies of rotations, against formulas in plain Python."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from rope_facts import DEEPSEEK, GEMMA_3, GEMMA_4, GPT_OSS, LAGUNA, LLAMA, PHI

from kvsim.errors import RotationError
from kvsim.tensors.rope import Rope, rope_of_facts, tables


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
