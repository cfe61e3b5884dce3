"""The tokens oracle: which token lies in which slot, after any appends, forks and evictions.

Under `keep` a table's cursor rewinds to one past its last live slot, so that slots and tokens
part ways. Sets that span several tables need one of them: all do the same.
"""

from __future__ import annotations

import copy

from oracles.victims import victims


class Tokens:
    """One sequence.

    Parameters
    ----------
    table : list of int
        The table of each set.
    page_tokens : int
    """

    def __init__(self, table, page_tokens):
        self.table = table
        self.page_tokens = page_tokens
        self.appended = 0
        self.cursor = dict.fromkeys(table, 0)
        self.slot_of = [{} for _ in table]

    def append(self, count):
        for kept, number in zip(self.slot_of, self.table, strict=True):
            for ahead in range(count):
                kept[self.appended + ahead] = self.cursor[number] + ahead
        for number in self.cursor:
            self.cursor[number] += count
        self.appended += count

    def fork(self):
        return copy.deepcopy(self)

    def evict(self, scores, kept, recent, sinks, **rules):
        """Drop what the victims oracle says. `scores` holds a list by token for each set."""
        tokens = set().union(*self.slot_of)
        guarded = {t for t in tokens if t < sinks or self.appended - t <= recent}
        dense = -(-self.appended // self.page_tokens)
        gone = victims(
            [
                {token: (slot, mine[token]) for token, slot in slots.items()}
                for slots, mine in zip(self.slot_of, scores, strict=True)
            ],
            guarded,
            table=self.table,
            cursor=self.cursor,
            dense=dict.fromkeys(self.cursor, dense),
            kept=kept,
            page_tokens=self.page_tokens,
            **rules,
        )
        for slots, out in zip(self.slot_of, gone, strict=True):
            for token in out:
                del slots[token]
        for number in self.cursor:
            mine = [s for s, t in zip(self.slot_of, self.table, strict=True) if t == number]
            self.cursor[number] = max((slot + 1 for s in mine for slot in s.values()), default=0)

    def pages(self, number):
        """Return the entries of a table that hold a live slot."""
        mine = [s for s, t in zip(self.slot_of, self.table, strict=True) if t == number]
        return {slot // self.page_tokens for s in mine for slot in s.values()}
