"""One case of the matrix, run: forks at several depths, evictions, appends, and what else there is.

What is done follows from the case alone; only rows and scattered victims are drawn.
"""

from __future__ import annotations

import numpy as np

from kvsim.seeds import stream
from kvsim.tensors import streaming
from kvsim.tensors.lanes import LAYOUTS
from kvsim.tensors.proof.lockstep import Lockstep
from kvsim.tensors.proof.matrix import Case, number_of, streams
from kvsim.tensors.proof.shapes import rows_of
from kvsim.tensors.proof.tally import Tally
from kvsim.tensors.proof.watching import streamed_moves

#: Sequences of a page that churn the pool; every other one is freed, which leaves enough pages for
#: the first ones of a prompt and for the copies that its forks make meanwhile.
CHURN = 16
#: Most tokens of a prompt, whatever the page size.
MOST_TOKENS = 300


def run_case(case: Case, seed: int) -> Tally:
    """Run one case and return what was compared. A crash is a failure, with its text."""
    number = number_of(case)
    tally = Tally(cases=1, case=f"case {number}: {case.describe()}")
    try:
        # Odd values overflow on purpose, and uncompiled kernels would warn of it.
        with np.errstate(all="ignore"), streamed_moves() as seen:
            try:
                _Script(case, tally, stream(seed, "test", number)).run()
            finally:
                tally.streamed_cases = int(seen.moves > 0)
                tally.streamed_moves, tally.streamed_rotations = seen.moves, seen.rotations
    except MemoryError:
        raise
    except Exception as crash:  # Whatever it is, the proof has to go on and say so.
        tally.fact(False, f"{type(crash).__name__}: {crash}")
    return tally


