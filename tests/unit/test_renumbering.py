"""Renumbering inside evict, reuse of dead slots and stored positions, by hand.

Each docstring names the bug that its test would catch.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
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
)

import kvsim
from kvsim.errors import CeilingExceeded, LedgerError
from kvsim.paging import Ledger, Order, single, steps
from kvsim.paging import fields as f


def test_renumbering_rotates_what_shifts_and_nothing_else():
    """A rotation of rows before the hole, or a dead row that is rotated too."""
    ledger, sequence = started(12, positions="renumber")
    evict(ledger, sequence, [3, 9])
    assert in_order(ledger, sequence) == ([0, 1, 2, 4, 5, 6, 7, 8, 10, 11], list(range(10)))
    assert prices(ledger, "rotated", "copied", "cow", "extra") == (7, 0, 0, 0)
    evict(ledger, sequence, [11])
    assert prices(ledger, "rotated") == (7,)
    assert ledger.next_position(sequence) == 9
    append(ledger, sequence, 1, first=12)
    assert in_order(ledger, sequence)[1] == list(range(10))
    keys = ledger.store.keys[0, ledger.physical(sequence, 0, ledger.rows(sequence, 0)[0])]
    assert keys.tolist() == list(range(10))
    ledger.check()


def test_renumbering_copies_every_shared_page_that_it_writes():
    """A fork whose keys are rotated under it, or dead rows that are copied along."""
    ledger, parent = started(12, positions="renumber")
    child = ledger.fork(parent)
    evict(ledger, child, [5, 6])
    # Page 0 stays shared; of page 1 rows 4 and 7 are copied, of page 2 all four.
    assert prices(ledger, "copied", "rotated", "cow", "extra") == (6, 5, 2, 2)
    assert in_order(ledger, parent) == (list(range(12)),) * 2
    assert in_order(ledger, child) == ([0, 1, 2, 3, 4, 7, 8, 9, 10, 11], list(range(10)))
    assert ledger.held_pages == 5
    ledger.check()


def test_renumbering_writes_nothing_where_keys_are_rotated_when_read():
    """A copy on write for a position that no stored key depends on."""
    ledger, parent = started(12, positions="renumber", renumber_writes=False)
    child = ledger.fork(parent)
    evict(ledger, child, [5, 6])
    assert prices(ledger, "copied", "rotated", "cow", "extra") == (0, 0, 0, 0)
    assert in_order(ledger, child)[1] == list(range(10))
    assert ledger.held_pages == 3
    ledger.check()


def test_an_eviction_that_cannot_copy_is_refused_whole():
    """Victims marked dead, or a set's rows dropped, before the ceiling is asked."""
    ledger, parent = started(12, geometry=TWO_SETS, positions="renumber", ceiling=4)
    child = ledger.fork(parent)
    victims = [np.array([1, 5]), np.array([1, 2])]
    refuse(ledger, 3, ledger.evict, child, victims)
    # Nothing dies, so nothing is renumbered and nothing is needed.
    evict(ledger, child, [1, 5], [2])
    # Slot 9 dies: only its own page shifts.
    evict(ledger, child, [9], [9])
    assert prices(ledger, "cow") == (1,)
    refuse(ledger, 2, ledger.evict, child, [np.array([], np.int64), np.array([1])])
    ledger.check()


def test_a_slot_that_one_set_retains_keeps_its_position():
    """Ranks counted within a set where positions belong to the slot."""
    ledger, sequence = started(6, geometry=TWO_SETS, positions="renumber")
    evict(ledger, sequence, [0, 2], [2, 4])
    assert in_order(ledger, sequence, 0) == ([1, 3, 4, 5], [1, 2, 3, 4])
    assert in_order(ledger, sequence, 1) == ([0, 1, 3, 5], [0, 1, 2, 4])
    # Rows 3, 4 and 5 of set 0, rows 3 and 5 of set 1.
    assert prices(ledger, "rotated") == (5,)
    ledger.check()


@pytest.mark.parametrize("unit", ["slot", "row"])
def test_positions_belong_to_the_slot_where_nothing_moves(unit):
    """A unit that matters without a compaction: one set renumbered and the other not."""
    ledger, sequence = started(
        6, geometry=TWO_SETS, append="reuse_holes", positions="renumber", unit=unit
    )
    evict(ledger, sequence, [0, 2], [2, 4])
    assert in_order(ledger, sequence, 0) == ([1, 3, 4, 5], [1, 2, 3, 4])
    assert in_order(ledger, sequence, 1) == ([0, 1, 3, 5], [0, 1, 2, 4])
    append(ledger, sequence, 2, first=6)
    # The dead slot 2 is taken first; both sets number the new tokens alike.
    assert in_order(ledger, sequence, 0) == ([1, 3, 4, 5, 6, 7], [1, 2, 3, 4, 5, 6])
    assert ledger.rows(sequence, 0)[0].tolist() == [1, 3, 4, 5, 2, 6]
    ledger.check()


