"""Compaction by hand: where rows go, what a move costs, what is refused.

Each docstring names the bug that its test would catch.
"""

from __future__ import annotations

import numpy as np
import pytest
from differential.moving import ALGORITHMS
from differential.rowstore import digest
from moved import (
    TWO_SETS,
    TWO_TABLES,
    append,
    evict,
    in_order,
    prices,
    refuse,
    started,
    table,
)

from kvsim.errors import LedgerError
from kvsim.paging import Order


@pytest.mark.parametrize("algorithm", ["forward", "hole_fill"])
def test_null_entries_leave_without_a_move(algorithm):
    """A null entry that keeps its place makes every row behind it move for nothing."""
    ledger, sequence = started(16, compaction=algorithm)
    pages = ledger.pages_of(sequence)
    evict(ledger, sequence, [0, 1, 2, 3, 8, 9, 10, 11])
    ledger.compact(sequence)
    assert ledger.pages_of(sequence).tolist() == [pages[1], pages[3]]
    assert ledger.cursor(sequence) == 8
    assert prices(ledger, "copied", "cow", "extra", "freed") == (0, 0, 0, 2)
    assert in_order(ledger, sequence) == ([4, 5, 6, 7, 12, 13, 14, 15],) * 2
    ledger.check()


def test_forward_keeps_the_order():
    """A forward copy that runs downwards overwrites rows that it has still to read."""
    ledger, sequence = started(12, compaction="forward")
    evict(ledger, sequence, [0, 3, 4, 9])
    ledger.compact(sequence)
    assert table(ledger, sequence) == dict(enumerate([1, 2, 5, 6, 7, 8, 10, 11]))
    assert in_order(ledger, sequence)[1] == [1, 2, 5, 6, 7, 8, 10, 11]
    # Every survivor moves, because the first slot was a hole; the last page is freed.
    assert prices(ledger, "copied", "rotated", "freed", "extra") == (8, 0, 1, 0)
    ledger.check()


def test_hole_fill_takes_the_last_survivors_into_the_earliest_holes():
    """Filling from the front, or going on when no hole lies below the last survivor."""
    ledger, sequence = started(12, compaction="hole_fill")
    evict(ledger, sequence, [0, 3, 4, 9])
    ledger.compact(sequence)
    # Eight survive, in slots 0 to 7: holes 0, 3, 4 take tokens 11, 10 and 8, in this order.
    assert table(ledger, sequence) == dict(enumerate([11, 1, 2, 10, 8, 5, 6, 7]))
    assert in_order(ledger, sequence) == ([1, 2, 5, 6, 7, 8, 10, 11],) * 2
    assert prices(ledger, "copied", "freed", "extra") == (3, 1, 0)
    ledger.compact(sequence)
    assert prices(ledger, "copied", "freed") == (3, 1)
    ledger.check()


def test_rebuild_copies_everything_into_fresh_pages():
    """A rebuild into the pages it comes from, or whose sources are not counted as freed."""
    ledger, sequence = started(12, compaction="rebuild")
    old = set(ledger.pages_of(sequence).tolist())
    evict(ledger, sequence, [0, 3, 4, 9])
    ledger.compact(sequence)
    assert not old & set(ledger.pages_of(sequence).tolist())
    assert table(ledger, sequence) == dict(enumerate([1, 2, 5, 6, 7, 8, 10, 11]))
    assert prices(ledger, "copied", "freed", "extra", "cow") == (8, 3, 2, 0)
    ledger.check()


@pytest.mark.parametrize("writes", [True, False])
def test_a_row_may_rotate_in_place_or_move_or_both(writes):
    """A rotation in place that counts as a copy, or a moved row that rotates twice."""
    ledger, sequence = started(
        12, compaction="forward", positions="renumber", renumber_writes=writes
    )
    evict(ledger, sequence, [0, 1, 2, 3, 6])
    ledger.compact(sequence)
    # Tokens 4 and 5 rotate where they are; 7 to 11 move too.
    assert in_order(ledger, sequence) == ([4, 5, 7, 8, 9, 10, 11], list(range(7)))
    assert prices(ledger, "copied", "rotated") == (5, 7 if writes else 0)
    keys = ledger.store.keys[0, ledger.physical(sequence, 0, np.arange(7))]
    assert keys.tolist() == (list(range(7)) if writes else [4, 5, 7, 8, 9, 10, 11])


