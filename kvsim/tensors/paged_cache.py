"""The float32 paged cache: a ledger with its rows, and verbs that take and give real rows.

The ledger decides, the store moves; this class checks what only rows can tell, such as shapes,
positions past the rotation tables, and evictions that could not be exact.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from kvsim.errors import (
    ExactnessRefused,
    LedgerError,
    MemoryRefused,
    RotationError,
    VictimError,
)
from kvsim.paging import Ledger, Order, Receipt, evict_as_one, evict_span
from kvsim.paging.spans import clamp, length
from kvsim.paging.store import Physical
from kvsim.tensors import swap
from kvsim.tensors.arriving import check_rows
from kvsim.tensors.columns import given_columns, scope_columns
from kvsim.tensors.memory import Memory
from kvsim.tensors.quantized_store import make_store
from kvsim.tensors.remedies import Flushed, flush, why_refused
from kvsim.tensors.rotator import Rotator
from kvsim.tensors.shape import CacheShape
from kvsim.tensors.view import SequenceView


class PagedCache:
    """Real rows of many sequences in refcounted pages.

    Parameters
    ----------
    shape : CacheShape
        Families of rows, planes and rotations.
    page_tokens : int
    scope, sets : str
        What one block table covers inside a family, and which rows are evicted together.
    ceiling_pages : int
        Most pages that may be held; 0 means unlimited.
    compaction, unit, positions, append : str
        As in `kvsim.paging.Order`.
    pages : int
        Pages that there is room for from the start.
    layout : {"page_major", "layer_major"}
    memory : Memory, optional
    physical_model : Physical, optional
        Which memory is mapped under the pages; mapped memory needs its own here.
    portable : bool
        Never use non-temporal stores.
    recurrent_layers : tuple of int
        Layers with a recurrent or convolutional state, which no eviction can take back.
    keys : {"float32", "int8", "e4m3", "e4m3_scaled"}
        How rotated keys are kept; `rows` returns what their codes stand for.
    """

    def __init__(
        self,
        shape: CacheShape,
        page_tokens: int,
        *,
        scope: str = "sequence",
        sets: str = "shared",
        ceiling_pages: int = 0,
        compaction: str = "none",
        unit: str = "slot",
        positions: str = "keep",
        append: str = "tail",
        order: str = "fifo",
        pages: int = 64,
        layout: str = "page_major",
        memory: Memory | None = None,
        physical_model: Physical | None = None,
        portable: bool = False,
        recurrent_layers: tuple[int, ...] = (),
        keys: str = "float32",
    ) -> None:
        geometry = shape.geometry(scope, sets, keys)
        self.shape = shape
        self.recurrent_layers = recurrent_layers
        self.keys = keys
        self.store = make_store(
            shape, geometry, page_tokens, keys, layout=layout, memory=memory, portable=portable
        )
        try:
            self.ledger = Ledger(
                geometry,
                page_tokens,
                ceiling_pages=ceiling_pages,
                order=order,
                ordering=Order(
                    append=append,
                    compaction=compaction,
                    unit=unit,
                    positions=positions,
                    renumber_writes=shape.planes != "raw_only",
                ),
                store=self.store,
                physical_model=physical_model,
                room_pages=pages,
            )
        except MemoryError:
            raise MemoryRefused(
                f"a pool of {pages} pages of {page_tokens} tokens does not fit into memory"
            ) from None
        self.read_rotated_rows_total = 0
        self._rotator = Rotator(shape, self.store.tables())
        self._given = given_columns(shape)
        self._scopes = scope_columns(shape, geometry)
        self._renumbers = positions == "renumber"

    # Verbs

    def open(self) -> int:
        """Return the number of a new, empty sequence."""
        return self.ledger.open()

    def append(self, sequence: int, rows: Sequence[Mapping[str, np.ndarray]]) -> None:
        """Append tokens; keys are rotated here, at the positions that the tokens get.

        Parameters
        ----------
        sequence : int
        rows : one dict per family
            `k`: keys before rotation, [tokens, carried and raw elements of every row]; `v`:
            [tokens, value elements]. A plane that the family lacks is left out. The dtype is
            the family's.

        Raises
        ------
        LedgerError
            If the sequence is not open, or a plane is missing, unknown or of another shape or
            dtype. Nothing is changed.
        RotationError
            If a position would lie past the rotation tables, or under `renumber` the new
            length is rotated by longrope's long factors. Nothing is changed.
        ExactnessRefused
            If a quantized key has no code, such as a NaN under a scale. Nothing is changed.
        CeilingExceeded
            If the pages needed are more than the ceiling leaves. Nothing is changed.
        """
        count = check_rows(self.shape, rows)
        self.ledger.sequence_is_open(sequence)
        first = length(self.ledger, sequence)
        if first + count > self.shape.max_positions:
            raise RotationError(
                f"position {first + count - 1} lies past the {self.shape.max_positions} positions"
                " of the rotation tables"
            )
        self._check_regime(first + count)
        planes = []
        for number, given in enumerate(rows):
            columns = self._given[number]
            made = {p: given["v" if p == "V" else "k"][:, cut] for p, cut in columns.items()}
            planes.append(made)
        blocks = []
        for scope, held in enumerate(self._scopes):
            made = dict(planes[held.family])
            if "K" in made:
                # Tables may differ in the position that comes next, where their sets do.
                begin = self.ledger.next_position(sequence, scope)
                positions = np.arange(begin, begin + count)
                made["K"] = self._rotator.keys(held.family, rows[held.family]["k"], positions)
            cuts = {plane: made[plane][:, cut] for plane, cut in held.into.items()}
            blocks.append(self.store.encoded(scope, cuts))
        self.ledger.append(sequence, count, blocks)

    def fork(self, parent: int) -> int:
        """Return a new sequence that shares every page of `parent`."""
        return self.ledger.fork(parent)

    def clone(self, parent: int) -> int:
        """Return a new sequence with its own copy of every page, those reserved included."""
        return self.ledger.clone(parent)

    def reserve(self, sequence: int, tokens: int) -> None:
        """Take the pages that the next tokens of a sequence need."""
        self.ledger.reserve(sequence, tokens)

    def free(self, sequence: int) -> None:
        """End a sequence and let go of its pages."""
        self.ledger.free(sequence)

    def evict_span(self, sequence: int, first: int, count: int) -> Receipt:
        """Evict the tokens at positions [first, first + count).

        Nothing is done for first < 0, count <= 0 and first past the end; the end clamps. A cache
        with recurrent layers refuses even those, as fak's does.

        Raises
        ------
        ExactnessRefused, RotationError, CeilingExceeded
            If survivors could not be renumbered exactly, or the pages do not fit. The error's
            `receipt` says so too, and nothing is changed.
        """
        self.ledger.sequence_is_open(sequence)
        begin = end = 0
        try:
            begin, end = clamp(first, count, length(self.ledger, sequence))
            if self.recurrent_layers:
                raise ExactnessRefused(
                    f"recurrent state cannot forget a span: layers {list(self.recurrent_layers)}"
                )
            if begin < end:
                self._check_exact(sequence, end)
            return evict_span(self.ledger, sequence, begin, end - begin)
        except LedgerError as refusal:
            refusal.receipt = Receipt(begin, end, exact=False, refused=str(refusal))
            raise

    def evict(self, sequence: int, victims: Iterable[np.ndarray]) -> Receipt:
        """Evict slots, one list for each set, and compact if the ordering does.

        Raises
        ------
        VictimError, ExactnessRefused, CeilingExceeded
            As in `evict_span`.
        """
        self.ledger.sequence_is_open(sequence)
        try:
            if not isinstance(victims, Iterable):
                raise VictimError(f"victims are a list for each set, not {victims!r:.60}")
            lists = list(victims)
            if self.recurrent_layers:
                raise ExactnessRefused(
                    f"recurrent state cannot forget a token: layers {list(self.recurrent_layers)}"
                )
            if self._renumbers and self.shape.planes == "kv":
                raise ExactnessRefused(why_refused(self.keys))
            return evict_as_one(self.ledger, sequence, lists)
        except LedgerError as refusal:
            refusal.receipt = Receipt(0, 0, exact=False, refused=str(refusal))
            raise

    @property
    def supports_exact_span(self) -> bool:
        """Whether any span can be evicted exactly."""
        return not (self.recurrent_layers or (self._renumbers and self.shape.planes == "kv"))

    def flush(self, sequence: int) -> Flushed:
        """Drop every token of a sequence: the remedy where a span cannot be evicted."""
        return flush(self.ledger, sequence)

    def compact(self, sequence: int) -> None:
        """Compact a sequence as the ordering says."""
        self.ledger.compact(sequence)

    def swap_out(self, sequence: int) -> bytes:
        """Return a sequence as bytes and free it.

        Holes, positions and reserved pages come back with `swap_in`; sharing does not.
        """
        data = swap.pack(self.ledger, self.store, sequence)
        self.ledger.free(sequence)
        return data

    def swap_in(self, data: bytes) -> int:
        """Return a new sequence from the bytes of `swap_out`.

        Raises
        ------
        SwapError
            If the bytes are truncated, altered, longer than they say, or from a cache of another
            shape. Nothing is changed.
        CeilingExceeded
            If its pages do not fit. Nothing is changed.
        """
        return swap.unpack(self.ledger, self.store, data)

    # Reading

    def length(self, sequence: int) -> int:
        """Return the tokens that the first set retains."""
        self.ledger.sequence_is_open(sequence)
        return int(np.count_nonzero(self.ledger.retained(sequence, 0)))

    def next_position(self, sequence: int) -> int:
        """Return the position that the next token gets."""
        self.ledger.sequence_is_open(sequence)
        return length(self.ledger, sequence)

    def rows(self, sequence: int, family: int = 0) -> dict[str, np.ndarray]:
        """Return the rows of a family in ascending position.

        Returns
        -------
        dict
            `positions` int64 [n], and [n, elements] for each of K, k_raw and V that the family
            has, C-contiguous copies. Under `raw_only`, K is rotated here and counted in
            `read_rotated_rows_total`.

        Raises
        ------
        LedgerError
            If the sets of the family retain different tokens: read them by `unit_rows`.
        """
        self.ledger.sequence_is_open(sequence)
        if not 0 <= family < len(self.shape.families):
            raise LedgerError(f"there is no row family {family!r:.60}")
        found: dict[str, np.ndarray] = {}
        positions: np.ndarray | None = None
        for scope, held in enumerate(self._scopes):
            if held.family != family:
                continue
            read = None
            for which, columns in held.of_set.items():
                slots, here = self.ledger.rows(sequence, which, scope)
                if positions is not None and not np.array_equal(here, positions):
                    raise LedgerError("sets retain different tokens: read their rows by unit_rows")
                positions = here
                # Where rows move on their own, sets may have one position in different slots.
                if read is None or not np.array_equal(slots, read):
                    where = self.ledger.physical(sequence, scope, slots)
                    blocks = self.store.decoded(scope, self.store.gather_scope(where, scope))
                    read = slots
                for plane, cut in held.into.items():
                    if plane not in found:
                        width = self.shape.elements(family, plane)
                        found[plane] = np.empty((slots.size, width), blocks[plane].dtype)
                    mine = columns[plane]
                    found[plane][:, cut[mine]] = blocks[plane][:, mine]
        assert positions is not None
        if self.shape.planes == "raw_only" and "k_raw" in found:
            found["K"] = self._rotator.keys(family, found["k_raw"], positions)
            self.read_rotated_rows_total += positions.size * len(self.shape.families[family].rows)
        return {**found, "positions": positions}

    def unit_rows(self, sequence: int, unit: int) -> dict[str, np.ndarray]:
        """Return the stored rows of one unit in ascending position, and their `positions`.

        Rows are as they are stored: under `raw_only` there is no K.
        """
        self.ledger.sequence_is_open(sequence)
        geometry = self.ledger.geometry
        if not 0 <= unit < geometry.units:
            raise LedgerError(f"there is no unit {unit!r:.60}")
        scope, which = geometry.unit_scope[unit], geometry.unit_set[unit]
        slots, positions = self.ledger.rows(sequence, which, scope)
        stored = self.store.gather(self.ledger.physical(sequence, scope, slots), unit)
        return {**stored, "positions": positions}

    def view(self, sequence: int) -> SequenceView:
        """Return one sequence as a decoder sees a cache."""
        return SequenceView(self, sequence)

    def check(self) -> None:
        """Recount everything in the ledger from its raw tables."""
        self.ledger.check()

    # Checks before a verb acts

    def _check_regime(self, tokens: int) -> None:
        """Refuse what longrope would rotate by its long factors: renumbering would mix both."""
        if not self._renumbers:
            return
        for rope in dict.fromkeys(self.shape.ropes):
            if rope.regime(tokens) != "short":
                raise RotationError(
                    f"{tokens} tokens cross the {rope.original_context} of longrope, and with"
                    " positions renumber every key would turn by other angles"
                )

    def _check_exact(self, sequence: int, last: int) -> None:
        shifts = self._renumbers and last < length(self.ledger, sequence)
        if shifts and self.shape.planes == "kv":
            raise ExactnessRefused(why_refused(self.keys))
