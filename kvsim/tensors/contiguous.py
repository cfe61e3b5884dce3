"""The contiguous cache: one dense array per family and plane, the one the paged cache must equal.

It holds one sequence. It knows nothing about pages, slots, forks that share or ceilings, and is
meant to be right by being short: every change builds new arrays, so that an array once handed
out never changes, and a refused call has changed nothing.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from copy import copy

import numpy as np

from kvsim.errors import ExactnessRefused, LedgerError, RotationError, VictimError
from kvsim.layout.families import RowSpec
from kvsim.tensors.angles import position_tables
from kvsim.tensors.rope import rotate
from kvsim.tensors.shape import CacheShape

POSITIONS = ("renumber", "keep")
#: Which argument of an append fills which plane.
NAMES = {"k": "key", "v": "V"}


class ContiguousCache:
    """One sequence's rows, behind one another.

    Eviction follows fak's `KVCache.Evict` (github.com/anthony-chaudhary/fak): the span is
    spliced out of every plane, and under `renumber` each row whose position changes gets
    K := rotate(k_raw, new position), in one rotation.

    Parameters
    ----------
    shape : CacheShape
    positions : {"renumber", "keep"}
        Whether the position of a row is its rank, or what it was when the row was appended.
    recurrent_layers : tuple of int
        Layers with a recurrent or convolutional state, which no eviction can take back.

    Attributes
    ----------
    pos : int64 [n]
        The position of each row, ascending.
    """

    def __init__(
        self,
        shape: CacheShape,
        positions: str = "renumber",
        recurrent_layers: tuple[int, ...] = (),
    ) -> None:
        if positions not in POSITIONS:
            raise LedgerError(f"positions must be one of {', '.join(POSITIONS)}, not {positions!r}")
        self.shape = shape
        self.positions = positions
        self.recurrent_layers = recurrent_layers
        self.pos = np.empty(0, np.int64)
        self._planes = [
            {
                plane: np.empty((0, shape.elements(at, plane)), family.dtype)
                for plane in shape.offsets[at]
            }
            for at, family in enumerate(shape.families)
        ]
        self._tables = {rope: position_tables(rope, shape.max_positions) for rope in shape.ropes}

    @property
    def length(self) -> int:
        """Rows that are held."""
        return int(self.pos.size)

    @property
    def next_position(self) -> int:
        """The position of the next token: one past the last row's."""
        return int(self.pos[-1]) + 1 if self.pos.size else 0

    def rows(self, family: int = 0) -> dict[str, np.ndarray]:
        """Return the rows of a family in ascending position.

        Returns
        -------
        dict
            `positions` int64 [n], and [n, elements] for each of K, k_raw and V that the family
            has. Under `raw_only`, K is rotated here. The arrays cannot be written.
        """
        planes = dict(self._planes[family])
        if self.shape.planes == "raw_only" and "k_raw" in planes:
            planes["K"] = self._rotated(family, planes["k_raw"], self.pos)
        found = {**planes, "positions": self.pos}
        for array in found.values():
            array.flags.writeable = False
        return found

    def append(self, rows: Sequence[Mapping[str, np.ndarray]]) -> None:
        """Append tokens at the next positions.

        Parameters
        ----------
        rows : one dict per family
            `k`: keys before rotation, [tokens, carried and raw elements of every row]; `v`:
            [tokens, value elements]. A plane that the family lacks is left out. The dtype is the
            family's.

        Raises
        ------
        LedgerError
            If a plane is missing, unknown, or of another shape or dtype. Nothing is changed.
        RotationError
            If a position would lie past `shape.max_positions`, or under `renumber` the new
            length needs longrope's long factors: rows are renumbered within the short ones, so
            no eviction ever has to go back. Nothing is changed.
        """
        count = self._checked(rows)
        first = self.next_position
        if first + count > self.shape.max_positions:
            raise RotationError(
                f"position {first + count - 1} lies past the {self.shape.max_positions} positions"
                " of the rotation tables"
            )
        if self.positions == "renumber":
            for rope in self.shape.ropes:
                if rope.regime(first + count) != rope.regime(0):
                    raise RotationError(
                        f"at {first + count} tokens longrope takes its long factors, past its"
                        f" original {rope.original_context}: renumbered rows cannot follow"
                    )
        positions = np.arange(first, first + count, dtype=np.int64)
        self._planes = [
            {
                plane: np.concatenate([held, self._new(at, plane, given, positions)])
                for plane, held in planes.items()
            }
            for at, (planes, given) in enumerate(zip(self._planes, rows, strict=True))
        ]
        self.pos = np.concatenate([self.pos, positions])

    def evict_span(self, first: int, count: int) -> int:
        """Forget the rows with positions in [first, first + count).

        A negative `first`, a `count` below 1 and a `first` at or behind the next position do
        nothing; the end is clamped; positions without a row are skipped.

        Returns
        -------
        int
            Rows that were removed.

        Raises
        ------
        ExactnessRefused
            If a layer is recurrent, or rows would be renumbered that have no pre-RoPE key.
            Nothing is changed.
        LedgerError
            If the span is not two 64-bit integers. Nothing is changed.
        """
        first, count = _int64(first, "first"), _int64(count, "count")
        self._check_forgets()
        if first < 0 or count <= 0 or first >= self.next_position:
            return 0
        return self._keep((self.pos < first) | (self.pos >= first + count))

    def evict(self, victims: np.ndarray) -> int:
        """Forget the rows at these positions.

        Returns
        -------
        int
            Rows that were removed.

        Raises
        ------
        VictimError
            If a position has no row, or is named twice. Nothing is changed.
        ExactnessRefused
            As in `evict_span`.
        """
        wanted = np.asarray(victims)
        if wanted.ndim != 1 or (wanted.size and wanted.dtype.kind not in "iu"):
            raise VictimError(f"victims must be a list of positions, not {wanted.dtype}")
        self._check_forgets()
        wanted = wanted.astype(np.int64)
        if np.unique(wanted).size != wanted.size or not np.isin(wanted, self.pos).all():
            raise VictimError("a victim has no row, or is named twice")
        return self._keep(~np.isin(self.pos, wanted))

    def truncate(self, position: int) -> int:
        """Forget the rows from a position on; return how many. Raises as `evict_span` does."""
        return self.evict_span(position, self.next_position - position)

    def fork(self) -> ContiguousCache:
        """Return a cache with a copy of every row."""
        child = copy(self)
        child.pos = self.pos.copy()
        child._planes = [{name: a.copy() for name, a in planes.items()} for planes in self._planes]
        return child

    def _keep(self, kept: np.ndarray) -> int:
        """Splice out the rows that are not kept, then renumber what shifted."""
        pos = self.pos[kept]
        planes = [{name: array[kept] for name, array in held.items()} for held in self._planes]
        if self.positions == "renumber":
            shifted = np.flatnonzero(pos != np.arange(pos.size))
            if shifted.size and self.shape.planes == "kv":
                raise ExactnessRefused(
                    f"{shifted.size} rows would shift and plane set kv has no pre-RoPE key to"
                    " rotate again: use kv_raw or raw_only, or keep positions"
                )
            pos = np.arange(pos.size, dtype=np.int64)
            if self.shape.planes == "kv_raw":
                for family, rows in enumerate(planes):
                    if "k_raw" in rows:
                        whole = self._before_rotation(family, rows, shifted)
                        rows["K"][shifted] = self._rotated(family, whole, shifted)
        self.pos, self._planes = pos, planes
        return int(kept.size - pos.size)

    def _new(
        self, family: int, plane: str, given: Mapping[str, np.ndarray], positions: np.ndarray
    ) -> np.ndarray:
        """Return what an append writes to a plane, [tokens, elements]."""
        if plane == "V":
            return given["v"]
        if plane == "K":
            return self._rotated(family, given["k"], positions)
        if self.shape.planes == "raw_only":
            return given["k"]
        return given["k"][:, self._raw_elements(family)]

    def _before_rotation(
        self, family: int, rows: Mapping[str, np.ndarray], which: np.ndarray
    ) -> np.ndarray:
        """Return whole keys as appended: the carried part from K, the rest from k_raw."""
        whole = rows["K"][which]
        whole[:, self._raw_elements(family)] = rows["k_raw"][which]
        return whole

    def _raw_elements(self, family: int) -> np.ndarray:
        """Return which elements of a whole key are not carried, int64, ascending."""
        return np.concatenate(
            [
                np.arange(start + row.carried, start + row.carried + row.raw)
                for row, start in self._starts(family)
            ]
        )

    def _starts(self, family: int) -> list[tuple[RowSpec, int]]:
        """Return every row of a family, and where its whole key begins."""
        specs = self.shape.families[family].rows
        widths = [row.carried + row.raw for row in specs]
        return list(zip(specs, np.cumsum([0, *widths])[:-1].tolist(), strict=True))

    def _rotated(self, family: int, whole: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """Return whole pre-RoPE keys rotated at these positions; what does not rotate is copied."""
        keys = whole.copy()
        for row, start in self._starts(family):
            if row.rope_dim == 0:
                continue
            cos, sin = self._tables[self.shape.rope_of(row)]
            begin = start + row.carried + row.rope_from
            window = slice(begin, begin + row.rope_dim)
            # Index keys are float32 numbers kept as float64: narrow, rotate, widen.
            with np.errstate(all="ignore"):
                narrow = whole[:, window].astype(np.float32)
            keys[:, window] = rotate(narrow, cos[positions], sin[positions], row.pairing)
        return keys

    def _checked(self, rows: Sequence[Mapping[str, np.ndarray]]) -> int:
        """Return the tokens of an append; refuse rows that do not fit."""
        if len(rows) != len(self.shape.families):
            raise LedgerError(
                f"rows of {len(self.shape.families)} families are needed, not {len(rows)}"
            )
        count: int | None = None
        for family, given in zip(self.shape.families, rows, strict=True):
            widths = {
                "k": sum(row.carried + row.raw for row in family.rows),
                "v": sum(row.value for row in family.rows),
            }
            wanted = [name for name, width in widths.items() if width]
            if sorted(given) != wanted:
                raise LedgerError(
                    f"family {family.name!r} takes {' and '.join(wanted)}, not {sorted(given)}"
                )
            for name in wanted:
                array = given[name]
                if count is None and np.ndim(array) == 2:
                    count = len(array)
                expected = (count, widths[name])
                dtype = getattr(array, "dtype", type(array))
                if np.shape(array) != expected or dtype != family.dtype:
                    raise LedgerError(
                        f"family {family.name!r}, plane {NAMES[name]}: {family.dtype} rows of"
                        f" shape {expected} are needed, not {dtype} of {np.shape(array)}"
                    )
        return count or 0

    def _check_forgets(self) -> None:
        if self.recurrent_layers:
            raise ExactnessRefused(
                f"layers {list(self.recurrent_layers)} have recurrent state, and recurrent state"
                " cannot forget a span: prefill again without it"
            )


def _int64(value: int, name: str) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        raise LedgerError(f"{name} must be an integer, not {value!r:.40}") from None
    if not -(2**63) <= number < 2**63:
        raise LedgerError(f"{name} must be a 64-bit integer, not {number}")
    return number
