"""A shared context on the ledger, and the verbs that take a span out of it.

It knows slots and pages; no bytes and no time. Every change goes through verbs of the ledger, so
that a page is copied where, and only where, a sharer would see what is written.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kvsim.lab.studies.quarantine_keys import REWRITES, Quarantine
from kvsim.paging import Ledger

Chunk = tuple[int, int]


@dataclass
class Removal:
    """Sequences that share a context, before and after its span is gone.

    Attributes
    ----------
    ledger : Ledger
    study : Quarantine
    members : list of int
        The sequences, in the order in which they were forked.
    prefilled : list of (int, int)
        Tokens before, and tokens of, each stretch that a removal computed again.
    moved_tail_tokens : int
        Tokens of tails that were carried over to a fork of the rewritten context.
    most_pages : int
        Most pages held inside a verb of the removal.
    """

    ledger: Ledger
    study: Quarantine
    members: list[int] = field(default_factory=list)
    prefilled: list[Chunk] = field(default_factory=list)
    moved_tail_tokens: int = 0
    most_pages: int = 0

    @property
    def context_tokens(self) -> int:
        """Tokens of the context with its span."""
        study = self.study
        return study.prefix_tokens + study.span_tokens + study.suffix_tokens

    def build(self) -> None:
        """Prefill the context, fork it, and let every sequence go on by its tail."""
        root = self.ledger.open()
        self.ledger.append(root, self.context_tokens)
        self._share(root)
        for member in self.members:
            self.ledger.append(member, self.study.tail_tokens)

    def remove(self) -> None:
        """Take the span out of every sequence by the study's method."""
        self.most_pages = self.ledger.held_pages
        method = self.study.method
        if method == "reset":
            self._reset()
        elif method == "reprefill_suffix":
            self._reprefill_suffix()
        elif method in REWRITES and self.study.sharing == "once":
            self._rewrite_once()
        else:
            for member in self.members:
                self._rewrite(member)

    def victims(self) -> np.ndarray:
        """Return the slots that a sequence evicts: the span, or the whole pages inside it."""
        first, last = self.study.prefix_tokens, self.study.prefix_tokens + self.study.span_tokens
        if self.study.method == "keep_aligned":
            page_tokens = self.ledger.page_tokens
            first, last = -(-first // page_tokens) * page_tokens, last // page_tokens * page_tokens
        return np.arange(first, max(first, last), dtype=np.int64)

    def span_left(self) -> np.ndarray:
        """Return the slots of the span that each sequence can still read."""
        if self.study.method != "keep_aligned":
            return np.empty(0, np.int64)
        start = self.study.prefix_tokens
        span = np.arange(start, start + self.study.span_tokens, dtype=np.int64)
        return np.setdiff1d(span, self.victims())

    def slots_read(self) -> int:
        """Return the slots that one decode step of all sequences reads, dead ones included."""
        page_tokens, total = self.ledger.page_tokens, 0
        for member in self.members:
            entries = np.flatnonzero(self.ledger.pages_of(member) >= 0)
            written = self.ledger.cursor(member) - entries * page_tokens
            total += int(np.minimum(page_tokens, written).sum())
        return total

    # What the methods are made of

    def _verb(self, verb: Callable[..., Any], *arguments: Any) -> Any:
        """Call a verb, and note the most pages that were held inside it."""
        ledger, before = self.ledger, self.ledger.held_pages
        outer = ledger.swap_peak(0)
        found = verb(*arguments)
        inner = ledger.swap_peak(outer)
        ledger.swap_peak(max(outer, inner))
        self.most_pages = max(self.most_pages, before + inner, ledger.held_pages)
        return found

    def _share(self, root: int) -> None:
        forks = self.study.fan_out - 1
        self.members = [root, *(self._verb(self.ledger.fork, root) for _ in range(forks))]

    def _rewrite(self, sequence: int) -> None:
        """Evict what the method evicts; positions follow as the ledger's ordering says."""
        victims = self.victims()
        if victims.size:
            self._verb(self.ledger.evict, sequence, [victims])
        if self.study.method == "compact":
            self._verb(self.ledger.compact, sequence)

    def _shorten(self, sequence: int, tokens: int) -> None:
        """Drop everything of a sequence behind its first tokens, which writes nothing."""
        cursor = self.ledger.cursor(sequence)
        if tokens < cursor:
            self._verb(self.ledger.evict, sequence, [np.arange(tokens, cursor)])

    def _free(self, sequences: list[int]) -> None:
        for sequence in sequences:
            self._verb(self.ledger.free, sequence)

    def _rewrite_once(self) -> None:
        """Rewrite a fork without a tail, and let every sequence start again from it.

        Sequences with tails stay until their tails are carried over, so the fork copies what it
        writes. Without tails they go first, and it writes in place.
        """
        old, tail = self.members, self.study.tail_tokens
        trunk = self._verb(self.ledger.fork, old[0])
        self._shorten(trunk, self.context_tokens)
        if not tail:
            self._free(old)
            old = []
        self._rewrite(trunk)
        self._share(trunk)
        for place in range(self.study.fan_out - 1, -1, -1):
            if tail:
                self._verb(self.ledger.append, self.members[place], tail)
                self.moved_tail_tokens += tail
                self._free([old[place]])

    def _compute(self, sequence: int, tokens: int) -> None:
        if tokens:
            self.prefilled.append((self.ledger.cursor(sequence), tokens))
            self._verb(self.ledger.append, sequence, tokens)

    def _reprefill_suffix(self) -> None:
        """Keep the prefix, compute the suffix once for all, and each tail."""
        study = self.study
        root = self.members[0]
        self._free(self.members[1:])
        self._shorten(root, study.prefix_tokens)
        self._compute(root, study.suffix_tokens)
        self._share(root)
        for member in self.members[::-1]:
            self._compute(member, study.tail_tokens)

    def _reset(self) -> None:
        """Drop everything; the first sequence is computed, and others hit its whole pages.

        A hit leaves at least a sequence's last token to compute, as in vLLM.
        """
        study, page_tokens = self.study, self.ledger.page_tokens
        self._free(self.members)
        root = self._verb(self.ledger.open)
        shared = study.prefix_tokens + study.suffix_tokens
        self._compute(root, shared)
        self._share(root)
        hit = min(shared, shared + study.tail_tokens - 1) // page_tokens * page_tokens
        for member in self.members[1:]:
            self._shorten(member, hit)
            self._compute(member, shared - hit + study.tail_tokens)
        self._compute(root, study.tail_tokens)
