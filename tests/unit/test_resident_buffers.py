"""Buffers of a shape are the store's planes, and where they cannot be they are refused."""

from __future__ import annotations

import pytest
from mapped_twins import LAYOUTS, PAGE_TOKENS, SHAPE, needs_linux

from kvsim.errors import LedgerError
from kvsim.layout.families import dense, glm_dsa, mla
from kvsim.tensors.array_store import ArrayStore
from kvsim.tensors.mapped import buffers_of_shape
from kvsim.tensors.rope import Rope
from kvsim.tensors.shape import CacheShape

pytestmark = needs_linux

GLM = CacheShape(glm_dsa(3, 4, 32, 32, 64, 64, [0, 2]), (Rope(32),), "kv_raw", 64)
INEXPRESSIBLE = {
    "several of a layer's heads": (SHAPE, "layer_major", "head"),
    "several layers of one family": (GLM, "page_major", "layer"),
}


@pytest.mark.parametrize(("shape", "layout", "scope"), INEXPRESSIBLE.values(), ids=INEXPRESSIBLE)
def test_buffers_of_some_scope_units_are_refused(shape, layout, scope):
    with pytest.raises(LedgerError, match="buffers of one scope unit or of all"):
        buffers_of_shape(shape, shape.geometry(scope, scope), PAGE_TOKENS, layout)


@pytest.mark.parametrize("planes", ["kv", "kv_raw", "raw_only"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("scope", ["sequence", "layer"])
@pytest.mark.parametrize("families", [dense([2, 4], 16, 32), mla(2, 32, 16)], ids=["dense", "mla"])
def test_buffers_are_the_stores_planes(families, scope, layout, planes):
    shape = CacheShape(families, (Rope(16),), planes, 64)
    geometry = shape.geometry(scope, scope if scope == "layer" else "shared")
    store = ArrayStore(shape, geometry, 2, layout=layout)
    store.resize(3)
    arrays = {
        store.name(block, plane): array.nbytes
        for block, by_plane in zip(store.blocks, store.planes, strict=True)
        for plane, array in by_plane.items()
        if array.size
    }
    specs = buffers_of_shape(shape, geometry, 2, layout)
    assert {spec.name: 3 * spec.page_bytes for spec in specs} == arrays
    halved = buffers_of_shape(shape, geometry, 2, layout, element_bytes=2)
    assert [2 * spec.page_bytes for spec in halved] == [spec.page_bytes for spec in specs]
    if scope == "sequence":
        assert sum(spec.page_bytes for spec in specs) == 2 * sum(geometry.unit_row_bytes)
