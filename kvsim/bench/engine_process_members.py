"""Members of the process-per-request baseline: a request's state, its keys, and its evictions.

Knows block tables as Python lists and the pool under them; knows no scheduler, time or SimPy.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import Any

import numpy as np

from kvsim.bench.engine_process_pages import Pages
from kvsim.bench.engine_report import StaticEviction
from kvsim.workload.requests import Requests


class Member:
    """One sample of a request, from its arrival to its end.

    Attributes
    ----------
    cursor : int
        One past the last row; while nothing was evicted, the tokens that have a row.
    rows : int
        Rows that it was given in the step under way.
    seats : int
        Seats that it takes: all of its samples' until it forks, then one.
    turn : event or None
        What its process waits for while it has no seat.
    most : int
        The most tokens that it ever had computed, which tells progress from repetition.
    table : list
        Its pages, None where a page was let go of.
    dead : bytearray or None
        A flag for each row; None until its first eviction is due.
    alive : list of int
        Live rows behind each entry of the table.
    heap : list
        (priority, position) of the live rows that may go, those below `offered` only.
    """

    __slots__ = (
        "alive",
        "arrival",
        "cursor",
        "dead",
        "decoding",
        "due",
        "evicted",
        "finished",
        "generated",
        "heap",
        "inputs",
        "live",
        "most",
        "nulls",
        "number",
        "offered",
        "outputs",
        "rank",
        "rows",
        "running",
        "sample",
        "seats",
        "table",
        "turn",
    )

    def __init__(
        self,
        number: int,
        sample: int,
        arrival: int,
        priority: int,
        inputs: int,
        outputs: int,
        seats: int,
    ) -> None:
        self.number = number
        self.sample = sample
        self.arrival = arrival
        self.rank = (priority, arrival, number, sample)
        self.inputs = inputs
        self.outputs = outputs
        self.seats = seats
        self.turn: Any = None
        self.generated = 0
        self.most = 0
        self.finished = False
        self.rows = 0
        self.restart()

    @property
    def known(self) -> int:
        """Prompt and generated tokens: what a prefill has to compute."""
        return self.inputs + self.generated

    def restart(self) -> None:
        """Forget everything that was computed, as at arrival and at a preemption."""
        self.table: list[int | None] = []
        self.cursor = 0
        self.decoding = False
        self.running = False
        self.due = False
        self.evicted = False
        self.dead: bytearray | None = None
        self.alive: list[int] = []
        self.live = 0
        self.nulls = 0
        self.heap: list[tuple[int, int]] = []
        self.offered = 0

    def fork(self, sample: int) -> Member:
        """Return another sample at the same point, which shares every page."""
        twin = Member(self.number, sample, self.arrival, self.rank[0], self.inputs, self.outputs, 1)
        twin.table = self.table.copy()
        twin.cursor = self.cursor
        twin.generated = self.generated
        twin.most = self.most
        twin.finished = self.finished
        twin.decoding = True
        twin.running = True
        twin.due = True
        return twin


class Keys:
    """Which key each page of a member has.

    Given keys cover the first pages. Pages after them have keys of their request's own: one for
    all samples where a page lies in the prompt, which is the same for all of them, and one for
    each sample where it holds generated tokens.
    """

    def __init__(self, requests: Requests) -> None:
        self.page_tokens = requests.page_tokens
        self.given = requests.keys.tolist()
        self.start = requests.key_start.tolist()
        own = requests.own_pages()
        self.own = (requests.given_keys + np.cumsum(own) - own).tolist()
        self.each = (own // requests.samples).tolist()

    def of(self, member: Member, entry: int) -> int:
        """Return the key of one page."""
        number = member.number
        own = entry - (self.start[number + 1] - self.start[number])
        if own < 0:
            return self.given[self.start[number] + entry]
        sample = member.sample if (entry + 1) * self.page_tokens > member.inputs else 0
        return self.own[number] + sample * self.each[number] + own


class Evicting:
    """Evictions by a static policy, one member at a time.

    Attributes
    ----------
    freed_pages_total, evicted_tokens_total : int
    """

    def __init__(self, policy: StaticEviction, pages: Pages, requests: Requests) -> None:
        self.policy = policy
        self.pages = pages
        self.page_tokens = requests.page_tokens
        self.freed_pages_total = 0
        self.evicted_tokens_total = 0
        self._longest = (requests.input_tokens + requests.output_tokens).tolist()
        self._priorities: dict[int, list[int]] = {}

    def forget(self, number: int) -> None:
        """Drop the priorities of a request that will not be evicted from again."""
        self._priorities.pop(number, None)

    def evict(self, member: Member) -> None:
        """Evict the lowest priorities until the member keeps what it may, or none may go."""
        policy = self.policy
        live = member.live if member.dead is not None else member.cursor
        # The newest generated token has no row yet.
        excess = live - policy.kept(member.known - (member.outputs > 0))
        if excess <= 0:
            return
        if member.dead is None:
            self._begin(member)
        self._offer(member)
        heap = member.heap
        if not heap:
            return
        if excess == 1:
            victims = [heappop(heap)[1]]
        else:
            # What is left of a sorted list is a heap.
            heap.sort()
            victims = sorted(position for _, position in heap[:excess])
            del heap[:excess]
        member.evicted = True
        self._kill(member, victims)

    def _begin(self, member: Member) -> None:
        """Give every row a flag, and every page its count of live rows."""
        member.dead = bytearray(member.cursor)
        member.live = member.cursor
        full, rest = divmod(member.cursor, self.page_tokens)
        member.alive = [self.page_tokens] * full + [rest] * (rest > 0)
        member.offered = self.policy.sinks

    def _offer(self, member: Member) -> None:
        """Put the rows that lost their protection as recent ones on the heap."""
        last = member.cursor - self.policy.recent
        first = member.offered
        if first >= last:
            return
        priorities = self._priorities.get(member.number)
        if priorities is None:
            whole = self.policy.priorities(member.number, 0, self._longest[member.number])
            priorities = self._priorities[member.number] = whole.tolist()
        if member.heap:
            for position in range(first, last):
                heappush(member.heap, (priorities[position], position))
        else:
            member.heap = [(priorities[position], position) for position in range(first, last)]
            heapify(member.heap)
        member.offered = last

    def _kill(self, member: Member, victims: list[int]) -> None:
        """Let rows die and pages go, in ascending order, and rewind to the last live row."""
        size = self.page_tokens
        dead, alive, table = member.dead, member.alive, member.table
        assert dead is not None
        for position in victims:
            dead[position] = 1
            entry = position // size
            alive[entry] -= 1
            if not alive[entry]:
                page = table[entry]
                assert page is not None
                table[entry] = None
                member.nulls += 1
                self.freed_pages_total += self.pages.let_go(page)
        member.live -= len(victims)
        self.evicted_tokens_total += len(victims)
        if dead[-1]:
            cursor = dead.rfind(0) + 1
            entries = -(-cursor // size)
            # Behind the last live row no page is left: each was let go of.
            member.nulls -= len(table) - entries
            del dead[cursor:], table[entries:], alive[entries:]
            member.cursor = cursor
            member.offered = max(min(member.offered, cursor), self.policy.sinks)
