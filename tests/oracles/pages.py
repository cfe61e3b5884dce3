"""The pages oracle: a pool of page objects, and block tables as lists of page or None.

Written from the rules of the design and not from the kernels. Stocks are recomputed from the
tables at every question; only flows are added up. The design does not say in which order the
pages that one verb frees join the queue: `settle` takes any, and unit tests state it.
"""

from __future__ import annotations

FLOWS = (
    "appended_slots_total",
    "evicted_rows_total",
    "evicted_bytes_total",
    "freed_pages_total",
    "finished_pages_total",
    "allocated_pages_total",
    "cow_pages_total",
    "copied_rows_total",
    "copied_bytes_total",
    "rotated_rows_total",
    "extra_pages_peak",
    "held_pages_peak",
)


class Refused(Exception):
    """The ceiling leaves fewer pages than a verb needs."""

    def __init__(self, needed):
        self.needed = needed
        super().__init__(needed)


class BadVictim(Exception):
    """A victim list names a slot that its set does not retain, or names one twice."""


class Page:
    """A held page. `references` counts the tables that name it."""

    def __init__(self, number, scope):
        self.number = number
        self.scope = scope
        self.references = 1


class Table:
    """One block table: pages, a write cursor, and per unit the set of slots that it retains."""

    def __init__(self, scope, units, family):
        self.scope = scope
        self.family = family
        self.entries = []
        self.cursor = 0
        self.kept = {unit: set() for unit in units}

    def live(self):
        """Slots that some unit retains."""
        return set().union(*self.kept.values())

    def dead(self):
        """Slots below the cursor that no unit retains."""
        return set(range(self.cursor)) - self.live()


