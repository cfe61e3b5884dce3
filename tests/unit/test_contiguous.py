"""The contiguous cache by hand: the oracle must be right before anything is proved against it.

Each docstring names the bug that its test would catch. Rows are compared as integers.
"""

from __future__ import annotations

import numpy as np
import pytest
from differential.paged_rows import bits, equal
from spliced import (
    DENSE,
    NOTHING,
    PLANES,
    ROPES,
    SPANS,
    THETAS,
    TOKENS,
    dense_keys,
    digest,
    drawn,
    filled,
    refuse,
    turned,
)

from kvsim.errors import ExactnessRefused, VictimError
from kvsim.layout.families import RowFamily, RowSpec, dense, glm_dsa, mla
from kvsim.tensors.contiguous import ContiguousCache
from kvsim.tensors.rope import CANONICAL_NAN, Rope, rotate, tables
from kvsim.tensors.shape import CacheShape


@pytest.mark.parametrize("positions", ["renumber", "keep"])
@pytest.mark.parametrize("planes", PLANES)
@pytest.mark.parametrize("span", NOTHING)
def test_spans_that_name_nothing_change_nothing(span, planes, positions):
    """An end that overflows, a negative index that counts from the back, an empty splice."""
    cache, _ = filled(planes, positions)
    before = digest(cache)
    assert cache.evict_span(*span) == 0
    assert digest(cache) == before


@pytest.mark.parametrize("positions", ["renumber", "keep"])
@pytest.mark.parametrize("planes", PLANES)
@pytest.mark.parametrize("span", SPANS)
def test_spans_leave_the_others_in_order(span, planes, positions):
    """A plane spliced elsewhere, a clamp that misses, a row rotated at its old position."""
    cache, (given,) = filled(planes, positions)
    first, count = span
    kept = [token for token in range(TOKENS) if not first <= token < first + count]
    where = np.arange(len(kept)) if positions == "renumber" else np.array(kept, np.int64)
    if planes == "kv" and where.tolist() != kept:
        refuse(ExactnessRefused, cache, cache.evict_span, *span, match="kv_raw or raw_only")
        return
    assert cache.evict_span(*span) == TOKENS - len(kept)
    rows = cache.rows()
    assert cache.length == len(kept)
    assert rows["positions"].tolist() == where.tolist()
    assert cache.next_position == (where[-1] + 1 if kept else 0)
    assert equal(rows["V"], given["v"][kept])
    assert equal(rows["K"], dense_keys(given["k"][kept], where))
    assert ("k_raw" in rows) == (planes != "kv")
    if "k_raw" in rows:
        assert equal(rows["k_raw"], given["k"][kept])


@pytest.mark.parametrize("planes", ["kv_raw", "raw_only"])
def test_evictions_and_appends_in_turn(planes):
    """A row rotated from its rotated key, which only a second eviction shows."""
    cache, rows = filled(planes)
    alive = rows[0]["k"]
    for turn, span in enumerate([(1, 2), (0, 1), (2, 1), (3, 2)]):
        assert cache.evict_span(*span) == span[1]
        more = drawn(cache.shape, 3, seed=turn + 1)
        cache.append(more)
        alive = np.concatenate([np.delete(alive, np.s_[span[0] : sum(span)], 0), more[0]["k"]])
        assert cache.pos.tolist() == list(range(len(alive)))
        assert equal(cache.rows()["k_raw"], alive)
        assert equal(cache.rows()["K"], dense_keys(alive, cache.pos))


def test_each_layer_has_its_own_theta():
    """One theta for all layers; the control swaps them and must differ."""
    cache, _ = filled()
    assert cache.evict_span(2, 2) == 2
    rows = cache.rows()
    for layer, theta in enumerate(THETAS):
        for head in range(2):
            at = slice(16 * layer + 8 * head, 16 * layer + 8 * head + 8)
            assert equal(rows["K"][:, at], turned(rows["k_raw"][:, at], np.arange(5), theta))
            other = turned(rows["k_raw"][:, at], np.arange(5), THETAS[1 - layer])
            assert not equal(rows["K"][:, at], other)


def test_two_rotations_are_not_one():
    """Control: keys turned back by the shift differ from keys turned once, in half their words."""
    families, ropes = dense([1], 128, 128), (Rope(128, 1e4),)
    cache, _ = filled(families=families, ropes=ropes, tokens=64)
    rotated = cache.rows()["K"][23:]
    cache.evict_span(3, 20)
    cos, sin = tables(ropes[0], 21)
    twice = rotate(rotated, cos[20], -sin[20], "half_split")
    once = cache.rows()["K"][3:]
    np.testing.assert_array_less(np.abs(twice - once), 1e-5)
    assert np.mean(bits(twice) != bits(once)) > 0.5


