"""A store of quantized keys: its bytes, its limits, its swap files, and the runs of its moves."""

from __future__ import annotations

import numpy as np
import pytest
from quantized_caches import FAMILIES, KINDS, drawn, make, same

from kvsim.errors import SwapError
from kvsim.layout.families import dense
from kvsim.seeds import stream
from kvsim.tensors.quantized_store import independent_runs
from kvsim.tensors.rope import Rope
from kvsim.tensors.shape import CacheShape


@pytest.mark.parametrize("layout", ["page_major", "layer_major"])
@pytest.mark.parametrize("planes", ["kv", "kv_raw"])
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kind", KINDS)
def test_bytes_of_a_page_are_those_of_its_planes(kind, family, planes, layout):
    cache = make(kind, family, planes, layout=layout)
    for block in cache.store.planes:
        assert all(plane.shape[0] == 64 * 4 for plane in block.values())
    stored = sum(plane.nbytes for block in cache.store.planes for plane in block.values())
    assert stored == 64 * 4 * int(cache.ledger.geometry.page_row_bytes().sum())


def test_the_price_of_a_shadow():
    # Llama-3.2-1B: 16 layers, 8 heads of 64. By hand, per token, layer and head.
    rows, rope = dense([8] * 16, 64, 64), (Rope(64, 5e5),)
    heads = 16 * 8
    for planes, kind, row_bytes in (
        ("kv", "float32", 512),
        ("kv_raw", "float32", 768),
        ("kv", "int8", 64 + 4 + 256),
        ("kv_raw", "int8", 64 + 4 + 256 + 256),
        ("kv", "e4m3", 64 + 256),
        ("kv_raw", "e4m3", 64 + 256 + 256),
        ("kv_raw", "e4m3_scaled", 64 + 4 + 256 + 256),
    ):
        geometry = CacheShape(rows, rope, planes).geometry(keys=kind)
        assert geometry.page_row_bytes().tolist() == [heads * row_bytes]
    # An MLA latent and its rope part have a scale each; a family without keys has none.
    latent = CacheShape(*FAMILIES["mla"], "kv_raw").geometry(keys="int8")
    assert latent.unit_row_bytes == (16 + 4 + 8 + 4 + 8 * 4,) * 2
    glm = CacheShape(*FAMILIES["glm"], "kv").geometry(keys="e4m3")
    assert glm.unit_row_bytes == (14,) * 4 + (40,) * 4 + (12,)


def test_keys_near_the_limit_can_be_turned_anywhere():
    cache = make("int8", "interleaved", positions="renumber")
    largest = np.float32(cache.store._largest_raw)
    rows = drawn(cache.shape, 40, stream(1, "test"))
    rows[0]["k"][:] = largest * np.sign(rows[0]["k"])
    cache.append(cache.open(), rows)
    for _ in range(20):
        cache.evict_span(0, 0, 1)
    assert np.isfinite(cache.rows(0)["K"]).all()


@pytest.mark.parametrize("kind", KINDS)
def test_swap_files_carry_codes_and_only_to_caches_of_their_kind(kind):
    cache = make(kind, compaction="forward", positions="renumber")
    cache.append(cache.open(), drawn(cache.shape, 13, stream(1, "test")))
    cache.evict_span(0, 3, 4)
    rows = [cache.unit_rows(0, unit) for unit in range(4)]
    data = cache.swap_out(0)
    for other in {"float32", *KINDS} - {kind}:
        with pytest.raises(SwapError, match="other keys"):
            make(other, compaction="forward", positions="renumber").swap_in(data)
    sequence = cache.swap_in(data)
    for unit, before in enumerate(rows):
        after = cache.unit_rows(sequence, unit)
        assert set(after) == set(before) >= {"K", "k_raw", "V"}
        assert all(same(after[plane], before[plane]) for plane in before)


def test_runs_end_where_a_move_needs_an_earlier_one():
    def cut(*moves):
        plan = np.array([(s, t, -1, scope, which) for s, t, scope, which in moves], np.int64).T
        return [run.shape[1] for run in independent_runs(plan)]

    assert cut((5, 0, 0, -1), (6, 1, 0, -1), (7, 2, 0, -1)) == [3]
    # 0 was written, so it must not be read, nor written again, in the same run.
    assert cut((5, 0, 0, -1), (0, 9, 0, -1), (9, 8, 0, -1)) == [1, 1, 1]
    assert cut((5, 0, 0, -1), (6, 0, 0, -1)) == [1, 1]
    # Reading what a later move writes is what reading first is for.
    assert cut((5, 0, 0, -1), (6, 5, 0, -1)) == [2]
    assert cut((3, 3, 0, -1), (4, 4, 0, -1)) == [2]
    assert cut((5, 0, 0, 0), (6, 1, 0, 1), (7, 2, 1, 1)) == [1, 1, 1]
    assert list(independent_runs(np.empty((5, 0), np.int64))) == []
