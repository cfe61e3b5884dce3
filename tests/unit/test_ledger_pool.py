"""The ledger's pool by hand: ceilings, order of reuse, growth, batches, bookkeeping, the recount.

Each docstring names the bug that its test would catch.
"""

from __future__ import annotations

import numpy as np
import pytest
from differential.agreement import queue_of
from differential.rowstore import RowStore, digest

from kvsim.errors import CeilingExceeded, LedgerError
from kvsim.paging import fields as f
from kvsim.paging.geometry import Geometry, single
from kvsim.paging.ledger import Ledger

TWO_TABLES = Geometry(unit_scope=(0, 1), unit_set=(0, 0), unit_row_bytes=(2, 5))
TWO_SETS = Geometry(unit_scope=(0, 0), unit_set=(0, 1), unit_row_bytes=(2, 5))


def started(tokens, page_tokens=4, geometry=None, **options):
    """Return a ledger and its only sequence."""
    ledger = Ledger(geometry or single(), page_tokens, **options)
    sequence = ledger.open()
    ledger.append(sequence, tokens)
    return ledger, sequence


def refuse(ledger, needed, free, verb, *arguments):
    """Assert that a verb is refused, says what it needs, and changes nothing."""
    before = digest(ledger)
    with pytest.raises(CeilingExceeded, match=f"needs {needed} pages .* leaves {free}$") as refusal:
        verb(*arguments)
    assert (refusal.value.needed_pages, refusal.value.free_pages) == (needed, free)
    assert digest(ledger) == before


@pytest.mark.parametrize("ceiling", [3, 70], ids=["below the first pool", "above it"])
def test_append_at_the_ceiling(ceiling):
    """An off-by-one at the ceiling refuses the last page or hands out one too many."""
    ledger, sequence = started(4 * (ceiling - 1), ceiling_pages=ceiling)
    refuse(ledger, 2, 1, ledger.append, sequence, 5)
    ledger.append(sequence, 4)
    assert (ledger.held_pages, ledger.free_pages) == (ceiling, 0)
    refuse(ledger, 1, 0, ledger.append, sequence, 1)
    refuse(ledger, 250, 0, ledger.append, sequence, 1000)
    ledger.check()


def test_copy_on_write_counts_against_the_ceiling():
    """A need that forgets the copied page passes the check and fails half-way."""
    ledger, parent = started(6, ceiling_pages=3)
    child = ledger.fork(parent)
    # Slots 6 to 8: a copy of the second page and a third one, where one page is left.
    refuse(ledger, 2, 1, ledger.append, child, 3)
    ledger.append(child, 2)
    assert ledger.free_pages == 0
    ledger.append(parent, 2)
    refuse(ledger, 1, 0, ledger.append, parent, 1)
    # Forking, evicting and freeing need no page and must go on at the ceiling.
    third = ledger.fork(child)
    ledger.evict(third, [np.arange(8)])
    ledger.free(child)
    assert ledger.free_pages == 1
    ledger.check()


def test_append_to_several_tables_is_whole_or_not_done():
    """A table appended before its sibling is refused makes the tables of a sequence differ."""
    ledger, sequence = started(4, geometry=TWO_TABLES, ceiling_pages=3)
    refuse(ledger, 2, 1, ledger.append, sequence, 1)
    assert [ledger.cursor(sequence, scope) for scope in (0, 1)] == [4, 4]


def test_order_of_reuse():
    """A queue whose end is mistaken hands out the page freed last where the first is due."""
    taken = {}
    for order in ("fifo", "lifo"):
        ledger, sequence = started(16, ceiling_pages=6, order=order)
        assert ledger.pages_of(sequence).tolist() == [0, 1, 2, 3]
        ledger.evict(sequence, [np.arange(4, 8)])
        ledger.evict(sequence, [np.arange(0, 4)])
        other = ledger.open()
        ledger.append(other, 16)
        taken[order] = ledger.pages_of(other).tolist()
        ledger.check()
    # The pool was made with 64 pages: under fifo the untouched ones come before 1 and 0.
    assert taken == {"fifo": [4, 5, 6, 7], "lifo": [0, 1, 4, 5]}


