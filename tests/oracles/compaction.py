"""The pages oracle for ledgers that move rows: compaction, renumbering and reuse of dead slots.

Written from rules 4, 5 and 9 of the design, with dictionaries of slots and page objects.
"""

from __future__ import annotations

from oracles.pages import BadVictim, Pages, Refused


class Mover:
    """What moves as one: whole slots of a table, or the rows of one set.

    Attributes
    ----------
    units : list of int
        Whose rows a move carries, and so its price.
    slots : list of int
        Where its rows lie now, ascending.
    target : dict
        For each of these slots the slot that the row goes to.
    position : dict
        For each of them the position that the row will have.
    """

    def __init__(self, units, slots):
        self.units = units
        self.slots = slots
        self.target = {}
        self.position = {}


def into_order(slots, place):
    """Rebuild and forward: survivor r, counted upwards, goes to slot r."""
    return {slot: rank for rank, slot in enumerate(sorted(slots, key=place.get))}


def into_holes(slots, place):
    """Hole_fill: the last survivor goes into the earliest hole, until no hole lies below it."""
    target = {slot: place[slot] for slot in slots}
    while True:
        taken = set(target.values())
        hole = min(set(range(len(taken) + 1)) - taken)
        last = max(target, key=target.get, default=None)
        if last is None or hole > target[last]:
            return target
        target[last] = hole


