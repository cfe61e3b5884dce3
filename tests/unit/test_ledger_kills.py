"""Small cases by hand, each of which one planted bug of tests/mutants would get wrong.

Pages hold 4 slots unless said otherwise. Fast without compiled kernels, since that is how the
mutants run.
"""

from __future__ import annotations

import numpy as np
import pytest
from differential.rowstore import RowStore, digest

from kvsim.errors import CeilingExceeded, VictimError
from kvsim.paging import Order
from kvsim.paging import fields as f
from kvsim.paging.geometry import Geometry, single
from kvsim.paging.ledger import Ledger

TWO_SETS = Geometry(unit_scope=(0, 0), unit_set=(0, 1), unit_row_bytes=(2, 5))
FORWARD = Order(compaction="forward")
REBUILD = Order(compaction="rebuild")
HOLE_FILL = Order(compaction="hole_fill")


class Watched(RowStore):
    """A row store that also keeps every move it was told to make."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.moves = []

    def apply(self, plan):
        """Note the moves, then make them."""
        self.moves += plan.T.tolist()
        super().apply(plan)


class Case:
    """One ledger with a watched store; the row of token t in unit u is 100 * u + t."""

    def __init__(self, tokens=0, page_tokens=4, geometry=None, **options):
        self.geometry = geometry or single()
        self.store = Watched(self.geometry.unit_scope, self.geometry.unit_set, page_tokens)
        self.ledger = Ledger(self.geometry, page_tokens, store=self.store, **options)
        self.fresh = 0
        self.first = self.ledger.open()
        self.append(self.first, tokens)

    def append(self, sequence, tokens):
        """Append the next tokens and recount."""
        new = np.arange(self.fresh, self.fresh + tokens)
        rows = 100 * np.arange(self.geometry.units)[:, None] + new
        units = np.array(self.geometry.unit_scope)
        self.ledger.append(
            sequence, tokens, [rows[units == s] for s in range(self.geometry.scope_units)]
        )
        self.fresh += tokens
        self.ledger.check()

    def evict(self, sequence, *lists):
        """Evict and recount."""
        self.ledger.evict(sequence, [np.array(slots, np.int64) for slots in lists])
        self.ledger.check()

    def compact(self, sequence):
        """Compact and recount."""
        self.ledger.compact(sequence)
        self.ledger.check()

    def rows(self, sequence, unit=0):
        """Return the rows that a unit retains, in ascending position."""
        scope, which = self.geometry.unit_scope[unit], self.geometry.unit_set[unit]
        slots, _ = self.ledger.rows(sequence, which, scope)
        return self.store.rows[unit, self.ledger.physical(sequence, scope, slots)].tolist()

    def positions(self, sequence, which=0):
        """Return the positions that a set retains."""
        return self.ledger.rows(sequence, which)[1].tolist()

    def total(self, name):
        """Return a flow or peak by its name."""
        return self.ledger.total(getattr(f, name))

    def refuses(self, verb, *arguments):
        """Assert that the ceiling refuses a verb and that nothing changed; return the need."""
        before = digest(self.ledger), self.store.rows.tolist()
        with pytest.raises(CeilingExceeded) as refusal:
            verb(*arguments)
        assert (digest(self.ledger), self.store.rows.tolist()) == before
        self.ledger.check()
        return refusal.value.needed_pages


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


# Compaction


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


def test_bytes_and_rows_of_each_set_are_its_own():
    case = Case(8, geometry=TWO_SETS)
    case.evict(case.first, [0, 1, 2], [7])
    assert (case.total("EVICTED_ROWS_TOTAL"), case.total("EVICTED_BYTES_TOTAL")) == (4, 3 * 2 + 5)


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
