"""A paged cache and its contiguous twins under the same verbs, compared after each.

Every verb is done on both sides; then every live sequence's rows of every plane are compared as
integers, siblings included, and its logits; the pages held are compared with an independent count,
and the ledger recounts itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from kvsim.errors import ExactnessRefused
from kvsim.paging import Geometry, Receipt
from kvsim.tensors.contiguous import ContiguousCache
from kvsim.tensors.paged_cache import PagedCache
from kvsim.tensors.proof.ceilings import fingerprint, under_ceilings
from kvsim.tensors.proof.codes import Coded, stored_keys
from kvsim.tensors.proof.counting import PageCount
from kvsim.tensors.proof.shapes import Rows, drawn_rows
from kvsim.tensors.proof.tally import Tally
from kvsim.tensors.shape import CacheShape

#: What a block table covers and which rows are evicted together.
TABLES = {
    "shared": ("sequence", "shared"),
    "sets": ("sequence", "head"),
    "layer": ("layer", "layer"),
    "head": ("head", "head"),
}


def _turning(shape: CacheShape, geometry: Geometry) -> tuple[frozenset[int], ...]:
    """Return, for each table, the sets with a stored key that depends on its position."""
    found: list[set[int]] = [set() for _ in range(geometry.scope_units)]
    if shape.planes != "raw_only":
        for unit, (_, row) in enumerate(shape.units):
            if row.rope_dim:
                found[geometry.unit_scope[unit]].add(geometry.unit_set[unit])
    return tuple(map(frozenset, found))


class Lockstep:
    """A paged cache with what it must equal.

    Parameters
    ----------
    rows : Rows
    page_tokens : int
    tally : Tally
    rng : numpy.random.Generator
        Draws rows and tokens.
    tables : str
        A key of TABLES.
    per_set : bool
        Whether each set evicts tokens of its own; each then has a twin of its own.
    odd : bool
        Whether rows hold NaN, infinities and the like. Their logits are not compared: which of
        two NaN survives a product depends on how a library groups its loops.
    **options
        Those of `PagedCache`.

    Attributes
    ----------
    tight : bool
        Whether verbs that take pages run under ceilings that just do not fit, then just do; at
        first they do not.
    """

    def __init__(
        self,
        rows: Rows,
        page_tokens: int,
        tally: Tally,
        rng: np.random.Generator,
        *,
        tables: str = "shared",
        per_set: bool = False,
        odd: bool = False,
        compaction: str = "none",
        unit: str = "slot",
        positions: str = "renumber",
        append: str = "tail",
        **options: Any,
    ) -> None:
        scope, sets = TABLES[tables]
        self.rows = rows
        self.tally = tally
        self.rng = rng
        self.tight = False
        self._odd = odd
        self._order: dict[str, Any] = {
            "compaction": compaction,
            "unit": unit,
            "positions": positions,
            "append": append,
        }
        self.paged = PagedCache(
            rows.shape, page_tokens, scope=scope, sets=sets, **self._order, **options
        )
        geometry = self.paged.ledger.geometry
        self.sets = geometry.sets
        self.count = PageCount(
            page_tokens,
            geometry.inner_sets,
            **self._order,
            turning=_turning(rows.shape, geometry),
        )
        #: One twin for each set that evicts on its own, or one in all.
        self.twins: dict[int, list[ContiguousCache]] = {}
        self._per_set = per_set

    # Verbs

    def open(self) -> int:
        """Begin a sequence."""
        sequence = self.paged.open()
        self.twins[sequence] = [
            ContiguousCache(self.rows.shape, self._order["positions"])
            for _ in range(self.sets if self._per_set else 1)
        ]
        self.count.open(sequence)
        return sequence

    def append(self, sequence: int, tokens: int) -> None:
        """Append drawn rows."""
        odd = "none"
        if self._odd:
            odd = "all" if self.paged.keys == "float32" else "values"
        new = drawn_rows(self.rows.shape, tokens, self.rng, odd=odd)
        self._squeezed(lambda: self.paged.append(sequence, new))
        positions = []
        for twin in self.twins[sequence]:
            positions.append(range(twin.next_position, twin.next_position + tokens))
            twin.append(new)
        self.count.append(sequence, self._each_set(positions))

    def fork(self, parent: int) -> int:
        """Fork a sequence."""
        child = self.paged.fork(parent)
        self.twins[child] = [twin.fork() for twin in self.twins[parent]]
        self.count.fork(parent, child)
        return child

    def clone(self, parent: int) -> int:
        """Copy a sequence at once."""
        child = self._squeezed(lambda: self.paged.clone(parent))
        self.twins[child] = [twin.fork() for twin in self.twins[parent]]
        self.count.clone(parent, child)
        return child

    def reserve(self, sequence: int, tokens: int) -> None:
        """Take pages ahead."""
        self._squeezed(lambda: self.paged.reserve(sequence, tokens))
        self.count.reserve(sequence, tokens)

    def free(self, sequence: int) -> None:
        """End a sequence."""
        self.paged.free(sequence)
        del self.twins[sequence]
        self.count.free(sequence)

    def swap(self, sequence: int) -> int:
        """Swap a sequence out and in again; returns its new number."""
        data = self.paged.swap_out(sequence)
        back = self._squeezed(lambda: self.paged.swap_in(data))
        self.twins[back] = self.twins.pop(sequence)
        self.count.replace_all(sequence, back)
        return back

    def evict_span(self, sequence: int, first: int, count: int) -> Receipt:
        """Evict a span of positions, or see it refused where it cannot be exact."""
        twin = self.twins[sequence][0]
        there = twin.next_position
        last = min(first + count, there)
        nothing = first < 0 or count <= 0 or first >= there
        refused = self._inexact and not nothing and last < there
        victims = [] if nothing else [p for p in twin.pos.tolist() if first <= p < last]
        receipt = self._evict(
            lambda: self.paged.evict_span(sequence, first, count), refused, "evict_span"
        )
        removed = 0
        try:
            removed = twin.evict_span(first, count)
            self.tally.fact(not refused, "the contiguous cache evicts what cannot be exact")
        except ExactnessRefused:
            self.tally.fact(refused, "the contiguous cache refuses what can be exact")
        self.tally.fact(
            receipt.evicted_tokens == removed, f"{receipt.evicted_tokens} of {removed} evicted"
        )
        if not refused and victims:
            self._counted(sequence, receipt, self._each_set([set(victims)]))
        return receipt

    def evict(self, sequence: int, victims: list[np.ndarray]) -> Receipt:
        """Evict positions, one list for each twin."""
        lists = self._each_set(victims)
        slots = []
        for which, gone in enumerate(lists):
            there, positions = self.paged.ledger.rows(sequence, which)
            slots.append(there[np.isin(positions, gone)])
        receipt = self._evict(lambda: self.paged.evict(sequence, slots), self._inexact, "evict")
        if not self._inexact:
            for twin, gone in zip(self.twins[sequence], victims, strict=True):
                twin.evict(gone)
            self._counted(sequence, receipt, [set(gone.tolist()) for gone in lists])
        return receipt

    @property
    def _inexact(self) -> bool:
        """Whether survivors that shift would have no pre-RoPE key."""
        return self.rows.shape.planes == "kv" and self._order["positions"] == "renumber"

    def _each_set(self, given: list[Any]) -> list[Any]:
        """Return one entry for each set, where sets agree and one was given."""
        return given if len(given) == self.sets else given * self.sets

    def _squeezed(self, verb: Callable[[], Any]) -> Any:
        return under_ceilings(self.paged, verb, self.tally) if self.tight else verb()

    def _evict(self, verb: Callable[[], Receipt], refused: bool, name: str) -> Receipt:
        if not refused:
            return self._squeezed(verb)
        before = fingerprint(self.paged)
        receipt: object = None
        try:
            verb()
            self.tally.fact(False, f"{name} did what cannot be exact")
        except ExactnessRefused as refusal:
            receipt = refusal.receipt
        self.tally.fact(fingerprint(self.paged) == before, "a refused eviction changed something")
        if not isinstance(receipt, Receipt):
            self.tally.fact(False, f"{name} was refused without a receipt")
            return Receipt(0, 0, exact=False)
        self.tally.fact(not receipt.exact and bool(receipt.refused), f"{name}: no reason is given")
        return receipt

    def _counted(self, sequence: int, receipt: Receipt, victims: list[set[int]]) -> None:
        """Evict in the independent count, and compare the receipt's flows of pages with it."""
        freed, taken = self.count.freed, self.count.taken
        self.count.evict(sequence, victims)
        flows = self.count.freed - freed, self.count.taken - taken
        found = receipt.freed_pages, receipt.newly_held_pages
        self.tally.fact(found == flows, f"{found} pages freed and taken, {flows} counted")

    # Comparing

    def verify(self, when: str) -> None:
        """Compare every live sequence, the page count and the ledger with itself."""
        for sequence in sorted(self.twins):
            self._verify(sequence, f"{when}, sequence {sequence}")
        held, counted = self.paged.ledger.held_pages, self.count.held
        self.tally.fact(held == counted, f"{when}: {held} pages held, {counted} counted")
        self.paged.check()

    def _verify(self, sequence: int, what: str) -> None:
        twins = self.twins[sequence]
        self.tally.fact(
            {twin.length for twin in twins} == {self.paged.length(sequence)}
            and {twin.next_position for twin in twins} == {self.paged.next_position(sequence)},
            f"{what}: lengths or next positions differ",
        )
        if self._per_set and self.sets > 1:
            self._verify_units(sequence, what)
            return
        twin = Coded(twins[0], self.paged.keys)
        for family in range(len(self.rows.shape.families)):
            self.tally.planes(
                f"{what}, family {family}", self.paged.rows(sequence, family), twin.rows(family)
            )
        if self.rows.decoder is not None and not self._odd:
            token = int(self.rng.integers(self.rows.decoder.config.vocabulary))
            self.tally.words(
                f"{what}, logits",
                self.rows.decoder.next_logits(self.paged.view(sequence), token),
                self.rows.decoder.next_logits(twin, token),
            )

    def _verify_units(self, sequence: int, what: str) -> None:
        shape = self.rows.shape
        unit_set = self.paged.ledger.geometry.unit_set
        unit = 0
        for family, rows in enumerate(shape.families):
            for row, spec in enumerate(rows.rows):
                twin = self.twins[sequence][unit_set[unit]].rows(family)
                theirs = {"positions": twin["positions"]}
                for plane, offsets in shape.offsets[family].items():
                    if offsets[row] < offsets[row + 1]:
                        part = twin[plane][:, offsets[row] : offsets[row + 1]]
                        is_key = plane == "K"
                        theirs |= (
                            stored_keys(self.paged.keys, spec, part) if is_key else {plane: part}
                        )
                ours = self.paged.unit_rows(sequence, unit)
                self.tally.planes(f"{what}, unit {unit}", ours, theirs)
                unit += 1
