"""The ledger by hand: sharing, cursors, null entries, sets and victims.

Each docstring names the bug that its test would catch. Pages hold 4 slots unless said otherwise.
"""

from __future__ import annotations

import numpy as np
import pytest
from differential.rowstore import RowStore, digest

from kvsim.errors import LedgerError, VictimError
from kvsim.paging import fields as f
from kvsim.paging.geometry import Geometry, single
from kvsim.paging.ledger import Ledger

# One table of three units: sets {0} and {1, 2}; and two tables, of 2 and of 5 bytes a token.
TWO_SETS = Geometry(unit_scope=(0, 0, 0), unit_set=(0, 1, 1), unit_row_bytes=(2, 3, 4))
TWO_TABLES = Geometry(unit_scope=(0, 1), unit_set=(0, 0), unit_row_bytes=(2, 5))


def started(tokens, page_tokens=4, geometry=None, **options):
    """Return a ledger and its only sequence."""
    ledger = Ledger(geometry or single(), page_tokens, **options)
    sequence = ledger.open()
    ledger.append(sequence, tokens)
    return ledger, sequence


def evict(ledger, sequence, *lists):
    """Evict and recount."""
    ledger.evict(sequence, [np.array(slots, np.int64) for slots in lists])
    ledger.check()


def census(ledger):
    slots = ledger.slots()
    return slots.live, slots.dead, slots.tail


def kept(ledger, sequence, which=0):
    return np.flatnonzero(ledger.retained(sequence, which)).tolist()


def test_page_of_two_sequences_is_freed_once():
    """A refcount lost at the first of two evictions frees the page twice, or never."""
    ledger, parent = started(4)
    child = ledger.fork(parent)
    (page,) = ledger.pages_of(parent)
    assert ledger.refcounts()[page] == 2
    for sequence, references, freed in ((parent, 1, 0), (child, 0, 1)):
        evict(ledger, sequence, [0, 1, 2, 3])
        assert ledger.refcounts()[page] == references
        assert ledger.total(f.FREED_TOTAL) == freed
        assert ledger.held_pages == 1 - freed
        assert ledger.pages_of(sequence).size == 0


def test_forks_that_evict_different_tokens_free_their_page_with_the_last():
    """Liveness kept by the page and not by the table frees it too early, or not at all."""
    ledger, parent = started(4)
    child = ledger.fork(parent)
    evict(ledger, parent, [0, 1])
    assert census(ledger) == (4, 0, 0)
    evict(ledger, child, [2, 3])
    # Slots 0 and 1 live in the child, 2 and 3 in the parent: no slot is dead.
    assert census(ledger) == (4, 0, 0)
    evict(ledger, parent, [2, 3])
    assert (ledger.held_pages, ledger.total(f.FREED_TOTAL)) == (1, 0)
    # The parent has let go; the child's cursor stands at 2, so that the rest is tail.
    assert census(ledger) == (2, 0, 2)
    evict(ledger, child, [0, 1])
    assert (ledger.held_pages, ledger.total(f.FREED_TOTAL)) == (0, 1)


def test_census_counts_a_shared_slot_once_and_as_live_if_any_table_says_so():
    """A census that sums over tables counts shared slots twice; one that asks one table errs."""
    ledger, parent = started(6)
    child = ledger.fork(parent)
    evict(ledger, parent, [0, 5])
    assert census(ledger) == (6, 0, 2)
    assert ledger.logical_live_slots == 10
    evict(ledger, child, [0])
    assert census(ledger) == (5, 1, 2)


