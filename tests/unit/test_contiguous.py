"""The contiguous cache by hand: the oracle must be right before anything is proved against it.

Each docstring names the bug that its test would catch. Rows are compared as integers.
"""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from kvsim.errors import ExactnessRefused, LedgerError, RotationError, VictimError
from kvsim.layout.families import RowFamily, RowSpec, dense, glm_dsa, mla
from kvsim.seeds import stream
from kvsim.tensors.contiguous import ContiguousCache, position_tables
from kvsim.tensors.rope import CANONICAL_NAN, Rope, rotate, tables
from kvsim.tensors.shape import CacheShape

# The sizes of fak's tests: 2 layers, 2 KV heads of 8, a theta for each layer; 7 tokens.
THETAS = (1e4, 1e6)
TOKENS = 7
DENSE = dense([2, 2], 8, 8)
ROPES = tuple(Rope(8, theta) for theta in THETAS)
PLANES = ("kv", "kv_raw", "raw_only")
SPANS = [(0, 2), (2, 2), (2, 3), (5, 2), (0, 7), (3, 1), (5, 100), (2, 2**63 - 1), (0, 1), (6, 1)]
NOTHING = [(-1, 3), (0, 0), (2, -1), (7, 1), (8, 3), (2**63 - 1, 1), (-(2**63), 5), (2, -(2**63))]


def bits(array):
    return array.view(np.uint64 if array.dtype == np.float64 else np.uint32)


def same(ours, theirs):
    return (
        ours.dtype == theirs.dtype
        and ours.shape == theirs.shape
        and np.array_equal(bits(ours), bits(theirs))
    )


def drawn(shape, tokens, seed=0):
    """Return rows for an append, as every family of a shape takes them."""
    rng = stream(seed, "test")
    rows = []
    for family in shape.families:
        widths = {
            "k": sum(row.carried + row.raw for row in family.rows),
            "v": sum(row.value for row in family.rows),
        }
        rows.append(
            {
                name: rng.standard_normal((tokens, width), dtype=np.float32).astype(family.dtype)
                for name, width in widths.items()
                if width
            }
        )
    return rows


def filled(planes="kv_raw", positions="renumber", families=DENSE, ropes=ROPES, tokens=TOKENS, **o):
    """Return a cache of some tokens, and what was appended."""
    shape = CacheShape(families, ropes, planes, max_positions=64)
    cache = ContiguousCache(shape, positions, **o)
    rows = drawn(shape, tokens)
    cache.append(rows)
    return cache, rows


def digest(cache):
    """Hash every byte of a cache."""
    hashed = hashlib.sha256(cache.pos.tobytes())
    for family in range(len(cache.shape.families)):
        for name, array in sorted(cache.rows(family).items()):
            hashed.update(f"{name} {array.shape} {array.dtype}".encode())
            hashed.update(array.tobytes())
    return hashed.hexdigest()


def refuse(error, cache, call, *arguments, match=None):
    """Call what must raise, and find every byte as it was."""
    before = digest(cache)
    with pytest.raises(error, match=match):
        call(*arguments)
    assert digest(cache) == before


def turned(keys, positions, theta, pairing="half_split"):
    """Return rows [n, dim] rotated at positions, from tables of this test's own."""
    cos, sin = tables(Rope(keys.shape[1], theta), 64)
    return rotate(np.ascontiguousarray(keys), cos[positions], sin[positions], pairing)


