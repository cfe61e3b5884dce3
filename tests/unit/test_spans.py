"""Spans and receipts of a ledger by hand. Pages hold 4 slots.

Each docstring names the bug that its test would catch.
"""

from __future__ import annotations

import json

import numpy as np
import pytest
from byhand import TWO_SETS, Case
from differential.rowstore import digest

from kvsim.errors import CeilingExceeded, LedgerError, VictimError
from kvsim.paging import Geometry, Ledger, Order, Receipt, evict_as_one, evict_span
from kvsim.paging import fields as f
from kvsim.paging.spans import clamp, length, span_victims

RENUMBER = Order(positions="renumber")
FORWARD = Order(compaction="forward", positions="renumber")
REBUILD = Order(compaction="rebuild")
TWO_TABLES = Geometry(unit_scope=(0, 1), unit_set=(0, 1), unit_row_bytes=(2, 5))


def counting(tokens, order=RENUMBER, geometry=TWO_SETS, **options):
    """Return a ledger that only counts, and its sequence."""
    ledger = Ledger(geometry, 4, ordering=order, **options)
    sequence = ledger.open()
    ledger.append(sequence, tokens)
    return ledger, sequence


@pytest.mark.parametrize(
    ("span", "wanted"),
    [
        ((2, 3), (2, 5)),
        ((0, 7), (0, 7)),
        ((0, 8), (0, 7)),
        ((6, 1), (6, 7)),
        ((6, 2**63 - 1), (6, 7)),
        ((7, 1), (7, 7)),
        ((-1, 9), (-1, -1)),
        ((3, 0), (3, 3)),
        ((3, -5), (3, 3)),
        ((-(2**63), 2**63 - 1), (-(2**63), -(2**63))),
    ],
    ids=str,
)
def test_clamping_follows_fak(span, wanted):
    """An end beyond the tokens, or a first below 0 that is moved to 0 and not left alone."""
    assert clamp(*span, 7) == wanted
    assert clamp(*map(np.int64, span), 7) == wanted


@pytest.mark.parametrize("bad", [2**63, -(2**63) - 1, True, np.True_, 1.0, None, "1", [1]])
def test_what_is_no_int64_is_refused_on_either_side(bad):
    """A check of one bound of the two."""
    for span in ((bad, 1), (1, bad)):
        with pytest.raises(LedgerError, match=r"first|count"):
            clamp(*span, 7)


def test_a_receipt_of_renumbering_alone():
    """Survivors before the span counted, rows per slot instead of per set, or bytes of one set."""
    ledger, sequence = counting(10)
    child = ledger.fork(sequence)
    receipt = evict_span(ledger, child, 2, 3)
    # Slots 5 to 9 move up in positions: both sets' rows of five tokens. All three pages are
    # shared; the first is not written. Rows on the two copies: 5 to 7, 8 and 9.
    assert receipt == Receipt(
        2,
        5,
        evicted_tokens=3,
        survivors_rotated_rows=10,
        copied_rows=10,
        copied_bytes=5 * 7,
        cow_pages=2,
        newly_held_pages=2,
        extra_pages_peak=2,
    )
    # Alone by now, it rotates in place.
    again = evict_span(ledger, child, 0, 1)
    assert (again.survivors_rotated_rows, again.cow_pages, again.copied_rows) == (12, 1, 2)
    ledger.check()


def test_flows_of_earlier_verbs_are_not_in_a_receipt():
    """Totals taken for what one verb did."""
    ledger, sequence = counting(12, REBUILD)
    first = evict_span(ledger, sequence, 0, 4)
    second = evict_span(ledger, sequence, 11, 1)
    assert (first.freed_pages, first.newly_held_pages, first.copied_rows) == (3, 2, 16)
    assert (second.freed_pages, second.newly_held_pages, second.copied_rows) == (2, 2, 14)
    assert ledger.total(f.FREED_TOTAL) == 5


def test_the_peak_of_a_receipt_is_its_own():
    """The highest peak so far in every later receipt, or a ledger that forgets its highest."""
    ledger, sequence = counting(40, REBUILD)
    assert evict_span(ledger, sequence, 1, 1).extra_pages_peak == 10
    assert evict_span(ledger, sequence, 20, 20).extra_pages_peak == 0
    assert ledger.total(f.EXTRA_PEAK) == 10