def test_fifo_comes_round_to_the_page_freed_first():
    """A queue that loses its freed pages runs dry before the ceiling is reached."""
    ledger, sequence = started(64, page_tokens=1)
    ledger.evict(sequence, [np.array([9])])
    ledger.evict(sequence, [np.array([3, 5])])
    other = ledger.open()
    ledger.append(other, 3)
    assert ledger.pages_of(other).tolist() == [9, 3, 5]
    assert queue_of(ledger) == []
    ledger.check()


@pytest.mark.parametrize("order", ["fifo", "lifo"])
def test_free_lets_go_of_the_last_page_first(order):
    """Another order of freeing gives other page numbers, hence other extents, for one seed."""
    ledger, sequence = started(12, order=order)
    ledger.free(sequence)
    freed = [2, 1, 0] if order == "fifo" else [0, 1, 2]
    queue = queue_of(ledger)
    assert (queue[-3:] if order == "fifo" else queue[:3]) == freed
    assert (ledger.total(f.FINISHED_TOTAL), ledger.total(f.FREED_TOTAL)) == (3, 0)


@pytest.mark.parametrize("order", ["fifo", "lifo"])
@pytest.mark.parametrize("geometry", [single(3), TWO_TABLES, TWO_SETS], ids=["1", "tables", "sets"])
def test_growth_keeps_everything(geometry, order):
    """Growing that forgets flags, links or refcounts, or a sentinel that stays where it was."""
    ledger, first = started(9, page_tokens=3, geometry=geometry, order=order)
    ledger.evict(first, [np.array([0, 3, 4, 5])] * geometry.sets)
    pages = ledger.pages_of(first).tolist()
    sizes = [array.shape for array in ledger._arrays]
    for number in range(40):
        sequence = ledger.fork(first) if number % 2 else ledger.open()
        ledger.append(sequence, 7 + number)
        ledger.check()
    grown = [array.shape > size for array, size in zip(ledger._arrays, sizes, strict=True)]
    names = [name for name, more in zip(ledger._arrays._fields, grown, strict=True) if more]
    assert {"pages", "entries", "dead", "tables"} <= set(names)
    assert ledger.pages_of(first).tolist() == pages
    for which in range(geometry.sets):
        assert np.flatnonzero(ledger.retained(first, which)).tolist() == [1, 2, 6, 7, 8]
    assert ledger.refcounts().max() == 21, "twenty forks and the first sequence"


def test_plan_longer_than_its_array():
    """A copy of more rows than the plan has room for writes past its end."""
    store = RowStore((0,), (0,), 300)
    ledger = Ledger(single(), 300, store=store)
    parent = ledger.open()
    ledger.append(parent, 299, [np.arange(299)[None, :]])
    child = ledger.fork(parent)
    ledger.append(child, 1, [np.array([[999]])])
    page = int(ledger.pages_of(child)[0])
    assert store.rows[0, page * 300 : page * 300 + 300].tolist() == [*range(299), 999]
    assert ledger.total(f.COPIED_ROWS_TOTAL) == 299
    ledger.check()


@pytest.mark.parametrize("page_tokens", [1, 3, 16])
@pytest.mark.parametrize("geometry", [single(), TWO_TABLES, TWO_SETS], ids=["1", "tables", "sets"])
def test_advance_equals_repeated_append(page_tokens, geometry):
    """The shortcut of `advance` misses a copy, a fresh page, a counter, or its place after GROW."""
    ledgers = [Ledger(geometry, page_tokens) for _ in range(2)]
    for ledger in ledgers:
        parent = ledger.open()
        ledger.append(parent, 5)
        child = ledger.fork(parent)
        ledger.evict(child, [np.array([1, 4])] * geometry.sets)
        ledger.open()
    # The parent first: it must copy the page that it still seems to have to itself.
    batch = np.array([0, 1, 2, 0])
    ledgers[0].advance(batch, 90)
    for _ in range(90):
        for sequence in batch.tolist():
            ledgers[1].append(sequence, 1)
        ledgers[1].end_step()
    assert digest(ledgers[0]) == digest(ledgers[1])
    assert ledgers[0].refcounts().size > 64 or page_tokens > 3, "the pool must have grown"
    ledgers[0].check()


