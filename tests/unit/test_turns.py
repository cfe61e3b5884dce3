"""Renumbering writes only where a stored key depends on its position, and is priced so."""

from __future__ import annotations

import pytest
from realrows import Pair
from spliced import drawn

from kvsim.errors import LedgerError
from kvsim.layout import families
from kvsim.paging import Geometry, Ledger, Order, evict_span
from kvsim.tensors.paged_cache import PagedCache
from kvsim.tensors.rope import Rope
from kvsim.tensors.shape import CacheShape

ALGORITHMS = ("none", "rebuild", "forward", "hole_fill")


def evicted(cache, seed=0):
    """Append 8 tokens, fork, and evict positions [2, 3) from the child; return the receipt."""
    parent = cache.open()
    cache.append(parent, drawn(cache.shape, 8, seed))
    return cache.evict_span(cache.fork(parent), 2, 1)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_family_of_values_alone_is_neither_rotated_nor_copied_for_it(algorithm):
    """Every family counted as rotated, as before: values were priced as keys."""
    shape = CacheShape(families.glm_dsa(2, 2, 6, 4, 5, 12, [1]), (Rope(4),), "kv_raw", 16)
    cache = PagedCache(shape, 4, compaction=algorithm, positions="renumber")
    receipt = evicted(cache, 3)
    # Five survivors behind the span: four rows of K each, one index row, and no row of V.
    assert receipt.survivors_rotated_rows == 5 * (4 + 1)
    if algorithm == "none":
        # Two tables of two pages turn and are copied; the values stay in the shared pages.
        assert receipt.cow_pages == 2 * 2


@pytest.mark.parametrize("algorithm", ["none", "forward"])
def test_layers_without_rotation_leave_shared_pages_alone(algorithm):
    """Positions change and no key does: a page-aligned span then writes nothing at all."""
    shape = CacheShape(families.dense([2, 2], 8, 8, 0), (Rope(0),), "kv_raw", 16)
    cache = PagedCache(shape, 4, compaction=algorithm, positions="renumber")
    parent = cache.open()
    cache.append(parent, drawn(cache.shape, 12))
    receipt = cache.evict_span(cache.fork(parent), 4, 4)
    assert receipt.survivors_rotated_rows == receipt.copied_rows == receipt.cow_pages == 0


@pytest.mark.parametrize("algorithm", ["none", "forward"])
def test_only_the_layers_that_rotate_are_counted(algorithm):
    """One layer with rotation and one without, in one table: the page is copied for the one."""
    ropes = (Rope(8), Rope(0))
    shape = CacheShape(families.dense([2, 2], 8, 8, [8, 0]), ropes, "kv_raw", 16)
    receipt = evicted(PagedCache(shape, 4, compaction=algorithm, positions="renumber"))
    assert receipt.survivors_rotated_rows == 5 * 2
    assert receipt.cow_pages == 2


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_sets_without_rotation_move_and_are_not_rotated(algorithm):
    """Rows of two sets in one slot, moved row by row: only the first set's keys turn."""
    geometry = Geometry((0, 0), (0, 1), (4, 4), (True, False))
    ledger = Ledger(
        geometry, 2, ordering=Order(compaction=algorithm, unit="row", positions="renumber")
    )
    sequence = ledger.open()
    ledger.append(sequence, 6)
    receipt = evict_span(ledger, sequence, 1, 1)
    assert receipt.survivors_rotated_rows == 4
    ledger.check()


def test_a_turn_is_needed_for_every_unit():
    with pytest.raises(LedgerError, match="a turn for every unit"):
        Geometry((0, 0), (0, 0), (1, 1), (True,))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_tables_of_one_set_stay_in_step_where_holes_are_reused(algorithm):
    """Keys copied and values still shared: the next token went into a hole of the one table and
    behind the other, and an eviction by the first table's slots took another token's value."""
    shape = CacheShape(families.glm_dsa(2, 2, 6, 4, 5, 12, [1]), (Rope(4),), "kv_raw", 32)
    pair = Pair(
        8,
        of=shape,
        append="reuse_holes",
        compaction=algorithm,
        positions="renumber",
    )
    child = pair.fork(pair.first)
    pair.evict(child, 1, 2)
    pair.append(child, 1)
    pair.check()
    pair.cache.free(pair.first)
    del pair.truths[pair.first]
    pair.append(child, 1)
    pair.evict(child, 6, 1)
    pair.check()
    scopes = range(pair.ledger.geometry.scope_units)
    slots = [pair.ledger.rows(child, 0, scope)[0].tolist() for scope in scopes]
    assert slots[0] == slots[1] == slots[2]
