"""Small cases by hand, each of which one planted bug of tests/mutants would get wrong.

Here: appending, forking, evicting, steps, and holes that are taken again. Pages hold 4 slots.
"""

from __future__ import annotations

import numpy as np
import pytest
from byhand import TWO_SETS, Case

from kvsim.errors import VictimError
from kvsim.paging import Order, steps
from kvsim.paging import fields as f

# Appending, forking, letting go


def test_a_page_appended_behind_a_null_entry_gets_the_entry_of_its_slots():
    case = Case(12)
    first, _, third = case.ledger.pages_of(case.first).tolist()
    case.evict(case.first, [4, 5, 6, 7])
    case.append(case.first, 3)
    pages = case.ledger.pages_of(case.first).tolist()
    assert pages[:3] == [first, -1, third]
    assert len(pages) == 4
    assert case.rows(case.first) == [*range(4), *range(8, 15)]


def test_a_fork_retains_what_each_set_of_its_parent_retains():
    case = Case(4, geometry=TWO_SETS)
    case.evict(case.first, [0, 1], [1, 2])
    child = case.ledger.fork(case.first)
    case.ledger.check()
    assert case.rows(child, 0) == [2, 3]
    assert case.rows(child, 1) == [100, 103]


def test_a_page_that_is_left_by_several_victims_is_let_go_once():
    case = Case(8)
    page = int(case.ledger.pages_of(case.first)[0])
    case.ledger.evict(case.first, [np.arange(4)])
    assert case.ledger.refcounts()[page] == 0
    assert case.total("FREED_TOTAL") == 1
    case.ledger.check()


def test_an_emptied_table_starts_again_at_slot_0():
    case = Case(6)
    case.ledger.evict(case.first, [np.arange(6)])
    assert case.ledger.cursor(case.first) == 0
    case.append(case.first, 1)
    assert case.ledger.held_pages == 1


def test_a_parent_that_advances_after_a_fork_copies_the_page_that_it_shares():
    # The page has room for two tokens, which is the child's as much as the parent's.
    case = Case(2)
    child = case.ledger.fork(case.first)
    case.ledger.advance(np.array([case.first]))
    assert case.total("COW_TOTAL") == 1
    assert case.ledger.pages_of(case.first) != case.ledger.pages_of(child)
    case.ledger.check()


def test_advancing_through_pages_fills_each_of_them():
    case = Case(0)
    # The first three pages come with a larger segment each; the fourth is the shortcut's own.
    case.ledger.advance(np.array([case.first]), 17)
    assert case.ledger.cursor(case.first) == 17
    assert case.ledger.held_pages == 5
    case.ledger.check()


def test_a_freed_segment_serves_a_table_that_fits_it():
    # Segments of one entry for the first two; the third needs one of two entries.
    case = Case(4)
    second = case.ledger.open()
    case.append(second, 4)
    pages = case.ledger.pages_of(second).tolist()
    case.ledger.free(case.first)
    third = case.ledger.open()
    case.ledger.append(third, 8)
    assert case.ledger.pages_of(second).tolist() == pages
    case.ledger.check()


def test_a_segment_used_again_has_no_flag_of_its_last_user():
    case = Case(16)
    case.evict(case.first, [13])
    case.ledger.free(case.first)
    again = case.ledger.open()
    case.append(again, 12)
    # Advancing moves the cursor alone, so it relies on clean flags ahead.
    case.ledger.advance(np.array([again]), 4)
    assert case.ledger.retained(again, 0).all()
    case.ledger.check()


def test_a_slot_that_one_fork_has_dropped_is_live_while_another_retains_it():
    case = Case(4)
    child = case.ledger.fork(case.first)
    case.ledger.evict(child, [np.array([1])])
    slots = case.ledger.slots()
    assert (slots.live, slots.dead, slots.tail) == (4, 0, 0)
    case.ledger.check()


def test_a_refused_victim_gives_back_what_its_set_had_dropped():
    case = Case(4, geometry=TWO_SETS)
    with pytest.raises(VictimError):
        case.ledger.evict(case.first, [np.array([0, 1]), np.array([2, 9])])
    assert case.rows(case.first, 0) == [0, 1, 2, 3]
    assert case.rows(case.first, 1) == [100, 101, 102, 103]
    case.ledger.check()


# Holes and stored positions


