"""Pages of quantized keys against contiguous caches, which have no pages to get wrong."""

from __future__ import annotations

import pytest
from quantized_caches import FAMILIES, KINDS, SCALED, drawn, make, same, shape_of, through_codes

from kvsim.layout.families import dense
from kvsim.seeds import stream
from kvsim.tensors.contiguous import ContiguousCache
from kvsim.tensors.paged_cache import PagedCache
from kvsim.tensors.quantized_keys import QuantizedKeys
from kvsim.tensors.rope import Rope
from kvsim.tensors.shape import CacheShape


@pytest.mark.parametrize("compaction", ["none", "rebuild", "forward", "hole_fill"])
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kind", KINDS)
def test_pages_equal_the_contiguous_cache_encoded(kind, family, compaction):
    shape = shape_of(family)
    rng = stream(5, "test")
    cache = make(kind, family, compaction=compaction, positions="renumber")
    oracles = {cache.open(): ContiguousCache(shape)}
    rows = drawn(shape, 23, rng)
    cache.append(0, rows)
    oracles[0].append(rows)
    oracles[cache.fork(0)] = oracles[0].fork()
    for sequence, first, count in ((1, 5, 6), (0, 0, 3), (1, 2, 1), (0, 8, 4), (1, 9, 10**9)):
        receipt = cache.evict_span(sequence, first, count)
        assert receipt.exact
        assert receipt.evicted_tokens == oracles[sequence].evict_span(first, count)
        more = drawn(shape, 2, rng)
        cache.append(sequence, more)
        oracles[sequence].append(more)
        for number, oracle in oracles.items():
            for at in range(len(shape.families)):
                theirs, ours = oracle.rows(at), cache.rows(number, at)
                assert set(ours) == set(theirs)
                for name in set(theirs) - {"K"}:
                    assert same(ours[name], theirs[name])
                if "K" in theirs:
                    assert same(ours["K"], through_codes(theirs["K"], shape.families[at], kind))


@pytest.mark.parametrize("kind", KINDS)
def test_pages_equal_the_contiguous_quantized_keys(kind):
    rope = Rope(16, 1e4)
    shape = CacheShape(dense([1], 16, 4), (rope,), "kv_raw", 128)
    cache = PagedCache(shape, 4, keys=kind, positions="renumber", compaction="forward")
    keys = QuantizedKeys(kind, "shadow", rope, (16,), 128)
    rows = drawn(shape, 60, stream(3, "test"))
    cache.append(cache.open(), rows)
    keys.append(rows[0]["k"])
    for first, count in ((7, 16), (0, 5), (11, 3)):
        cache.evict_span(0, first, count)
        keys.evict_span(first, count)
        ours = cache.unit_rows(0, 0)
        assert same(ours["K"], keys.codes.codes)
        if kind in SCALED:
            assert same(ours["K_scale"][:, 0], keys.codes.scale)
    # The control: composing rotations gives other codes from the same rows.
    lossy = QuantizedKeys(kind, "lossy", rope, (16,), 128)
    lossy.append(rows[0]["k"])
    lossy.evict_span(7, 16)
    keys = QuantizedKeys(kind, "shadow", rope, (16,), 128)
    keys.append(rows[0]["k"])
    keys.evict_span(7, 16)
    assert not same(lossy.codes.codes, keys.codes.codes)