def test_copy_on_write_copies_only_rows_that_stay():
    """Copying the whole page first prices rows that the plan overwrites, and dead ones."""
    ledger, parent = started(8, compaction="forward")
    child = ledger.fork(parent)
    evict(ledger, child, [1, 2, 4, 5])
    ledger.compact(child)
    # Slot 0 stays and is copied; 3, 6 and 7 move into the copy; the second page is let go.
    assert table(ledger, child) == {0: 0, 1: 3, 2: 6, 3: 7}
    assert prices(ledger, "copied", "cow", "extra", "freed") == (4, 1, 1, 0)
    assert table(ledger, parent) == dict(enumerate(range(8)))
    assert ledger.held_pages == 3
    ledger.check()


def test_a_shared_page_that_is_not_written_stays_shared():
    """A compaction that copies every shared page pays for pages in front of the first hole."""
    ledger, parent = started(12, compaction="forward")
    child = ledger.fork(parent)
    evict(ledger, child, [5])
    ledger.compact(child)
    assert ledger.pages_of(child)[0] == ledger.pages_of(parent)[0]
    assert prices(ledger, "copied", "cow") == (7, 2)
    # The fork's own pages are compacted in place from now on.
    evict(ledger, child, [4])
    ledger.compact(child)
    assert prices(ledger, "copied", "cow") == (13, 2)
    ledger.check()


def test_rebuild_takes_all_targets_before_it_lets_go_of_a_source():
    """A ceiling that counts the difference alone lets a rebuild through half-way."""
    ledger, sequence = started(16, compaction="rebuild", ceiling=6)
    evict(ledger, sequence, [0, 4, 8, 12])
    # Three pages replace four, but all seven are held at once.
    refuse(ledger, 3, ledger.compact, sequence)
    evict(ledger, sequence, [1, 2, 3])
    # Three pages hold nine tokens and three more are left, which is just enough.
    ledger.compact(sequence)
    assert (ledger.held_pages, *prices(ledger, "extra")) == (3, 3)
    ledger.check()


def test_forward_copies_on_write_are_counted_against_the_ceiling():
    """Pages that a compaction will free later do not pay for copies that it makes first."""
    ledger, parent = started(12, compaction="forward", ceiling=4)
    child = ledger.fork(parent)
    evict(ledger, child, [0, 4, 5, 6])
    refuse(ledger, 2, ledger.compact, child)
    ledger.free(parent)
    ledger.compact(child)
    assert (ledger.held_pages, *prices(ledger, "cow", "extra")) == (2, 0, 0)
    ledger.check()


def test_a_refusal_of_one_table_leaves_its_siblings_alone():
    """A table compacted before its sibling is refused makes the two differ."""
    ledger, sequence = started(8, geometry=TWO_TABLES, compaction="rebuild", ceiling=6)
    evict(ledger, sequence, [0, 1, 2], [0])
    refuse(ledger, 4, ledger.compact, sequence)
    evict(ledger, sequence, [4], [1, 2, 4])
    ledger.compact(sequence)
    assert (table(ledger, sequence, 0), table(ledger, sequence, 1)) == (
        dict(enumerate([3, 5, 6, 7])),
        dict(enumerate([3, 5, 6, 7])),
    )
    ledger.check()


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_whole_slots_carry_the_rows_of_all_sets(algorithm):
    """A slot priced by the sets that retain it, or one set's row left behind."""
    ledger, sequence = started(8, geometry=TWO_SETS, compaction=algorithm)
    evict(ledger, sequence, [0, 1, 4, 5, 6, 7], [0, 1, 2, 3, 4])
    ledger.compact(sequence)
    # Slots 2, 3, 5, 6, 7 survive: five slots in two pages, whatever each set holds of them.
    # Under hole_fill 2 and 3 stay where they are.
    moved = 3 if algorithm == "hole_fill" else 5
    assert ledger.cursor(sequence) == 5
    assert prices(ledger, "copied", "bytes") == (2 * moved, 7 * moved)
    assert in_order(ledger, sequence, 0) == ([2, 3], [2, 3])
    assert in_order(ledger, sequence, 1) == ([5, 6, 7], [5, 6, 7])
    ledger.check()


@pytest.mark.parametrize(
    ("algorithm", "first", "second"),
    [("forward", [1, 2, 3], [4, 5, 6, 7]), ("hole_fill", [3, 1, 2], [7, 6, 5, 4])],
)
def test_rows_of_each_set_move_on_their_own(algorithm, first, second):
    """Rows that drag their slot's other rows along, or are priced as whole slots."""
    ledger, sequence = started(8, geometry=TWO_SETS, compaction=algorithm, unit="row")
    evict(ledger, sequence, [0, 4, 5, 6, 7], [0, 1, 2, 3])
    ledger.compact(sequence)
    assert (table(ledger, sequence, 0), table(ledger, sequence, 1)) == (
        dict(enumerate(first)),
        dict(enumerate(second)),
    )
    assert in_order(ledger, sequence, 0) == ([1, 2, 3], [1, 2, 3])
    assert in_order(ledger, sequence, 1) == ([4, 5, 6, 7], [4, 5, 6, 7])
    # The longer set says how many slots the table has; the shorter leaves its last one unused.
    assert (ledger.cursor(sequence), ledger.held_pages) == (4, 1)
    one = 1 if algorithm == "hole_fill" else 3
    assert prices(ledger, "copied", "bytes") == (one + 4, 2 * one + 5 * 4)
    ledger.check()


