"""Pages taken ahead, clones, and images of tables, by hand. Pages hold 4 slots.

Each docstring names the bug that its test would catch.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from byhand import TWO_SETS, Case
from differential.paged_rows import equal, rows_of
from differential.rowstore import digest
from realrows import NOBODY, Pair, refused, shape, state

from kvsim.errors import CeilingExceeded, LedgerError, MemoryRefused, SwapError
from kvsim.paging import Geometry, Ledger, Order
from kvsim.paging import fields as f
from kvsim.tensors.memory import HeapMemory

TWO_TABLES = Geometry(unit_scope=(0, 1), unit_set=(0, 1), unit_row_bytes=(2, 5))
REUSE = Order(append="reuse_holes")


def reserved(ledger, sequence):
    """Return the pages that each table of a sequence has taken ahead."""
    scopes = range(ledger.geometry.scope_units)
    return [ledger.table(sequence, scope, f.RESERVED) for scope in scopes]


# reserve


@pytest.mark.parametrize(("tokens", "pages"), [(0, 0), (2, 0), (3, 1), (6, 1), (7, 2)])
def test_reserve_takes_what_the_next_tokens_need(tokens, pages):
    """The room in the last page forgotten, or a page too many."""
    case = Case(6)
    case.ledger.reserve(case.first, tokens)
    assert case.ledger.reserved_pages(case.first) == pages
    assert case.ledger.held_pages == 2 + pages
    assert case.ledger.slots().tail == 2 + 4 * pages
    # What is there already is not taken twice.
    case.ledger.reserve(case.first, tokens)
    assert case.ledger.reserved_pages(case.first) == pages
    case.ledger.check()


def test_an_append_uses_the_pages_taken_ahead_in_their_order():
    """A page of the pool taken while the sequence has its own, and another sequence starved."""
    case = Case(4, ceiling_pages=4)
    case.ledger.reserve(case.first, 8)
    ahead = np.flatnonzero(case.ledger.refcounts())[1:].tolist()
    other = case.ledger.open()
    case.append(other, 4)
    assert case.refuses(case.ledger.append, other, 1) == 1
    case.append(case.first, 8)
    assert case.ledger.pages_of(case.first)[1:].tolist() == ahead
    assert (case.ledger.reserved_pages(case.first), case.ledger.held_pages) == (0, 4)
    assert case.rows(case.first) == [0, 1, 2, 3, 8, 9, 10, 11, 12, 13, 14, 15]


def test_reserve_under_a_ceiling_that_just_fits_and_just_does_not():
    """A refused reservation that keeps the first of its pages."""
    case = Case(4, geometry=TWO_TABLES, ceiling_pages=6)
    assert case.refuses(case.ledger.reserve, case.first, 9) == 6
    case.ledger.reserve(case.first, 8)
    assert (reserved(case.ledger, case.first), case.ledger.held_pages) == ([2, 2], 6)
    case.ledger.check()


def test_pages_taken_ahead_stay_the_parents_own():
    """A child that shares a page which the parent will write, or that takes it along."""
    case = Case(4)
    case.ledger.reserve(case.first, 4)
    child = case.ledger.fork(case.first)
    assert case.ledger.reserved_pages(child) == 0
    assert case.ledger.refcounts().max() == 2
    case.append(case.first, 2)
    case.append(child, 2)
    assert case.rows(case.first) == [0, 1, 2, 3, 4, 5]
    assert case.rows(child) == [0, 1, 2, 3, 6, 7]
    case.ledger.free(case.first)
    case.ledger.check()
    assert case.rows(child) == [0, 1, 2, 3, 6, 7]


@pytest.mark.parametrize("order", [Order(), REUSE, Order(compaction="forward")])
def test_pages_taken_ahead_outlive_evictions(order):
    """An eviction or a compaction that loses them, so that they leak when the sequence ends."""
    case = Case(8, ordering=order)
    case.ledger.reserve(case.first, 4)
    case.evict(case.first, [1, 4, 5, 6, 7])
    if order.compaction != "none":
        case.compact(case.first)
    assert case.ledger.reserved_pages(case.first) == 1
    held = case.ledger.held_pages
    case.append(case.first, 5)
    assert case.ledger.held_pages == held + (order.append == "tail" and order.compaction == "none")
    case.ledger.free(case.first)
    assert case.ledger.held_pages == 0
    case.ledger.check()


def test_a_sequence_that_ends_gives_back_what_it_took_ahead():
    """A page that nobody has and nobody can take: a leak."""
    case = Case(3)
    case.ledger.reserve(case.first, 20)
    assert case.ledger.held_pages == 6
    case.ledger.free(case.first)
    assert case.ledger.held_pages == 0
    assert case.total("FINISHED_TOTAL") == 6
    case.ledger.check()


@pytest.mark.parametrize("tokens", [-1, 2.0, True, None, "3", 2**31, 2**63])
def test_rooms_that_are_none_are_refused(tokens):
    """A fraction that a kernel computes with, or a product that leaves an int64."""
    case = Case(3)
    before = digest(case.ledger)
    with pytest.raises(LedgerError):
        case.ledger.reserve(case.first, tokens)
    assert digest(case.ledger) == before


# clone


def test_a_clone_has_every_page_for_itself():
    """A page of a clone that is shared, or an empty one, or one that is not counted."""
    case = Case(10)
    case.evict(case.first, [4, 5, 6, 7, 9])
    case.ledger.reserve(case.first, 8)
    ahead = case.ledger.reserved_pages(case.first)
    child = case.ledger.clone(case.first)
    assert case.rows(child) == case.rows(case.first) == [0, 1, 2, 3, 8]
    assert case.ledger.pages_of(child)[1] == -1
    assert set(case.ledger.refcounts().tolist()) == {0, 1}
    assert case.ledger.reserved_pages(child) == ahead
    # Four slots and the one below the cursor were copied.
    assert (case.total("COW_TOTAL"), case.total("COPIED_ROWS_TOTAL")) == (2, 5)
    case.append(child, 1)
    assert case.rows(case.first) == [0, 1, 2, 3, 8]
    case.ledger.check()


def test_a_clone_of_tables_of_unequal_lengths_takes_what_the_parent_has():
    """One number of tokens for all tables: the shorter ones get more pages than they had."""
    case = Case(8, geometry=TWO_TABLES)
    case.ledger.reserve(case.first, 4)
    case.evict(case.first, [], [3, 4, 5, 6, 7])
    assert reserved(case.ledger, case.first) == [1, 1]
    child = case.ledger.clone(case.first)
    assert reserved(case.ledger, child) == [1, 1]
    assert case.ledger.held_pages == 10


@pytest.mark.parametrize("ceiling", [9, 10])
def test_a_clone_is_made_or_refused_as_a_whole(ceiling):
    """A clone refused halfway: pages taken, rows copied and flows counted for nothing."""
    case = Case(8, geometry=TWO_TABLES, ceiling_pages=ceiling)
    case.ledger.reserve(case.first, 4)
    case.evict(case.first, [], [3, 4, 5, 6, 7])
    if ceiling == 9:
        assert case.refuses(case.ledger.clone, case.first) == 5
    else:
        case.ledger.clone(case.first)
        case.ledger.check()


class Limited(HeapMemory):
    """Memory that refuses to grow beyond so many slots."""

    def __init__(self, most):
        super().__init__()
        self.most = most

    def grow(self, name, old, slots):
        """Refuse what is too large."""
        if slots > self.most:
            raise MemoryRefused(f"{slots} slots")
        return super().grow(name, old, slots)


@pytest.mark.parametrize("verb", ["clone", "reserve", "append", "swap_in"])
def test_a_pool_whose_planes_cannot_grow_stays_as_it_was(verb):
    """Pages without rows behind them, after the store has refused to grow."""
    pair = Pair(7, pages=3, memory=Limited(16))
    data = pair.cache.swap_out(pair.cache.fork(pair.first))
    arguments = {
        "clone": (pair.first,),
        "reserve": (pair.first, 12),
        "append": (pair.first, rows_of(pair.shape, 6, pair.rng)),
        "swap_in": (data,),
    }
    refused(MemoryRefused, pair.cache, getattr(pair.cache, verb), *arguments[verb])
    assert pair.ledger.room_pages == 3
    pair.append(pair.first, 1)
    pair.check()


# image and restore


def with_holes(ordering=None, geometry=None):
    """Return a case with holes, a null entry and a page taken ahead."""
    case = Case(11, geometry=geometry, ordering=ordering)
    lists = [[1, 4, 5, 6, 7, 9]] * case.geometry.sets
    if case.geometry.sets > 1:
        lists[1] = [1, 2, 4, 5, 6, 7]
    case.evict(case.first, *lists)
    case.ledger.reserve(case.first, 4)
    return case


@pytest.mark.parametrize("geometry", [None, TWO_SETS], ids=["one set", "two sets"])
@pytest.mark.parametrize(
    "order",
    [Order(), REUSE, Order(positions="renumber")],
    ids=["tail", "reuse", "renumber"],
)
def test_an_image_brings_back_all_that_a_table_says(order, geometry):
    """Holes that come back alive, a set that retains all, positions or pages ahead forgotten."""
    case = with_holes(order, geometry)
    ledger = case.ledger
    image, placed = ledger.image(case.first)
    number, fresh = ledger.restore(image)
    ledger.check()
    assert np.array_equal(placed < 0, fresh < 0)
    assert not set(placed[placed >= 0].tolist()) & set(fresh[fresh >= 0].tolist())
    for which in range(case.geometry.sets):
        assert [a.tolist() for a in ledger.rows(number, which)] == [
            a.tolist() for a in ledger.rows(case.first, which)
        ]
    for name in (f.CURSOR, f.DEAD, f.ENTRIES, f.NAMED, f.RESERVED):
        assert ledger.table(number, 0, name) == ledger.table(case.first, 0, name)
    assert ledger.next_position(number) == ledger.next_position(case.first)
    assert [(p < 0) for p in ledger.pages_of(number)] == [False, True, False]
    # It is a family of its own, which shares no slot with the other.
    assert ledger.table(number, 0, f.ROOT) != ledger.table(case.first, 0, f.ROOT)
    case.append(number, 9)
    assert ledger.reserved_pages(number) == 0


def test_an_image_is_a_copy():
    """A picture that changes with what it was taken of."""
    case = with_holes(REUSE, TWO_SETS)
    image, _ = case.ledger.image(case.first)
    before = {n: getattr(image, n).tobytes() for n in image.__dataclass_fields__}
    case.append(case.first, 7)
    case.evict(case.first, [0, 8], [0, 8])
    assert before == {n: getattr(image, n).tobytes() for n in image.__dataclass_fields__}


def test_restore_under_a_ceiling_that_just_fits_and_just_does_not():
    """Pages counted without those taken ahead, or a null entry that gets a page."""
    case = with_holes()
    image, _ = case.ledger.image(case.first)
    # Two named pages and one ahead, twice.
    for ceiling, fits in ((6, True), (5, False)):
        other = Case(11, ceiling_pages=ceiling)
        other.evict(other.first, [1, 4, 5, 6, 7, 9])
        other.ledger.reserve(other.first, 4)
        if fits:
            other.ledger.restore(image)
            assert (other.ledger.held_pages, other.ledger.free_pages) == (6, 0)
            other.ledger.check()
        else:
            assert other.refuses(other.ledger.restore, image) == 3


def forged(image, **changes):
    """Return an image with some arrays replaced."""
    return dataclasses.replace(image, **changes)


def one(array, place, value):
    """Return a copy of an array with one number replaced."""
    changed = array.copy()
    changed[place] = value
    return changed


FORGERIES = {
    "a negative cursor": lambda i: {"cursors": -i.cursors},
    "a cursor beyond any table": lambda i: {"cursors": i.cursors + 2**40},
    "a cursor without its slots": lambda i: {"cursors": i.cursors + 1},
    "pages ahead beyond any table": lambda i: {"reserved": i.reserved + 2**62},
    "a negative number of pages ahead": lambda i: {"reserved": i.reserved - 2},
    "too few tables": lambda i: {"cursors": i.cursors[:0]},
    "entries too few": lambda i: {"named": i.named[:-1]},
    "entries of two dimensions": lambda i: {"named": i.named[None]},
    "flags of two dimensions": lambda i: {"dead": i.dead[None]},
    "a flag of 2": lambda i: {"dead": one(i.dead, 1, 2)},
    "a name of 2": lambda i: {"named": one(i.named, 0, 2)},
    "a holder of 2": lambda i: {"holders": one(i.holders, (0, 0), 2)},
    "a live slot in a null entry": lambda i: {
        "dead": one(i.dead, 5, 0),
        "holders": one(i.holders, (0, 5), 1),
    },
    "a page for dead slots": lambda i: {"named": one(i.named, 1, 1)},
    "a page that is not named": lambda i: {"named": one(i.named, 0, 0)},
    "a dead slot that is held": lambda i: {"holders": one(i.holders, (0, 1), 1)},
    "a live slot that nobody holds": lambda i: {"holders": one(i.holders, np.s_[:, 0], 0)},
    "an end that is dead": lambda i: {
        "dead": one(i.dead, 10, 1),
        "holders": one(i.holders, np.s_[:, 10], 0),
    },
    "a set too few": lambda i: {"holders": i.holders[:1]},
    "a position twice": lambda i: {"position": one(i.position, (0, 2), 0)},
    "a negative position": lambda i: {"position": one(i.position, (0, 0), -1)},
    "a position that is still to come": lambda i: {"position": one(i.position, (0, 10), 11)},
    "a next position below 0": lambda i: {"following": i.following - 100},
    "a next position beyond any table": lambda i: {"following": i.following + 2**40},
    "no positions": lambda i: {"position": i.position[:0]},
}


@pytest.mark.parametrize("what", FORGERIES)
def test_images_of_no_ledger_are_refused(what):
    """Tables that no verb could have made, taken over as they are."""
    case = with_holes(REUSE, TWO_SETS)
    image, _ = case.ledger.image(case.first)
    before = digest(case.ledger)
    with pytest.raises(SwapError):
        case.ledger.restore(forged(image, **FORGERIES[what](image)))
    assert digest(case.ledger) == before
    case.ledger.restore(image)


def test_counts_whose_sum_wraps_are_refused():
    """Numbers that look small once they are summed in an int64."""
    ledger = Ledger(Geometry((0, 1, 2), (0, 0, 0), (2, 2, 2)), 1)
    image, _ = ledger.image(ledger.open())
    before = digest(ledger)
    wraps = np.array([2**63 - 1, 2**63 - 1, 2], np.int64)
    for name in ("cursors", "reserved"):
        with pytest.raises(SwapError):
            ledger.restore(forged(image, **{name: wraps}))
        assert digest(ledger) == before


# The same with rows


@pytest.mark.parametrize("layout", ["page_major", "layer_major"])
def test_a_clone_has_its_own_bytes(layout):
    """A clone that reads its parent's page, or a write that shows in both."""
    pair = Pair(7, hard=True, layout=layout, compaction="forward", positions="renumber")
    child = pair.fork(pair.first, "clone")
    pair.check()
    pair.evict(child, 1, 3)
    pair.append(pair.first, 3)
    pair.evict(pair.first, 0, 2)
    pair.check()


