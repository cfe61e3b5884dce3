"""Swap files: what comes back, and every file that must not be taken in.

Each docstring names the bug that its test would catch.
"""

from __future__ import annotations

import hashlib
import json
import struct

import numpy as np
import pytest
from differential.paged_rows import equal, rows_of
from realrows import Pair, refused, shape, state

from kvsim.errors import CeilingExceeded, LedgerError, SwapError
from kvsim.layout.families import dense, glm_dsa, mla
from kvsim.paging import fields as f
from kvsim.tensors.paged_cache import PagedCache
from kvsim.tensors.rope import Rope

PREFIX = struct.Struct("<8sII")
SPARSE = shape(families=glm_dsa(2, 2, 4, 4, 6, 8, [1]), ropes=(Rope(4), Rope(4, 1e6)))
HOLES = {"append": "reuse_holes", "positions": "keep"}
FORWARD = {"compaction": "forward", "positions": "renumber"}


def holey(**options):
    """Return a pair with holes, a null entry, a hole used again and pages taken ahead."""
    pair = Pair(14, hard=True, **{**HOLES, **options})
    for first, count in ((1, 1), (4, 4), (10, 2)):
        pair.evict(pair.first, first, count)
    pair.append(pair.first, 1)
    pair.cache.reserve(pair.first, 9)
    return pair


# What comes back


@pytest.mark.parametrize("planes", ["kv_raw", "raw_only", "kv"])
@pytest.mark.parametrize(
    "options",
    [HOLES, {"positions": "renumber"}, {**FORWARD, "layout": "layer_major"}, {"order": "lifo"}],
    ids=["holes", "renumber", "forward", "lifo"],
)
def test_a_sequence_comes_back_with_its_holes_and_positions(options, planes):
    """Holes that come back alive, rows in another order, a plane left out of the file."""
    pair = holey(of=shape(planes), **options) if planes != "kv" else Pair(14, shape(planes))
    other = pair.fork(pair.first)
    tables = {}
    for name in (f.CURSOR, f.DEAD, f.ENTRIES, f.NAMED, f.RESERVED):
        tables[name] = pair.ledger.table(pair.first, 0, name)
    number = pair.swap(pair.first)
    assert tables == {name: pair.ledger.table(number, 0, name) for name in tables}
    pair.append(number, 5)
    pair.append(other, 2)
    pair.check()


def test_swapping_out_frees_the_pages():
    """A sequence that stays, or pages shared with a fork that go with it."""
    pair = Pair()
    child = pair.fork(pair.first)
    data = pair.cache.swap_out(pair.first)
    assert pair.ledger.sequences() == [child]
    assert pair.ledger.refcounts().sum() == 2
    pair.cache.free(child)
    assert pair.ledger.held_pages == 0
    again = pair.cache.swap_in(data)
    assert equal(pair.cache.rows(again)["V"], pair.given[0]["v"])
    # The same bytes a second time are another sequence.
    assert pair.cache.swap_in(data) != again
    assert pair.ledger.held_pages == 4


def test_an_empty_sequence_swaps_too():
    """Rows of no token that cannot be shaped, and a sequence left open by it."""
    pair = Pair(0)
    pair.swap(pair.first)
    pair.check()
    assert len(pair.ledger.sequences()) == 1


def test_every_family_comes_back():
    """One family's rows in another's planes, or float64 rows narrowed."""
    latent = shape(families=mla(2, 6, 4), ropes=(Rope(4), Rope(4)))
    for of in (SPARSE, latent):
        pair = Pair(9, of, hard=True)
        pair.evict(pair.first, 2, 4)
        pair.swap(pair.first)


def test_sets_and_tables_of_their_own_come_back():
    """What one set dropped that comes back with its slot."""
    for scope, options in (
        ("sequence", {}),
        ("layer", {}),
        ("sequence", {"compaction": "forward", "unit": "row", "positions": "renumber"}),
    ):
        pair = Pair(9, scope=scope, sets="layer", **options)
        pair.cache.evict(pair.first, [np.array([0, 1]), np.arange(4, 9)])
        before = [pair.cache.unit_rows(pair.first, unit) for unit in range(4)]
        number = pair.cache.swap_in(pair.cache.swap_out(pair.first))
        pair.cache.check()
        for unit, rows in enumerate(before):
            found = pair.cache.unit_rows(number, unit)
            assert all(equal(found[name], array) for name, array in rows.items())


