"""The move kernels against NumPy, one move after the other: plain and non-temporal, bit for bit.

Each docstring names the bug that its test would catch.
"""

from __future__ import annotations

import os

import numpy as np
import pytest
from differential.paged_rows import bits, drawn, equal
from realrows import Pair, shape
from spliced import DENSE, ROPES

from kvsim.errors import ExactnessRefused, LedgerError, RotationError
from kvsim.layout.families import RowFamily, RowSpec, dense, mla
from kvsim.paging import Geometry
from kvsim.paging import fields as f
from kvsim.tensors import moving, streaming
from kvsim.tensors.array_store import ArrayStore
from kvsim.tensors.lanes import blocks
from kvsim.tensors.rope import CANONICAL_NAN, Rope, rotate, tables
from kvsim.tensors.shape import CacheShape

SLOTS, PAGE_TOKENS = 24, 4
# Two heads that rotate as a whole and one layer that does not: whole cache lines everywhere.
WIDE = CacheShape(dense([2, 1], [64, 32], [32, 64], [64, 0]), (Rope(64), Rope(0)), max_positions=40)
KINDS = {
    "half split": CacheShape(DENSE, ROPES, max_positions=40),
    "interleaved": CacheShape(dense([2, 2], 8, 8, pairing="interleaved"), ROPES, max_positions=40),
    "partial": CacheShape(dense([2], 8, 6, 4), (Rope(4),), max_positions=40),
    "latent": CacheShape(mla(2, 6, 4), (Rope(4), Rope(4, 1e6)), max_positions=40),
    "wide": WIDE,
}
# (source, target, position): apart, in place, over one another, twice, as they are.
MOVES = [
    (3, 9, 5),
    (4, 4, 0),
    (5, 4, 7),
    (6, 5, -1),
    (9, 20, 39),
    (20, 20, 1),
    (7, 6, -1),
    (8, 8, -1),
]


