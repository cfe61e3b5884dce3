"""The batch of the process-per-request baseline: who waits, who runs, and what a step gives them.

Decoding, prefilling, admission, preemption and publication, in the order of docs/serving.md.
Knows no time and no SimPy.
"""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush

from kvsim.bench.engine_process_members import Evicting, Keys, Member
from kvsim.bench.engine_process_pages import Pages
from kvsim.bench.engine_report import Terms
from kvsim.workload.requests import Requests


class Batch:
    """Waiting and running members, and the totals of what was done for them.

    Parameters
    ----------
    requests : Requests
    terms : Terms

    Attributes
    ----------
    running, chunks : list of Member
        In running order; and those that compute a chunk in the step under way.
    admitted : list of Member
        Those of the latter that had no seat before.
    seats : int
        Taken seats, those of samples that have not been forked yet included.
    leaving : bool
        Whether a running member is finished.
    budget : int
        Tokens that the step still has to give.
    decode_tokens, decode_reads, prefill_tokens, prefill_reads, prefill_pairs, moved_rows : int
        What the step under way computes, reads and copies.
    """

    def __init__(self, requests: Requests, terms: Terms) -> None:
        self.terms = terms
        self.size = requests.page_tokens
        self.pages = Pages(terms.ceiling_pages, terms.unhashed)
        self.keys = Keys(requests) if terms.cache == "blocks" else None
        self.evicting: Evicting | None = None
        if terms.eviction is not None:
            self.evicting = Evicting(terms.eviction, self.pages, requests)
        self.watermark = int(terms.watermark * terms.ceiling_pages)
        self.fcfs = terms.order == "fcfs"
        # Under FCFS members, otherwise a heap of (rank, member): ranks differ.
        self.waiting: deque[Member] = deque()
        self.ranked: list[tuple[tuple[int, int, int, int], Member]] = []
        self.running: list[Member] = []
        self.chunks: list[Member] = []
        self.admitted: list[Member] = []
        self.seats = 0
        self.leaving = False
        self.budget = 0
        self.decode_tokens = self.decode_reads = 0
        self.prefill_tokens = self.prefill_reads = self.prefill_pairs = 0
        self.moved_rows = 0
        self.hits_total = self.cow_pages_total = self.copied_rows_total = 0
        self.preemptions_total = self.finished = 0
        self.preemptions = [0] * len(requests)
        self.hit_tokens = [0] * len(requests)

    def schedule(self) -> bool:
        """Give out one step; tell whether a member was preempted in it."""
        before = self.preemptions_total
        self.chunks = []
        self.admitted = []
        self.prefill_tokens = self.prefill_reads = self.prefill_pairs = 0
        self.decode_tokens = self.decode_reads = self.moved_rows = 0
        self.budget = self.terms.step_tokens
        self._decode()
        self._prefill()
        preempted = self.preemptions_total > before
        if not preempted:
            self._admit()
        return preempted

    def fork(self, member: Member) -> list[Member]:
        """Fork a member whose prefill is complete as often as it has samples; return the forks."""
        forks = [member.fork(sample) for sample in range(1, member.seats)]
        for twin in forks:
            for page in twin.table:
                if page is not None:
                    self.pages.touch(page)
        member.seats = 1
        self.running.extend(forks)
        return forks

    def wait(self, member: Member, in_front: bool = False) -> None:
        """Put a member into the waiting queue."""
        if not self.fcfs:
            heappush(self.ranked, (member.rank, member))
        elif in_front:
            self.waiting.appendleft(member)
        else:
            self.waiting.append(member)

    def leave(self) -> None:
        """Free the members that generated their last token, in running order."""
        staying = []
        for member in self.running:
            if not member.finished:
                staying.append(member)
                continue
            self._free(member)
            self.seats -= member.seats
            self.finished += 1
            if self.evicting is not None:
                self.evicting.forget(member.number)
        self.running = staying
        self.leaving = False

    def _free(self, member: Member) -> None:
        """Let go of all pages, from the last to the first."""
        let_go = self.pages.let_go
        for page in reversed(member.table):
            if page is not None:
                let_go(page)

    def _decode(self) -> None:
        """Write one row for each decoding member, in running order."""
        pages = self.pages
        refcount = pages.refcount
        size = self.size
        publishing = self.keys is not None
        reads = tokens = 0
        # A copy, because preemption takes members off the list under way.
        for member in list(self.running):
            if not member.decoding:
                continue
            offset = member.cursor % size
            table = member.table
            if not offset:
                if not self._room_for(member, 1):
                    continue
                table.append(pages.allocate())
            else:
                last = table[-1]
                if refcount[last] > 1 and not self._own_last(member, offset):  # type: ignore[index]
                    continue
                if member.evicted:
                    # Rows that died behind its last live row are written anew.
                    pages.forget(table[-1])  # type: ignore[arg-type]
            cursor = member.cursor = member.cursor + 1
            member.rows = 1
            tokens += 1
            reads += cursor
            if member.dead is not None:
                member.dead.append(0)
                member.live += 1
                if offset:
                    member.alive[-1] += 1
                else:
                    member.alive.append(1)
                reads -= member.nulls * size
            if publishing and not cursor % size:
                self._publish(member, cursor - 1)
        # Rows of victims are taken back where they are preempted, even within this loop.
        self.decode_tokens += tokens
        self.decode_reads += reads
        self.budget -= tokens

    def _own_last(self, member: Member, rows: int) -> bool:
        """Copy a shared last page on write; tell whether the member itself still runs.

        A victim on the way may be the one that shared the page. Then no copy is needed.
        """
        pages = self.pages
        shared = member.table[-1]
        assert shared is not None
        while not pages.left:
            if self._preempt() is member:
                return False
            if pages.refcount[shared] == 1:
                return True
        member.table[-1] = pages.allocate()
        pages.let_go(shared)
        self.cow_pages_total += 1
        self.copied_rows_total += rows
        self.moved_rows += rows
        return True

    def _prefill(self) -> None:
        """Compute a chunk for each member that has tokens to compute, in running order."""
        for member in [m for m in self.running if not m.decoding]:
            tokens = min(member.known - member.cursor, self.budget)
            if not member.running or tokens <= 0:
                continue
            need = -(-(member.cursor + tokens) // self.size) - len(member.table)
            if self._room_for(member, need):
                self._compute(member, tokens, need)

    def _compute(self, member: Member, tokens: int, need: int) -> None:
        """Give a member the rows of a chunk, for which there is room."""
        allocate = self.pages.allocate
        before = member.cursor
        member.table.extend([allocate() for _ in range(need)])
        member.cursor += tokens
        member.rows = tokens
        self.chunks.append(member)
        self.budget -= tokens
        self.prefill_tokens += tokens
        self.prefill_reads += before + tokens
        self.prefill_pairs += before * tokens + tokens * (tokens + 1) // 2
        if self.keys is not None:
            self._publish(member, before)

    def _publish(self, member: Member, before: int) -> None:
        """Enter the pages that became full, unless something was ever evicted."""
        if member.evicted:
            return
        assert self.keys is not None
        full = member.cursor
        if self.terms.publish == "prompt":
            full = min(full, member.inputs)
        for entry in range(before // self.size, full // self.size):
            page = member.table[entry]
            assert page is not None
            self.pages.publish(page, self.keys.of(member, entry))

    def _room_for(self, member: Member, need: int) -> bool:
        """Preempt until there are so many pages; tell whether the member itself still runs."""
        while need > self.pages.left:
            if self._preempt() is member:
                return False
        return True

    def _preempt(self) -> Member:
        """Send one running member back to the queue, with nothing computed."""
        if self.fcfs:
            victim = self.running.pop()
        else:
            victim = max(self.running, key=lambda member: member.rank)
            self.running.remove(victim)
        if victim.rows:
            self._withdraw(victim)
        if victim.decoding:
            victim.most = max(victim.most, victim.known - 1)
        self._free(victim)
        self.seats -= victim.seats
        self.preemptions_total += 1
        self.preemptions[victim.number] += 1
        victim.restart()
        self.wait(victim, in_front=True)
        return victim

    def _withdraw(self, victim: Member) -> None:
        """Take back the row of a victim in this step.

        It decodes: at most one member at a time is in the middle of its prefill, because nobody
        is admitted before the budget has served all of those, so it has no chunk yet.
        """
        self.decode_tokens -= 1
        self.budget += 1
        self.decode_reads -= victim.cursor - victim.nulls * self.size
        victim.rows = 0
        if not victim.cursor % self.size:
            # The page that this row would have filled is never going to be.
            full = victim.table[-1]
            assert full is not None
            self.pages.forget(full)

    def _hits(self, member: Member) -> list[int]:
        """Return the leading pages that the prefix index has."""
        found: list[int] = []
        if self.keys is not None:
            for entry in range((member.known - 1) // self.size):
                page = self.pages.index.get(self.keys.of(member, entry))
                if page is None:
                    break
                found.append(page)
        return found

    def _admit(self) -> None:
        """Admit from the head of the queue while budget, seats and pages allow it."""
        pages = self.pages
        while self.budget > 0 and self.anyone_waits():
            member = self.waiting[0] if self.fcfs else self.ranked[0][1]
            hits = self._hits(member)
            known = len(hits) * self.size
            tokens = min(member.known - known, self.budget)
            if known + tokens < member.known and not self.terms.chunked:
                return
            if self.seats + member.seats > self.terms.max_running:
                return
            need = -(-(known + tokens) // self.size) - len(hits)
            idle = sum(not pages.refcount[page] for page in hits)
            if need + idle > pages.left - (self.watermark if self.running else 0):
                return
            if self.fcfs:
                self.waiting.popleft()
            else:
                heappop(self.ranked)
            for page in hits:
                pages.touch(page)
            member.table.extend(hits)
            member.cursor = known
            member.running = True
            self.hits_total += known
            if member.sample == 0:
                self.hit_tokens[member.number] = known
            self.running.append(member)
            self.admitted.append(member)
            self.seats += member.seats
            self._compute(member, tokens, need)

    def refusal(self) -> str:
        """Say why the head of the queue is not admitted although nobody runs."""
        member = self.waiting[0] if self.fcfs else self.ranked[0][1]
        terms = self.terms
        if member.seats > terms.max_running:
            needs = f"{member.seats} seats and there are {terms.max_running}"
        elif member.known > terms.step_tokens and not terms.chunked:
            needs = f"{member.known} tokens in a step and there are {terms.step_tokens}"
        else:
            least = min(member.known, terms.step_tokens)
            needs = f"at least {-(-least // self.size)} pages and there are {self.pages.left}"
        return f"request {member.number} needs {needs}"

    def evict(self) -> None:
        """Evict from the members whose turn it is, in running order."""
        if self.evicting is None:
            return
        stepwise = self.evicting.policy.when == "step"
        for member in self.running:
            if member.decoding and (stepwise or member.due):
                member.due = False
                self.evicting.evict(member)

    def anyone_waits(self) -> bool:
        """Tell whether the waiting queue has a head."""
        return bool(self.waiting or self.ranked)