def test_pages_that_empty_pay_for_copies_of_every_table():
    """Copies of one table made before another lets go: the ceiling is broken inside the verb."""
    ledger, sequence = started(
        4, page_tokens=2, geometry=TWO_TABLES, positions="renumber", ceiling=6
    )
    ledger.fork(sequence)
    append(ledger, sequence, 2)
    assert ledger.free_pages == 0
    # Table 0 copies its second page, and rotates in its own third; table 1 frees its third.
    evict(ledger, sequence, [2], [4, 5])
    assert (ledger.held_pages, *prices(ledger, "cow", "extra")) == (6, 1, 0)
    ledger.check()


def test_renumbering_follows_positions_and_not_slots():
    """Ranks read off the slots where new tokens lie in old holes."""
    ledger, sequence = started(8, append="reuse_holes", positions="renumber")
    evict(ledger, sequence, [1, 2])
    append(ledger, sequence, 3, first=8)
    assert ledger.rows(sequence, 0)[0].tolist() == [0, 3, 4, 5, 6, 7, 1, 2, 8]
    evict(ledger, sequence, [5])
    assert in_order(ledger, sequence) == ([0, 3, 4, 6, 7, 8, 9, 10], list(range(8)))
    keys = ledger.store.keys[0, ledger.physical(sequence, 0, ledger.rows(sequence, 0)[0])]
    assert keys.tolist() == list(range(8))
    ledger.check()


# Reuse of dead slots


def test_new_tokens_take_the_lowest_dead_slots_first():
    """The newest hole first, or a fresh page while a hole is left."""
    ledger, sequence = started(10, append="reuse_holes")
    evict(ledger, sequence, [1, 6, 7])
    append(ledger, sequence, 2)
    assert ledger.rows(sequence, 0)[0].tolist() == [0, 2, 3, 4, 5, 8, 9, 1, 6]
    assert in_order(ledger, sequence)[1] == [0, 2, 3, 4, 5, 8, 9, 10, 11]
    append(ledger, sequence, 4)
    # Slot 7, then the last page's own tail, then a page.
    assert ledger.rows(sequence, 0)[0].tolist()[-4:] == [7, 10, 11, 12]
    assert (ledger.held_pages, ledger.cursor(sequence)) == (4, 13)
    ledger.check()


def test_reuse_skips_shared_pages_and_null_entries():
    """A new token written into a page that a fork reads, or into no page at all."""
    ledger, parent = started(12, append="reuse_holes")
    child = ledger.fork(parent)
    append(ledger, child, 4)
    evict(ledger, child, [1, 4, 5, 6, 7, 13])
    append(ledger, child, 2)
    assert ledger.rows(child, 0)[0].tolist() == [0, 2, 3, 8, 9, 10, 11, 12, 14, 15, 13, 16]
    assert in_order(ledger, parent) == (list(range(12)),) * 2
    # Once the parent is gone the page is the child's own, and its hole is the lowest.
    ledger.free(parent)
    append(ledger, child, 1)
    assert ledger.rows(child, 0)[0].tolist()[-1] == 1
    ledger.check()


def test_reused_slots_need_no_page():
    """A need that forgets the holes refuses a token that fits."""
    ledger, sequence = started(8, append="reuse_holes", ceiling=2)
    evict(ledger, sequence, [2, 5])
    with pytest.raises(CeilingExceeded, match="needs 1 pages"):
        ledger.append(sequence, 3)
    append(ledger, sequence, 2)
    assert (ledger.held_pages, ledger.slots().dead) == (2, 0)
    ledger.check()


def test_holes_of_a_shared_page_do_not_pay():
    """A need that counts holes which the append skips: it passes and has no page to take."""
    ledger, parent = started(8, append="reuse_holes", ceiling=2)
    child = ledger.fork(parent)
    evict(ledger, child, [2, 5])
    refuse(ledger, 1, ledger.append, child, 1)
    ledger.free(parent)
    append(ledger, child, 2)
    assert ledger.rows(child, 0)[0].tolist() == [0, 1, 3, 4, 6, 7, 2, 5]
    ledger.check()


def test_a_compaction_takes_reused_slots_in_their_place():
    """Forward keeps the order of slots; what lies in a reused slot keeps its position."""
    ledger, sequence = started(10, append="reuse_holes", compaction="forward")
    evict(ledger, sequence, [1, 3, 4])
    append(ledger, sequence, 1)
    ledger.compact(sequence)
    assert ledger.rows(sequence, 0)[0].tolist() == [0, 2, 3, 4, 5, 6, 7, 1]
    assert in_order(ledger, sequence) == ([0, 2, 5, 6, 7, 8, 9, 10],) * 2
    ledger.check()


# Tokens that were chosen before they were appended