class Pages:
    """A pool, its queue of free pages, and the tables of every open sequence.

    Parameters
    ----------
    unit_scope, unit_set, unit_bytes : sequences of int
        For each unit its scope unit, its set, and the bytes of one row.
    page_tokens : int
        Slots in a page.
    ceiling : int
        Most pages that may be held; 0 means unlimited.
    order : {"fifo", "lifo"}
        Where a freed page joins the queue: at its tail or at its head.
    """

    def __init__(self, unit_scope, unit_set, unit_bytes, page_tokens, ceiling=0, order="fifo"):
        self.unit_scope = tuple(unit_scope)
        self.unit_set = tuple(unit_set)
        self.unit_bytes = tuple(unit_bytes)
        self.scopes = range(max(unit_scope) + 1)
        self.page_tokens = page_tokens
        self.ceiling = ceiling
        self.order = order
        self.tables = {}
        self.queue = []
        self.just_freed = []
        self.supplied = 0
        self.families = 0
        self.flows = dict.fromkeys(FLOWS, 0)

    # The pool

    def supply(self, pages):
        """Let the pool have so many pages in all; new ones join the queue's tail, ascending."""
        self.queue += range(self.supplied, pages)
        self.supplied = max(pages, self.supplied)

    def take(self, scope):
        """Take the page at the head of the queue."""
        self.flows["allocated_pages_total"] += 1
        return Page(self.queue.pop(0), scope)

    def let_go(self, page, flow):
        """Drop one reference. The page is freed with the last."""
        page.references -= 1
        if page.references == 0:
            self.flows[flow] += 1
            self.just_freed.append(page.number)

    def settle(self, queue):
        """Let the pages that the last verb freed join the queue, in the order that `queue` has.

        Raises AssertionError unless `queue` is the old one with exactly these pages at its end,
        or under `lifo` at its head.
        """
        count = len(self.just_freed)
        if self.order == "lifo":
            freed, rest = queue[:count], queue[count:]
        else:
            freed, rest = queue[len(queue) - count :], queue[: len(queue) - count]
        assert sorted(freed) == sorted(self.just_freed)
        assert rest == self.queue
        self.queue, self.just_freed = list(queue), []

    # Verbs

    def open(self, sequence):
        """Start an empty sequence, a family of its own."""
        self.families += 1
        self.tables[sequence] = [
            Table(scope, self.units_of(scope), self.families) for scope in self.scopes
        ]

    def needed(self, sequence, tokens):
        """Return how many pages an append takes from the pool."""
        need = 0
        for table in self.tables[sequence]:
            need += self.pages_for(table.cursor + tokens) - len(table.entries)
            need += self.must_copy(table, tokens)
        return need

    def must_copy(self, table, tokens):
        """Tell whether an append writes into a page that other tables name too."""
        partial = table.cursor % self.page_tokens != 0
        return tokens > 0 and partial and table.entries[-1].references > 1

    def append(self, sequence, tokens):
        """Append to every table, or refuse and append to none."""
        need = self.needed(sequence, tokens)
        if self.ceiling and need > self.room():
            raise Refused(need)
        for table in self.tables[sequence]:
            if self.must_copy(table, tokens):
                rows = table.cursor % self.page_tokens
                shared = table.entries[-1]
                table.entries[-1] = self.take(table.scope)
                self.let_go(shared, "freed_pages_total")
                self.flows["cow_pages_total"] += 1
                self.flows["copied_rows_total"] += rows * len(table.kept)
                self.flows["copied_bytes_total"] += rows * self.width(table.scope)
            for slot in range(table.cursor, table.cursor + tokens):
                if slot == len(table.entries) * self.page_tokens:
                    table.entries.append(self.take(table.scope))
                for kept in table.kept.values():
                    kept.add(slot)
            table.cursor += tokens
            self.flows["appended_slots_total"] += tokens

    def fork(self, parent, child):
        """Share every page of the parent."""
        self.tables[child] = []
        for old in self.tables[parent]:
            new = Table(old.scope, old.kept, old.family)
            new.entries = list(old.entries)
            new.cursor = old.cursor
            new.kept = {unit: set(slots) for unit, slots in old.kept.items()}
            for page in new.entries:
                if page is not None:
                    page.references += 1
            self.tables[child].append(new)

    def evict(self, sequence, victims):
        """Let each set drop its victims, or refuse all of them."""
        for table in self.tables[sequence]:
            for unit, kept in table.kept.items():
                named = victims[self.unit_set[unit]]
                if len(named) != len(set(named)) or not kept.issuperset(named):
                    raise BadVictim
        for table in self.tables[sequence]:
            for which in sorted({self.unit_set[unit] for unit in table.kept}):
                for slot in sorted(victims[which]):
                    self.drop(table, which, slot)
            table.cursor = max(table.live(), default=-1) + 1
            del table.entries[self.pages_for(table.cursor) :]

    def drop(self, table, which, slot):
        """Let one set of a table drop a slot, and the table its page if nothing is left there."""
        for unit, kept in table.kept.items():
            if self.unit_set[unit] == which:
                kept.remove(slot)
                self.flows["evicted_rows_total"] += 1
                self.flows["evicted_bytes_total"] += self.unit_bytes[unit]
        entry = slot // self.page_tokens
        covered = range(entry * self.page_tokens, (entry + 1) * self.page_tokens)
        if not any(s in kept for kept in table.kept.values() for s in covered):
            page, table.entries[entry] = table.entries[entry], None
            self.let_go(page, "freed_pages_total")

    def free(self, sequence):
        """End a sequence."""
        for table in self.tables.pop(sequence):
            for page in reversed(table.entries):
                if page is not None:
                    self.let_go(page, "finished_pages_total")

    def end_step(self):
        """Sample the peak that is taken at the end of a step."""
        self.flows["held_pages_peak"] = max(self.flows["held_pages_peak"], len(self.held()))

    # Questions

    def units_of(self, scope):
        """Return the units that a table of a scope unit covers."""
        return [unit for unit, s in enumerate(self.unit_scope) if s == scope]

    def width(self, scope):
        """Return the bytes of one token's rows in a scope unit."""
        return sum(self.unit_bytes[unit] for unit in self.units_of(scope))

    def pages_for(self, slots):
        """Return the fewest pages that have so many slots."""
        return -(-slots // self.page_tokens)

    def every_table(self):
        """Return the tables of all open sequences."""
        return [table for tables in self.tables.values() for table in tables]

    def held(self):
        """Return the pages that some table names, by number."""
        named = (page for table in self.every_table() for page in table.entries if page)
        return {page.number: page for page in named}

    def room(self):
        """Return how many pages the ceiling leaves."""
        return self.ceiling - len(self.held())

    def held_by_scope(self):
        """Return the held pages of each scope unit."""
        scopes = [page.scope for page in self.held().values()]
        return [scopes.count(scope) for scope in self.scopes]

    def held_bytes(self):
        """Return the bytes of the held pages."""
        return sum(self.page_tokens * self.width(page.scope) for page in self.held().values())

    def retained(self, sequence, which):
        """Return the slots that a set retains, ascending, from the first of its units."""
        unit = self.unit_set.index(which)
        return sorted(self.tables[sequence][self.unit_scope[unit]].kept[unit])

    def place(self, table, slot):
        """Return the physical place of a table's slot."""
        page = table.entries[slot // self.page_tokens]
        return page.number, slot % self.page_tokens

    def census(self):
        """Return (live, dead, tail) physical slots of the held pages, each counted once."""
        live, written = set(), set()
        for table in self.every_table():
            live |= {self.place(table, slot) for slot in table.live()}
            written |= {
                self.place(table, slot)
                for slot in range(table.cursor)
                if table.entries[slot // self.page_tokens]
            }
        dead = len(written - live)
        return len(live), dead, len(self.held()) * self.page_tokens - len(live) - dead

    def floors(self):
        """Return (row pages, slot pages, live row bytes); forks of one ancestor are one table."""
        distinct = {}
        for table in self.every_table():
            units = distinct.setdefault((table.family, table.scope), {})
            for unit, kept in table.kept.items():
                units.setdefault(unit, set()).update(self.place(table, slot) for slot in kept)
        row = sum(self.pages_for(max(map(len, units.values()))) for units in distinct.values())
        slot = sum(self.pages_for(len(set().union(*u.values()))) for u in distinct.values())
        rows = [(unit, len(held)) for units in distinct.values() for unit, held in units.items()]
        return row, slot, sum(self.unit_bytes[unit] * count for unit, count in rows)

    def metadata_bytes(self):
        """Return 4 a table entry, 1 a slot, 1 a (set, slot) where a table has several sets."""
        total = 0
        for table in self.every_table():
            sets = len({self.unit_set[unit] for unit in table.kept})
            total += 4 * len(table.entries) + table.cursor * (1 + (sets if sets > 1 else 0))
        return total