def test_child_that_appends_copies_the_partial_page_only():
    """A skipped copy-on-write leaves 3 pages; a copy of the whole table makes 6."""
    ledger, parent = started(40, page_tokens=16)
    assert ledger.held_pages == 3
    child = ledger.fork(parent)
    assert ledger.held_pages == 3
    before = ledger.pages_of(parent).tolist()
    ledger.append(child, 1)
    ledger.check()
    assert ledger.held_pages == 4
    assert ledger.pages_of(parent).tolist() == before
    assert ledger.pages_of(child)[:2].tolist() == before[:2]
    assert ledger.pages_of(child)[2] not in before
    assert ledger.total(f.COW_TOTAL) == 1
    assert ledger.total(f.COPIED_ROWS_TOTAL) == 8
    # The parent has its page to itself again: a second copy would be a leak of work.
    ledger.append(parent, 1)
    assert (ledger.held_pages, ledger.total(f.COW_TOTAL)) == (4, 1)


def test_fork_at_a_page_boundary_copies_nothing():
    """Copying the last page when it is full costs a page a fork and moves rows for nothing."""
    ledger, parent = started(8)
    child = ledger.fork(parent)
    ledger.append(child, 1)
    assert (ledger.held_pages, ledger.total(f.COW_TOTAL)) == (3, 0)


def test_append_of_nothing_writes_nothing():
    """An append of 0 tokens that copies on write takes a page past the ceiling unseen."""
    ledger, parent = started(2, ceiling_pages=1)
    child = ledger.fork(parent)
    before = digest(ledger)
    ledger.append(child, 0)
    assert digest(ledger) == before
    ledger.check()


def test_copy_on_write_carries_dead_slots_and_the_right_rows():
    """Moves whose source and target are swapped, or a copy that revives what was evicted."""
    store = RowStore((0,), (0,), 4)
    ledger = Ledger(single(), 4, store=store)
    parent = ledger.open()
    ledger.append(parent, 3, [np.array([[10, 11, 12]])])
    evict(ledger, parent, [1])
    child = ledger.fork(parent)
    ledger.append(child, 2, [np.array([[13, 14]])])
    ledger.check()
    assert kept(ledger, child) == [0, 2, 3, 4]
    first, second = (ledger.pages_of(child) * 4).tolist()
    assert store.rows[0, first : first + 4].tolist() == [10, 11, 12, 13]
    assert store.rows[0, second] == 14
    # The parent's page has 3 rows and a slot that nobody wrote.
    assert store.rows[0, ledger.pages_of(parent)[0] * 4 + 3] == -1


def test_cursor_rewinds_into_a_held_page():
    """A cursor that stays behind the last live slot wastes the slots; one too low overwrites."""
    ledger, sequence = started(6)
    pages = ledger.pages_of(sequence).tolist()
    evict(ledger, sequence, [5])
    assert ledger.cursor(sequence) == 5
    assert census(ledger) == (5, 0, 3)
    ledger.append(sequence, 1)
    assert ledger.pages_of(sequence).tolist() == pages
    assert ledger.total(f.ALLOCATED_TOTAL) == 2
    # Both slots of the last page die: it is let go though it was never full.
    evict(ledger, sequence, [4, 5])
    assert (ledger.cursor(sequence), ledger.held_pages) == (4, 1)
    ledger.append(sequence, 1)
    assert ledger.cursor(sequence) == 5
    assert ledger.pages_of(sequence)[1] != pages[1], "fifo takes another page at offset 0"


def test_null_entry_keeps_its_place_and_the_cursor_rewinds_past_it():
    """Dropping a null entry shifts every later position; keeping it at the end leaks an entry."""
    ledger, sequence = started(12)
    first, second, third = ledger.pages_of(sequence).tolist()
    evict(ledger, sequence, [4, 5, 6, 7])
    assert ledger.pages_of(sequence).tolist() == [first, -1, third]
    assert kept(ledger, sequence) == [0, 1, 2, 3, 8, 9, 10, 11]
    assert ledger.refcounts()[second] == 0
    evict(ledger, sequence, [8, 9, 10, 11])
    assert ledger.pages_of(sequence).tolist() == [first]
    assert ledger.cursor(sequence) == 4
    ledger.append(sequence, 5)
    ledger.check()
    assert ledger.pages_of(sequence).size == 3
    assert kept(ledger, sequence) == list(range(9))


