"""Quantized keys under span eviction: exact with a shadow, refused without, measured when lossy."""

from __future__ import annotations

import math

import numpy as np
import pytest

from kvsim.errors import ExactnessRefused, LayoutError, RotationError
from kvsim.tensors.quantized import KINDS, decode, encode
from kvsim.tensors.quantized_keys import QuantizedKeys, drift
from kvsim.tensors.rope import Rope, rotate, tables

PLAIN = Rope(16, 1e4)
PARTIAL = Rope(8, 1e4)
YARN = Rope(16, 15e4, "yarn", 32.0, 32)


def keys(tokens, heads=2, width=16, seed=1):
    return np.random.default_rng(seed).standard_normal((tokens, heads, width), dtype=np.float32)


def never_seen(kind, rope, raw, pairing="half_split"):
    """Codes of these rows had no other token ever been there, by rotating each on its own."""
    turns = tables(rope, len(raw))
    turned = raw.copy()
    for position, row in enumerate(raw):
        turned[position, :, : rope.dim] = rotate(
            row[:, : rope.dim], turns.cos[position], turns.sin[position], pairing
        )
    return encode(kind, turned)


def same(ours, theirs):
    if (ours.scale is None) != (theirs.scale is None):
        return False
    if ours.scale is not None and not np.array_equal(
        ours.scale.view(np.uint32), theirs.scale.view(np.uint32)
    ):
        return False
    return ours.codes.tobytes() == theirs.codes.tobytes()


def filled(kind, mode, rope=PLAIN, raw=None, pairing="half_split"):
    raw = keys(40) if raw is None else raw
    cache = QuantizedKeys(kind, mode, rope, raw.shape[1:], len(raw), pairing)
    # In parts, as prefill and decode bring them.
    cache.append(raw[:25])
    cache.append(raw[25:])
    return cache