def test_kept_positions_leave_gaps_and_rewind_at_the_end():
    """Positions numbered anew, or the next one taken from the number of rows."""
    cache, _ = filled(positions="keep")
    assert cache.evict_span(2, 3) == 3
    assert (cache.pos.tolist(), cache.next_position) == ([0, 1, 5, 6], 7)
    assert cache.evict_span(3, 2) == 0
    assert cache.evict_span(4, 2) == 1
    cache.append(drawn(cache.shape, 1))
    assert cache.pos.tolist() == [0, 1, 6, 7]
    assert cache.truncate(2) == 2
    assert cache.next_position == 2
    cache.append(drawn(cache.shape, 2, seed=1))
    assert cache.pos.tolist() == [0, 1, 2, 3]
    assert equal(cache.rows()["K"], dense_keys(cache.rows()["k_raw"], cache.pos))


@pytest.mark.parametrize("positions", ["renumber", "keep"])
def test_scattered_victims(positions):
    """A victim list taken as a span, or a bad one acted on in part."""
    cache, rows = filled(positions=positions)
    for wrong in ([1, 9], [1, 1], [-1], [0.5], [[1]]):
        refuse(VictimError, cache, cache.evict, np.array(wrong))
    assert cache.evict(np.array([5, 0, 2])) == 3
    kept = [1, 3, 4, 6]
    assert cache.pos.tolist() == ([0, 1, 2, 3] if positions == "renumber" else kept)
    assert equal(cache.rows()["K"], dense_keys(rows[0]["k"][kept], cache.pos))
    assert cache.evict(np.array([], np.int64)) == 0


def test_a_fork_is_a_copy():
    """A child whose eviction or append shows in its parent, or the other way round."""
    parent, _ = filled()
    child = parent.fork()
    assert digest(child) == digest(parent)
    assert not np.shares_memory(child.rows()["K"], parent.rows()["K"])
    before = digest(parent)
    child.evict_span(1, 3)
    child.append(drawn(child.shape, 2, seed=1))
    assert digest(parent) == before
    after = digest(child)
    parent.evict_span(0, 7)
    assert digest(child) == after


def test_rows_that_were_handed_out_never_change():
    """A view of a plane that an eviction writes to, or that a reader can write to."""
    cache, _ = filled()
    rows = cache.rows()
    copies = {name: array.copy() for name, array in rows.items()}
    cache.evict_span(1, 3)
    for name, array in rows.items():
        assert np.array_equal(array.view(np.uint8), copies[name].view(np.uint8))
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0


@pytest.mark.parametrize("planes", ["kv_raw", "raw_only"])
@pytest.mark.parametrize("pairing", ["interleaved_to_half", "half_split"])
def test_a_latent_is_carried_and_its_rope_part_rotates(planes, pairing):
    """A latent that is rotated, lost from the pre-RoPE plane, or taken from another row."""
    ropes = (Rope(4, 1e4), Rope(4, 1e6))
    cache, rows = filled(planes, families=mla(2, 6, 4, pairing), ropes=ropes)
    cache.evict_span(1, 2)
    given = rows[0]["k"][[0, 3, 4, 5, 6]].reshape(5, 2, 10)
    found = cache.rows()
    assert "V" not in found
    keys = found["K"].reshape(5, 2, 10)
    assert equal(keys[..., :6], given[..., :6])
    for layer, theta in enumerate(THETAS):
        want = turned(given[:, layer, 6:], np.arange(5), theta, pairing)
        assert equal(keys[:, layer, 6:], want)
    raw = given[..., 6:] if planes == "kv_raw" else given
    assert equal(found["k_raw"], raw.reshape(5, -1))


