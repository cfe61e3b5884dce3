"""The ledger: the thin Python face over the kernels that count slots, pages and bytes.

It knows nothing about scores, models or time. Every verb checks, then acts: a refused verb
raises and leaves every array as it was.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from kvsim.errors import LedgerError, VictimError
from kvsim.paging import append, compaction, eviction, steps
from kvsim.paging import arrays as memory
from kvsim.paging import fields as f
from kvsim.paging.calls import BadVictim
from kvsim.paging.geometry import Geometry
from kvsim.paging.lives import Lives
from kvsim.paging.ordering import ALGORITHMS, Order
from kvsim.paging.recount import recount
from kvsim.paging.sizes import whole
from kvsim.paging.store import CountingStore, Physical, Store

ORDERS = {"fifo": f.FIFO, "lifo": f.LIFO}
UNLIMITED = 2**31 - 2
# A page of more tokens has sizes that no int64 holds; below it, memory decides.
TOKENS_LIMIT = 2**53
NOWHERE = np.empty((0, 0), np.int64)


class Ledger(Lives):
    """Block tables of many sequences over one refcounted pool of pages.

    Parameters
    ----------
    geometry : Geometry
        Which units share a table and which share a set.
    page_tokens : int
        Slots in a page, at least 1.
    ceiling_pages : int
        Most pages that may be held, counted over all scope units; 0 means unlimited.
    order : {"fifo", "lifo"}
        Which free page is taken first.
    ordering : Order, optional
        How rows move and positions are numbered; by default nothing moves.
    store : Store, optional
        Where rows live; by default nowhere.
    physical_model : Physical, optional
        Which memory is mapped under the pool; by default nobody asks.
    room_pages : int
        Pages that the arrays have room for from the start; they grow as needed.

    Raises
    ------
    LedgerError
        If a size is not positive or the order is unknown.
    """

    def __init__(
        self,
        geometry: Geometry,
        page_tokens: int,
        *,
        ceiling_pages: int = 0,
        order: str = "fifo",
        ordering: Order | None = None,
        store: Store | None = None,
        physical_model: Physical | None = None,
        room_pages: int = 64,
    ) -> None:
        page_tokens = whole("page_tokens", page_tokens, 1, TOKENS_LIMIT)
        ceiling_pages = whole("ceiling_pages", ceiling_pages, 0, UNLIMITED + 1)
        room_pages = whole("room_pages", room_pages, 1, UNLIMITED + 1)
        if order not in ORDERS:
            raise LedgerError(f"order must be one of {', '.join(ORDERS)}, not {order!r}")
        self.geometry = geometry
        self.page_tokens = page_tokens
        self.store: Store = CountingStore() if store is None else store
        self.physical_model = physical_model
        self.ordering = ordering or Order()
        self._units = geometry.scope_units
        # Rows move on their own only where a slot holds rows of several sets.
        moves = self.ordering.compaction != "none"
        self._by_row = moves and self.ordering.unit == "row" and geometry.holder_sets > 0
        own_positions = self._by_row or (self.ordering.scattered and geometry.holder_sets > 0)
        position_rows = geometry.holder_sets if own_positions else 1
        self._arrays = memory.make(
            page_tokens=page_tokens,
            scopes=geometry.scopes_array(),
            holder_sets=geometry.holder_sets,
            position_sets=position_rows if self.ordering.stored else 0,
            ceiling=ceiling_pages or UNLIMITED,
            order=ORDERS[order],
            reuse=self.ordering.append == "reuse_holes",
            renumber=self.ordering.positions == "renumber" and self.ordering.compaction == "none",
            # Where no key turns, a changed position rewrites nothing.
            renumber_writes=self.ordering.renumber_writes and any(geometry.unit_turns),
            pages=room_pages,
            # Segments are powers of two, and a table leaves smaller ones behind as it grows.
            arena=4 * room_pages if room_pages > 64 else 64,
        )
        self._scalars = self._arrays.scalars
        self.store.resize(int(self._scalars[f.PAGES]))
        if physical_model is not None:
            physical_model.resize(int(self._scalars[f.PAGES]))

    # Verbs

    def append(self, sequence: int, tokens: int, rows: Iterable[object] | None = None) -> None:
        """Append `tokens` slots to every table of a sequence, copying shared pages on write.

        Parameters
        ----------
        sequence : int
        tokens : int
            At least 0.
        rows : iterable, optional
            For each scope unit, the new rows, handed to the store.

        Raises
        ------
        CeilingExceeded
            If the pages needed are more than the ceiling leaves. Nothing is changed.
        LedgerError
            If the sequence is not open or `tokens` is negative.
        """
        self._check_open(sequence)
        if tokens < 0:
            raise LedgerError(f"cannot append {tokens} tokens")
        placed = np.empty((self._units, tokens), np.int64) if rows is not None else NOWHERE
        self._call("append", append.append, sequence, tokens, placed)
        if rows is not None:
            for scope, block in enumerate(rows):
                self.store.write(scope, placed[scope], block)

    def append_kept(
        self,
        sequence: int,
        kept: list[np.ndarray],
        appended: int,
        rows: Iterable[object] | None = None,
    ) -> None:
        """Append to an empty sequence what is left of `appended` tokens; the rest is evicted.

        The tokens that were dropped never had a slot; they count as evicted all the same.

        Parameters
        ----------
        sequence : int
        kept : list of int64 [n]
            For each set, the positions of its tokens, ascending; equally many.
        appended : int
        rows : iterable, optional
            As in `append`.

        Raises
        ------
        LedgerError
            If the sequence is not empty, or the lists are not one per set, equally long, and
            ascending positions of the prompt. Nothing is changed.
        CeilingExceeded
            If the pages needed are more than the ceiling leaves. Nothing is changed.
        """
        self._check_open(sequence)
        if self.cursor(sequence):
            raise LedgerError("append_kept needs an empty sequence")
        if len(kept) != self.geometry.sets or len({tokens.size for tokens in kept}) != 1:
            raise LedgerError("append_kept needs a list for each set, all equally long")
        count = kept[0].size
        for tokens in kept:
            if count and not (
                tokens[0] >= 0 and tokens[-1] < appended and (tokens[1:] > tokens[:-1]).all()
            ):
                raise LedgerError(f"kept positions must ascend below the {appended} appended")
        self.append(sequence, count, rows)
        arrays = self._arrays
        for scope, inner in enumerate(self.geometry.inner_sets):
            table = sequence * self._units + scope
            base = self.table(sequence, scope, f.START) * self.page_tokens
            for member, which in enumerate(inner):
                if self.ordering.scattered:
                    row = member if arrays.position.shape[0] > 1 else 0
                    arrays.position[row, base : base + count] = kept[which]
                    arrays.tables[table, f.NEXT_POSITION + row] = appended
                column = f.SET_COLUMNS + f.PER_SET * member
                gone = appended - count
                self._scalars[f.EVICTED_ROWS_TOTAL] += gone * arrays.scopes[scope, column + f.ROWS]
                self._scalars[f.EVICTED_BYTES_TOTAL] += (
                    gone * arrays.scopes[scope, column + f.BYTES]
                )

    def advance(
        self,
        sequences: np.ndarray,
        count: int = 1,
        *,
        eviction: int = steps.NO_EVICTION,
        appended: np.ndarray | None = None,
        fraction: float = 1.0,
        tokens: int = 0,
        sinks: int = 0,
        recent: int = 0,
    ) -> int:
        """Take `count` steps of a batch in one kernel call: a token each, then eviction.

        Parameters
        ----------
        sequences : int64 [n]
        count : int
            Steps.
        eviction : int
            `steps.NO_EVICTION`; `steps.OLDEST_FIRST`, whose victims are taken in the kernel; or
            `steps.ASK`, which comes back after each step for Python to evict.
        appended : int64 [n], optional
            Tokens that each sequence has been given so far; kept up to date.
        fraction, tokens, sinks, recent
            What is kept and protected, as in `kvsim.paging.steps.advance`.

        Returns
        -------
        int
            Steps done: fewer than `count` if it is Python's turn to evict.

        Raises
        ------
        CeilingExceeded
            At the first append that does not fit; those before it stand, as they would have
            one by one.
        """
        sequences = np.ascontiguousarray(sequences, np.int64)
        self._check_batch(sequences)
        if appended is None:
            appended = np.zeros(sequences.size, np.int64)
        sets = self.geometry.sets
        distinct = np.unique(sequences).size
        try:
            self._call(
                "advance",
                steps.advance,
                sequences,
                count,
                eviction,
                appended,
                fraction,
                tokens,
                sinks,
                recent,
                np.arange(sets + 1),
                np.zeros(sets, np.int64),
                self._scratch(count),
                np.empty(self.page_tokens, np.int64),
                np.empty(distinct, np.int64),
                np.empty(sequences.size, np.int64),
                NOWHERE,
            )
            return int(self._scalars[f.STEP])
        finally:
            self._scalars[f.STEP] = self._scalars[f.MEMBER] = 0

    def evict(self, sequence: int, victims: Iterable[np.ndarray]) -> None:
        """Let each set of a sequence drop slots; pages left without a live slot are let go.

        Parameters
        ----------
        sequence : int
        victims : iterable of int64 [n]
            One list per set of the geometry, in order: the slots that it drops.

        Raises
        ------
        VictimError
            If a list names a slot that its set does not retain, or names one twice. Nothing
            is changed.
        """
        self._check_open(sequence)
        lists = [_slot_numbers(slots) for slots in victims]
        if len(lists) != self.geometry.sets:
            raise VictimError(f"{self.geometry.sets} victim lists are needed, not {len(lists)}")
        try:
            self._evict(sequence, lists)
        except BadVictim:
            # The kernel wants ascending lists. Most are, so they are sorted only when it balks.
            lists = [np.sort(slots) for slots in lists]
            try:
                self._evict(sequence, lists)
            except BadVictim as refusal:
                which, slot = refusal.locate(lists)
                raise VictimError(
                    f"set {which} of sequence {sequence} does not retain slot {slot}, "
                    "or it is named twice"
                ) from None

    def _evict(self, sequence: int, lists: list[np.ndarray]) -> None:
        starts = np.zeros(len(lists) + 1, np.int64)
        for which, slots in enumerate(lists):
            starts[which + 1] = starts[which] + slots.size
        every = lists[0] if len(lists) == 1 else np.concatenate(lists)
        self._call("evict", eviction.evict, sequence, starts, every, self._scratch())

    def compact(self, sequence: int, algorithm: str | None = None) -> None:
        """Move live rows of a sequence so that pages empty, as its ordering says.

        Parameters
        ----------
        sequence : int
        algorithm : {"rebuild", "forward", "hole_fill"}, optional
            By default the ordering's own. `hole_fill` needs stored positions.

        Raises
        ------
        CeilingExceeded
            If the copies or fresh pages do not fit. Nothing is changed.
        LedgerError
            If the ordering has no compaction, or this algorithm scrambles positions that are
            not stored.
        """
        self._check_open(sequence)
        algorithm = algorithm or self.ordering.compaction
        if self.ordering.compaction == "none" or algorithm not in ALGORITHMS:
            raise LedgerError(f"this ledger's ordering has no compaction {algorithm!r}")
        if algorithm == "hole_fill" and not self.ordering.stored:
            raise LedgerError("hole_fill needs stored positions, and this ordering has none")
        rows = slice(sequence * self._units, (sequence + 1) * self._units)
        tables = self._arrays.tables[rows]
        slots = int(tables[:, f.CURSOR].max())
        entries = int(tables[:, f.ENTRIES].max())
        movers = self.geometry.holder_sets if self._by_row else 1
        maps = np.empty((2, self._units * movers, slots), np.int64)
        pages = np.empty((2, self._units, entries), np.int64)
        self._call(
            "compact",
            compaction.compact,
            sequence,
            ALGORITHMS[algorithm],
            self._by_row,
            self.ordering.positions == "renumber",
            maps[0],
            maps[1],
            np.empty((self._units, movers), np.int64),
            np.empty(self._units, np.int64),
            pages[0],
            pages[1],
            self._scratch(),
        )

    def end_step(self) -> None:
        """Sample the peak that is taken at the end of a step."""
        self._scalars[f.HELD_PEAK] = max(self._scalars[f.HELD_PEAK], self._scalars[f.HELD])

    def check(self) -> None:
        """Recount everything from the raw tables; raise LedgerError on the first mismatch."""
        recount(self._arrays, self.geometry)
        if self.physical_model is not None:
            self.physical_model.recount(*self._held_by())


def _slot_numbers(slots: Any) -> np.ndarray:
    """Return a victim list as int64; a mask or a fraction is no slot number."""
    try:
        array = np.asarray(slots)
    except ValueError:
        raise VictimError("victims must be a list of slot numbers, not lists of lists") from None
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise VictimError(
            f"victims must be a list of slot numbers, not {array.dtype} {array.shape}"
        )
    return np.ascontiguousarray(array, np.int64)