def test_a_refused_eviction_leaves_the_peak_alone():
    """A peak of 0 after a verb that was never done."""
    ledger, sequence = counting(16, REBUILD, ceiling_pages=8)
    evict_span(ledger, sequence, 1, 1)
    assert ledger.total(f.EXTRA_PEAK) == 4
    for _ in range(2):
        ledger.append(ledger.fork(sequence), 1)
    before = digest(ledger)
    with pytest.raises(CeilingExceeded):
        evict_span(ledger, sequence, 0, 1)
    assert digest(ledger) == before
    with pytest.raises(VictimError):
        evict_as_one(ledger, sequence, [np.array([99])] * 2)
    assert digest(ledger) == before
    # Without a compaction nothing is put back, the peak apart.
    ledger, sequence = counting(8, RENUMBER, ceiling_pages=3)
    assert evict_span(ledger, ledger.fork(sequence), 5, 1).extra_pages_peak == 1
    other = ledger.fork(sequence)
    before = digest(ledger)
    with pytest.raises(CeilingExceeded):
        evict_span(ledger, other, 5, 1)
    assert digest(ledger) == before


@pytest.mark.parametrize("order", [REBUILD, FORWARD], ids=["rebuild", "forward"])
def test_an_eviction_whose_compaction_is_refused_is_undone(order):
    """Tokens that are gone although the verb was refused."""
    case = Case(16, ordering=order, ceiling_pages=5)
    child = case.ledger.fork(case.first)
    error = case.refuses(evict_span, case.ledger, child, 1, 4)
    assert error == 3
    assert case.rows(child) == list(range(16))
    # One page more: three copies while the fourth page's rows are let go of.
    roomy = Case(16, ordering=order, ceiling_pages=7)
    child = roomy.ledger.fork(roomy.first)
    assert evict_span(roomy.ledger, child, 1, 4).newly_held_pages == 3
    assert roomy.rows(child) == [0, *range(5, 16)]
    assert roomy.rows(roomy.first) == list(range(16))
    roomy.ledger.check()


def test_a_span_is_of_positions_and_not_of_slots():
    """Slots taken for positions once they differ."""
    case = Case(8, ordering=RENUMBER)
    evict_span(case.ledger, case.first, 0, 3)
    evict_span(case.ledger, case.first, 0, 1)
    assert case.rows(case.first) == [4, 5, 6, 7]
    case = Case(8, ordering=Order(append="reuse_holes"))
    case.evict(case.first, [1])
    case.append(case.first, 1)
    # The new token stands in slot 1 and has position 8.
    assert span_victims(case.ledger, case.first, 8, 9)[0].tolist() == [1]
    evict_span(case.ledger, case.first, 7, 2)
    assert case.rows(case.first) == [0, 2, 3, 4, 5, 6]


def test_positions_of_a_span_that_nobody_has_are_skipped():
    """A victim list that names what is gone, and is refused."""
    case = Case(8)
    case.evict(case.first, [2, 3])
    receipt = evict_span(case.ledger, case.first, 1, 4)
    assert (receipt.first, receipt.last, receipt.evicted_tokens) == (1, 5, 2)
    assert case.rows(case.first) == [0, 5, 6, 7]


def test_tables_of_unequal_lengths_share_the_longest_one_s_end():
    """A span clamped at the first table's end, so that the others keep what was named."""
    ledger, sequence = counting(9, Order(), TWO_TABLES)
    ledger.evict(sequence, [np.arange(4, 9), np.empty(0, np.int64)])
    assert length(ledger, sequence) == 9
    receipt = evict_span(ledger, sequence, 3, 100)
    assert (receipt.last, receipt.evicted_tokens) == (9, (1 + 6) // 2)
    assert [ledger.cursor(sequence, scope) for scope in (0, 1)] == [3, 3]


def test_a_receipt_is_read_by_programs_too():
    """A field that as_dict forgets, or a number that is not one."""
    ledger, sequence = counting(9)
    told = evict_span(ledger, sequence, 2, 3).as_dict()
    assert list(told) == list(Receipt.__dataclass_fields__)
    assert json.loads(json.dumps(told)) == told
    assert (told["exact"], told["refused"]) == (True, "")


@pytest.mark.parametrize("order", [Order(), FORWARD], ids=["none", "forward"])
def test_what_is_not_open_is_refused(order):
    """A closed sequence, of length 0 as it were, that is told of an eviction of nothing."""
    ledger, sequence = counting(9, order)
    ledger.free(sequence)
    for number in (sequence, 99, -1):
        with pytest.raises(LedgerError, match="not open"):
            evict_span(ledger, number, 0, 1)
        with pytest.raises(LedgerError, match="not open"):
            evict_as_one(ledger, number, [np.array([0])] * 2)