def test_copy_on_write_of_one_sets_rows():
    """A page copied because one set's rows move there, and the other set's rows lost."""
    ledger, parent = started(8, geometry=TWO_SETS, compaction="forward", unit="row")
    child = ledger.fork(parent)
    evict(ledger, child, [1], [5, 6, 7])
    ledger.compact(child)
    assert table(ledger, child, 0) == dict(enumerate([0, 2, 3, 4, 5, 6, 7]))
    assert table(ledger, child, 1) == dict(enumerate(range(5)))
    # Set 0: all seven rows into the two copies; set 1: its five rows come along unmoved.
    assert prices(ledger, "copied", "bytes", "cow") == (12, 7 * 2 + 5 * 5, 2)
    ledger.check()


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("positions", ["keep", "renumber"])
def test_next_position_after_a_compaction(algorithm, positions):
    """A next position that follows the slots under keep, or the old positions under renumber."""
    ledger, sequence = started(10, compaction=algorithm, positions=positions)
    evict(ledger, sequence, [0, 1, 5])
    assert ledger.next_position(sequence) == 10
    ledger.compact(sequence)
    following = 10 if positions == "keep" else 7
    assert (ledger.cursor(sequence), ledger.next_position(sequence)) == (7, following)
    append(ledger, sequence, 2, first=10)
    rows, where = in_order(ledger, sequence)
    assert rows == [2, 3, 4, 6, 7, 8, 9, 10, 11]
    assert where == (rows if positions == "keep" else list(range(9)))
    # Evicting the newest takes their positions back, wherever their slots are.
    slots, _ = ledger.rows(sequence, 0)
    evict(ledger, sequence, np.sort(slots[-3:]).tolist())
    assert ledger.next_position(sequence) == (9 if positions == "keep" else 6)
    ledger.check()


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_next_position_is_the_tables_where_rows_move_on_their_own(algorithm):
    """Sets of different length that number a new token differently, or jump at an eviction."""
    ledger, sequence = started(
        6, geometry=TWO_SETS, compaction="hole_fill", unit="row", positions="renumber"
    )
    evict(ledger, sequence, [0, 1, 2], [0])
    ledger.compact(sequence, algorithm)
    assert in_order(ledger, sequence, 0) == ([3, 4, 5], [0, 1, 2])
    assert in_order(ledger, sequence, 1) == ([1, 2, 3, 4, 5], list(range(5)))
    assert ledger.next_position(sequence) == 5
    append(ledger, sequence, 1, first=6)
    assert in_order(ledger, sequence, 0) == ([3, 4, 5, 6], [0, 1, 2, 5])
    assert in_order(ledger, sequence, 1) == ([1, 2, 3, 4, 5, 6], list(range(6)))
    ledger.compact(sequence, algorithm)
    assert in_order(ledger, sequence, 0) == ([3, 4, 5, 6], list(range(4)))
    ledger.check()


