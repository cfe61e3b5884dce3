"""What quantized pages refuse, that a refusal changes nothing, and the flush that remedies one."""

from __future__ import annotations

import numpy as np
import pytest
from quantized_caches import KINDS, SCALED, drawn, make, same, shape_of, table_of, through_codes

from kvsim.errors import CeilingExceeded, ExactnessRefused, LayoutError, RotationError
from kvsim.paging import fields as f
from kvsim.seeds import stream
from kvsim.tensors.contiguous import ContiguousCache
from kvsim.tensors.quantized_store import QuantizedStore


@pytest.mark.parametrize("compaction", ["none", "forward"])
@pytest.mark.parametrize("kind", KINDS)
def test_without_a_shadow_a_span_is_refused_and_the_remedies_named(kind, compaction):
    cache = make(kind, planes="kv", positions="renumber", compaction=compaction)
    sequence = cache.open()
    cache.append(sequence, drawn(cache.shape, 23, stream(1, "test")))
    child = cache.fork(sequence)
    assert not cache.supports_exact_span
    before = table_of(cache)
    for refused in (
        lambda: cache.evict_span(child, 5, 3),
        lambda: cache.evict(child, [np.array([5, 6])]),
    ):
        with pytest.raises(ExactnessRefused, match=r"float32 k_raw shadow.*flush") as refusal:
            refused()
        assert not refusal.value.receipt.exact
        assert refusal.value.receipt.refused == str(refusal.value)
        assert refusal.value.receipt.evicted_tokens == 0
        assert table_of(cache) == before
    # The tail moves nobody; then the prefix goes.
    assert cache.evict_span(child, 20, 99).evicted_tokens == 3
    flushed = cache.flush(child)
    assert (flushed.prefill_tokens, flushed.evicted_tokens) == (20, 20)
    assert flushed.exact
    assert (flushed.first, flushed.last) == (0, 20)
    # Every page was the parent's too.
    assert flushed.freed_pages == 0
    assert cache.length(child) == cache.next_position(child) == 0
    held = cache.ledger.held_pages
    flushed = cache.flush(sequence)
    assert flushed.prefill_tokens == 23
    assert flushed.freed_pages == held == 6
    assert cache.ledger.held_pages == 0
    assert cache.flush(sequence).prefill_tokens == 0
    cache.check()
    # Prefilled again, without what had to go.
    rows = drawn(cache.shape, 9, stream(2, "test"))
    cache.append(sequence, rows)
    oracle = ContiguousCache(cache.shape)
    oracle.append(rows)
    assert same(
        cache.rows(sequence)["K"],
        through_codes(oracle.rows()["K"], cache.shape.families[0], kind),
    )


@pytest.mark.parametrize("positions", ["keep", "renumber"])
@pytest.mark.parametrize("compaction", ["none", "rebuild", "forward", "hole_fill"])
def test_a_flush_empties_whatever_sets_retain(compaction, positions):
    cache = make("int8", sets="head", compaction=compaction, positions=positions)
    sequence = cache.open()
    cache.append(sequence, drawn(cache.shape, 11, stream(1, "test")))
    cache.reserve(sequence, 9)
    cache.evict(sequence, [np.arange(which) for which in range(4)])
    reserved = cache.ledger.reserved_pages(sequence)
    flushed = cache.flush(sequence)
    assert flushed.prefill_tokens == 11
    assert cache.next_position(sequence) == 0
    assert cache.ledger.held_pages == cache.ledger.reserved_pages(sequence) == reserved > 0
    cache.check()
    assert flushed.as_dict()["prefill_tokens"] == 11


def test_planes_without_rotated_keys_have_none_to_quantize():
    with pytest.raises(LayoutError, match="raw_only keep no rotated keys"):
        make("int8", planes="raw_only")
    with pytest.raises(LayoutError, match="kept as one of float32, int8"):
        make("int4")
    for kind, planes in (("float32", "kv_raw"), ("int8", "raw_only")):
        shape = shape_of("dense", planes)
        with pytest.raises(LayoutError, match="hold no codes"):
            QuantizedStore(shape, shape.geometry(), 4, kind)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_without_a_code_change_nothing(kind):
    cache = make(kind, positions="renumber")
    sequence = cache.open()
    cache.append(sequence, drawn(cache.shape, 5, stream(1, "test")))
    before = table_of(cache)
    for bad in (np.nan, np.inf, -np.inf, 3e38):
        rows = drawn(cache.shape, 2, stream(2, "test"))
        rows[0]["k"][1, 9] = bad
        if kind in SCALED:
            with pytest.raises(ExactnessRefused):
                cache.append(sequence, rows)
            assert table_of(cache) == before
        else:
            cache.append(sequence, rows)
            cache.evict_span(sequence, cache.length(sequence) - 2, 2)
    # V has no code, and may hold anything.
    rows = drawn(cache.shape, 2, stream(2, "test"))
    rows[0]["v"][:] = np.nan
    cache.append(sequence, rows)
    assert np.isnan(cache.rows(sequence)["V"][5:]).all()


def test_a_ceiling_refuses_before_any_code_changes():
    cache = make("int8", positions="renumber", compaction="forward", ceiling_pages=6)
    cache.append(cache.open(), drawn(cache.shape, 20, stream(1, "test")))
    child = cache.fork(0)
    before = table_of(cache)
    with pytest.raises(CeilingExceeded) as refused:
        cache.evict_span(child, 2, 5)
    assert refused.value.receipt.refused
    assert table_of(cache) == before


def test_a_store_refuses_a_rotation_that_it_cannot_do():
    plan = np.array([[0], [1], [3], [0], [-1]], np.int64)
    with pytest.raises(ExactnessRefused):
        make("int8", planes="kv").store.apply(plan)
    plan[f.POSITION] = 256
    with pytest.raises(RotationError):
        make("int8").store.apply(plan)