def test_the_same_sequence_gives_the_same_bytes():
    """Bytes that depend on page numbers, or on what lay in dead slots."""
    files = []
    for churn in (False, True):
        pair = Pair(6)
        if churn:
            pair.append(pair.open(), 9)
        files.append(pair.cache.swap_out(pair.first))
    assert files[0] == files[1]


@pytest.mark.parametrize(
    "options",
    [
        {"positions": "renumber"},
        {"compaction": "rebuild", "unit": "row", "sets": "layer"},
        {"compaction": "rebuild", "unit": "row", "sets": "layer", "layout": "layer_major"},
    ],
    ids=["dead slots", "rows of their own", "in buffers of their own"],
)
def test_nothing_of_another_sequence_is_in_the_file(options):
    """Rows that a freed sequence left in a page: in the dead slots of a copy of it, or where one
    set retains fewer tokens than another."""
    files = []
    for secret in (0.0, 7.0):
        pair = Pair(8, order="lifo", **options)
        (rows,) = rows_of(pair.shape, 8, pair.rng)
        other = pair.cache.open()
        pair.cache.append(other, [{name: np.full_like(a, secret) for name, a in rows.items()}])
        pair.cache.free(other)
        child = pair.cache.fork(pair.first)
        if "sets" in options:
            pair.cache.evict(child, [np.array([1, 2]), np.array([0, 5, 6])])
        else:
            pair.cache.evict_span(child, 1, 2)
        files.append(pair.cache.swap_out(child))
    assert files[0] == files[1]


@pytest.mark.parametrize("layout", ["page_major", "layer_major"])
def test_the_layout_of_planes_is_not_in_the_file(layout):
    """A file that only the cache which wrote it can read."""
    pair = holey()
    rows = pair.cache.rows(pair.first)
    other = PagedCache(pair.shape, 4, layout=layout, portable=True, pages=1, **HOLES)
    number = other.swap_in(pair.cache.swap_out(pair.first))
    other.check()
    assert all(equal(array, rows[name]) for name, array in other.rows(number).items())


# Ceilings


@pytest.mark.parametrize("spare", [0, 1])
def test_under_a_ceiling_that_just_fits_and_just_does_not(spare):
    """Rows written before the pages were counted, those taken ahead among them."""
    data = holey().cache.swap_out(0)
    # 14 slots in 4 entries, of which one is null, and 2 pages ahead.
    pair = Pair(7, ceiling_pages=6 + spare, **HOLES)
    if spare:
        number = pair.cache.swap_in(data)
        assert pair.ledger.reserved_pages(number) == 2
        assert pair.ledger.free_pages == 0
        del pair.truths[pair.first]
        pair.check()
    else:
        error = refused(CeilingExceeded, pair.cache, pair.cache.swap_in, data)
        assert (error.needed_pages, error.free_pages) == (5, 4)
        pair.check()


# Files that must not be taken in


def sealed(body):
    """Return bytes with the checksum that they should have."""
    return body + hashlib.sha256(body).digest()


def parts(data):
    """Return (header, bytes of the arrays) of a swap file."""
    *_, size = PREFIX.unpack_from(data)
    return json.loads(data[PREFIX.size : PREFIX.size + size]), data[PREFIX.size + size : -32]