def test_rewind_forgets_dead_slots_behind_the_cursor():
    """A flag left dead behind the cursor kills the next token that is appended there."""
    ledger, sequence = started(8)
    evict(ledger, sequence, [5, 6])
    assert ledger.table(sequence, 0, f.DEAD) == 2
    evict(ledger, sequence, [7])
    assert (ledger.cursor(sequence), ledger.table(sequence, 0, f.DEAD)) == (5, 0)
    ledger.append(sequence, 3)
    ledger.check()
    assert kept(ledger, sequence) == list(range(8))
    assert census(ledger) == (8, 0, 0)


def test_segment_of_a_freed_sequence_is_clean():
    """Dead flags that outlive their sequence kill tokens of the next one in that segment."""
    ledger, sequence = started(16)
    evict(ledger, sequence, [1, 2, 3, 9])
    ledger.free(sequence)
    again = ledger.open()
    ledger.append(again, 16)
    ledger.check()
    assert kept(ledger, again) == list(range(16))


def test_slot_dies_when_every_set_has_dropped_it():
    """A slot that dies with the first of its sets frees pages that another set still reads."""
    ledger, sequence = started(8, geometry=TWO_SETS)
    evict(ledger, sequence, [0, 1, 2, 3], [0, 1])
    assert kept(ledger, sequence, 0) == [4, 5, 6, 7]
    assert kept(ledger, sequence, 1) == [2, 3, 4, 5, 6, 7]
    assert census(ledger) == (6, 2, 0)
    assert ledger.held_pages == 2
    assert ledger.total(f.EVICTED_ROWS_TOTAL) == 4 * 1 + 2 * 2
    assert ledger.total(f.EVICTED_BYTES_TOTAL) == 4 * 2 + 2 * (3 + 4)
    assert ledger.retained_rows == 4 * 1 + 6 * 2
    floors = ledger.floors()
    # The longest set has 6 rows and the union 6 slots; 4 rows of 2 bytes and 6 of 7 are live.
    assert (floors.row_pages, floors.slot_pages, floors.live_row_bytes) == (2, 2, 50)
    evict(ledger, sequence, [], [4, 5])
    assert census(ledger) == (6, 2, 0), "the other way round: set 0 holds what set 1 drops"
    evict(ledger, sequence, [4, 5, 6, 7], [2, 3])
    # Set 0 is empty, and set 1 has slots 6 and 7 in the second page.
    assert (ledger.held_pages, ledger.total(f.FREED_TOTAL)) == (1, 1)
    assert ledger.pages_of(sequence)[0] == -1


