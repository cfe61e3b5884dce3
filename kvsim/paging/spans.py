"""Evicting a span of positions as one verb: evict, then compact, or neither; with a receipt.

A span is [first, first + count) in position values. Where positions are renumbered they are
ranks; where they are kept, those of the span that no live token has are skipped.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from kvsim.errors import LedgerError
from kvsim.paging import fields as f
from kvsim.paging.arrays import Arrays
from kvsim.paging.ledger import Ledger

INT64_LIMIT = 2**63


@dataclass(frozen=True)
class Receipt:
    """What an eviction did, or that it was refused.

    Attributes
    ----------
    first, last : int
        The span in positions, its end clamped and not included; equal if nothing was to do.
    evicted_tokens : int
        Tokens evicted, the mean over sets rounded down; where sets agree, exactly.
    survivors_rotated_rows : int
        (token, layer, head) rows whose key was rotated anew.
    copied_rows, copied_bytes : int
        Rows moved, copies on write included.
    cow_pages, freed_pages, newly_held_pages : int
        Pages copied because they were shared, whose refcount reached 0, and taken.
    extra_pages_peak : int
        The most pages held inside the verb beyond those held before it.
    exact : bool
        Whether every retained row is what a contiguous cache would hold.
    refused : str
        Why nothing was done; empty if it was.
    """

    first: int
    last: int
    evicted_tokens: int = 0
    survivors_rotated_rows: int = 0
    copied_rows: int = 0
    copied_bytes: int = 0
    cow_pages: int = 0
    freed_pages: int = 0
    newly_held_pages: int = 0
    extra_pages_peak: int = 0
    exact: bool = True
    refused: str = ""

    def as_dict(self) -> dict[str, object]:
        """Return the fields by name, for a program to read."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


FLOWS = {
    "survivors_rotated_rows": f.ROTATED_ROWS_TOTAL,
    "copied_rows": f.COPIED_ROWS_TOTAL,
    "copied_bytes": f.COPIED_BYTES_TOTAL,
    "cow_pages": f.COW_TOTAL,
    "freed_pages": f.FREED_TOTAL,
    "newly_held_pages": f.ALLOCATED_TOTAL,
}


def clamp(first: int, count: int, length: int) -> tuple[int, int]:
    """Return the span cut at `length`; (first, first) where there is nothing to do.

    Nothing is to do for first < 0, count <= 0 and first >= length: fak's rules.

    Raises
    ------
    LedgerError
        If a bound is no integer, or does not fit into an int64.
    """
    for name, value in (("first", first), ("count", count)):
        if isinstance(value, bool) or not isinstance(value, int | np.integer):
            raise LedgerError(f"the span's {name} must be an integer, not {value!r:.60}")
        if not -INT64_LIMIT <= value < INT64_LIMIT:
            raise LedgerError(f"the span's {name} does not fit into 64 bits: {value!r:.60}")
    first, count = int(first), int(count)
    if first < 0 or count <= 0 or first >= length:
        return first, first
    return first, min(first + count, length)


def span_victims(ledger: Ledger, sequence: int, first: int, last: int) -> list[np.ndarray]:
    """Return, for each set, the slots whose positions lie in [first, last)."""
    if ledger.slots_are_positions(sequence):
        return [np.arange(first, last)] * ledger.geometry.sets
    victims = []
    for which in range(ledger.geometry.sets):
        slots, positions = ledger.rows(sequence, which)
        below, above = np.searchsorted(positions, (first, last))
        victims.append(np.sort(slots[below:above]))
    return victims


def length(ledger: Ledger, sequence: int) -> int:
    """Return one past the highest position that a span of this sequence can name."""
    units = ledger.geometry.scope_units
    return max(ledger.next_position(sequence, scope) for scope in range(units))


def evict_span(ledger: Ledger, sequence: int, first: int, count: int) -> Receipt:
    """Evict the tokens at positions [first, first + count), and compact if the ordering does.

    Raises
    ------
    LedgerError
        If the sequence is not open or a bound is no int64.
    CeilingExceeded
        If renumbering or compacting needs more pages than there may be. Nothing is changed.
    """
    ledger.sequence_is_open(sequence)
    first, last = clamp(first, count, length(ledger, sequence))
    if first == last:
        return Receipt(first, first)
    victims = span_victims(ledger, sequence, first, last)
    if not any(map(len, victims)):
        # Where positions are kept, nobody may be left at those of the span.
        return Receipt(first, last)
    return evict_as_one(ledger, sequence, victims, first, last)


def evict_as_one(
    ledger: Ledger, sequence: int, victims: list[np.ndarray], first: int = 0, last: int = 0
) -> Receipt:
    """Evict the victims of each set and compact, or change nothing.

    Raises
    ------
    VictimError, CeilingExceeded
        As `Ledger.evict` and `Ledger.compact`. Nothing is changed.
    """
    ledger.sequence_is_open(sequence)
    before = {name: ledger.total(field) for name, field in FLOWS.items()}
    held = ledger.held_pages
    compacts = ledger.ordering.compaction != "none"
    saved = _saved(ledger, sequence) if compacts else None
    peak = ledger.swap_peak(0)
    try:
        ledger.evict(sequence, victims)
        inside = ledger.swap_peak(0)
        if compacts:
            between = ledger.held_pages - held
            ledger.compact(sequence)
            inside = max(inside, between + ledger.swap_peak(0))
    except (LedgerError, MemoryError):
        if saved is not None:
            ledger.put_back(saved)
        ledger.swap_peak(peak)
        raise
    if saved is not None:
        ledger.keep()
    ledger.swap_peak(max(peak, inside))
    done = {name: ledger.total(field) - before[name] for name, field in FLOWS.items()}
    return Receipt(
        first,
        last,
        evicted_tokens=sum(map(len, victims)) // len(victims),
        survivors_rotated_rows=done["survivors_rotated_rows"],
        copied_rows=done["copied_rows"],
        copied_bytes=done["copied_bytes"],
        cow_pages=done["cow_pages"],
        freed_pages=done["freed_pages"],
        newly_held_pages=done["newly_held_pages"],
        extra_pages_peak=inside,
    )


def _saved(ledger: Ledger, sequence: int) -> Arrays | None:
    """Return a copy of the ledger's arrays if the compaction to come could be refused.

    A rebuild takes at most a page for each that the sequence names now, any other algorithm one
    for each that it shares; where so many fit without growing anything, it cannot fail, and
    nothing need be kept.
    """
    most = ledger.named_pages(sequence, shared=ledger.ordering.compaction != "rebuild")
    if most <= min(ledger.free_pages, ledger.room_pages - ledger.held_pages):
        return None
    return ledger.copy_of_arrays()
