"""A serving engine with a radix cache, read a second time: docs/serving.md in plain Python.

First come first served, recompute, one sample, a fixed ceiling, and steps of equal length. It
counts pages and has no page numbers: what is held are locked pages of the tree and pages that
requests have to themselves.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.oracles.radix_tree import Node, RadixTree


class Stuck(Exception):
    """Nobody runs and the first waiting request does not fit."""


@dataclass
class Member:
    """A request; `tokens` are those of its prompt and of all that it is going to generate."""

    number: int
    arrival: int
    prompt: int
    output: int
    tokens: list[int]
    generated: int = 0
    rows: int = 0
    decodes: bool = False
    chunk: int = 0
    wrote: bool = False
    node: Node | None = None
    in_tree: int = 0
    own: int = 0
    hits: int = 0
    finished_at: int = -1

    @property
    def known(self) -> int:
        """Tokens that a prefill has to compute."""
        return self.prompt + self.generated


@dataclass
class Engine:
    """The step loop. `seen` has a row for each step, taken when its leavers are gone."""

    page_tokens: int
    ceiling: int
    step_tokens: int
    seats: int
    chunked: bool
    members: list[Member]
    publish_generated: bool = True
    seen: list[tuple[int, ...]] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Begin with nothing in the tree."""
        self.tree = RadixTree(self.page_tokens)
        self.running: list[Member] = []
        self.waiting: list[Member] = []
        self.to_come = list(self.members)
        self.now = 0
        self.steps = 0
        self.hits = 0
        self.preemptions = 0
        self.preempted = False
        self.budget = 0

    # Pages

    @property
    def held(self) -> int:
        """Pages that somebody needs."""
        return self.tree.pages(locked=True) + sum(member.own for member in self.running)

    def take(self, member: Member, pages: int) -> None:
        """Give a member pages of its own, evicting leaves where too few are free."""
        free = self.ceiling - self.held - self.tree.pages(locked=False)
        if free < pages:
            self.tree.evict(pages - free)
        member.own += pages
        assert self.held + self.tree.pages(locked=False) <= self.ceiling

    def pages_for(self, rows: int) -> int:
        """Return how many pages so many rows take."""
        return -(-rows // self.page_tokens)

    # What members go through

    def inserted(self, member: Member) -> list[int]:
        """Return the tokens under which a member's pages are inserted."""
        rows = member.rows if self.publish_generated else min(member.rows, member.prompt)
        return member.tokens[: max(rows, member.in_tree * self.page_tokens)]

    def leave(self, member: Member) -> None:
        """Insert what a member has, and give all of it up."""
        self.tree.insert(self.inserted(member))
        assert member.node is not None
        self.tree.lock(member.node, -1)
        member.node, member.in_tree, member.own = None, 0, 0
        self.running.remove(member)

    def preempt(self) -> Member:
        """Let the last of the running order wait again."""
        victim = self.running[-1]
        if victim.decodes:
            victim.rows -= victim.wrote
            self.budget += 1
        else:
            # What it computed in this step is withdrawn, and was not inserted yet.
            victim.rows -= victim.chunk
            self.budget += victim.chunk
        self.leave(victim)
        victim.rows, victim.decodes, victim.wrote, victim.chunk, victim.hits = 0, False, False, 0, 0
        self.waiting.insert(0, victim)
        self.preempted = True
        self.preemptions += 1
        return victim

    def room(self, member: Member, rows: int) -> bool:
        """Find pages for rows of a running member, preempting; tell whether it still runs."""
        while True:
            need = self.pages_for(member.rows + rows) - member.in_tree - member.own
            if self.held + need <= self.ceiling:
                self.take(member, need)
                return True
            if self.preempt() is member:
                return False

    # A step

    def run(self, most_steps: int) -> None:
        """Run until all is done, or for so many steps."""
        while True:
            for member in [m for m in self.running if m.decodes and m.generated == m.output]:
                member.finished_at = self.now
                self.leave(member)
            if self.steps > len(self.seen):
                cached = self.tree.pages(locked=False)
                counts = (self.hits, self.preemptions, self.tree.splits, len(self.tree.evicted))
                self.seen.append((self.held, cached, len(self.running), *counts))
            if self.steps >= most_steps:
                return
            while self.to_come and self.to_come[0].arrival <= self.now:
                self.waiting.append(self.to_come.pop(0))
            if not self.step():
                return

    def step(self) -> bool:
        """Take a step, or idle; tell whether anything is left."""
        self.preempted = False
        for member in self.running:
            member.chunk, member.wrote = 0, False
        self.budget = 0
        for member in [m for m in self.running if m.decodes]:
            if member in self.running and self.room(member, 1):
                member.rows += 1
                member.wrote = True
        self.budget = self.step_tokens - sum(member.decodes for member in self.running)
        for member in [m for m in self.running if not m.decodes]:
            chunk = min(member.known - member.rows, self.budget)
            if member in self.running and chunk > 0 and self.room(member, chunk):
                self.compute(member, chunk)
        while not self.preempted and self.waiting and self.admit(self.waiting[0]):
            pass
        if not any(member.wrote or member.chunk for member in self.running):
            return self.idle()
        self.steps += 1
        self.now += 1
        self.end()
        return True

    def compute(self, member: Member, chunk: int) -> None:
        """Book a chunk."""
        member.rows += chunk
        member.chunk = chunk
        self.budget -= chunk

    def admit(self, member: Member) -> bool:
        """Admit the first waiting request, if it fits."""
        if not self.budget or len(self.running) == self.seats:
            return False
        most = (member.known - 1) // self.page_tokens * self.page_tokens
        found, unlocked = self.tree.peek(member.tokens[:most])
        hit = found * self.page_tokens
        chunk = min(member.known - hit, self.budget)
        if not self.chunked and chunk < member.known - hit:
            return False
        fresh = self.pages_for(hit + chunk) - found
        if fresh + unlocked > self.ceiling - self.held:
            return False
        _, member.node = self.tree.match(member.tokens[:most])
        self.tree.lock(member.node)
        member.in_tree, member.rows, member.hits = found, hit, hit
        self.hits += hit
        self.waiting.pop(0)
        self.running.append(member)
        self.take(member, fresh)
        self.compute(member, chunk)
        return True

    def idle(self) -> bool:
        """Wait for the next arrival; tell whether there is one."""
        if self.preempted:
            return True
        if self.waiting:
            raise Stuck
        if not self.to_come:
            return False
        self.now = max(self.now, self.to_come[0].arrival)
        return True

    def end(self) -> None:
        """Insert what was computed, then generate."""
        for member in self.running:
            if not member.decodes and member.chunk:
                pages = len(self.tree.cut(self.inserted(member)))
                _, node = self.tree.insert(self.inserted(member))
                assert member.node is not None
                self.tree.lock(node)
                self.tree.lock(member.node, -1)
                member.own -= pages - member.in_tree
                member.node, member.in_tree = node, pages
        for member in self.running:
            if member.decodes:
                member.generated += 1
            elif member.rows == member.known:
                member.decodes = True
                member.generated += member.output > 0
