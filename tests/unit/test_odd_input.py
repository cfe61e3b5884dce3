"""What a paged cache is handed by mistake: sizes, types, read-only rows, no memory left."""

from __future__ import annotations

import pytest
from realrows import TINY, Pair, refused, shape
from spliced import drawn

from kvsim.errors import (
    KvsimError,
    LayoutError,
    LedgerError,
    MemoryRefused,
    SwapError,
    VictimError,
)
from kvsim.layout import families
from kvsim.paging import Ledger, single
from kvsim.tensors.memory import HeapMemory
from kvsim.tensors.paged_cache import PagedCache
from kvsim.tensors.rope import Rope
from kvsim.tensors.shape import CacheShape


@pytest.mark.parametrize("value", [0, -1, 2.5, True, None, "4", 2**62, 10**30])
@pytest.mark.parametrize("name", ["page_tokens", "ceiling_pages", "room_pages"])
def test_a_size_that_is_none_is_refused_by_its_name(name, value):
    """A size that NumPy refused in its own words, or rounded, or took for another."""
    if name == "ceiling_pages" and value == 0:
        return
    sizes = {"page_tokens": 4, name: value}
    with pytest.raises(LedgerError, match=name):
        Ledger(single(), sizes.pop("page_tokens"), **sizes)


def test_a_pool_without_memory_is_refused(monkeypatch):
    """A MemoryError with a traceback."""
    monkeypatch.setattr("kvsim.paging.arrays.make", no_memory)
    with pytest.raises(MemoryRefused, match="does not fit into memory"):
        PagedCache(TINY, 4)


def no_memory(*arguments, **options):
    """Be out of memory."""
    raise MemoryError


@pytest.mark.parametrize("value", [0, 1.5, True, 10**13])
def test_positions_that_are_no_number_are_refused(value):
    """Half a position, or tables of rotations larger than any memory."""
    with pytest.raises(KvsimError):
        PagedCache(CacheShape(families.dense([1], 2, 2), (Rope(2),), max_positions=value), 4)


def test_a_cache_without_a_family_is_refused():
    with pytest.raises(LayoutError, match="needs a family"):
        CacheShape((), (Rope(2),))


@pytest.mark.parametrize("where", ["plane", "ledger"])
def test_memory_that_runs_out_while_growing_changes_nothing(where, monkeypatch):
    """The pool was left as large as it would have been, and later verbs wrote over other rows."""
    pair = Pair(30, of=TINY, page_tokens=4, pages=8)
    pair.fork(pair.first)
    with monkeypatch.context() as context:
        if where == "plane":
            context.setattr(HeapMemory, "plane", no_memory)
        else:
            context.setattr("kvsim.paging.arrays.grown", no_memory)
        refused(MemoryRefused, pair.cache, pair.cache.reserve, pair.first, 400)
    pair.append(pair.first, 40)
    pair.check()


def test_rows_that_cannot_be_written_are_taken():
    """Rows of a memory map ended in the compiler's words, and only where it compiled."""
    pair = Pair(5)
    rows = drawn(pair.shape, 3)
    for given in rows:
        for array in given.values():
            array.flags.writeable = False
    pair.cache.append(pair.first, rows)
    pair.truths[pair.first].append(rows)
    pair.check()


def test_a_bound_outside_64_bits_is_refused_with_a_receipt():
    """A refusal that forgot to say so in its receipt."""
    pair = Pair(7)
    refusal = refused(LedgerError, pair.cache, pair.cache.evict_span, pair.first, 2**63, 1)
    assert refusal.receipt.refused == str(refusal)
    assert not refusal.receipt.exact


@pytest.mark.parametrize("sequence", [None, 1.5, "a", -1, 99])
def test_what_is_no_open_sequence_is_refused_by_every_reading(sequence):
    """A length of 0 for a sequence that is not there."""
    cache = Pair(7).cache
    for call in (cache.fork, cache.length, cache.next_position, cache.rows, cache.free):
        refused(LedgerError, cache, call, sequence)
    refused(LedgerError, cache, cache.unit_rows, sequence, 0)


def test_families_and_units_that_are_not_there_are_refused():
    pair = Pair(7)
    for family in (-1, 1, 2):
        refused(LedgerError, pair.cache, pair.cache.rows, pair.first, family)
    for unit in (-1, 4):
        refused(LedgerError, pair.cache, pair.cache.unit_rows, pair.first, unit)


@pytest.mark.parametrize("rows", [None, [5], "k", 7])
def test_rows_that_are_none_are_refused(rows):
    pair = Pair(7)
    refused(LedgerError, pair.cache, pair.cache.append, pair.first, rows)


@pytest.mark.parametrize("victims", [None, 3, [[[1], [1, 2]]], [["a"]], [[0.5]]])
def test_victims_that_are_none_are_refused(victims):
    pair = Pair(7)
    refused(VictimError, pair.cache, pair.cache.evict, pair.first, victims)


@pytest.mark.parametrize("data", [None, "kvsimswp", 7])
def test_a_swap_file_that_is_no_bytes_is_refused(data):
    pair = Pair(7)
    refused(SwapError, pair.cache, pair.cache.swap_in, data)


def test_index_keys_are_float32_numbers():
    """A float64 that no float32 is: the key was narrowed and its raw row was not."""
    of = shape(families=families.glm_dsa(2, 2, 6, 4, 5, 12, [1]), ropes=(Rope(4),))
    pair = Pair(5, of=of)
    rows = drawn(of, 2)
    rows[2]["k"][0, 0] += 1e-12
    refused(LedgerError, pair.cache, pair.cache.append, pair.first, rows, match="float32 numbers")
