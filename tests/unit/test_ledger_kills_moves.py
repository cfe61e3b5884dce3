"""Small cases by hand, each of which one planted bug of tests/mutants would get wrong.

Here: compaction, renumbering, and victims that are none. Pages hold 4 slots.
"""

from __future__ import annotations

import numpy as np
import pytest
from byhand import TWO_SETS, Case
from differential.rowstore import digest

from kvsim.errors import VictimError
from kvsim.paging import Order
from kvsim.paging import fields as f

FORWARD = Order(compaction="forward")
REBUILD = Order(compaction="rebuild")
HOLE_FILL = Order(compaction="hole_fill")


def test_forward_moves_survivors_down_in_ascending_order():
    case = Case(8, ordering=FORWARD)
    case.evict(case.first, [0, 3])
    case.compact(case.first)
    assert case.rows(case.first) == [1, 2, 4, 5, 6, 7]
    assert case.positions(case.first) == [1, 2, 4, 5, 6, 7]
    # Slots 0 to 5 were written, each from above: all six survivors moved.
    assert case.total("COPIED_ROWS_TOTAL") == 6
    assert case.ledger.cursor(case.first) == 6


def test_forward_reads_a_shared_page_where_it_was_and_not_its_copy():
    case = Case(8, ordering=FORWARD)
    child = case.ledger.fork(case.first)
    case.evict(child, [0])
    case.compact(child)
    assert case.rows(child) == [1, 2, 3, 4, 5, 6, 7]
    assert case.rows(case.first) == [0, 1, 2, 3, 4, 5, 6, 7]
    assert case.total("COW_TOTAL") == 2


def test_forward_copies_no_page_that_it_does_not_write():
    case = Case(12, ordering=FORWARD)
    child = case.ledger.fork(case.first)
    case.evict(child, [9])
    case.compact(child)
    # Pages 0 and 1 stay as they are, shared.
    assert case.total("COW_TOTAL") == 1
    assert case.ledger.pages_of(child)[:2].tolist() == case.ledger.pages_of(case.first)[:2].tolist()
    assert case.rows(child) == [0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 11]


def test_a_compacted_table_has_no_dead_flag_behind_its_cursor():
    # Without stored positions advancing moves the cursor alone, over whatever flags are there.
    case = Case(8, ordering=Order(compaction="forward", positions="renumber"))
    case.evict(case.first, [0, 1, 6])
    case.ledger.compact(case.first)
    case.ledger.advance(np.array([case.first]), 3)
    assert np.flatnonzero(case.ledger.retained(case.first, 0)).tolist() == list(range(8))
    case.ledger.check()


def test_hole_fill_moves_the_last_survivors_into_the_first_holes():
    case = Case(8, ordering=HOLE_FILL)
    case.evict(case.first, [1, 2, 4, 5])
    case.compact(case.first)
    page = int(case.ledger.pages_of(case.first)[0])
    assert case.store.rows[0, 4 * page : 4 * page + 4].tolist() == [0, 7, 6, 3]
    assert case.rows(case.first) == [0, 3, 6, 7]
    assert case.positions(case.first) == [0, 3, 6, 7]
    assert case.total("COPIED_ROWS_TOTAL") == 2


def test_rows_of_each_set_move_on_their_own():
    order = Order(compaction="forward", unit="row")
    case = Case(8, geometry=TWO_SETS, ordering=order)
    case.evict(case.first, [0, 1, 2, 3], [4, 5, 6, 7])
    case.compact(case.first)
    # Four rows of each set fit one page; those of the second set lay there already.
    assert case.ledger.held_pages == 1
    assert case.rows(case.first, 0) == [4, 5, 6, 7]
    assert case.rows(case.first, 1) == [100, 101, 102, 103]
    assert (case.total("COPIED_ROWS_TOTAL"), case.total("COPIED_BYTES_TOTAL")) == (4, 8)


def test_rows_of_the_last_set_move_too():
    order = Order(compaction="forward", unit="row")
    case = Case(8, geometry=TWO_SETS, ordering=order)
    case.evict(case.first, [4, 5, 6, 7], [0, 1, 2, 3])
    case.compact(case.first)
    assert case.rows(case.first, 0) == [0, 1, 2, 3]
    assert case.rows(case.first, 1) == [104, 105, 106, 107]


@pytest.mark.parametrize("ceiling", [2, 3])
def test_rebuild_counts_its_targets_before_its_sources_are_let_go(ceiling):
    case = Case(8, ceiling_pages=ceiling, ordering=REBUILD)
    case.evict(case.first, [0, 5])
    # Six survivors need two fresh pages beside the two that they come from.
    assert case.refuses(case.ledger.compact, case.first) == 2
    assert case.rows(case.first) == [1, 2, 3, 4, 6, 7]


