"""An independent count of pages: block tables as Python lists, by the rules and not by the kernels.

It follows what docs and DESIGN say each verb does to pages, shares no code with the ledger, and
knows positions and page identities but no row.
"""

from __future__ import annotations

from dataclasses import dataclass, field

Victims = list[set[int]]


class Page:
    """A page, and how many tables name it."""

    def __init__(self) -> None:
        self.refcount = 1


@dataclass
class Table:
    """One block table.

    Attributes
    ----------
    sets : tuple of int
        Sets whose rows it holds.
    turning : frozenset of int
        Those of them with a stored key that depends on its position.
    pages : list
        A page for each `page_tokens` appended slots, None where it was let go.
    slots : list of dict
        For each appended slot the position that each set retains there; empty if it is dead.
    ahead : list of Page
        Pages that are reserved.
    """

    sets: tuple[int, ...]
    turning: frozenset[int]
    pages: list[Page | None] = field(default_factory=list)
    slots: list[dict[int, int]] = field(default_factory=list)
    ahead: list[Page] = field(default_factory=list)


class PageCount:
    """Counts the pages of many sequences.

    Parameters
    ----------
    page_tokens : int
    inner_sets : tuple of tuple of int
        The sets of each table of a sequence.
    compaction, unit, positions, append : str
        As in `PagedCache`.
    turning : tuple of frozenset of int
        For each table the sets with a stored key that depends on its position: only those are
        written when positions change.

    Attributes
    ----------
    taken, freed : int
        Pages taken so far, and pages that evictions and copies let go for good.
    """

    def __init__(
        self,
        page_tokens: int,
        inner_sets: tuple[tuple[int, ...], ...],
        *,
        compaction: str,
        unit: str,
        positions: str,
        append: str,
        turning: tuple[frozenset[int], ...],
    ) -> None:
        self._page_tokens = page_tokens
        self._inner_sets = inner_sets
        self._compaction = compaction
        self._by_row = unit == "row"
        self._renumbers = positions == "renumber"
        self._reuses = append == "reuse_holes"
        self._turning = turning
        self._tables: dict[int, list[Table]] = {}
        self.taken = 0
        self.freed = 0

    @property
    def held(self) -> int:
        """Pages that some table names or has reserved."""
        named = {
            id(page)
            for tables in self._tables.values()
            for table in tables
            for page in (*table.pages, *table.ahead)
            if page is not None
        }
        return len(named)

    def open(self, sequence: int) -> None:
        """Begin a sequence without a page."""
        self._tables[sequence] = [
            Table(sets, turning)
            for sets, turning in zip(self._inner_sets, self._turning, strict=True)
        ]

    def append(self, sequence: int, positions: list[range]) -> None:
        """Append tokens at the `positions` of each set; into holes first, if they are reused."""
        for table in self._tables[sequence]:
            holes = self._holes(table) if self._reuses else []
            for at in range(len(positions[0])):
                slot = {which: positions[which][at] for which in table.sets}
                if at < len(holes):
                    table.slots[holes[at]] = slot
                else:
                    self._at_tail(table, slot)

    def fork(self, parent: int, child: int) -> None:
        """Share every page but those reserved."""
        self._tables[child] = []
        for table in self._tables[parent]:
            for page in table.pages:
                if page is not None:
                    page.refcount += 1
            slots = [dict(slot) for slot in table.slots]
            self._tables[child].append(Table(table.sets, table.turning, list(table.pages), slots))

    def clone(self, parent: int, child: int) -> None:
        """Copy every page, those reserved too."""
        self._tables[child] = [self._copied(table) for table in self._tables[parent]]

    def replace_all(self, old: int, new: int) -> None:
        """Move a sequence out and back in: it comes with pages of its own, reserved ones too."""
        tables = self._tables[old]
        self.free(old)
        self._tables[new] = [self._copied(table) for table in tables]

    def reserve(self, sequence: int, tokens: int) -> None:
        """Take the pages that the next tokens need."""
        for table in self._tables[sequence]:
            wanted = -(-(len(table.slots) + tokens) // self._page_tokens)
            while len(table.pages) + len(table.ahead) < wanted:
                table.ahead.append(self._take())

    def free(self, sequence: int) -> None:
        """End a sequence. Its pages do not count as freed by an eviction."""
        for table in self._tables.pop(sequence):
            for page in (*table.pages, *table.ahead):
                if page is not None:
                    page.refcount -= 1

    def evict(self, sequence: int, victims: Victims) -> None:
        """Let each set drop positions; then renumber or compact as the order says."""
        for table in self._tables[sequence]:
            died = self._drop(table, victims)
            if died and self._renumbers and self._compaction == "none":
                self._renumber(table, min(died))
        if self._compaction != "none":
            for table in self._tables[sequence]:
                self._compact(table)

    def _copied(self, table: Table) -> Table:
        return Table(
            table.sets,
            table.turning,
            [None if page is None else self._take() for page in table.pages],
            [dict(slot) for slot in table.slots],
            [self._take() for _ in table.ahead],
        )

    def _take(self) -> Page:
        self.taken += 1
        return Page()

    def _let_go(self, page: Page) -> None:
        page.refcount -= 1
        self.freed += page.refcount == 0

    def _own(self, table: Table, entry: int) -> None:
        """Copy a page on write, if it is shared."""
        page = table.pages[entry]
        assert page is not None
        if page.refcount > 1:
            table.pages[entry] = self._take()
            self._let_go(page)

    def _holes(self, table: Table) -> list[int]:
        """Return the dead slots of unshared pages, as they are before the append copies any."""
        pages = [table.pages[at // self._page_tokens] for at in range(len(table.slots))]
        return [
            at
            for at, (slot, page) in enumerate(zip(table.slots, pages, strict=True))
            if not slot and page is not None and page.refcount == 1
        ]

    def _at_tail(self, table: Table, slot: dict[int, int]) -> None:
        entry, offset = divmod(len(table.slots), self._page_tokens)
        if offset:
            self._own(table, entry)
        else:
            table.pages.append(table.ahead.pop() if table.ahead else self._take())
        table.slots.append(slot)

    def _entry(self, table: Table, entry: int) -> list[dict[int, int]]:
        return table.slots[entry * self._page_tokens : (entry + 1) * self._page_tokens]

    def _drop(self, table: Table, victims: Victims) -> list[int]:
        """Drop positions, let go of pages without a live slot; return positions that died."""
        died = []
        for slot in table.slots:
            gone = [which for which in slot if slot[which] in victims[which]]
            last = [slot.pop(which) for which in gone]
            if gone and not slot:
                died.append(min(last))
        for entry, page in enumerate(table.pages):
            if page is not None and not any(self._entry(table, entry)):
                self._let_go(page)
                table.pages[entry] = None
        while table.slots and not table.slots[-1]:
            table.slots.pop()
        del table.pages[-(-len(table.slots) // self._page_tokens) :]
        return died

    def _renumber(self, table: Table, lowest: int) -> None:
        """Give survivors their ranks; what lies behind the lowest that died is written."""
        for entry in range(len(table.pages)):
            changed = any(
                position > lowest
                for slot in self._entry(table, entry)
                for position in slot.values()
            )
            if changed and self._copies(table):
                self._own(table, entry)
        for which in table.sets:
            held = [slot for slot in table.slots if which in slot]
            for rank, slot in enumerate(sorted(held, key=lambda slot: slot[which])):
                slot[which] = rank

    def _compact(self, table: Table) -> None:
        named = [page for page in table.pages if page is not None]
        there = [
            slot
            for entry, page in enumerate(table.pages)
            if page is not None
            for slot in self._entry(table, entry)
        ]
        movers = [(which,) for which in table.sets] if self._by_row else [table.sets]
        slots: list[dict[int, int]] = []
        written: set[int] = set()
        for mover in movers:
            for target, source in enumerate(self._sources(there, mover)):
                if target == len(slots):
                    slots.append({})
                moved = {which: there[source][which] for which in mover if which in there[source]}
                slots[target].update(moved)
                if source != target:
                    written.add(target // self._page_tokens)
        if self._renumbers:
            written |= self._rank(table, slots)
        wanted = -(-len(slots) // self._page_tokens)
        if self._compaction == "rebuild":
            pages = [self._take() for _ in range(wanted)]
            for page in named:
                self._let_go(page)
            table.pages = list(pages)
        else:
            table.pages = list(named[:wanted])
            for entry in sorted(written):
                self._own(table, entry)
            for page in named[wanted:]:
                self._let_go(page)
        table.slots = slots

    def _sources(self, there: list[dict[int, int]], mover: tuple[int, ...]) -> list[int]:
        """Return which slot's rows go to slot 0, 1, ..., for one mover."""
        live = [at for at, slot in enumerate(there) if any(which in slot for which in mover)]
        if self._compaction != "hole_fill":
            return live
        # Those already low enough stay; the last ones go into the earliest holes.
        stay = {at for at in live if at < len(live)}
        late = [at for at in live if at >= len(live)]
        return [at if at in stay else late.pop() for at in range(len(live))]

    def _copies(self, table: Table) -> bool:
        """Tell whether a changed position writes into the pages of a table.

        Where holes are reused, tables that turn nothing are copied like those that do: a hole in
        a shared page is skipped, and tables of one set have to stay in step.
        """
        return bool(table.turning) or (self._reuses and any(self._turning))

    def _rank(self, table: Table, slots: list[dict[int, int]]) -> set[int]:
        """Renumber compacted slots; return the entries where a stored key changes by it."""
        written = set()
        for which in table.sets:
            # A whole slot is written if any of its sets turns; a row only if its own does.
            turns = which in table.turning if self._by_row else bool(table.turning)
            turns = turns or (self._reuses and self._copies(table))
            held = [(slot[which], at) for at, slot in enumerate(slots) if which in slot]
            for rank, (position, at) in enumerate(sorted(held)):
                slots[at][which] = rank
                if turns and position != rank:
                    written.add(at // self._page_tokens)
        return written
