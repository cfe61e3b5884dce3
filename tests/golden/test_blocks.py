"""Pages before and after an eviction: the counts measured in the reference, section 5 item 1.

`rebuild` replicates fak's accounting, `forward` is its in-place variant, and `keep` leaves every
survivor where it is. None of the numbers was computed with kvsim.
"""

from __future__ import annotations

import numpy as np
import pytest
from recordings import row_of

from kvsim.paging import Ledger, Order, single
from kvsim.paging import fields as f

# (tokens, page_tokens, first, last): pages before; then after, alone and with one fork, by
# (rebuild, in place, keep positions).
BLOCKS = {
    (7, 4, 2, 5): (2, (1, 1, 2), (3, 3, 2)),
    (1024, 16, 512, 528): (64, (63, 63, 63), (127, 95, 64)),
    (1024, 16, 505, 520): (64, (64, 64, 64), (128, 97, 64)),
    (1024, 16, 1000, 1024): (64, (63, 63, 63), (127, 64, 64)),
}
COLUMNS = {
    "rebuild": Order(compaction="rebuild", positions="renumber", renumber_writes=True),
    "forward": Order(compaction="forward", positions="renumber", renumber_writes=True),
    "keep": Order(compaction="none", positions="keep"),
}


def held(case, ordering, forks):
    """Return (pages before, pages after, the ledger) of evicting a span of one sequence."""
    tokens, page_tokens, first, last = case
    ledger = Ledger(single(), page_tokens, ordering=ordering)
    sequence = ledger.open()
    ledger.append(sequence, tokens)
    for _ in range(forks):
        ledger.fork(sequence)
    before = ledger.held_pages
    ledger.evict(sequence, [np.arange(first, last)])
    if ordering.compaction != "none":
        ledger.compact(sequence)
    ledger.check()
    return before, ledger.held_pages, ledger


@pytest.mark.parametrize("forks", [0, 1], ids=["alone", "one fork"])
@pytest.mark.parametrize("column", COLUMNS)
@pytest.mark.parametrize("case", BLOCKS, ids=str)
def test_pages_before_and_after(case, column, forks):
    """Evicting may raise what is held: a shared page is copied before it is written."""
    before, *after = BLOCKS[case]
    assert held(case, COLUMNS[column], forks)[:2] == (
        before,
        after[forks][list(COLUMNS).index(column)],
    )


def test_nothing_is_written_where_keys_are_rotated_when_read():
    """Under raw_only an aligned span leaves every row where it is, so no page is copied."""
    case = (1024, 16, 512, 528)
    for algorithm, pages, copied in (("forward", 64, 0), ("rebuild", 127, 1008)):
        ordering = Order(compaction=algorithm, positions="renumber", renumber_writes=False)
        _, after, ledger = held(case, ordering, forks=1)
        assert after == pages
        assert ledger.total(f.COPIED_ROWS_TOTAL) == copied
        assert ledger.total(f.ROTATED_ROWS_TOTAL) == 0


def test_renumbering_alone_costs_what_moving_in_place_costs_on_an_aligned_span():
    """With algorithm none, evict itself rotates: 31 pages behind the span, copied while shared."""
    _, after, ledger = held((1024, 16, 512, 528), Order(positions="renumber"), forks=1)
    assert after == 95
    assert ledger.total(f.COW_TOTAL) == 31
    assert ledger.total(f.COPIED_ROWS_TOTAL) == ledger.total(f.ROTATED_ROWS_TOTAL) == 31 * 16


@pytest.mark.parametrize(
    ("algorithm", "cow", "slots"),
    [("rebuild", 0, [0, 1, 2, 3]), ("forward", 1, [0, 1, 2, 3]), ("hole_fill", 1, [0, 1, 3, 2])],
)
def test_price_of_the_seven_token_case(algorithm, cow, slots):
    """fak's own test: 7 tokens in pages of 4, [2, 5) evicted under a fork.

    Tokens 5 and 6 go to slots 2 and 3 of a page of the sequence's own, and 0 and 1 come along;
    under hole_fill the last token goes first, into the earlier hole.
    """
    ordering = Order(compaction=algorithm, positions="renumber", renumber_writes=True)
    _, after, ledger = held((7, 4, 2, 5), ordering, forks=1)
    assert after == 3
    flows = (f.COPIED_ROWS_TOTAL, f.ROTATED_ROWS_TOTAL, f.COW_TOTAL, f.EXTRA_PEAK)
    assert tuple(ledger.total(flow) for flow in flows) == (4, 2, cow, 1)
    found, positions = ledger.rows(0, 0)
    assert (found.tolist(), positions.tolist()) == (slots, [0, 1, 2, 3])
    # The fork still has all seven, under their old positions.
    assert ledger.rows(1, 0)[1].tolist() == list(range(7))


@pytest.mark.parametrize(
    ("unit", "pages", "floor"),
    [("slot", 245, "packed_floor_slot_pages"), ("row", 64, "packed_floor_pages")],
)
def test_hole_fill_ends_at_the_packed_floor_of_its_unit(shared, unit, pages, floor):
    """Recorded SnapKV scores, each head's own quarter of 4,096 tokens on pages shared by all."""
    row = row_of(
        {"workload.path": str(shared / "signals" / "smollm2-135m-4096.npz")},
        policy__name="snapkv",
        policy__kernel=1,
        pages__tokens=16,
        pages__scope="sequence",
        selection__sets="head",
        selection__protect_recent=64,
        budget__fraction=0.25,
        compaction__algorithm="hole_fill",
        compaction__unit=unit,
    )
    assert (row["dense_pages"], row["held_pages"], row[floor]) == (256, pages, pages)
    assert row["retained_tokens"] == 1024
    # Whole slots carry the rows of all 90 heads, those that no head retains included.
    assert (row["copied_rows_total"] % 90 == 0) == (unit == "slot")