@pytest.mark.parametrize("pairing", ["half_split", "interleaved", "interleaved_to_half"])
@pytest.mark.parametrize("rope", [PLAIN, PARTIAL, YARN], ids=["plain", "partial", "yarn"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_shadow_makes_spans_exact(kind, rope, pairing):
    rng = np.random.default_rng(2)
    raw = keys(40)
    cache = filled(kind, "shadow", rope, raw, pairing)
    assert cache.supports_exact_span
    assert same(cache.codes, never_seen(kind, rope, raw, pairing))
    while len(raw) > 1:
        first, count = int(rng.integers(0, len(raw))), int(rng.integers(1, 9))
        raw = np.concatenate([raw[:first], raw[first + count :]])
        cache.evict_span(first, count)
        assert len(cache) == len(raw)
        assert same(cache.codes, never_seen(kind, rope, raw, pairing))
    cache.append(keys(3, seed=5))
    assert same(
        cache.codes, never_seen(kind, rope, np.concatenate([raw, keys(3, seed=5)]), pairing)
    )


@pytest.mark.parametrize("kind", KINDS)
def test_lossy_keys_are_not_exact(kind):
    """The control of the test above: the same comparison must see a composed rotation."""
    raw = keys(40)
    cache = filled(kind, "lossy", raw=raw)
    assert not cache.supports_exact_span
    assert cache.evict_span(4, 3) == 3
    rest = np.concatenate([raw[:4], raw[7:]])
    exact = never_seen(kind, PLAIN, rest)
    assert not same(cache.codes, exact)
    moved = cache.codes.codes[4:] != exact.codes[4:]
    assert 0.1 < moved.mean() < 0.7
    # Those in front of the span have not moved, and are as they were.
    assert np.array_equal(cache.codes.codes[:4], exact.codes[:4])
    loss = np.abs(cache.read() - decode(kind, *exact)).max()
    assert 0 < loss < {"float32": 1e-6, "int8": 0.06, "e4m3": 0.6, "e4m3_scaled": 0.6}[kind]


def test_lossy_keys_are_multiplied_by_the_attention_factor_once():
    raw = keys(40)
    assert YARN.attention() > 1.3
    cache = filled("float32", "lossy", YARN, raw)
    for _ in range(5):
        cache.evict_span(2, 4)
    rest = np.concatenate([raw[:2], raw[22:]])
    assert np.abs(cache.read() - never_seen("float32", YARN, rest).codes).max() < 5e-6


@pytest.mark.parametrize("kind", KINDS)
def test_without_a_shadow_a_span_is_refused_and_the_prefix_flushed(kind):
    cache = filled(kind, "flush")
    before = cache.codes.codes.tobytes()
    assert not cache.supports_exact_span
    with pytest.raises(ExactnessRefused, match="flush the prefix, or keep a float32 k_raw"):
        cache.evict_span(4, 3)
    assert cache.codes.codes.tobytes() == before
    assert cache.flush() == 40
    assert len(cache) == 0
    cache.append(keys(6, seed=3))
    assert same(cache.codes, never_seen(kind, PLAIN, keys(6, seed=3)))


@pytest.mark.parametrize("mode", ["shadow", "flush", "lossy"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_tail_moves_nobody_and_is_exact(kind, mode):
    raw = keys(40)
    cache = filled(kind, mode, raw=raw)
    assert cache.evict_span(30, 10**6) == 10
    assert same(cache.codes, never_seen(kind, PLAIN, raw[:30]))
    assert cache.evict_span(0, 30) == 30
    assert len(cache) == 0


@pytest.mark.parametrize("mode", ["flush", "lossy"])
@pytest.mark.parametrize("kind", KINDS)
def test_keys_that_do_not_rotate_are_exact_without_a_shadow(kind, mode):
    raw = keys(40)
    cache = filled(kind, mode, Rope(0), raw)
    assert cache.supports_exact_span
    cache.evict_span(4, 3)
    assert same(cache.codes, encode(kind, np.concatenate([raw[:4], raw[7:]])))


@pytest.mark.parametrize("span", [(-1, 3), (0, 0), (4, -1), (40, 1), (2**70, 1)])
def test_spans_that_hold_nothing_do_nothing(span):
    cache = filled("int8", "flush")
    before = cache.codes.codes.tobytes()
    assert cache.evict_span(*span) == 0
    assert cache.codes.codes.tobytes() == before


def test_bad_input_changes_nothing():
    cache = filled("int8", "shadow")
    before = cache.codes.codes.tobytes()
    with pytest.raises(RotationError, match="position 40 "):
        cache.append(keys(1))
    cache.evict_span(39, 1)
    bad = keys(1)
    bad[0, 0, 0] = np.nan
    with pytest.raises(ExactnessRefused):
        cache.append(bad)
    with pytest.raises(LayoutError, match="keys are float32"):
        cache.append(keys(1, heads=3))
    with pytest.raises(LayoutError, match="keys are float32"):
        cache.append(keys(1).astype(np.float64))
    assert cache.codes.codes.tobytes() == before[: 39 * 32]


@pytest.mark.parametrize(
    ("arguments", "refusal"),
    [
        (("int8", "exact", PLAIN, (2, 16), 8), LayoutError),
        (("int4", "shadow", PLAIN, (2, 16), 8), LayoutError),
        (("int8", "shadow", PLAIN, (2, 8), 8), LayoutError),
        (("int8", "shadow", PLAIN, (), 8), LayoutError),
        (("int8", "lossy", PLAIN, (2, 16), 8, "interleaved_to_half"), RotationError),
        (
            (
                "int8",
                "shadow",
                Rope(
                    2,
                    scaling="longrope",
                    original_context=7,
                    short_factors=(1.0,),
                    long_factors=(2.0,),
                ),
                (2,),
                8,
            ),
            RotationError,
        ),
    ],
)
def test_caches_that_cannot_be_are_refused(arguments, refusal):
    with pytest.raises(refusal):
        QuantizedKeys(*arguments)


def test_drift_measures_what_composing_costs():
    spans = [16] * 10
    raw = keys(160 + 128, 2, 128)
    rope = Rope(128, 5e5)
    found = {kind: drift(kind, rope, raw, spans) for kind in KINDS}
    for kind, steps in found.items():
        assert [step.evictions for step in steps] == list(range(1, 11))
        assert steps[-1].codes_changed > steps[0].codes_changed > 0
        assert steps[-1].error_max > steps[0].error_max > 0
        for step in steps:
            assert step.values_changed >= step.codes_changed
            assert step.loss_max > step.exact_loss_max or kind == "float32"
    # semantics.md: one composition changes 53 to 58% of float32 elements, ten 87%.
    assert 0.53 <= found["float32"][0].codes_changed <= 0.58
    assert math.isclose(found["float32"][9].codes_changed, 0.87, abs_tol=0.02)
    assert found["float32"][9].exact_loss_max == 0
    # A new scale for a row changes all of its values, and far fewer of its codes.
    assert found["int8"][0].values_changed > 0.9 > 0.3 > found["int8"][0].codes_changed
    assert found["e4m3"][0].values_changed == found["e4m3"][0].codes_changed


def test_drift_is_less_for_spans_at_random():
    rng = np.random.default_rng(4)
    spans = rng.integers(1, 33, 10).tolist()
    rope = Rope(128, 5e5)
    at_random = drift("float32", rope, keys(sum(spans) + 128, 2, 128), spans)
    equal = drift("float32", rope, keys(160 + 128, 2, 128), [16] * 10)
    assert at_random[-1].codes_changed < equal[-1].codes_changed - 0.03


def test_drift_compares_with_what_never_saw_the_spans():
    raw = keys(30)
    step = drift("int8", PLAIN, raw, [3, 4])[-1]
    exact = never_seen("int8", PLAIN, raw[7:])
    lossy = filled("int8", "lossy", raw=raw)
    lossy.evict_span(4, 3)
    lossy.evict_span(0, 4)
    assert step.codes_changed == np.mean(lossy.codes.codes != exact.codes)
    assert step.error_max == np.abs(lossy.read() - decode("int8", *exact)).max()


@pytest.mark.parametrize("spans", [[0], [3, -1], [30], [20, 10]])
def test_drift_needs_spans_and_tokens_behind_them(spans):
    with pytest.raises(LayoutError, match="nothing behind spans"):
        drift("int8", PLAIN, keys(30), spans)
