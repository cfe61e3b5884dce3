"""A ledger and two oracles in lockstep: each verb goes to all three, and then they must agree.

Knows nothing about who chooses the verbs: a state machine, a script or a mutant's run may.
"""

from __future__ import annotations

import numpy as np
from oracles.contiguous import Contiguous
from oracles.pages import BadVictim, Pages

from differential.agreement import agree
from differential.cases import CUTS, UNIT_BYTES, geometry_of
from differential.paths import Paths
from differential.rowstore import RowStore, digest
from kvsim.errors import CeilingExceeded, VictimError
from kvsim.paging.ledger import Ledger


class Lockstep:
    """One ledger, the pages oracle and the contiguous oracle.

    Parameters
    ----------
    case : (scope, sets)
    page_tokens, ceiling, order
        As in Ledger.
    note : callable, optional
        Told the name of every path that was reached.
    rows : bool
        Whether the ledger has a store of rows to watch, or only counts.
    """

    def __init__(self, case, page_tokens, ceiling=0, order="fifo", note=None, rows=True):
        scope, sets = case
        self.unit_scope, self.unit_set = CUTS[scope], CUTS[sets]
        self.sets = max(self.unit_set) + 1
        self.page_tokens = page_tokens
        self.store = RowStore(self.unit_scope, self.unit_set, page_tokens) if rows else None
        self.ledger = Ledger(
            geometry_of(case), page_tokens, ceiling_pages=ceiling, order=order, store=self.store
        )
        self.pages = Pages(self.unit_scope, self.unit_set, UNIT_BYTES, page_tokens, ceiling, order)
        self.cache = Contiguous(self.unit_scope, self.unit_set)
        self.paths = Paths(self, note or (lambda path: None))
        self.tokens = 0
        self.pages.supply(self.ledger.refcounts().size)

    # Verbs

    def open(self):
        """Open a sequence in all three."""
        number = self.ledger.open()
        self.paths.opened(number, "open")
        self.pages.open(number)
        self.cache.open(number)
        agree(self)
        return number

    def append(self, sequence, tokens):
        """Append, or see the ledger refuse and change nothing. Returns whether it was done."""
        if self._must_refuse(sequence, tokens):
            with self._refused("append", CeilingExceeded) as refusal:
                self.ledger.append(sequence, tokens)
            self._check_refusal(refusal.error, sequence, tokens)
            return False
        new = self._new_rows(tokens)
        blocks = [new[np.array(self.unit_scope) == scope] for scope in self.pages.scopes]
        self.ledger.append(sequence, tokens, None if self.store is None else blocks)
        self.pages.supply(self.ledger.refcounts().size)
        self._append_to_oracles("append", sequence, new)
        agree(self)
        return True

    def advance(self, sequences, steps):
        """Advance a batch; after a refusal what came before it stands. Returns appends done."""
        refusal = None
        try:
            self.ledger.advance(np.array(sequences, np.int64), steps)
        except CeilingExceeded as error:
            refusal = error
        self.pages.supply(self.ledger.refcounts().size)
        todo, done, first = list(sequences) * steps, 0, self.tokens
        while done < len(todo) and not self._must_refuse(todo[done], 1):
            self._append_to_oracles("advance", todo[done], self._new_rows(1))
            done += 1
            if done % len(sequences) == 0:
                self.pages.end_step()
        assert (refusal is None) == (done == len(todo)), "advance stopped at another place"
        if refusal is not None:
            self._check_refusal(refusal, todo[done], 1)
            self.paths.note("advance refused midway" if done else "advance refused at once")
        for sequence in dict.fromkeys(todo[:done]):
            self._write_behind(sequence, first)
        agree(self)
        return done

    def fork(self, parent):
        """Fork in all three. Returns the child."""
        child = self.ledger.fork(parent)
        self.paths.opened(child, "fork")
        self.paths.forks(parent, child)
        self.pages.fork(parent, child)
        self.cache.fork(parent, child)
        agree(self)
        return child

    def evict(self, sequence, victims, shape="some"):
        """Evict what each set is told to drop; the order of a list must not matter."""
        before = self.paths.picture(sequence)
        self.ledger.evict(sequence, [np.array(slots[::-1], np.int64) for slots in victims])
        self.pages.evict(sequence, victims)
        self.cache.evict(sequence, victims)
        self.paths.evicted(sequence, before, victims, shape)
        agree(self)

    def evict_badly(self, sequence, victims):
        """Name victims that are none: the ledger must refuse as the oracle does."""
        try:
            self.pages.evict(sequence, victims)
        except BadVictim:
            with self._refused("evict", VictimError):
                self.ledger.evict(sequence, [np.array(slots, np.int64) for slots in victims])
        else:
            raise AssertionError("the oracle finds nothing wrong with these victims")

    def free(self, sequence):
        """Free in all three."""
        self.paths.frees(sequence)
        self.ledger.free(sequence)
        self.pages.free(sequence)
        self.cache.free(sequence)
        agree(self)

    def end_step(self):
        """Sample the peak of held pages."""
        self.ledger.end_step()
        self.pages.end_step()
        agree(self)

    # What the chooser may ask

    def sequences(self):
        """Return the open sequences, ascending."""
        return sorted(self.pages.tables)

    def retained(self, sequence, which):
        """Return the slots that a set retains, ascending."""
        return self.pages.retained(sequence, which)

    def physical(self, sequence, scope, slots):
        """Return the physical slots behind some of a table's slots."""
        pages = self.ledger.pages_of(sequence, scope)[slots // self.page_tokens]
        assert (pages >= 0).all(), "a retained slot lies behind a null entry"
        return pages * self.page_tokens + slots % self.page_tokens

    def agree_stored(self, unit, slots, expected):
        """Assert that physical slots hold the rows of `expected`, a list of (position, row)."""
        assert self.store.rows[unit, slots].tolist() == [row for _, row in expected]

    # The inside

    def _must_refuse(self, sequence, tokens):
        need = self.pages.needed(sequence, tokens)
        return bool(self.pages.ceiling) and need > self.pages.room()

    def _refused(self, verb, error):
        return Refusal(self, verb, error)

    def _check_refusal(self, refusal, sequence, tokens):
        assert refusal.needed_pages == self.pages.needed(sequence, tokens)
        assert refusal.free_pages == self.pages.room()
        assert f"needs {refusal.needed_pages} pages" in str(refusal)

    def _new_rows(self, tokens):
        """Return rows [unit, token] that no other token or unit has."""
        units = len(self.unit_scope)
        new = np.arange(self.tokens, self.tokens + tokens) * units + np.arange(units)[:, None]
        self.tokens += tokens
        return new

    def _append_to_oracles(self, verb, sequence, new):
        copied = self.pages.flows["cow_pages_total"]
        self.pages.append(sequence, new.shape[1])
        self.cache.append(sequence, new.tolist())
        self.paths.appended(verb, sequence, new.shape[1], copied)

    def _write_behind(self, sequence, first):
        """Write the rows of the tokens from `first` on: `advance` takes no rows itself."""
        if self.store is None:
            return
        units = len(self.unit_scope)
        for unit, scope in enumerate(self.unit_scope):
            pairs = [pair for pair in self.cache.rows[sequence][unit] if pair[1] >= first * units]
            positions, rows = np.array(pairs, np.int64).T
            self.store.rows[unit, self.physical(sequence, scope, positions)] = rows


class Refusal:
    """A block in which a verb must be refused and must leave every array as it was."""

    def __init__(self, step, verb, error):
        self.step, self.verb, self.expected = step, verb, error
        self.error = None

    def __enter__(self):
        self.before = digest(self.step.ledger)
        return self

    def __exit__(self, kind, error, trace):
        if error is None:
            raise AssertionError(f"{self.verb} was not refused")
        if not isinstance(error, self.expected):
            return False
        self.error = error
        assert digest(self.step.ledger) == self.before, f"a refused {self.verb} changed an array"
        self.step.paths.note(f"{self.verb} refused")
        return True