def assembled(header, arrays):
    """Return a swap file of a header and arrays, with a valid checksum."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return sealed(PREFIX.pack(b"kvsimswp", 1, len(text)) + text + arrays)


def test_every_flipped_byte_is_refused():
    """A checksum that leaves something out, or is not looked at."""
    pair = holey()
    data = pair.cache.swap_out(pair.cache.fork(pair.first))
    before = state(pair.cache)
    rng = np.random.default_rng(3)
    places = {*range(20), *range(len(data) - 33, len(data)), *rng.integers(20, len(data), 150)}
    for place in sorted(map(int, places)):
        altered = bytearray(data)
        altered[place] ^= 1 << int(rng.integers(8))
        with pytest.raises(SwapError):
            pair.cache.swap_in(bytes(altered))
    assert state(pair.cache) == before
    pair.cache.swap_in(data)


def test_every_other_length_is_refused():
    """A file cut at a seam, or bytes behind the checksum."""
    pair = holey()
    data = pair.cache.swap_out(pair.cache.fork(pair.first))
    before = state(pair.cache)
    rng = np.random.default_rng(4)
    for length in {
        *range(60),
        *rng.integers(60, len(data), 150),
        *range(len(data) - 40, len(data)),
    }:
        with pytest.raises(SwapError):
            pair.cache.swap_in(data[:length])
    for more in (b"\0", data[-32:], data):
        with pytest.raises(SwapError):
            pair.cache.swap_in(data + more)
    assert state(pair.cache) == before


OTHERS = {
    "page_tokens": (shape(), 3, {}),
    "planes": (shape("raw_only"), 4, {}),
    "unit_scope": (shape(), 4, {"scope": "layer"}),
    "unit_set": (shape(), 4, {"sets": "layer"}),
    "families": (shape(families=dense([2, 2], 8, 8, pairing="interleaved")), 4, {}),
    "ropes": (shape(ropes=(Rope(8, 1e4), Rope(8, 1e5))), 4, {}),
    "positions": (shape(), 4, {"positions": "renumber"}),
    "keys": (shape(), 4, {"keys": "int8"}),
}


@pytest.mark.parametrize("key", OTHERS)
def test_a_file_of_another_cache_is_refused(key):
    """Rows of one shape taken for another's because they are equally many bytes."""
    data = Pair(7).cache.swap_out(0)
    of, page_tokens, options = OTHERS[key]
    cache = PagedCache(of, page_tokens, **options)
    cache.open()
    refused(SwapError, cache, cache.swap_in, data, match=f"other {key}")


def test_a_file_of_another_ordering_is_refused():
    """A table of positions that is taken for none, or made up."""
    plain, stored = Pair(7), Pair(7, **HOLES)
    files = [pair.cache.swap_out(pair.cache.fork(pair.first)) for pair in (plain, stored)]
    refused(SwapError, plain.cache, plain.cache.swap_in, files[1], match="other tables")
    refused(SwapError, stored.cache, stored.cache.swap_in, files[0], match="other tables")


@pytest.mark.parametrize(
    "options", [{}, HOLES, {"positions": "renumber"}], ids=["keep", "holes", "renumber"]
)
@pytest.mark.parametrize("planes", ["kv_raw", "raw_only"])
def test_positions_past_this_cache_s_tables_are_refused(planes, options):
    """Rows rotated on reading by what lies behind the last angle."""
    pair = Pair(14, shape(planes), **options)
    pair.evict(pair.first, 2, 5)
    reached = pair.cache.next_position(pair.first)
    data = pair.cache.swap_out(pair.first)
    for positions in (reached, reached - 1):
        cache = PagedCache(shape(planes, max_positions=positions), 4, **options)
        if positions == reached:
            cache.rows(cache.swap_in(data))
        else:
            refused(SwapError, cache, cache.swap_in, data, match="rotation tables")