@pytest.mark.parametrize("append_mode", ["tail", "reuse_holes"])
def test_tokens_appended_at_positions_of_their_own(append_mode):
    """Sets that share one list of positions, or drops that do not count as evicted."""
    ledger = Ledger(TWO_SETS, 4, ordering=Order(append=append_mode, scattered=True))
    sequence = ledger.open()
    ledger.append_kept(sequence, [np.array([0, 4, 5]), np.array([1, 2, 9])], 10)
    assert ledger.rows(sequence, 0)[1].tolist() == [0, 4, 5]
    assert ledger.rows(sequence, 1)[1].tolist() == [1, 2, 9]
    flows = (f.APPENDED_TOTAL, f.EVICTED_ROWS_TOTAL, f.EVICTED_BYTES_TOTAL)
    assert tuple(ledger.total(flow) for flow in flows) == (3, 14, 7 * 2 + 7 * 5)
    assert ledger.next_position(sequence) == 10
    ledger.append(sequence, 1)
    assert [ledger.rows(sequence, which)[1].tolist()[-1] for which in (0, 1)] == [10, 10]
    ledger.check()


def test_append_kept_refuses_what_it_cannot_do():
    """Tokens appended behind others, or sets of unequal length that leave slots unheld."""
    ledger = Ledger(TWO_SETS, 4, ceiling_pages=1, ordering=Order(scattered=True))
    sequence = ledger.open()
    before = digest(ledger)
    with pytest.raises(LedgerError, match="all equally long"):
        ledger.append_kept(sequence, [np.array([0, 4]), np.array([1])], 10)
    with pytest.raises(CeilingExceeded):
        ledger.append_kept(sequence, [np.arange(5), np.arange(5)], 10)
    assert digest(ledger) == before
    ledger.append_kept(sequence, [np.arange(4), np.arange(4)], 10)
    with pytest.raises(LedgerError, match="empty sequence"):
        ledger.append_kept(sequence, [np.arange(0), np.arange(0)], 10)


# Eviction inside advance


@pytest.mark.parametrize("page_tokens", [1, 3, 4])
@pytest.mark.parametrize("geometry", [single(), TWO_TABLES, TWO_SETS], ids=["1", "tables", "sets"])
@pytest.mark.parametrize("positions", ["keep", "renumber"])
def test_oldest_first_equals_append_and_evict(page_tokens, geometry, positions):
    """A victim taken too late, among the protected, or before every member has its token."""
    sinks, recent, tokens = 2, 3, 7
    ledgers = [Ledger(geometry, page_tokens, ordering=Order(positions=positions)) for _ in range(2)]
    batch = np.array([0, 1, 2])
    for ledger in ledgers:
        parent = ledger.open()
        ledger.append(parent, 5)
        ledger.fork(parent)
        ledger.open()
    kernel = {"eviction": steps.OLDEST_FIRST, "tokens": tokens, "sinks": sinks, "recent": recent}
    assert ledgers[0].advance(batch, 20, **kernel) == 20
    by_hand = ledgers[1]
    for _ in range(20):
        for sequence in batch.tolist():
            by_hand.append(sequence, 1)
        for sequence in batch.tolist():
            live = np.flatnonzero(by_hand.retained(sequence, 0))
            for victim in live[sinks : sinks + max(0, live.size - tokens)]:
                by_hand.evict(sequence, [np.array([victim])] * geometry.sets)
        by_hand.end_step()
    for sequence in batch.tolist():
        for which in range(geometry.sets):
            ours, theirs = (ledger.rows(sequence, which) for ledger in ledgers)
            assert [part.tolist() for part in ours] == [part.tolist() for part in theirs]
        assert ours[0].size == tokens
        assert ours[0][:sinks].tolist() == [0, 1]
    assert ledgers[0].refcounts().tolist() == by_hand.refcounts().tolist()
    flows = range(f.APPENDED_TOTAL, f.EXTRA_PEAK + 1)
    assert [ledgers[0].total(flow) for flow in (f.HELD, f.HELD_PEAK, *flows)] == [
        by_hand.total(flow) for flow in (f.HELD, f.HELD_PEAK, *flows)
    ]
    ledgers[0].check()


MANY_STEPS = """
import numpy as np
from kvsim.errors import LedgerError
from kvsim.paging import Ledger, Order, single, steps
ledger = Ledger(single(), 4, ordering=Order(append="{append}", positions="renumber"))
sequence = ledger.open()
try:
    ledger.advance(np.array([sequence]), 90, eviction=steps.OLDEST_FIRST, tokens=60)
except LedgerError:
    # To refuse is right too: under reuse the order of slots is not that of arrival.
    assert "{append}" == "reuse_holes"
else:
    assert ledger.rows(sequence, 0)[1].tolist() == list(range(60))
    ledger.check()
"""


@pytest.mark.parametrize("append_mode", ["tail", "reuse_holes"])
def test_many_steps_in_one_call_with_renumbering(append_mode):
    """Scratch sized before the steps, which positions then outgrow.

    Interpreted and in a process of its own: a compiled kernel would write past the end.
    """
    package = str(Path(kvsim.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", MANY_STEPS.format(append=append_mode)],
        env=os.environ | {"NUMBA_DISABLE_JIT": "1", "PYTHONPATH": package},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