def test_a_double_free_is_refused():
    """A refcount that drops twice."""
    pair = Pair()
    child = pair.fork(pair.first)
    pair.cache.free(child)
    del pair.truths[child]
    refused(LedgerError, pair.cache, pair.cache.free, child, match="not open")
    pair.check()


def test_a_refused_clone_leaves_every_byte():
    """Pages copied before the ceiling was asked."""
    pair = Pair(ceiling_pages=3)
    before = state(pair.cache)
    error = refused(CeilingExceeded, pair.cache, pair.cache.clone, pair.first)
    assert (error.needed_pages, error.free_pages) == (2, 1)
    assert state(pair.cache) == before
    assert equal(pair.cache.rows(pair.first)["V"], pair.given[0]["v"])


def test_a_clone_where_sets_dropped_other_tokens():
    """A clone whose sets retain what its parent's slots hold, and not what they retained."""
    of = shape("raw_only")
    pair = Pair(8, of, sets="layer", compaction="forward", unit="row", positions="keep")
    pair.cache.evict(pair.first, [np.array([0, 3]), np.array([5])])
    child = pair.cache.clone(pair.first)
    pair.cache.evict(pair.first, [NOBODY, np.array([0])])
    kept = [[1, 2, 4, 5, 6, 7], [0, 1, 2, 3, 4, 6, 7]]
    for unit, layer in enumerate((0, 0, 1, 1)):
        rows = pair.cache.unit_rows(child, unit)
        assert rows["positions"].tolist() == kept[layer]
        column = pair.given[0]["v"][kept[layer]][:, 8 * unit : 8 * unit + 8]
        assert equal(rows["V"], column)
