"""Which paths of the ledger a run has reached, judged by the oracle and never by the ledger.

A test that reaches nothing proves nothing: the machine asserts a minimum share of each path.
"""

from __future__ import annotations

from collections import Counter

# Every path that a run must be able to reach, with the percentage of examples that must.
MINIMUM = {
    "append": 60,
    "append nothing": 20,
    "append refused": 4,
    "append copies on write": 5,
    "append after a rewind": 12,
    "advance": 30,
    "advance copies on write": 3,
    "advance refused midway": 2,
    "advance refused at once": 2,
    "fork": 20,
    "fork of a fork": 8,
    "fork of a partial page": 8,
    "fork of a table with null entries": 1,
    "evict head": 8,
    "evict tail": 8,
    "evict span": 8,
    "evict random": 8,
    "evict aligned": 8,
    "evict all": 8,
    "evict nothing": 10,
    "evict refused": 20,
    "let go of a page": 25,
    "let go of a page that another needs": 5,
    "free a page that was shared": 5,
    "null entry inside": 4,
    "rewind into a held page": 10,
    "rewind over dead slots": 8,
    "rewind past null entries": 2,
    "a table empties": 15,
    "a set drops what another holds": 3,
    "free": 15,
    "free while shared": 5,
    "a number is used again": 15,
    "a number is used again while its forks live": 4,
    "pages grow": 2,
    "arena grows": 6,
    "tables grow": 20,
}


class Paths:
    """Names paths by comparing an oracle before and after a verb.

    Parameters
    ----------
    step : Lockstep
    note : callable
        Told the name of each path.
    """

    def __init__(self, step, note):
        self.step = step
        self.note = note
        self.used = set()
        self.parents = {}
        self.rewound = set()
        self.ever_shared = set()
        self.sizes = self._sizes()

    def _sizes(self):
        arrays = self.step.ledger._arrays
        return {"pages": arrays.pages.shape, "arena": arrays.dead.shape} | {
            "tables": arrays.tables.shape
        }

    def _note_growth(self):
        sizes = self._sizes()
        for name, size in sizes.items():
            if size != self.sizes[name]:
                self.note(f"{name} grow" + "s" * (name == "arena"))
        self.sizes = sizes

    def opened(self, number, verb):
        """A sequence number was given out."""
        assert number not in self.step.pages.tables, "a sequence number is given out twice"
        self.note(verb)
        self._note_growth()
        if number in self.used:
            self.note("a number is used again")
            if number in self.parents.values():
                self.note("a number is used again while its forks live")
        self.used.add(number)

    def forks(self, parent, child):
        """A sequence is about to be forked in the oracle."""
        tables = self.step.pages.tables[parent]
        self.ever_shared |= {page for table in tables for page in table.entries if page}
        if parent in self.parents:
            self.note("fork of a fork")
        self.parents[child] = parent
        if any(table.cursor % self.step.page_tokens for table in tables):
            self.note("fork of a partial page")
        if any(None in table.entries for table in tables):
            self.note("fork of a table with null entries")

    def appended(self, verb, sequence, tokens, copied):
        """An append was done; `copied` is what the oracle had copied before it."""
        self.note(verb if tokens else f"{verb} nothing")
        self._note_growth()
        if self.step.pages.flows["cow_pages_total"] > copied:
            self.note(f"{verb} copies on write")
        if tokens and sequence in self.rewound:
            self.note("append after a rewind")
            self.rewound.discard(sequence)

    def picture(self, sequence):
        """Return what an eviction may change: entries, cursor and dead slots of each table."""
        tables = self.step.pages.tables[sequence]
        return [(list(table.entries), table.cursor, table.dead()) for table in tables]

    def evicted(self, sequence, before, victims, shape):
        """An eviction was done; `before` is the picture taken before it."""
        self.note(f"evict {shape}" if any(victims) else "evict nothing")
        found = Counter()
        for (entries, cursor, dead), table in zip(
            before, self.step.pages.tables[sequence], strict=True
        ):
            now, was = len(table.entries), {page for page in entries if page}
            gone = was - {page for page in table.entries if page}
            found["let go of a page"] += len(gone)
            found["let go of a page that another needs"] += any(p.references for p in gone)
            found["free a page that was shared"] += any(
                p.references == 0 and p in self.ever_shared for p in gone
            )
            found["null entry inside"] += None in table.entries
            if table.cursor < cursor:
                self.rewound.add(sequence)
                found["rewind into a held page"] += table.cursor % self.step.page_tokens > 0
                found["rewind over dead slots"] += any(slot >= table.cursor for slot in dead)
                found["rewind past null entries"] += None in entries[now:]
                found["a table empties"] += table.cursor == 0
            dropped = {slot for unit in table.kept for slot in victims[self.step.unit_set[unit]]}
            found["a set drops what another holds"] += bool(dropped & table.live())
        for path, count in found.items():
            if count:
                self.note(path)

    def frees(self, sequence):
        """A sequence is about to be freed in the oracle."""
        pages = {page for t in self.step.pages.tables[sequence] for page in t.entries if page}
        self.note("free while shared" if any(p.references > 1 for p in pages) else "free")
        self.rewound.discard(sequence)
        self.parents.pop(sequence, None)