def filled(of, scope="sequence", sets="shared", **options):
    """Return a store with random rows, hard ones among them, in every slot of every plane."""
    store = ArrayStore(of, of.geometry(scope, sets), PAGE_TOKENS, **options)
    store.resize(SLOTS // PAGE_TOKENS)
    rng = np.random.default_rng(5)
    for planes in store.planes:
        for plane in planes.values():
            plane[:] = drawn(plane.shape, plane.dtype, rng, hard=True)
    return store


def plan_of(moves, scope=0, which=-1):
    """Return a plan."""
    plan = np.zeros((f.PLAN_FIELDS, len(moves)), np.int64)
    plan[[f.SOURCE, f.TARGET, f.POSITION]] = np.array(moves).T
    plan[f.SCOPE_OF], plan[f.SET_OF] = scope, which
    return plan


def by_numpy(store, moves, units):
    """Carry out moves on copies of a page-major store's planes; return {plane: array}."""
    shape, (planes,) = store.shape, store.planes
    planes = {name: plane.copy() for name, plane in planes.items()}
    offsets = shape.offsets[0]
    for source, target, position in moves:
        for number in units:
            row = shape.units[number][1]
            at = {name: int(offsets[name][number]) for name in offsets}
            key, end = at["K"] + row.carried, at["K"] + row.carried + row.raw
            carried = planes["K"][source, at["K"] : key].copy()
            fresh = planes["K"][source, key:end].copy()
            raw = planes["k_raw"][source, at["k_raw"] : at["k_raw"] + row.raw].copy()
            if position >= 0:
                fresh = raw.copy()
                window = slice(row.rope_from, row.rope_from + row.rope_dim)
                if row.rope_dim:
                    cos, sin = tables(shape.rope_of(row), 40)
                    turn = cos[position], sin[position]
                    fresh[window] = rotate(raw[window], *turn, row.pairing)
            planes["K"][target, at["K"] : end] = np.concatenate([carried, fresh])
            planes["k_raw"][target, at["k_raw"] : at["k_raw"] + row.raw] = raw
            if row.value:
                value = slice(at["V"], at["V"] + row.value)
                planes["V"][target, value] = planes["V"][source, value].copy()
    return planes


@pytest.mark.parametrize("portable", [True, False], ids=["plain", "as it comes"])
@pytest.mark.parametrize("kind", KINDS)
def test_moves_in_order(kind, portable):
    """A key from K instead of k_raw, a plane left behind, a carried part that rotates, cos for
    sin, a row of another pairing, a source read after it was written."""
    store = filled(KINDS[kind], portable=portable)
    wanted = by_numpy(store, MOVES, range(len(store.shape.units)))
    store.apply(plan_of(MOVES))
    for name, plane in wanted.items():
        assert equal(store.planes[0][name], plane), name


@pytest.mark.parametrize("portable", [True, False], ids=["plain", "as it comes"])
def test_a_move_of_one_set_leaves_the_rows_of_others(portable):
    """A slot that moves whole where only one set's rows should."""
    store = filled(WIDE, sets="layer", portable=portable)
    for which, units in ((0, (0, 1)), (1, (2,))):
        wanted = by_numpy(store, MOVES, units)
        store.apply(plan_of(MOVES, which=which))
        for name, plane in wanted.items():
            assert equal(store.planes[0][name], plane), name


def test_layers_with_buffers_of_their_own_get_the_same_bytes():
    """A layer's rows moved in the buffer of another, or of another scope unit."""
    for scope, sets in (("sequence", "shared"), ("layer", "layer"), ("sequence", "layer")):
        stores = [filled(WIDE, scope, sets, layout=x) for x in ("page_major", "layer_major")]
        geometry = stores[0].geometry
        for scope_unit in range(geometry.scope_units):
            rows = stores[0].gather_scope(np.arange(SLOTS), scope_unit)
            for store in stores:
                store.write(scope_unit, np.arange(SLOTS), rows)
                store.apply(plan_of(MOVES, scope_unit))
            for unit in np.flatnonzero(np.array(geometry.unit_scope) == scope_unit):
                found, other = (store.gather(np.arange(SLOTS), unit) for store in stores)
                assert all(equal(found[plane], other[plane]) for plane in found)


@pytest.mark.parametrize("portable", [True, False], ids=["plain", "as it comes"])
@pytest.mark.parametrize("word", [0x7F800001, 0xFFC12345, 0x7FFFFFFF])
def test_a_nan_is_carried_by_copies_and_canonical_by_rotations(word, portable):
    """A payload lost in a copy, a signalling NaN made quiet, one of the processor's own stored."""
    store = filled(WIDE, portable=portable)
    planes = {name: plane.view(np.uint32) for name, plane in store.planes[0].items()}
    for plane in planes.values():
        plane[0] = word
    store.apply(plan_of([(0, 1, -1), (0, 2, 3)]))
    assert (planes["K"][1] == word).all()
    for slot in (1, 2):
        assert (planes["k_raw"][slot] == word).all()
        assert (planes["V"][slot] == word).all()
    # Both heads of the first layer rotate, the second layer's key is its raw one.
    assert (planes["K"][2, :128] == CANONICAL_NAN).all()
    assert (planes["K"][2, 128:] == word).all()


def test_infinities_that_cancel_are_a_canonical_nan():
    """The negative NaN that x86 makes of inf - inf."""
    store = filled(KINDS["half split"])
    raw = store.planes[0]["k_raw"]
    raw[0] = np.inf
    store.apply(plan_of([(0, 0, 3)]))
    keys = store.planes[0]["K"][0]
    assert set(keys[np.isnan(keys)].view(np.uint32).tolist()) == {CANONICAL_NAN}
    assert np.isnan(keys).any()
    assert np.isinf(keys).any()


def test_wide_keys_are_narrowed_rotated_and_widened():
    """An index key rotated in float64, or a NaN whose sign survives the widening."""
    family = RowFamily("index", (RowSpec(0, 0, 0, 8, 0, 4, 0),), "float64")
    store = filled(CacheShape((family,), (Rope(4),), max_positions=40))
    raw = store.planes[0]["k_raw"]
    raw[0] = np.float32([0.1, -0.2, 0.3, 0.7, 1.5, -2.5, 3.5, 9.0])
    raw[1] = raw[0]
    raw.view(np.uint64)[1, 1] = 0xFFF8000000000123
    store.apply(plan_of([(0, 2, 7), (1, 3, 7)]))
    cos, sin = tables(Rope(4), 8)
    turned = rotate(raw[0, :4].astype(np.float32), cos[7], sin[7], "half_split")
    keys = store.planes[0]["K"]
    assert equal(keys[2], np.concatenate([turned.astype(np.float64), raw[0, 4:]]))
    assert bits(keys[3])[[1, 3]].tolist() == [0x7FF8000000000000] * 2
    assert equal(store.planes[0]["k_raw"][3], raw[1])


def test_the_last_position_of_the_tables_is_one():
    """An end of the tables that is off by one, on either side."""
    store = filled(KINDS["half split"])
    wanted = by_numpy(store, [(0, 1, 39)], range(4))
    store.apply(plan_of([(0, 1, 39)]))
    assert equal(store.planes[0]["K"], wanted["K"])
    with pytest.raises(RotationError, match="position 40"):
        store.apply(plan_of([(0, 1, 40)]))
    assert equal(store.planes[0]["K"], wanted["K"])


@pytest.mark.parametrize("planes", ["kv", "raw_only"])
def test_planes_without_both_keys_move_and_never_rotate(planes):
    """A key made of nothing, or a plane that a move forgets."""
    of = shape(planes)
    store = filled(of)
    before = {name: plane.copy() for name, plane in store.planes[0].items()}
    store.apply(plan_of([(3, 9, -1), (5, 5, -1)]))
    for name, plane in store.planes[0].items():
        assert equal(plane[9], before[name][3])
        assert equal(np.delete(plane, 9, 0), np.delete(before[name], 9, 0))
    with pytest.raises(ExactnessRefused, match="no pre-RoPE keys"):
        store.apply(plan_of([(3, 9, 2)]))


# Which kernel

needs_streams = pytest.mark.skipif(
    not streaming.STREAMS, reason="no non-temporal stores: another machine, or no compiler"
)


@needs_streams
def test_rows_of_whole_lines_stream_and_portable_ones_do_not():
    """A store that never takes the fast kernel, or takes it where it must not."""
    assert all(filled(WIDE)._streams)
    assert all(filled(WIDE, layout="layer_major")._streams)
    assert all(filled(CacheShape(WIDE.families, WIDE.ropes, "raw_only", 40))._streams)
    assert not any(filled(WIDE, portable=True)._streams)


@needs_streams
@pytest.mark.parametrize(
    ("families", "ropes"),
    [
        (DENSE, ROPES),  # rows of half a line
        (dense([1], 64, 64, pairing="interleaved"), (Rope(64),)),
        (dense([1], 64, 64, 32), (Rope(32),)),  # partial
        (dense([1], 16, 16), (Rope(16),)),  # halves of half a line
        (mla(1, 64, 64), (Rope(64),)),  # a carried part
        ((RowFamily("index", (RowSpec(0, 0, 0, 64, 0, 64, 0),), "float64"),), (Rope(64),)),
    ],
    ids=["narrow", "interleaved", "partial", "half lines", "carried", "float64"],
)
def test_rows_that_the_fast_kernel_cannot_do_take_the_other(families, ropes):
    """Aligned loads of what is not aligned, or pairs that are not read as they lie."""
    assert not any(filled(CacheShape(families, ropes, max_positions=40))._streams)


@needs_streams
@pytest.mark.parametrize("plane", ["K", "k_raw", "V"])
def test_planes_that_are_not_aligned_take_the_other_kernel(plane):
    """A load of a whole line at an address in its middle, which ends the process."""
    of, store = WIDE, filled(WIDE)
    (block,) = blocks(of, of.geometry(), "page_major")
    planes = dict(store.planes[0])
    assert moving.can_stream(block.lanes, list(planes.values()))
    width = planes[plane].shape[1]
    room = np.zeros(SLOTS * width + 32, np.float32)
    # Four floats past the start of a cache line, wherever the memory lies.
    start = -room.ctypes.data % 64 // 4 + 4
    planes[plane] = room[start : start + SLOTS * width].reshape(SLOTS, width)
    assert not moving.can_stream(block.lanes, list(planes.values()))


def test_nothing_streams_where_nothing_is_compiled():
    """An intrinsic that an interpreter is asked to carry out."""
    if os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0"):
        assert not streaming.STREAMS
        assert not any(filled(WIDE)._streams)


def test_planes_begin_at_whole_cache_lines():
    """Planes that lose their alignment when they grow."""
    pair = Pair(of=CacheShape(WIDE.families, WIDE.ropes, max_positions=64), pages=2)
    for _ in range(5):
        pair.append(pair.first, 9)
        for planes in pair.cache.store.planes:
            assert all(plane.ctypes.data % 64 == 0 for plane in planes.values())
            assert all(plane.flags.c_contiguous for plane in planes.values())
    pair.check()


def test_an_unknown_layout_or_geometry_is_refused():
    """A misspelt layout taken for the default, or rows without a unit."""
    with pytest.raises(LedgerError, match="page_major, layer_major"):
        ArrayStore(WIDE, WIDE.geometry(), 4, layout="rows")
    with pytest.raises(LedgerError, match="1 units for 3 rows"):
        ArrayStore(WIDE, Geometry((0,), (0,), (4,)), 4)
    with pytest.raises(LedgerError, match="no unit 3"):
        filled(WIDE).gather(np.arange(2), 3)