def dense_keys(raw, positions):
    """Return the dense rows of fak's sizes rotated, layer by layer and head by head."""
    heads = [
        turned(raw[:, at : at + 8], positions, THETAS[at // 16]) for at in range(0, raw.shape[1], 8)
    ]
    return np.hstack(heads)


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
    assert same(rows["V"], given["v"][kept])
    assert same(rows["K"], dense_keys(given["k"][kept], where))
    assert ("k_raw" in rows) == (planes != "kv")
    if "k_raw" in rows:
        assert same(rows["k_raw"], given["k"][kept])


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
        assert same(cache.rows()["k_raw"], alive)
        assert same(cache.rows()["K"], dense_keys(alive, cache.pos))


def test_each_layer_has_its_own_theta():
    """One theta for all layers; the control swaps them and must differ."""
    cache, _ = filled()
    assert cache.evict_span(2, 2) == 2
    rows = cache.rows()
    for layer, theta in enumerate(THETAS):
        for head in range(2):
            at = slice(16 * layer + 8 * head, 16 * layer + 8 * head + 8)
            assert same(rows["K"][:, at], turned(rows["k_raw"][:, at], np.arange(5), theta))
            other = turned(rows["k_raw"][:, at], np.arange(5), THETAS[1 - layer])
            assert not same(rows["K"][:, at], other)


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
    assert same(cache.rows()["K"], dense_keys(cache.rows()["k_raw"], cache.pos))


@pytest.mark.parametrize("positions", ["renumber", "keep"])
def test_scattered_victims(positions):
    """A victim list taken as a span, or a bad one acted on in part."""
    cache, rows = filled(positions=positions)
    for wrong in ([1, 9], [1, 1], [-1], [0.5], [[1]]):
        refuse(VictimError, cache, cache.evict, np.array(wrong))
    assert cache.evict(np.array([5, 0, 2])) == 3
    kept = [1, 3, 4, 6]
    assert cache.pos.tolist() == ([0, 1, 2, 3] if positions == "renumber" else kept)
    assert same(cache.rows()["K"], dense_keys(rows[0]["k"][kept], cache.pos))
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
    assert same(keys[..., :6], given[..., :6])
    for layer, theta in enumerate(THETAS):
        want = turned(given[:, layer, 6:], np.arange(5), theta, pairing)
        assert same(keys[:, layer, 6:], want)
    raw = given[..., 6:] if planes == "kv_raw" else given
    assert same(found["k_raw"], raw.reshape(5, -1))


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
            assert same(after[:, :4], before[:, :4])
            assert same(after[:, 4:], turned(before[:, 4:], ranks, theta, "interleaved_to_half"))
            assert not same(after[:, 4:], turned(before[:, 4:], ranks, theta, "interleaved"))
    assert sorted(cache.rows(1)) == ["V", "positions"]
    assert same(cache.rows(1)["V"], rows[1]["v"][kept])
    index, given = cache.rows(2), rows[2]["k"][kept]
    assert index["K"].shape == (4, 8)
    assert index["K"].dtype == np.float64
    narrow = turned(given[:, :4].astype(np.float32), ranks, THETAS[1])
    assert same(index["K"][:, :4], narrow.astype(np.float64))
    assert same(index["K"][:, 4:], given[:, 4:])
    assert same(index["k_raw"], given)


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
        assert same(keys[:, head, :4], turned(given[:, head, :4], ranks, 1e4, pairing))
    assert same(keys[:, :2, 4:], given[:, :2, 4:])
    assert same(keys[:, 2:], given[:, 2:])


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
    assert same(found["V"], rows[0]["v"][kept])
    assert same(found["k_raw"], rows[0]["k"][kept])
    keys = found["K"]
    assert same(keys, dense_keys(rows[0]["k"][kept], np.arange(5)))
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


@pytest.mark.parametrize(
    ("name", "array", "match"),
    [
        ("k", np.zeros((2, 31), np.float32), r"'kv', plane key: .*\(2, 32\).*\(2, 31\)"),
        ("v", np.zeros((3, 32), np.float32), r"'kv', plane V: .*\(2, 32\).*\(3, 32\)"),
        ("v", np.zeros((2, 4, 8), np.float32), r"plane V: .*\(2, 4, 8\)"),
        ("k", np.zeros((2, 32)), "float64"),
        ("k", [[0.0] * 32] * 2, "list"),
        ("k", np.float32(1), "key"),
        ("k_raw", np.zeros((2, 32), np.float32), "takes k and v"),
    ],
)
def test_rows_that_do_not_fit_are_refused(name, array, match):
    """Rows that are cut, cast or broadcast, and planes that are longer than others."""
    cache, _ = filled()
    rows = drawn(cache.shape, 2)
    rows[0][name] = array
    refuse(LedgerError, cache, cache.append, rows, match=match)


def test_families_that_are_missing_are_refused():
    """An append that only some of the families take part in."""
    cache, _ = filled(families=glm_dsa(1, 1, 4, 4, 6, 8, [0]), ropes=(Rope(4),))
    rows = drawn(cache.shape, 1)
    refuse(LedgerError, cache, cache.append, rows[:2], match="3 families")
    refuse(LedgerError, cache, cache.append, [rows[0], {}, rows[2]], match="takes v")
    rows[2]["k"] = rows[2]["k"].astype(np.float32)
    refuse(LedgerError, cache, cache.append, rows, match="float64 rows")


@pytest.mark.parametrize("positions", ["renumber", "keep"])
def test_positions_end_with_the_tables(positions):
    """A position that wraps round, or rows appended up to the one that does not fit."""
    cache, _ = filled(positions=positions)
    refuse(RotationError, cache, cache.append, drawn(cache.shape, 58), match="position 64")
    cache.append(drawn(cache.shape, 57))
    refuse(RotationError, cache, cache.append, drawn(cache.shape, 1))
    cache.append(drawn(cache.shape, 0))
    cache.evict_span(10, 1)
    if positions == "renumber":
        cache.append(drawn(cache.shape, 1))
    assert cache.length == (64 if positions == "renumber" else 63)


@pytest.mark.parametrize("span", [(2**63, 1), (0, 2**63), (-(2**63) - 1, 1), (0.5, 1), (0, None)])
def test_spans_outside_64_bits_are_refused(span):
    """A span that is cut to 64 bits, and then names other rows."""
    cache, _ = filled()
    refuse(LedgerError, cache, cache.evict_span, *span, match="integer")


@pytest.mark.parametrize("span", [(2, 2), (5, 2), (0, 7), (9, 1)])
def test_recurrent_layers_cannot_forget(span):
    """A span taken from the rows while a state that read it stays; the tail is no exception."""
    cache, _ = filled(recurrent_layers=(1,))
    refuse(ExactnessRefused, cache, cache.evict_span, *span, match="recurrent state cannot forget")
    refuse(ExactnessRefused, cache, cache.evict, np.array([6]), match="recurrent")
    refuse(ExactnessRefused, cache, cache.fork().truncate, 5, match="recurrent")


def test_longrope_is_not_renumbered_past_its_original_context():
    """Rows of two regimes side by side under one rank."""
    rope = Rope(
        8, scaling="longrope", factor=4.0, original_context=8,
        short_factors=(1.0,) * 4, long_factors=(1.0, 2.0, 3.0, 4.0),
    )  # fmt: skip
    cache, _ = filled(ropes=(rope, rope))
    cache.append(drawn(cache.shape, 1))
    refuse(RotationError, cache, cache.append, drawn(cache.shape, 1), match="original 8")
    cache.evict_span(2, 2)
    assert cache.length == 6
    # With kept positions, each row is rotated in the regime of the length that it ends.
    cache, _ = filled(positions="keep", ropes=(rope, rope))
    cache.append(drawn(cache.shape, 5, seed=1))
    cache.evict_span(0, 2)
    rows = cache.rows()
    for regime, where in (("short", slice(0, 6)), ("long", slice(6, 10))):
        cos, sin = (table[rows["positions"][where]] for table in tables(rope, 64, regime))
        for at in range(0, 32, 8):
            want = rotate(rows["k_raw"][where, at : at + 8], cos, sin, "half_split")
            assert same(rows["K"][where, at : at + 8], want)
    short = tables(rope, 8)
    assert all(same(a, b) for a, b in zip(position_tables(rope, 8), short, strict=True))


def test_unknown_numbering_is_refused():
    """A misspelt word that is taken for the default."""
    with pytest.raises(LedgerError, match="renumber, keep"):
        ContiguousCache(CacheShape(DENSE, ROPES), "rank")