def test_a_new_token_takes_the_lowest_hole_and_the_next_position():
    case = Case(8, ordering=Order(append="reuse_holes"))
    case.evict(case.first, [1, 6])
    case.append(case.first, 3)
    # Slots 1 and 6, then the tail.
    assert case.ledger.cursor(case.first) == 9
    assert case.positions(case.first) == [0, 2, 3, 4, 5, 7, 8, 9, 10]
    assert case.rows(case.first) == [0, 2, 3, 4, 5, 7, 8, 9, 10]
    page = int(case.ledger.pages_of(case.first)[0])
    assert case.store.rows[0, 4 * page : 4 * page + 4].tolist() == [0, 8, 2, 3]


def test_a_hole_in_a_shared_page_is_skipped():
    case = Case(6, ordering=Order(append="reuse_holes"))
    case.evict(case.first, [1])
    child = case.ledger.fork(case.first)
    case.append(child, 1)
    assert case.ledger.cursor(child) == 7
    assert (case.total("COW_TOTAL"), case.ledger.held_pages) == (1, 3)
    assert case.rows(case.first) == [0, 2, 3, 4, 5]
    assert case.rows(child) == [0, 2, 3, 4, 5, 6]


def test_a_hole_below_those_filled_before_is_found():
    case = Case(12, ordering=Order(append="reuse_holes"))
    case.evict(case.first, [9])
    case.append(case.first, 1)
    case.ledger.evict(case.first, [np.array([2])])
    case.append(case.first, 1)
    assert case.ledger.cursor(case.first) == 12
    assert case.ledger.table(case.first, 0, f.DEAD) == 0


def test_the_next_position_rewinds_with_the_cursor():
    case = Case(6, ordering=Order(append="reuse_holes"))
    case.evict(case.first, [4, 5])
    assert case.ledger.next_position(case.first) == 4
    case.append(case.first, 1)
    assert case.positions(case.first) == [0, 1, 2, 3, 4]


def test_bytes_and_rows_of_each_set_are_its_own():
    case = Case(8, geometry=TWO_SETS)
    case.evict(case.first, [0, 1, 2], [7])
    assert (case.total("EVICTED_ROWS_TOTAL"), case.total("EVICTED_BYTES_TOTAL")) == (4, 3 * 2 + 5)


# Steps whose victims the kernel takes


def advanced(prompt, count, **kept):
    """Return the slots that are left after steps that evict the oldest first."""
    case = Case(prompt)
    appended = np.array([prompt])
    case.ledger.advance(
        np.array([case.first]),
        count,
        eviction=steps.OLDEST_FIRST,
        appended=appended,
        **kept,
    )
    case.ledger.check()
    assert appended.tolist() == [prompt + count]
    return np.flatnonzero(case.ledger.retained(case.first, 0)).tolist()


def test_the_kernel_evicts_the_oldest_but_the_sinks():
    assert advanced(8, 3, tokens=6, sinks=2) == [0, 1, 7, 8, 9, 10]


def test_the_kernel_keeps_a_fraction_of_all_tokens_so_far():
    # Half of 7 and half of 8, rounded down.
    assert advanced(6, 1, fraction=0.5) == [4, 5, 6]
    assert advanced(6, 2, fraction=0.5) == [4, 5, 6, 7]


def test_the_kernel_leaves_to_python_what_protection_forbids():
    case = Case(6)
    appended = np.array([6])
    done = case.ledger.advance(
        np.array([case.first]),
        5,
        eviction=steps.OLDEST_FIRST,
        appended=appended,
        tokens=4,
        recent=5,
    )
    # Seven tokens, of which the last five are protected: two may go, and three have to.
    assert (done, appended.tolist()) == (0, [7])
    assert np.flatnonzero(case.ledger.retained(case.first, 0)).tolist() == [2, 3, 4, 5, 6]


# A prompt of which only a part was ever appended


def test_tokens_that_never_had_a_slot_count_as_evicted():
    order = Order(scattered=True)
    case = Case(0, geometry=TWO_SETS, ordering=order)
    kept = [np.array([0, 3, 9]), np.array([1, 2, 4])]
    case.ledger.append_kept(case.first, kept, 10)
    case.ledger.check()
    assert case.ledger.held_pages == 1
    assert case.positions(case.first, 0) == [0, 3, 9]
    assert case.positions(case.first, 1) == [1, 2, 4]
    assert case.ledger.next_position(case.first) == 10
    assert case.total("EVICTED_ROWS_TOTAL") == 7 * 2
    assert case.total("EVICTED_BYTES_TOTAL") == 7 * (2 + 5)
