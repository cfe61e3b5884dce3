"""The loop view -> score -> select -> evict -> compact, for every sequence of one ledger.

The loop remembers which token each retained row is; the ledger alone decides what is live,
empty and freed. Beside the ledger runs its dense twin: the same verbs without any eviction.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from kvsim.errors import CeilingExceeded, Infeasible, LedgerError
from kvsim.eviction.arrival import arrival_sinks
from kvsim.eviction.state import RowSource, Rules, Signals, Tracked
from kvsim.paging import Ledger, steps
from kvsim.policies import registry
from kvsim.policies.base import Policy
from kvsim.policies.selection import Places, select
from kvsim.policies.view import View

FORKS_FROM = 1 << 32  # Signals of forks are numbered from here, above those of any request.


class EvictionLoop:
    """One ledger, its dense twin, one policy, and the tokens of all its sequences.

    Parameters
    ----------
    ledger, dense : Ledger
        The ledger and its twin of scope `sequence` in which nothing is evicted.
    policy : Policy
    name : str
        The policy's name, for messages.
    rules : Rules
    set_shape, unit_shape : tuple of int
    rng : numpy.random.Generator
    row_source : RowSource, optional
        Rows of new tokens, if the ledger's store is to hold any.
    observe : callable
        Called with "before", "evicted" and "after" around each eviction and its compaction;
        the kernel, which takes victims without a word, is then not asked to.
    leaps : bool
        Whether the kernel may take many decode steps in one call; without, `end_step` is called
        after each, with the same results.

    Attributes
    ----------
    refused_verbs_total : int
        Verbs that the ceiling refused: appends tried again after an eviction, evictions and
        compactions that were left out.
    finished_tokens_total : int
        Tokens of sequences that are finished.
    """

    def __init__(
        self,
        ledger: Ledger,
        dense: Ledger,
        policy: Policy,
        name: str,
        rules: Rules,
        set_shape: tuple[int, int],
        unit_shape: tuple[int, int],
        rng: np.random.Generator,
        row_source: RowSource | None = None,
        observe: Callable[[str], None] | None = None,
        leaps: bool = True,
    ) -> None:
        self.ledger = ledger
        self.dense = dense
        self.policy = policy
        self.name = name
        self.rules = rules
        self.set_shape = set_shape
        self.unit_shape = unit_shape
        self.rng = rng
        self.row_source = row_source
        self.observe = observe
        self.leaps = leaps
        self.tracked: dict[int, Tracked] = {}
        self.refused_verbs_total = 0
        self.finished_tokens_total = 0
        self._forks = 0
        self._sinks = arrival_sinks(policy, name)

    def open(self, signals: Signals) -> int:
        """Return the number of a new sequence, the same in the ledger and in its twin."""
        sequence = self.ledger.open()
        if self.dense.open() != sequence:
            raise LedgerError("the ledger and its dense twin number sequences differently")
        empty = [np.zeros(0, np.int64) for _ in range(self.ledger.geometry.sets)]
        self.tracked[sequence] = Tracked(signals=signals, tokens=empty)
        return sequence

    def append(self, sequence: int, tokens: int) -> None:
        """Append tokens to a sequence; every set retains them.

        Under a ceiling that refuses, the policy evicts first and the append is tried once more.

        Raises
        ------
        Infeasible
            If it is refused again.
        """
        try:
            self._append(sequence, tokens)
        except CeilingExceeded as refusal:
            self.refused_verbs_total += 1
            if not self.tracked[sequence].appended or not self.evict(sequence):
                raise Infeasible(f"{refusal}, and nothing is left to evict") from None
            try:
                self._append(sequence, tokens)
            except CeilingExceeded as again:
                raise Infeasible(f"{again}, after evicting to the budget") from None

    def _append(self, sequence: int, tokens: int) -> None:
        state = self.tracked[sequence]
        rows = None
        if self.row_source is not None:
            rows = self.row_source.rows(self.ledger, sequence, state.appended, tokens)
        self.ledger.append(sequence, tokens, rows)
        self.dense.append(sequence, tokens)
        state.add(tokens)

    def prefill(self, sequence: int, tokens: int) -> None:
        """Append a prompt, or a chunk of one; a policy that works before paging chooses first.

        Raises
        ------
        Infeasible
            If the ceiling refuses, or more tokens are protected than the budget keeps.
        """
        state = self.tracked[sequence]
        if not self.policy.before_paging or state.appended:
            self.append(sequence, tokens)
            return
        state.add(tokens)
        view, _ = self._view(state)
        target = self.rules.target(tokens)
        victims = select(
            view,
            registry.scores(self.policy, view, self.name),
            self._protected(view),
            target,
            granularity="token",
            window_tokens=self.rules.window_tokens,
            places=None,
        ).reshape(view.sets, tokens)
        kept = [np.flatnonzero(~out) for out in victims]
        rows = None
        if self.row_source is not None:
            rows = self.row_source.chosen(self.ledger, sequence, kept)
        try:
            self.ledger.append_kept(sequence, kept, tokens, rows)
        except CeilingExceeded as refusal:
            raise Infeasible(str(refusal)) from None
        self.dense.append(sequence, tokens)
        state.tokens = kept

    def fork(self, parent: int) -> int:
        """Return the number of a new sequence that shares all pages of `parent`."""
        child = self.ledger.fork(parent)
        if self.dense.fork(parent) != child:
            raise LedgerError("the ledger and its dense twin number sequences differently")
        state = self.tracked[parent]
        # Sequence numbers are used again; the numbers of random streams must not be.
        self._forks += 1
        signals = state.signals.fork(FORKS_FROM + self._forks)
        self.tracked[child] = Tracked(signals, state.appended, list(state.tokens))
        if self.row_source is not None:
            self.row_source.fork(parent, child, state.appended)
        return child

    def finish(self, sequence: int) -> None:
        """End a sequence."""
        self.ledger.free(sequence)
        self.dense.free(sequence)
        self.finished_tokens_total += self.tracked.pop(sequence).appended

    def end_step(self) -> None:
        """Sample the peaks that are taken at the end of a step."""
        self.ledger.end_step()
        self.dense.end_step()

    def step(self, sequences: list[int], most: int, evicting: list[int]) -> int:
        """Take up to `most` decode steps: a token for each sequence, then some are evicted.

        Returns
        -------
        int
            Steps taken, at least 1: a policy that Python has to score stops after each.
        """
        silent = self.observe is None and evicting == sequences and self._oldest_first()
        if not (self.leaps and self.row_source is None and (silent or not evicting)):
            for sequence in sequences:
                self.append(sequence, 1)
            for sequence in evicting:
                self.evict(sequence)
            self.end_step()
            return 1
        return self._leap(sequences, most, steps.OLDEST_FIRST if evicting else steps.NO_EVICTION)

    def _oldest_first(self) -> bool:
        """Tell whether the kernel may take the victims: the oldest tokens, one by one."""
        order = self.ledger.ordering
        return (
            self._sinks is not None
            and self.rules.granularity == "token"
            and (order.compaction, order.append, order.positions) == ("none", "tail", "keep")
        )

    def _leap(self, sequences: list[int], most: int, eviction: int) -> int:
        """Take steps in the kernel; finish here the one that it could not, if any."""
        sinks = max(self.rules.protect_sinks, self._sinks or 0)
        batch = np.array(sequences, np.int64)
        before = np.array([self.tracked[s].appended for s in sequences], np.int64)
        appended = before.copy()
        refused = False
        done = 0
        try:
            done = self.ledger.advance(
                batch,
                most,
                eviction=eviction,
                appended=appended,
                fraction=self.rules.fraction,
                tokens=self.rules.tokens,
                sinks=sinks,
                recent=self.rules.protect_recent,
            )
        except CeilingExceeded:
            refused = True
        taken = appended - before
        for sequence, count in zip(sequences, taken.tolist(), strict=True):
            state = self.tracked[sequence]
            self.dense.append(sequence, count)
            state.add(count)
            live = int(np.count_nonzero(self.ledger.retained(sequence, 0)))
            state.drop_oldest(state.tokens[0].size - live, sinks)
        if done == most:
            return most
        if refused:
            # The members that lack their token of the step under way get it here, where a
            # refusal is answered by evicting.
            for sequence, count in zip(sequences, taken.tolist(), strict=True):
                if count == taken.min():
                    self.append(sequence, 1)
        if eviction != steps.NO_EVICTION:
            for sequence in sequences:
                self.evict(sequence)
        self.end_step()
        return int(taken.min()) + int(refused)

    def evict(self, sequence: int) -> bool:
        """Run the loop once for one sequence, then compact; tell whether anything was evicted.

        An eviction that the ceiling refuses, because renumbering would copy shared pages, is
        left out and counted; so is a compaction.

        Raises
        ------
        PolicyError
            If the scores cannot be used. Nothing is changed.
        Infeasible
            If more tokens are protected than the budget keeps. Nothing is changed.
        """
        state = self.tracked[sequence]
        target = self.rules.target(state.appended)
        fits = all(kept.size <= target.kept for kept in state.tokens)
        if fits and self.rules.granularity != "page_completion":
            return False
        view, columns = self._view(state)
        slots, positions = self._rows(sequence)
        for have, want in zip(slots, state.tokens, strict=True):
            if have.size != want.size:
                raise LedgerError("the ledger retains other tokens than the loop remembers")
        scores = registry.scores(self.policy, view, self.name)
        places = None
        if self.rules.granularity != "token":
            places = self._places(sequence, view, columns, slots, positions)
        victims = select(
            view,
            scores,
            self._protected(view),
            target,
            granularity=self.rules.granularity,
            window_tokens=self.rules.window_tokens,
            places=places,
        ).reshape(view.sets, view.tokens)
        gone = [victims[which][columns[which]] for which in range(view.sets)]
        if not any(out.any() for out in gone):
            return False
        self._tell("before")
        try:
            self.ledger.evict(sequence, [slots[which][gone[which]] for which in range(view.sets)])
        except CeilingExceeded:
            self.refused_verbs_total += 1
            return False
        state.tokens = [kept[~out] for kept, out in zip(state.tokens, gone, strict=True)]
        self._tell("evicted")
        if self.ledger.ordering.compaction != "none":
            try:
                self.ledger.compact(sequence)
            except CeilingExceeded:
                self.refused_verbs_total += 1
        self._tell("after")
        return True

    def _tell(self, stage: str) -> None:
        if self.observe is not None:
            self.observe(stage)

    def retained_mass(self) -> float | None:
        """Return the share of the next query's attention that falls on what is retained.

        Per unit, summed over what that unit's own set retains, over its total, in float64;
        averaged over units and sequences. None if some unit receives no attention at all, or a
        number that no attention can be: a share of it would mean nothing.
        """
        shares = []
        unit_set = np.asarray(self.ledger.geometry.unit_set)
        for sequence, state in self.tracked.items():
            row = state.signals.next_query(state.appended).astype(np.float64)
            row = row.reshape(-1, state.appended)
            total = row.sum(axis=1)
            if not (total > 0).all() or (row < 0).any():
                return None
            kept = np.zeros((len(state.tokens), state.appended), np.bool_)
            for which, slots in enumerate(self._rows(sequence)[0]):
                # The tokens behind the slots that the ledger, and not the loop, calls live.
                kept[which, state.tokens[which][: slots.size]] = True
            shares.append(float(((row * kept[unit_set]).sum(axis=1) / total).mean()))
        return float(np.mean(shares)) if shares else None

    def _protected(self, view: View) -> np.ndarray:
        guarded = registry.protected(self.policy, view, self.name)
        # Not in place: the mask is the policy's own.
        guarded = guarded | (view.ages <= self.rules.protect_recent)
        return guarded | (view.positions < self.rules.protect_sinks)

    def _rows(self, sequence: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Return the slots that each set retains and their positions, ascending in position."""
        sets = range(self.ledger.geometry.sets)
        pairs = [self.ledger.rows(sequence, which) for which in sets]
        return [slots for slots, _ in pairs], [positions for _, positions in pairs]

    def _view(self, state: Tracked) -> tuple[View, list[np.ndarray]]:
        """Return the view of a sequence, and for each set the columns that it retains."""
        retained = np.zeros((len(state.tokens), state.appended), np.bool_)
        for which, kept in enumerate(state.tokens):
            retained[which, kept] = True
        tokens = np.flatnonzero(retained.any(axis=0))
        retained = retained[:, tokens]
        columns = [np.flatnonzero(row) for row in retained]
        view = View(
            positions=tokens,
            ages=state.appended - tokens,
            retained=retained.reshape(*self.set_shape, tokens.size),
            set_shape=self.set_shape,
            unit_shape=self.unit_shape,
            rng=self.rng,
            **state.signals.observe(tokens),
        )
        for array in (view.positions, view.ages, view.retained):
            array.setflags(write=False)
        return view, columns

    def _places(
        self,
        sequence: int,
        view: View,
        columns: list[np.ndarray],
        slots: list[np.ndarray],
        positions: list[np.ndarray],
    ) -> Places:
        """Return where each set's columns lie in its table."""
        page_tokens = self.ledger.page_tokens
        place = np.full((2, view.sets, view.tokens), -1, np.int64)
        cursor = np.zeros(view.sets, np.int64)
        following = np.zeros(view.sets, np.int64)
        table = np.zeros(view.sets, np.int64)
        for which in range(view.sets):
            place[0, which, columns[which]] = slots[which]
            place[1, which, columns[which]] = positions[which]
            table[which] = self.ledger.geometry.first_scope_of(which)
            cursor[which] = self.ledger.cursor(sequence, int(table[which]))
            following[which] = self.ledger.next_position(sequence, int(table[which]))
        shape = self.set_shape
        dense = -(-self.tracked[sequence].appended // page_tokens)
        return Places(
            position=place[1].reshape(*shape, view.tokens),
            next_position=following.reshape(shape),
            entry=place[0].reshape(*shape, view.tokens) // page_tokens,
            complete=(cursor // page_tokens).reshape(shape),
            table=table.reshape(shape),
            dense=np.full(shape, dense, np.int64),
            page_tokens=page_tokens,
        )