@pytest.mark.parametrize(
    ("ordering", "each"),
    [
        ({"compaction": "forward", "positions": "renumber"}, 1 + 2),
        ({"compaction": "forward", "positions": "keep"}, 1 + 2 + 4),
        ({"compaction": "hole_fill", "positions": "renumber"}, 1 + 2 + 4),
        ({"compaction": "forward", "positions": "keep", "unit": "row"}, 1 + 2 + 2 * 4),
        ({"append": "reuse_holes"}, 1 + 2 + 4),
        ({"append": "reuse_holes", "unit": "row"}, 1 + 2 + 4),
        ({}, 1 + 2),
    ],
    ids=str,
)
def test_metadata_counts_stored_positions(ordering, each):
    """Positions that are stored for free, or counted where a slot's place tells them."""
    ledger, _ = started(10, geometry=TWO_SETS, **ordering)
    assert ledger.metadata_bytes == 4 * 3 + 10 * each


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_fork_of_a_compacted_sequence(algorithm):
    """Positions or flags that a fork does not copy, or a page that both write afterwards."""
    ledger, parent = started(10, geometry=TWO_SETS, compaction=algorithm, unit="row")
    evict(ledger, parent, [0, 1, 5], [2])
    ledger.compact(parent)
    child = ledger.fork(parent)
    wanted = ([2, 3, 4, 6, 7, 8, 9],) * 2, ([0, 1, 3, 4, 5, 6, 7, 8, 9],) * 2
    for sequence in (parent, child):
        assert tuple(in_order(ledger, sequence, unit) for unit in (0, 1)) == wanted
    evict(ledger, child, [0], [1])
    ledger.compact(child)
    append(ledger, child, 3)
    assert tuple(in_order(ledger, parent, unit) for unit in (0, 1)) == wanted
    ledger.check()


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_compaction_of_a_compacted_sequence_changes_nothing(algorithm):
    """A second compaction that moves rows again, or frees what the first one kept."""
    ledger, sequence = started(11, compaction=algorithm)
    evict(ledger, sequence, [1, 4, 7])
    ledger.compact(sequence)
    before = table(ledger, sequence), in_order(ledger, sequence), ledger.held_pages
    copied = prices(ledger, "copied")[0]
    ledger.compact(sequence)
    assert (table(ledger, sequence), in_order(ledger, sequence), ledger.held_pages) == before
    assert prices(ledger, "copied")[0] == copied + (8 if algorithm == "rebuild" else 0)
    ledger.check()


@pytest.mark.parametrize("first", ALGORITHMS)
@pytest.mark.parametrize("second", ALGORITHMS)
def test_one_algorithm_after_another(first, second):
    """An algorithm that takes the order of slots for the order of positions."""
    ledger, sequence = started(12, compaction="hole_fill", positions="renumber")
    evict(ledger, sequence, [0, 3, 4, 9])
    ledger.compact(sequence, first)
    append(ledger, sequence, 2, first=12)
    slots, _ = ledger.rows(sequence, 0)
    evict(ledger, sequence, np.sort(slots[[2, 5]]).tolist())
    ledger.compact(sequence, second)
    assert in_order(ledger, sequence) == ([1, 2, 6, 7, 10, 11, 12, 13], list(range(8)))
    ledger.check()


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_compaction_of_an_empty_sequence(algorithm):
    """Scratch of length zero, and a sequence that was emptied rather than never filled."""
    ledger, sequence = started(5, compaction=algorithm)
    evict(ledger, sequence, list(range(5)))
    empty = ledger.open()
    before = prices(ledger, "copied", "freed", "extra")
    ledger.compact(sequence)
    ledger.compact(empty)
    assert prices(ledger, "copied", "freed", "extra") == before
    assert (ledger.held_pages, ledger.next_position(sequence)) == (0, 0)
    append(ledger, sequence, 3)
    assert in_order(ledger, sequence) == ([0, 1, 2],) * 2
    ledger.check()


def test_no_dead_flag_stands_behind_a_shortened_table():
    """A stale flag makes a slot that is appended later dead from the start."""
    ledger, sequence = started(12, compaction="forward")
    evict(ledger, sequence, [0, 1, 9, 10])
    ledger.compact(sequence)
    append(ledger, sequence, 4)
    assert ledger.retained(sequence, 0).all()
    assert in_order(ledger, sequence)[0] == [2, 3, 4, 5, 6, 7, 8, 11, 12, 13, 14, 15]
    ledger.check()


@pytest.mark.parametrize(
    ("ordering", "algorithm"),
    [
        ({}, None),
        ({}, "forward"),
        ({"append": "reuse_holes"}, "hole_fill"),
        ({"compaction": "forward"}, "none"),
        ({"compaction": "forward"}, "backward"),
        # Positions that are read off the slots cannot survive a change of order.
        ({"compaction": "forward", "positions": "renumber"}, "hole_fill"),
        ({"compaction": "rebuild", "positions": "renumber"}, "hole_fill"),
    ],
    ids=str,
)
def test_compactions_that_the_ordering_rules_out(ordering, algorithm):
    """A compaction that scrambles positions nobody stored."""
    ledger, sequence = started(6, **ordering)
    evict(ledger, sequence, [1])
    before = digest(ledger)
    with pytest.raises(LedgerError):
        ledger.compact(sequence, algorithm)
    with pytest.raises(LedgerError, match="not open"):
        ledger.compact(sequence + 1)
    assert digest(ledger) == before


@pytest.mark.parametrize(
    "wrong",
    [{"append": "head"}, {"compaction": "sort"}, {"unit": "page"}, {"positions": "rank"}],
    ids=str,
)
def test_orders_that_do_not_exist(wrong):
    """An unknown word taken for the default."""
    with pytest.raises(LedgerError, match=next(iter(wrong))):
        Order(**wrong)