@pytest.mark.parametrize("geometry", [single(), TWO_TABLES], ids=["1", "tables"])
@pytest.mark.parametrize("full", [2, 3], ids=["full segment", "room in the segment"])
def test_advance_keeps_its_progress_at_the_ceiling(geometry, full):
    """Progress lost at the ceiling, counted twice, or carried on; or a shortcut past the ceiling.

    Segments hold powers of two: a table of 3 pages has an entry to spare, one of 2 has none.
    """
    tables = geometry.scope_units
    ledger, first = started(2 * full - 1, 2, geometry, ceiling_pages=(full + 2) * tables)
    second = ledger.open()
    ledger.append(second, 2)
    # The first fills its page and the second opens another; then the first is refused its next.
    with pytest.raises(CeilingExceeded) as refusal:
        ledger.advance(np.array([first, second]), 5)
    assert (refusal.value.needed_pages, refusal.value.free_pages) == (tables, 0)
    assert [ledger.cursor(s) for s in (first, second)] == [2 * full, 3]
    assert ledger.total(f.APPENDED_TOTAL) == (2 * full + 3) * tables
    ledger.check()
    # The next batch starts at its own beginning.
    ledger.advance(np.array([second]), 1)
    assert ledger.cursor(second) == 4
    refuse(ledger, tables, 0, ledger.advance, np.array([first, second]), 1)


def test_advance_of_nothing():
    """An empty batch read past its end."""
    ledger, _ = started(3)
    # A step of nothing is a step: its end samples the peak.
    ledger.end_step()
    before = digest(ledger)
    ledger.advance(np.array([], np.int64), 5)
    ledger.advance(np.array([0]), 0)
    assert digest(ledger) == before


def test_pages_of_one_slot():
    """A page of one slot is never partial: no copy, and each eviction frees."""
    ledger, parent = started(5, page_tokens=1)
    child = ledger.fork(parent)
    ledger.append(child, 1)
    assert (ledger.held_pages, ledger.total(f.COW_TOTAL)) == (6, 0)
    ledger.evict(child, [np.array([1, 5])])
    assert (ledger.held_pages, ledger.total(f.FREED_TOTAL)) == (5, 1)
    assert ledger.cursor(child) == 5
    ledger.check()


def test_pages_of_three_slots():
    """Shifts and masks in place of division are wrong where a page is no power of two."""
    ledger, sequence = started(10, page_tokens=3)
    assert ledger.held_pages == 4
    ledger.evict(sequence, [np.array([3, 4, 8])])
    assert ledger.held_pages == 4
    ledger.evict(sequence, [np.array([5, 6, 7])])
    assert ledger.held_pages == 2
    assert [page >= 0 for page in ledger.pages_of(sequence).tolist()] == [True, False, False, True]
    ledger.check()


def test_metadata_bytes():
    """Bookkeeping counted by pages held and not by entries, or without the holders' flags."""
    ledger, sequence = started(10)
    assert ledger.metadata_bytes == 4 * 3 + 10
    ledger.evict(sequence, [np.arange(4, 8)])
    # A null entry is still an entry, and a dead slot still has its flag.
    assert ledger.metadata_bytes == 4 * 3 + 10
    ledger.evict(sequence, [np.array([8, 9])])
    assert ledger.metadata_bytes == 4 * 1 + 4
    ledger.fork(sequence)
    assert ledger.metadata_bytes == 2 * (4 * 1 + 4)
    ledger, _ = started(10, geometry=TWO_SETS)
    assert ledger.metadata_bytes == 4 * 3 + 10 * (1 + 2)
    ledger, _ = started(10, geometry=TWO_TABLES)
    assert ledger.metadata_bytes == 2 * (4 * 3 + 10)


