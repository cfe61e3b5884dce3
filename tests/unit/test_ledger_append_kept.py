"""The verb append_kept: a prompt of which only a part ever gets slots. Pages hold 4."""

from __future__ import annotations

import numpy as np
import pytest
from differential.rowstore import RowStore, digest

from kvsim.errors import CeilingExceeded, LedgerError
from kvsim.paging import Ledger, Order, single
from kvsim.paging import fields as f
from kvsim.paging.geometry import Geometry

TWO_SETS = Geometry(unit_scope=(0, 0, 0), unit_set=(0, 1, 1), unit_row_bytes=(2, 3, 4))
TWO_TABLES = Geometry(unit_scope=(0, 1), unit_set=(0, 1), unit_row_bytes=(2, 5))
SCATTERED = Order(scattered=True)


def empty(geometry=None, **options):
    """Return a ledger whose positions are stored, and its only sequence."""
    ledger = Ledger(geometry or single(), 4, **{"ordering": SCATTERED, **options})
    return ledger, ledger.open()


def keep(ledger, sequence, appended, *kept, rows=None):
    """Append what is kept of a prompt, and recount."""
    ledger.append_kept(sequence, [np.array(tokens, np.int64) for tokens in kept], appended, rows)
    ledger.check()


@pytest.mark.parametrize("count", [0, 1, 3, 4, 5, 8])
def test_only_what_is_kept_takes_pages(count):
    ledger, sequence = empty()
    keep(ledger, sequence, 40, range(2, 2 + count))
    assert ledger.held_pages == -(-count // 4)
    assert ledger.cursor(sequence) == count
    assert ledger.slots().dead == 0
    assert ledger.total(f.EVICTED_ROWS_TOTAL) == 40 - count
    # The rest was never appended: no page was taken for it, and none freed.
    assert ledger.total(f.ALLOCATED_TOTAL) == -(-count // 4)
    assert ledger.total(f.FREED_TOTAL) == 0


def test_positions_are_those_of_the_prompt_and_go_on_behind_it():
    ledger, sequence = empty()
    keep(ledger, sequence, 10, [0, 3, 9])
    assert ledger.rows(sequence, 0)[1].tolist() == [0, 3, 9]
    assert ledger.next_position(sequence) == 10
    ledger.append(sequence, 2)
    ledger.check()
    slots, positions = ledger.rows(sequence, 0)
    assert (slots.tolist(), positions.tolist()) == ([0, 1, 2, 3, 4], [0, 3, 9, 10, 11])


def test_the_next_position_follows_the_prompt_even_if_its_end_was_dropped():
    ledger, sequence = empty()
    keep(ledger, sequence, 10, [1, 2])
    ledger.append(sequence, 1)
    assert ledger.rows(sequence, 0)[1].tolist() == [1, 2, 10]


def test_sets_of_one_table_have_positions_of_their_own():
    ledger, sequence = empty(TWO_SETS)
    keep(ledger, sequence, 9, [0, 1, 2, 3, 8], [4, 5, 6, 7, 8])
    assert ledger.held_pages == 2
    assert ledger.rows(sequence, 0)[1].tolist() == [0, 1, 2, 3, 8]
    assert ledger.rows(sequence, 1)[1].tolist() == [4, 5, 6, 7, 8]
    # Four tokens of one unit and four of two; 2 bytes and 3 + 4 bytes each.
    assert ledger.total(f.EVICTED_ROWS_TOTAL) == 4 * 1 + 4 * 2
    assert ledger.total(f.EVICTED_BYTES_TOTAL) == 4 * 2 + 4 * 7


def test_each_table_gets_its_own_set():
    ledger, sequence = empty(TWO_TABLES)
    keep(ledger, sequence, 6, [0, 5], [2, 3])
    assert ledger.held_pages == 2
    assert ledger.rows(sequence, 0)[1].tolist() == [0, 5]
    assert ledger.rows(sequence, 1)[1].tolist() == [2, 3]
    assert ledger.next_position(sequence, 1) == 6


def test_the_rows_go_where_the_tokens_are():
    store = RowStore((0, 0, 0), (0, 1, 1), 4)
    ledger, sequence = empty(TWO_SETS, store=store)
    rows = np.array([[10, 11], [20, 22], [30, 32]])
    keep(ledger, sequence, 5, [0, 1], [0, 2], rows=[rows])
    at = ledger.physical(sequence, 0, np.arange(2))
    assert store.rows[:, at].tolist() == rows.tolist()


def test_without_stored_positions_the_rank_is_the_position():
    # Under renumber a survivor's position is its rank, and a slot's place tells that.
    ledger, sequence = empty(ordering=Order(positions="renumber"))
    keep(ledger, sequence, 10, [2, 5, 7])
    assert ledger.rows(sequence, 0)[1].tolist() == [0, 1, 2]
    assert ledger.next_position(sequence) == 3
    assert ledger.total(f.EVICTED_ROWS_TOTAL) == 7


def test_evicting_and_forking_afterwards_keep_the_positions():
    ledger, sequence = empty()
    keep(ledger, sequence, 20, [1, 4, 7, 10, 13, 16])
    child = ledger.fork(sequence)
    ledger.evict(child, [np.array([0, 1, 2, 3])])
    ledger.append(child, 1)
    ledger.check()
    assert ledger.rows(child, 0)[1].tolist() == [13, 16, 20]
    assert ledger.rows(sequence, 0)[1].tolist() == [1, 4, 7, 10, 13, 16]


def test_a_prompt_that_does_not_fit_is_refused_and_nothing_is_changed():
    ledger, sequence = empty(TWO_TABLES, ceiling_pages=3)
    before = digest(ledger)
    five = [np.arange(5), np.arange(5)]
    with pytest.raises(CeilingExceeded) as refusal:
        ledger.append_kept(sequence, five, 9)
    assert (refusal.value.needed_pages, refusal.value.free_pages) == (4, 3)
    assert digest(ledger) == before
    keep(ledger, sequence, 9, range(4), range(4))


@pytest.mark.parametrize("kept", [([0, 1], [0]), ([], [0])])
def test_sets_that_keep_different_numbers_are_refused(kept):
    ledger, sequence = empty(TWO_SETS)
    before = digest(ledger)
    with pytest.raises(LedgerError, match="all equally long"):
        keep(ledger, sequence, 9, *kept)
    assert digest(ledger) == before


def test_a_sequence_that_has_tokens_or_is_not_open_is_refused():
    ledger, sequence = empty()
    ledger.append(sequence, 1)
    before = digest(ledger)
    with pytest.raises(LedgerError, match="needs an empty sequence"):
        keep(ledger, sequence, 9, [0])
    with pytest.raises(LedgerError, match="not open"):
        keep(ledger, 7, 9, [0])
    assert digest(ledger) == before


FOREIGN = {
    "duplicate": ([1, 1], [0, 2]),
    "not ascending": ([3, 1], [0, 2]),
    "beyond the prompt": ([1, 9], [0, 2]),
    "negative": ([-1, 2], [0, 2]),
    "more than the prompt": (range(10), range(10)),
    "a list too few": ([1, 2],),
    "a list too many": ([1, 2], [1, 2], [1, 2]),
}


@pytest.mark.parametrize("fault", FOREIGN)
def test_positions_that_are_none_of_the_prompts_are_refused(fault):
    """Two tokens at one position, or one behind the next, leave a table that no recount passes."""
    ledger, sequence = empty(TWO_SETS)
    before = digest(ledger)
    with pytest.raises(LedgerError):
        ledger.append_kept(sequence, [np.array(tokens) for tokens in FOREIGN[fault]], 9)
    assert digest(ledger) == before


@pytest.mark.parametrize("other", [{"compaction": "forward"}, {"positions": "renumber"}])
def test_scattered_tokens_are_neither_compacted_nor_renumbered(other):
    """A verb that gives the positions of one set to another."""
    with pytest.raises(LedgerError, match="scattered tokens keep their positions"):
        Order(scattered=True, **other)