@pytest.mark.parametrize("planes", ["kv_raw", "raw_only"])
def test_sparse_attention_has_three_families(planes):
    """fak's sizes: 6 tokens, span [2, 4). Pairs written as they are read; an index rotated in
    float64, or kept where a layer has none."""
    families = glm_dsa(2, 2, 4, 4, 6, 8, index_layers=[1])
    ropes = (Rope(4, 1e4), Rope(4, 1e6))
    cache, rows = filled(planes, families=families, ropes=ropes, tokens=6)
    assert cache.evict_span(2, 2) == 2
    kept, ranks = [0, 1, 4, 5], np.arange(4)
    keys = cache.rows(0)["K"].reshape(4, 2, 2, 8)
    given = rows[0]["k"][kept].reshape(4, 2, 2, 8)
    for layer, theta in enumerate(THETAS):
        for head in range(2):
            before, after = given[:, layer, head], keys[:, layer, head]
            assert equal(after[:, :4], before[:, :4])
            assert equal(after[:, 4:], turned(before[:, 4:], ranks, theta, "interleaved_to_half"))
            assert not equal(after[:, 4:], turned(before[:, 4:], ranks, theta, "interleaved"))
    assert sorted(cache.rows(1)) == ["V", "positions"]
    assert equal(cache.rows(1)["V"], rows[1]["v"][kept])
    index, given = cache.rows(2), rows[2]["k"][kept]
    assert index["K"].shape == (4, 8)
    assert index["K"].dtype == np.float64
    narrow = turned(given[:, :4].astype(np.float32), ranks, THETAS[1])
    assert equal(index["K"][:, :4], narrow.astype(np.float64))
    assert equal(index["K"][:, 4:], given[:, 4:])
    assert equal(index["k_raw"], given)


@pytest.mark.parametrize("planes", PLANES)
@pytest.mark.parametrize("pairing", ["half_split", "interleaved"])
def test_partial_rotation_and_layers_without(planes, pairing):
    """Elements behind the rotated ones that are turned, or a layer that should not turn."""
    families = dense([2, 2], 8, 8, rope_dim=[4, 0], pairing=pairing)
    cache, rows = filled(planes, families=families, ropes=(Rope(4, 1e4), Rope(0)))
    kept = list(range(TOKENS))
    if planes != "kv":
        cache.evict_span(2, 3)
        kept = [0, 1, 5, 6]
    keys = cache.rows()["K"].reshape(len(kept), 4, 8)
    given = rows[0]["k"][kept].reshape(len(kept), 4, 8)
    ranks = np.arange(len(kept))
    for head in (0, 1):
        assert equal(keys[:, head, :4], turned(given[:, head, :4], ranks, 1e4, pairing))
    assert equal(keys[:, :2, 4:], given[:, :2, 4:])
    assert equal(keys[:, 2:], given[:, 2:])


@pytest.mark.parametrize("planes", ["kv_raw", "raw_only"])
def test_bad_numbers_are_carried_and_a_rotated_nan_is_canonical(planes):
    """A payload that is lost in a copy, or one of the processor's own that is stored."""
    shape = CacheShape(DENSE, ROPES, planes, max_positions=64)
    rows = drawn(shape, TOKENS)
    words = rows[0]["k"].view(np.uint32)
    words[3, 1] = 0x7F800001  # signalling NaN
    words[4, 9] = 0xFFC12345  # negative NaN with a payload
    words[5, 2] = 0x7F800000  # infinity
    words[6, 4] = 0x80000001  # subnormal
    rows[0]["v"].view(np.uint32)[3:, 0] = [0x7F800001, 0xFFC12345, 0xFF800000, 0x80000000]
    cache = ContiguousCache(shape)
    cache.append(rows)
    cache.evict_span(1, 2)
    kept = [0, 3, 4, 5, 6]
    found = cache.rows()
    assert equal(found["V"], rows[0]["v"][kept])
    assert equal(found["k_raw"], rows[0]["k"][kept])
    keys = found["K"]
    assert equal(keys, dense_keys(rows[0]["k"][kept], np.arange(5)))
    # Both elements of each pair with a NaN.
    for row, element in ((1, 1), (1, 5), (2, 9), (2, 13)):
        assert keys.view(np.uint32)[row, element] == CANONICAL_NAN
    assert set(keys.view(np.uint32)[np.isnan(keys)].tolist()) == {CANONICAL_NAN}


def test_a_wide_number_that_float32_cannot_hold_becomes_what_the_cast_makes_of_it():
    """A warning, or an error, where index keys are narrowed."""
    family = (RowFamily("index", (RowSpec(0, 0, 0, 4, 0, 2, 0),), "float64"),)
    shape = CacheShape(family, (Rope(2),), max_positions=8)
    cache = ContiguousCache(shape)
    cache.append([{"k": np.array([[1e300, 1.0, 1e300, np.nan]])}])
    rows = cache.rows()
    assert rows["k_raw"][0, :3].tolist() == [1e300, 1.0, 1e300]
    assert np.isnan(rows["K"][0, 1])
    assert rows["K"][0, 2] == 1e300