class MovingPages(Pages):
    """A pool and its tables, with positions, under one ordering.

    Parameters
    ----------
    ordering : mapping
        append, compaction, unit, positions and renumber_writes, as the design names them.
    """

    def __init__(self, unit_scope, unit_set, unit_bytes, page_tokens, ordering, **pool):
        super().__init__(unit_scope, unit_set, unit_bytes, page_tokens, **pool)
        self.reuses = ordering["append"] == "reuse_holes"
        self.moves = ordering["compaction"] != "none"
        self.renumbers = ordering["positions"] == "renumber"
        self.writes = self.renumbers and ordering["renumber_writes"]
        finer = any(len(self.sets_of(scope)) > 1 for scope in self.scopes)
        self.by_row = ordering["unit"] == "row" and self.moves and finer
        scrambles = not self.renumbers or ordering["compaction"] == "hole_fill"
        self.stored = self.reuses or (self.moves and scrambles)
        # Paths that the last verb took, for the test that asks what was reached.
        self.reached = []

    def sets_of(self, scope):
        """Return the sets that have rows in the tables of a scope unit."""
        return sorted({self.unit_set[unit] for unit in self.units_of(scope)})

    # Verbs

    def open(self, sequence):
        super().open(sequence)
        for table in self.tables[sequence]:
            table.position = {unit: {} for unit in table.kept}

    def fork(self, parent, child):
        super().fork(parent, child)
        for old, new in zip(self.tables[parent], self.tables[child], strict=True):
            new.position = {unit: dict(places) for unit, places in old.position.items()}

    def holes(self, table):
        """Return the dead slots that a new token may take: those of unshared pages, ascending."""
        if not self.reuses:
            return []
        pages = {slot: table.entries[slot // self.page_tokens] for slot in table.dead()}
        return sorted(slot for slot, page in pages.items() if page and page.references == 1)

    def needed(self, sequence, tokens):
        need = 0
        for table in self.tables[sequence]:
            rest = max(0, tokens - len(self.holes(table)))
            need += self.pages_for(table.cursor + rest) - len(table.entries)
            need += self.must_copy(table, rest)
        return need

    def append(self, sequence, tokens):
        need = self.needed(sequence, tokens)
        if self.ceiling and need > self.room():
            raise Refused(need)
        self.reached = []
        for table in self.tables[sequence]:
            skipped = self.reuses and tokens and self.shared_holes(table)
            holes = self.holes(table)[:tokens]
            following = self.next_position(table)
            for ahead, slot in enumerate(holes):
                self.place_token(table, slot, following + ahead)
            self.append_behind(table, tokens - len(holes), following + len(holes))
            self.flows["appended_slots_total"] += tokens
            if holes:
                self.reached.append("reuse of a hole")
            if skipped:
                self.reached.append("reuse skips a shared page")

    def append_behind(self, table, tokens, following):
        """Append at the cursor, into a copy of the last page if others name it too."""
        if self.must_copy(table, tokens):
            rows = table.cursor % self.page_tokens
            shared = table.entries[-1]
            table.entries[-1] = self.take(table.scope)
            self.let_go(shared, "freed_pages_total")
            self.flows["cow_pages_total"] += 1
            self.copied(rows, table.kept)
            self.reached.append("append copies on write")
        for ahead in range(tokens):
            if table.cursor == len(table.entries) * self.page_tokens:
                table.entries.append(self.take(table.scope))
            self.place_token(table, table.cursor, following + ahead)
            table.cursor += 1

    def place_token(self, table, slot, position):
        """Make a slot live for every unit."""
        for unit, kept in table.kept.items():
            kept.add(slot)
            table.position[unit][slot] = position

    def evict(self, sequence, victims):
        """Let each set drop its victims, and renumber where no compaction does; or refuse all."""
        for table in self.tables[sequence]:
            for unit, kept in table.kept.items():
                named = victims[self.unit_set[unit]]
                if len(named) != len(set(named)) or not kept.issuperset(named):
                    raise BadVictim
        renumbers = self.renumbers and not self.moves
        need = self.renumbering_need(sequence, victims) if renumbers and self.writes else 0
        if self.ceiling and need > self.room():
            raise Refused(need)
        self.reached = []
        before = len(self.held())
        for table in self.tables[sequence]:
            self.drop_all(table, victims)
        if renumbers:
            # The pages that emptied are free by now: a copy may take one of them.
            self.join_queue()
            for table in self.tables[sequence]:
                self.renumber(table)
            self.peak(len(self.held()) - before)

    def drop_all(self, table, victims):
        """Let the sets of a table drop their victims, then let go of pages that emptied."""
        for unit, kept in table.kept.items():
            for slot in victims[self.unit_set[unit]]:
                kept.remove(slot)
                del table.position[unit][slot]
                self.flows["evicted_rows_total"] += 1
                self.flows["evicted_bytes_total"] += self.unit_bytes[unit]
        live = {slot // self.page_tokens for slot in table.live()}
        for which in self.sets_of(table.scope):
            for slot in sorted(victims[which]):
                entry = slot // self.page_tokens
                if entry not in live and table.entries[entry]:
                    page, table.entries[entry] = table.entries[entry], None
                    self.let_go(page, "freed_pages_total")
        table.cursor = max(table.live(), default=-1) + 1
        del table.entries[self.pages_for(table.cursor) :]

    def join_queue(self):
        """Let the pages freed so far join the queue, in the order in which they were freed."""
        for page in self.just_freed:
            self.queue.insert(0 if self.order == "lifo" else len(self.queue), page)
        self.just_freed = []

    # Renumbering inside evict

    def ranks(self, table, live):
        """Return the rank of each live slot of a table among their positions."""
        of = {slot: place for places in table.position.values() for slot, place in places.items()}
        return {slot: rank for rank, slot in enumerate(sorted(live, key=of.get))}, of

    def shifted(self, table, live):
        """Return, by entry, the live slots whose position changes to their rank."""
        rank, of = self.ranks(table, live)
        found = {}
        for slot in sorted(live):
            if rank[slot] != of[slot]:
                found.setdefault(slot // self.page_tokens, []).append(slot)
        return found

    def renumbering_need(self, sequence, victims):
        """Return how many pages more an eviction that renumbers needs than it frees first."""
        need = 0
        for table in self.tables[sequence]:
            left = {
                slot
                for unit, kept in table.kept.items()
                for slot in kept - set(victims[self.unit_set[unit]])
            }
            entries = {slot // self.page_tokens for slot in left}
            for entry, page in enumerate(table.entries):
                if page and page.references == 1 and entry not in entries:
                    need -= 1
            need += sum(table.entries[e].references > 1 for e in self.shifted(table, left))
        return need

    def renumber(self, table):
        """Give the survivors of a table their ranks, rewriting the keys of those that shift."""
        live = table.live()
        rank, _ = self.ranks(table, live)
        for entry, slots in sorted(self.shifted(table, live).items()):
            if not self.writes:
                continue
            rows = {u: [s for s in slots if s in kept] for u, kept in table.kept.items()}
            self.flows["rotated_rows_total"] += sum(map(len, rows.values()))
            shared = table.entries[entry]
            if shared.references > 1:
                table.entries[entry] = self.take(table.scope)
                self.let_go(shared, "freed_pages_total")
                self.flows["cow_pages_total"] += 1
                first = entry * self.page_tokens
                for unit, kept in table.kept.items():
                    stay = kept.intersection(range(first, first + self.page_tokens))
                    self.copied(len(stay), [unit])
                self.reached.append("evict copies on write")
            else:
                self.reached.append("evict rotates in place")
        for places in table.position.values():
            places.update({slot: rank[slot] for slot in places})

    # Compaction

    def movers(self, table, algorithm):
        """Return what a compaction of a table moves, and where to."""
        place, place_of_entry = {}, 0
        for entry, page in enumerate(table.entries):
            if page:
                for offset in range(self.page_tokens):
                    slot = entry * self.page_tokens + offset
                    place[slot] = place_of_entry * self.page_tokens + offset
                place_of_entry += 1
        if self.by_row:
            groups = [
                [unit for unit in table.kept if self.unit_set[unit] == which]
                for which in self.sets_of(table.scope)
            ]
        else:
            groups = [list(table.kept)]
        movers = []
        for units in groups:
            live = set().union(*(table.kept[unit] for unit in units))
            mover = Mover(units, sorted(live))
            send = into_holes if algorithm == "hole_fill" else into_order
            mover.target = send(mover.slots, place)
            old = {s: p for unit in units for s, p in table.position[unit].items()}
            rank = {p: r for r, p in enumerate(sorted(set(old.values())))}
            mover.position = {s: rank[p] if self.renumbers else p for s, p in old.items()}
            mover.shifts = {s for s in old if mover.position[s] != old[s]}
            movers.append(mover)
        return movers

    def plan(self, sequence, algorithm):
        """Return for each table its movers, and its pages to be: a page, or None for a new one."""
        plans = []
        for table in self.tables[sequence]:
            movers = self.movers(table, algorithm)
            length = max((len(mover.slots) for mover in movers), default=0)
            named = [page for page in table.entries if page]
            pages = []
            for entry in range(self.pages_for(length)):
                page = named[entry]
                copies = page.references > 1 and self.written(table, movers, entry, page)
                pages.append(None if algorithm == "rebuild" or copies else page)
            plans.append((table, movers, pages, length))
        return plans

    def written(self, table, movers, entry, page):
        """Tell whether a plan writes a row of a page: moved there from elsewhere, or rotated."""
        for mover in movers:
            for slot, target in mover.target.items():
                if target // self.page_tokens == entry:
                    stays = self.place(table, slot) == (page.number, target % self.page_tokens)
                    if not stays or (self.writes and slot in mover.shifts):
                        return True
        return False

    def compact_need(self, sequence, algorithm):
        """Return how many pages a compaction takes before it lets go of any."""
        plans = self.plan(sequence, algorithm)
        return sum(pages.count(None) for _, _, pages, _ in plans)

    def compact(self, sequence, algorithm):
        """Compact every table of a sequence, or refuse and compact none."""
        plans = self.plan(sequence, algorithm)
        need = sum(pages.count(None) for _, _, pages, _ in plans)
        if self.ceiling and need > self.room():
            raise Refused(need)
        self.reached = []
        self.peak(need)
        taken = [[page or self.take(table.scope) for page in pages] for table, _, pages, _ in plans]
        for (table, movers, pages, length), new in zip(plans, taken, strict=True):
            if algorithm != "rebuild":
                self.flows["cow_pages_total"] += pages.count(None)
                self.reached += [f"{algorithm} copies on write"] * (None in pages)
            for mover in movers:
                self.price(table, mover, new)
            old = [page for page in table.entries if page]
            self.settle_table(table, movers, new, length)
            for page in old:
                if page not in new:
                    self.let_go(page, "freed_pages_total")

    def price(self, table, mover, new):
        """Count what the moves of a mover cost: rows that change their place, rows that rotate."""
        for slot, target in mover.target.items():
            there = new[target // self.page_tokens].number, target % self.page_tokens
            moved = self.place(table, slot) != there
            rotated = self.writes and slot in mover.shifts
            if moved:
                self.copied(1, mover.units)
            if rotated:
                self.flows["rotated_rows_total"] += len(mover.units)
                self.reached.append("compact rotates in place" if not moved else "compact rotates")

    def settle_table(self, table, movers, new, length):
        """Give a table its pages, and each unit its slots and positions, after the moves."""
        for mover in movers:
            for unit in mover.units:
                kept = table.kept[unit]
                table.position[unit] = {mover.target[s]: mover.position[s] for s in kept}
                table.kept[unit] = set(table.position[unit])
        table.entries = new
        table.cursor = length

    # Counting

    def copied(self, rows, units):
        """Count copies of `rows` rows in each of these units."""
        self.flows["copied_rows_total"] += rows * len(units)
        self.flows["copied_bytes_total"] += rows * sum(self.unit_bytes[unit] for unit in units)

    def peak(self, extra):
        """Count pages that a verb held beyond those before it."""
        self.flows["extra_pages_peak"] = max(self.flows["extra_pages_peak"], extra)

    # Questions

    def next_position(self, table):
        """Return one past the highest position that any unit of a table retains."""
        return (
            max((p for places in table.position.values() for p in places.values()), default=-1) + 1
        )

    def shared_holes(self, table):
        """Return the dead slots that no new token may take, because others name their page."""
        pages = {slot: table.entries[slot // self.page_tokens] for slot in table.dead()}
        return [slot for slot, page in pages.items() if page and page.references > 1]

    def retained(self, sequence, which):
        """Return the slots that a set retains, ascending in position."""
        unit = self.unit_set.index(which)
        table = self.tables[sequence][self.unit_scope[unit]]
        return sorted(table.kept[unit], key=table.position[unit].get)

    def positions(self, sequence, which, slots):
        """Return the positions of some slots that a set retains."""
        unit = self.unit_set.index(which)
        places = self.tables[sequence][self.unit_scope[unit]].position[unit]
        return [places[slot] for slot in slots]

    def metadata_bytes(self):
        """Add 4 bytes a stored position: one a slot, or one a (set, slot) where rows move."""
        total = super().metadata_bytes()
        if self.stored:
            for table in self.every_table():
                total += 4 * table.cursor * (len(self.sets_of(table.scope)) if self.by_row else 1)
        return total