def changed(header, arrays, number, value, kind):
    """Return a file in which every number of the array `number` is replaced."""
    sizes = [np.dtype(name).itemsize * int(np.prod(size)) for name, size in header["arrays"]]
    first = sum(sizes[:number])
    new = np.full(sizes[number] // np.dtype(kind).itemsize, value, kind).tobytes()
    return assembled(header, arrays[:first] + new + arrays[first + sizes[number] :])


def retyped(header, number, kind, size):
    """Return a header that says something else of one array."""
    every = list(header["arrays"])
    every[number] = [kind, size]
    return {**header, "arrays": every}


FORGERIES = {
    "a header that is no JSON": lambda h, a: assembled(b"{", a),
    "a header of no text": lambda h, a: assembled(b"\xff\xfe", a),
    "a header of lists": lambda h, a: assembled([1, 2], a),
    "a header nested too deep": lambda h, a: assembled(b"[" * 100000, a),
    "no arrays": lambda h, a: assembled({"geometry": h["geometry"]}, a),
    "no geometry": lambda h, a: assembled({"arrays": h["arrays"]}, a),
    "a geometry that is a number": lambda h, a: assembled({**h, "geometry": 7}, a),
    "arrays that are a number": lambda h, a: assembled({**h, "arrays": 7}, a),
    "fewer arrays": lambda h, a: assembled({**h, "arrays": h["arrays"][:3]}, a),
    "an array of objects": lambda h, a: assembled(retyped(h, 0, "|O", [1]), a),
    "an array of nothing": lambda h, a: assembled(retyped(h, 0, "<U0", [1]), a),
    "an array of records": lambda h, a: assembled(retyped(h, 0, "i4,i4", [1]), a),
    "an array of another type": lambda h, a: assembled(retyped(h, 0, "<f8", [1]), a),
    "a size below 0": lambda h, a: assembled(retyped(h, 0, "<i8", [-1]), a),
    "two sizes below 0": lambda h, a: assembled(retyped(h, 0, "<i8", [-1, -1]), a),
    "a size that is a fraction": lambda h, a: assembled(retyped(h, 0, "<i8", [1.0]), a),
    "a size that is a word": lambda h, a: assembled(retyped(h, 0, "<i8", "one"), a),
    "sizes whose product wraps": lambda h, a: assembled(retyped(h, 0, "<i8", [2**62, 4]), a),
    "a size beyond the file": lambda h, a: assembled(retyped(h, 0, "<i8", [2**40]), a),
    "tables of two dimensions": lambda h, a: assembled(retyped(h, 3, "|u1", [1, 4]), a),
    "bytes behind the arrays": lambda h, a: assembled(h, a + b"\0"),
    "bytes missing": lambda h, a: assembled(h, a[:-1]),
    "a negative cursor": lambda h, a: changed(h, a, 0, -3, "<i8"),
    "a huge cursor": lambda h, a: changed(h, a, 0, 2**62, "<i8"),
    "a longer cursor": lambda h, a: changed(h, a, 0, 15, "<i8"),
    "a negative reservation": lambda h, a: changed(h, a, 1, -1, "<i8"),
    "a huge reservation": lambda h, a: changed(h, a, 1, 2**62, "<i8"),
    "a negative next position": lambda h, a: changed(h, a, 2, -5, "<i8"),
    "a huge next position": lambda h, a: changed(h, a, 2, 2**62, "<i8"),
    "every page named": lambda h, a: changed(h, a, 3, 1, "|u1"),
    "no page named": lambda h, a: changed(h, a, 3, 0, "|u1"),
    "every slot dead": lambda h, a: changed(h, a, 4, 1, "|u1"),
    "every slot live": lambda h, a: changed(h, a, 4, 0, "|u1"),
    "equal positions": lambda h, a: changed(h, a, 6, 0, "<i4"),
    "positions below 0": lambda h, a: changed(h, a, 6, -7, "<i4"),
}


@pytest.mark.parametrize("what", FORGERIES)
def test_forged_files_with_a_valid_checksum_are_refused(what):
    """A checksum taken for a promise that the tables are possible."""
    pair = holey()
    data = pair.cache.swap_out(pair.cache.fork(pair.first))
    header, arrays = parts(data)
    assert assembled(json.dumps(header, separators=(",", ":")).encode(), arrays) == data
    refused(SwapError, pair.cache, pair.cache.swap_in, FORGERIES[what](header, arrays))
    pair.check()


def test_a_file_of_another_version_or_kind_is_refused():
    """Bytes read by rules that were not theirs."""
    pair = Pair()
    data = pair.cache.swap_out(pair.cache.fork(pair.first))
    later = sealed(data[:8] + struct.pack("<I", 2) + data[12:-32])
    refused(SwapError, pair.cache, pair.cache.swap_in, later, match="version 2")
    other = sealed(b"kvsimswq" + data[8:-32])
    refused(SwapError, pair.cache, pair.cache.swap_in, other, match="not a swap file")


def test_what_is_not_open_cannot_be_swapped_out():
    """An image of tables that were freed."""
    pair = Pair()
    refused(LedgerError, pair.cache, pair.cache.swap_out, 5, match="not open")