class _Script:
    """The verbs of one case."""

    def __init__(self, case: Case, tally: Tally, rng: np.random.Generator) -> None:
        assert case.layout in LAYOUTS
        self.case = case
        self.tally = tally
        self.rng = rng
        self.both = Lockstep(
            rows_of(case.family, case.rotation, case.planes),
            case.page_tokens,
            tally,
            rng,
            tables=case.tables,
            per_set=case.span == "per_set",
            odd=case.values == "odd",
            compaction=case.compaction,
            unit=case.unit,
            positions=case.positions,
            append=case.append,
            keys=case.keys,
            # Freed pages come back first only where their coming back is what is looked at.
            order="lifo" if case.pages == "churned" or case.reuse == "yes" else "fifo",
            layout=case.layout,
            # Rows that cannot stream leave the choice to the store, which has to see that.
            portable=case.kernel == "portable" and self._could_stream,
            # Too few, so that the pool has to grow in the middle.
            pages=8,
        )

    def run(self) -> None:
        case, both = self.case, self.both
        tokens = min(3 * case.page_tokens + case.page_tokens // 2 + 4, MOST_TOKENS)
        neighbour = both.open()
        both.append(neighbour, 2 * case.page_tokens + 1)
        churned = self._churn() if case.pages == "churned" else []
        parent = both.open()
        children = self._grow(parent, tokens)
        if churned:
            self._assert_not_ascending(parent)
        for sequence in churned:
            both.free(sequence)
        both.verify("forked")
        if case.family == "wide" and case.keys == "float32":
            self._assert_streams()
        both.tight = case.ceiling == "tight"
        if case.aside == "reserve":
            both.reserve(parent, 2 * case.page_tokens)
            both.verify("reserved")
        for number in range(case.rounds):
            if case.evicts in ("parent", "both"):
                self._evict(parent)
                both.verify(f"parent's eviction {number}")
            if case.evicts in ("child", "both"):
                for child in children[:1] if case.evicts == "child" else children:
                    self._evict(child)
                both.verify(f"children's eviction {number}")
            if number == 0:
                if case.aside == "swap":
                    parent = both.swap(parent)
                if case.aside == "clone":
                    children.append(both.clone(parent))
                if case.reuse == "yes":
                    self._reuse(neighbour)
                if case.aside in ("swap", "clone") or case.reuse == "yes":
                    both.verify("set aside or reused")
            # Compared behind the next eviction, or here behind the last one.
            for sequence in (parent, *children):
                both.append(sequence, case.page_tokens // 2 + 1)
        both.verify("appended")
        for sequence in sorted(both.twins):
            both.free(sequence)
        both.verify("freed")
        self.tally.fact(both.paged.ledger.held_pages == 0, "pages are held by nobody")

    def _churn(self) -> list[int]:
        """Open sequences of a page each, free every other one, and return those that live."""
        numbers = []
        for _ in range(CHURN):
            numbers.append(self.both.open())
            self.both.append(numbers[-1], 1)
        for sequence in numbers[::2]:
            self.both.free(sequence)
        return numbers[1::2]

    def _grow(self, parent: int, tokens: int) -> list[int]:
        """Append the prompt in pieces and fork at their ends; every third fork is of a fork."""
        both, forks = self.both, self.case.forks
        children: list[int] = []
        cuts = np.linspace(0, tokens, forks + 2).astype(int)[1:]
        # The first page comes alone, so that those of a churned table lie below it.
        both.append(parent, 1)
        done = 1
        for number, cut in enumerate(cuts):
            both.append(parent, int(cut) - done)
            done = int(cut)
            if number < forks:
                of = children[-1] if number % 3 == 2 else parent
                children.append(both.fork(of))
                both.append(children[-1], number)
        # The last fork shares everything: its first write is the eviction's.
        if forks:
            children.insert(0, both.fork(parent))
            if len(children) > forks:
                both.free(children.pop())
        return children

    def _evict(self, sequence: int) -> None:
        page = self.case.page_tokens
        there = self.both.twins[sequence][0].next_position
        spans = {
            "aligned": (page, page),
            "unaligned": (page // 2 + 1, page + 1),
            "start": (0, page + 1),
            # The count runs past the end, which clamps it.
            "tail": (max(there - page // 2 - 1, 0), 2 * page),
            "everything": (0, there),
            "one": (there // 2, 1),
        }
        if self.case.span in spans:
            self.both.evict_span(sequence, *spans[self.case.span])
            return
        # Where each set has its own victims, all drop equally many and keep the newest token, so
        # that a new token has one position.
        alike = self.case.span == "scattered"
        lists = []
        for twin in self.both.twins[sequence]:
            last = twin.pos.size - (not alike)
            count = twin.pos.size // (2 if alike else 3)
            lists.append(np.sort(self.rng.choice(twin.pos[:last], min(count, last), False)))
        self.both.evict(sequence, lists)

    def _reuse(self, neighbour: int) -> None:
        """End a neighbour; another sequence takes its pages while the first ones live."""
        before = self._pages(neighbour)
        self.both.free(neighbour)
        newcomer = self.both.open()
        self.both.append(newcomer, self.case.page_tokens + 1)
        self.tally.fact(bool(before & self._pages(newcomer)), "no freed page was used again")

    def _pages(self, sequence: int) -> set[int]:
        ledger = self.both.paged.ledger
        scopes = range(ledger.geometry.scope_units)
        return {page for scope in scopes for page in ledger.pages_of(sequence, scope).tolist()}

    def _assert_not_ascending(self, sequence: int) -> None:
        ledger = self.both.paged.ledger
        for scope in range(ledger.geometry.scope_units):
            pages = ledger.pages_of(sequence, scope)
            self.tally.fact(bool((np.diff(pages) < 0).any()), "the churned table is ascending")

    @property
    def _could_stream(self) -> bool:
        return streams(self.case.family, self.case.keys, self.case.rotation)

    def _assert_streams(self) -> None:
        """Rows of whole lines that turn as a whole, or not at all, are moved by that kernel."""
        if self.case.planes != "kv_raw" and not self._could_stream:
            return  # Nothing turns when it moves, so the store may stream copies.
        asked = self.case.kernel == "streaming" and streaming.STREAMS
        found = set(self.both.paged.store._streams)
        self.tally.fact(found == {asked}, "not the kernel that was asked for")