def test_rebuild_holds_both_for_a_moment_and_frees_its_sources():
    case = Case(8, ceiling_pages=4, ordering=REBUILD)
    case.evict(case.first, [0, 5])
    before = case.total("EXTRA_PEAK")
    case.compact(case.first)
    assert case.rows(case.first) == [1, 2, 3, 4, 6, 7]
    assert max(2, before) == case.total("EXTRA_PEAK")
    assert (case.total("FREED_TOTAL"), case.ledger.held_pages) == (2, 2)


def test_a_refused_compaction_of_a_fork_changes_nothing():
    # Forward writes both pages, which the parent shares: two copies, and one page is left.
    case = Case(8, ceiling_pages=3, ordering=FORWARD)
    child = case.ledger.fork(case.first)
    case.evict(child, [0])
    assert case.refuses(case.ledger.compact, child) == 2
    assert case.rows(child) == [1, 2, 3, 4, 5, 6, 7]


# Renumbering inside evict


def renumbered(tokens, **options):
    """Return a case whose evictions renumber and rewrite keys."""
    return Case(tokens, ordering=Order(positions="renumber"), **options)


def test_renumbering_rotates_the_survivors_behind_the_first_death():
    case = renumbered(8)
    case.evict(case.first, [2, 5])
    base = 4 * case.ledger.pages_of(case.first)
    # Source, target and new position: in place, from slot 3 on, and no slot before the first.
    wanted = [(base[0] + 3, 2), (base[1], 3), (base[1] + 2, 4), (base[1] + 3, 5)]
    assert [(m[f.SOURCE], m[f.TARGET], m[f.POSITION]) for m in case.store.moves] == [
        (slot, slot, where) for slot, where in wanted
    ]
    assert case.total("ROTATED_ROWS_TOTAL") == 4
    assert case.total("COPIED_ROWS_TOTAL") == 0


def test_renumbering_copies_from_the_shared_page_into_a_page_of_its_own():
    case = renumbered(4)
    child = case.ledger.fork(case.first)
    case.evict(child, [1])
    assert case.ledger.held_pages == 2, "evicting has raised what is held"
    assert case.rows(child) == [0, 2, 3]
    assert case.rows(case.first) == [0, 1, 2, 3]
    assert (case.total("COW_TOTAL"), case.total("COPIED_ROWS_TOTAL")) == (1, 3)


def test_renumbering_that_needs_a_page_beyond_the_ceiling_is_refused():
    case = renumbered(8, ceiling_pages=3)
    child = case.ledger.fork(case.first)
    assert case.refuses(case.ledger.evict, child, [np.array([0])]) == 2
    # One page less is written if the death lies in the second page.
    case.evict(child, [4])
    assert case.ledger.held_pages == 3


def test_a_shared_page_that_an_eviction_leaves_makes_no_room_for_its_copies():
    # The child leaves page 0, which the parent still holds, and must copy page 1.
    case = renumbered(8, ceiling_pages=2)
    child = case.ledger.fork(case.first)
    assert case.refuses(case.ledger.evict, child, [np.arange(4)]) == 1


# Victims that are none

ORDERS = {
    "reuse": Order(append="reuse_holes"),
    "by row": Order(compaction="forward", unit="row"),
    "hole_fill": HOLE_FILL,
    "renumber": Order(positions="renumber"),
    "scattered": Order(scattered=True),
}
NO_VICTIMS = {
    "dead": [2],
    "duplicate": [0, 3, 3],
    "past the cursor": [0, 12],
    "negative": [-1],
    "in a null entry": [5],
    "far out of range": [2**40],
}


@pytest.mark.parametrize("fault", NO_VICTIMS)
@pytest.mark.parametrize("order", ORDERS)
def test_a_list_that_names_no_victim_is_refused_and_nothing_is_changed(order, fault):
    """Marks that are taken back must leave holders, positions, hints and the plan as they were."""
    case = Case(12, geometry=TWO_SETS, ordering=ORDERS[order])
    gone = [2, 4, 5, 6, 7]
    case.evict(case.first, gone, gone)
    before = digest(case.ledger), case.store.rows.tolist()
    for lists in ([NO_VICTIMS[fault], [0, 9]], [[0, 9], NO_VICTIMS[fault]]):
        with pytest.raises(VictimError, match="does not retain slot"):
            case.ledger.evict(case.first, [np.array(slots, np.int64) for slots in lists])
        assert (digest(case.ledger), case.store.rows.tolist()) == before
    case.evict(case.first, [0, 9], [3])


@pytest.mark.parametrize("order", ORDERS)
def test_a_victim_of_the_other_set_is_refused(order):
    case = Case(8, geometry=TWO_SETS, ordering=ORDERS[order])
    case.evict(case.first, [1, 6], [2])
    before = digest(case.ledger)
    with pytest.raises(VictimError, match="set 0"):
        case.ledger.evict(case.first, [np.array([6]), np.array([6])])
    assert digest(case.ledger) == before
    case.evict(case.first, [2], [6])