def test_set_of_several_tables_drops_from_each():
    """A list applied to the first table of its set only leaves the others full."""
    ledger, sequence = started(8, geometry=TWO_TABLES)
    assert (ledger.held_pages, ledger.held_bytes) == (4, 4 * 4 // 2 * 7)
    evict(ledger, sequence, [0, 1, 2, 3])
    assert (ledger.held_pages, ledger.held_bytes) == (2, 4 * 7)
    assert ledger.total(f.EVICTED_ROWS_TOTAL) == 8
    assert ledger.total(f.EVICTED_BYTES_TOTAL) == 4 * 7


def test_floors_count_distinct_slots_of_forks_once():
    """Forks counted as tables of their own double a floor; so the held pages fall below it."""
    ledger, parent = started(5)
    child = ledger.fork(parent)
    assert ledger.floors().slot_pages == 2
    ledger.append(child, 2)
    # 4 shared slots, slot 4 twice (copied), slots 5 and 6 of the child: 8 slots.
    assert ledger.floors().slot_pages == 2
    assert ledger.held_pages == 3
    ledger.append(child, 1)
    assert ledger.floors().slot_pages == 3


def test_number_used_again_begins_a_family_of_its_own():
    """A family named by its first sequence's number adopts whoever gets that number next."""
    ledger, parent = started(1)
    ledger.fork(parent)
    ledger.free(parent)
    stranger = ledger.open()
    assert stranger == parent, "the number must come back, or this tests nothing"
    ledger.append(stranger, 1)
    floors = ledger.floors()
    assert (floors.row_pages, floors.slot_pages) == (2, 2)


BAD = {
    "dead": ([2], 2),
    "duplicate": ([1, 3, 1], 1),
    "past the cursor": ([0, 7], 7),
    "far out of range": ([2**40], 2**40),
    "negative": ([-1, 0], -1),
    "inside a null entry": ([5], 5),
}


@pytest.mark.parametrize(
    "geometry", [single(), TWO_SETS, TWO_TABLES], ids=["one", "sets", "tables"]
)
@pytest.mark.parametrize("fault", BAD)
@pytest.mark.parametrize("other", [[], [0, 3, 8]], ids=["alone", "after good ones"])
def test_bad_victim_is_refused_and_changes_nothing(geometry, fault, other):
    """A victim found bad after others were marked leaves them dead, or reads past the table."""
    ledger, sequence = started(9, geometry=geometry)
    # Cursor 9; slot 2 dead; slots 4 to 7 behind a null entry, where 7 is dead as well.
    evict(ledger, sequence, *[[2, 4, 5, 6, 7]] * ledger.geometry.sets)
    victims, named = BAD[fault]
    lists = [other] * (ledger.geometry.sets - 1) + [victims]
    before = digest(ledger)
    with pytest.raises(VictimError, match=rf"set {len(lists) - 1} .* slot {named}\b"):
        ledger.evict(sequence, [np.array(slots, np.int64) for slots in lists])
    assert digest(ledger) == before


def test_victim_of_another_set_is_refused():
    """Asking only whether the slot lives lets a set drop twice what another set keeps alive."""
    ledger, sequence = started(4, geometry=TWO_SETS)
    evict(ledger, sequence, [1], [])
    before = digest(ledger)
    with pytest.raises(VictimError, match="set 0"):
        ledger.evict(sequence, [np.array([1]), np.array([1])])
    assert digest(ledger) == before


@pytest.mark.parametrize("lists", [[], [[0], [0]]])
def test_wrong_number_of_lists_is_refused(lists):
    """A missing list read as empty, or one too many ignored, hides a caller's mistake."""
    ledger, sequence = started(4)
    before = digest(ledger)
    with pytest.raises(VictimError, match="1 victim lists"):
        ledger.evict(sequence, [np.array(slots, np.int64) for slots in lists])
    assert digest(ledger) == before


def test_order_of_victims_does_not_matter():
    """A kernel that wants ascending victims and is not given them marks some and stops."""
    shuffled, sequence = started(12)
    ascending, same = started(12)
    victims = [7, 0, 11, 4, 6, 5]
    evict(shuffled, sequence, victims)
    evict(ascending, same, sorted(victims))
    assert digest(shuffled) == digest(ascending)
    assert victims == [7, 0, 11, 4, 6, 5]


def test_sequence_that_is_not_open_is_refused_by_every_verb():
    """A double free lets go of pages that belong to whoever has them now."""
    ledger, sequence = started(5)
    other = ledger.open()
    ledger.append(other, 3)
    ledger.free(sequence)
    before = digest(ledger)
    for number in (sequence, -1, 99, 2**40):
        for verb in (
            lambda n: ledger.free(n),
            lambda n: ledger.append(n, 1),
            lambda n: ledger.fork(n),
            lambda n: ledger.evict(n, [np.array([0])]),
            lambda n: ledger.advance(np.array([other, n])),
        ):
            with pytest.raises(LedgerError, match="not open"):
                verb(number)
    with pytest.raises(LedgerError, match="-1 tokens"):
        ledger.append(other, -1)
    assert digest(ledger) == before
    ledger.check()