def test_peaks():
    """A peak sampled inside verbs and not at step ends, or never lowered to what was before."""
    ledger, sequence = started(8)
    ledger.evict(sequence, [np.arange(8)])
    assert ledger.total(f.HELD_PEAK) == 0
    ledger.append(sequence, 5)
    ledger.end_step()
    ledger.free(sequence)
    ledger.end_step()
    # The pages that an append takes are in the stock: only evict and compact hold pages in passing.
    assert (ledger.total(f.HELD_PEAK), ledger.total(f.EXTRA_PEAK)) == (2, 0)


@pytest.mark.parametrize(
    "options",
    [{"page_tokens": 0}, {"page_tokens": -4}, {"ceiling_pages": -1}, {"order": "random"}],
    ids=str,
)
def test_ledger_with_wrong_parameters_is_refused(options):
    """A pool of empty pages divides by zero; an unknown order reads as fifo."""
    with pytest.raises(LedgerError, match=next(iter(options))):
        Ledger(single(), **({"page_tokens": 4} | options))


# What a bug could leave behind; `check` must see each. The ledger: 10 and 6 tokens, slot 1 dead.
DAMAGES = {
    "lost refcount": lambda a: _add(a.pages, (f.REFCOUNT, 0), -1),
    "leaked page": lambda a: _add(a.scalars, f.HELD, 1),
    "pages by scope": lambda a: _add(a.scopes, (0, f.HELD_IN), 1),
    "page named twice": lambda a: _set(a.entries, (f.PAGE, 1), a.entries[f.PAGE, 0]),
    "null entry with live slots": lambda a: _set(a.entries, (f.PAGE, 1), -1),
    "dead count of an entry": lambda a: _add(a.entries, (f.DEAD_IN, 0), 1),
    "dead count of a table": lambda a: _add(a.tables, (0, f.DEAD), 1),
    "dead flag": lambda a: _set(a.dead, 2, 1),
    "dead flag behind the cursor": lambda a: _set(a.dead, 10, 1),
    "cursor": lambda a: _add(a.tables, (0, f.CURSOR), -2),
    "entries": lambda a: _add(a.tables, (0, f.ENTRIES), -1),
    "named entries": lambda a: _add(a.tables, (0, f.NAMED), 1),
    "room": lambda a: _add(a.tables, (0, f.ROOM), 3),
    "state of a page": lambda a: _set(a.pages, (f.STATE, 0), f.FREE_PAGE),
    "queue without its head": lambda a: _set(a.pages, (f.NEXT, 64), a.pages[f.NEXT, 5]),
    "queue with a loop": lambda a: _set(a.pages, (f.NEXT, 20), 10),
    "queue broken backwards": lambda a: _set(a.pages, (f.PREVIOUS, 30), 10),
    "flow of freed pages": lambda a: _add(a.scalars, f.FREED_TOTAL, 1),
    "flow of taken pages": lambda a: _add(a.scalars, f.ALLOCATED_TOTAL, 1),
    "ceiling": lambda a: _set(a.scalars, f.CEILING, 4),
}


def _add(array, at, more):
    array[at] += more


def _set(array, at, value):
    array[at] = value


@pytest.mark.parametrize("damage", DAMAGES)
def test_check_sees(damage):
    """A recount that asks too little passes whatever the kernels do."""
    ledger, sequence = started(10)
    ledger.evict(sequence, [np.array([1])])
    ledger.append(ledger.open(), 6)
    ledger.check()
    DAMAGES[damage](ledger._arrays)
    with pytest.raises(LedgerError, match="check failed"):
        ledger.check()


def test_check_sees_holders_that_differ_from_dead_flags():
    """A set that holds a dead slot, or none that holds a live one."""
    ledger, sequence = started(4, geometry=TWO_SETS)
    ledger.evict(sequence, [np.array([1]), np.array([1])])
    ledger._arrays.holders[0, 1] = 1
    with pytest.raises(LedgerError, match="holders"):
        ledger.check()
