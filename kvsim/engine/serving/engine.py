"""The serving engine's face: arrays made once, the kernel called, and what only Python can do.

It knows nothing about SimPy: `drive` does, and calls `run_until`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from kvsim.engine.serving import events, members
from kvsim.engine.serving import fields as s
from kvsim.engine.serving.arrays import FOREVER, all_keys, request_rows
from kvsim.engine.serving.beginning import serving_arrays
from kvsim.engine.serving.engine_ledger import EngineLedger
from kvsim.engine.serving.growing import with_request
from kvsim.engine.serving.leap import leap
from kvsim.engine.serving.radix_arrays import check_keys, check_members, check_tree, tree_of
from kvsim.engine.serving.radix_steps import ceiling_freeing
from kvsim.engine.serving.recount import recount
from kvsim.engine.serving.settings import Settings
from kvsim.engine.serving.unhashing import Unhashing
from kvsim.errors import Infeasible, LedgerError, ScenarioError
from kvsim.paging import Geometry, Order
from kvsim.paging import fields as f
from kvsim.paging.prefix import forget
from kvsim.workload.requests import Requests

NOWHERE = np.empty((1, 0), np.int64)


class ServingEngine:
    """Requests, a pool and a scheduler.

    Parameters
    ----------
    requests : Requests
    settings : Settings
    cost : float64
        Coefficients of the cost model.
    geometry : Geometry
        Of one table for a sequence (scope `sequence`).
    ordering : Order, optional
        Whether an eviction compacts or renumbers.
    ask : callable (engine, sequence, request) -> int, optional
        Evicts from a sequence and returns how many tokens, where the order is `ask`.

    Raises
    ------
    ScenarioError
        If the requests or settings cannot be run at all.
    """

    def __init__(
        self,
        requests: Requests,
        settings: Settings,
        cost: np.ndarray,
        geometry: Geometry,
        *,
        ordering: Order | None = None,
        ask: Callable[[ServingEngine, int, int], int] | None = None,
    ) -> None:
        if geometry.scope_units != 1:
            raise ScenarioError("pages.scope: the serving engine has one table a sequence")
        ordering = ordering or Order()
        if ordering.append != "tail":
            raise ScenarioError("pages.append: the serving engine appends at the tail only")
        self.settings = settings
        self.radix = settings.prefix == "radix"
        if self.radix:
            check_keys(requests)
        self.ask = ask
        self.arrived = len(requests)
        page_tokens = requests.page_tokens
        rows = request_rows(requests)
        seats = settings.max_running
        self.ledger = EngineLedger(
            geometry,
            page_tokens,
            ceiling_pages=settings.ceiling_pages,
            order="lifo" if settings.unhashed == "head" else "fifo",
            ordering=ordering,
            room_pages=settings.ceiling_pages or 1024,
            store=Unhashing(lambda: self.ledger.arrays, page_tokens),
        )
        longest = int((rows[:, s.INPUT] + rows[:, s.OUTPUT]).max())
        entries = 1 << max(0, -(-longest // page_tokens) - 1).bit_length()
        self.ledger.make_room(f.GROW_TABLES, 2 * seats + 2)
        self.ledger.make_room(f.GROW_PLAN, page_tokens + 1)
        # Most runs need no more than this; the kernel asks for what they do.
        self.ledger.make_room(f.GROW_ARENA, min(seats, rows.shape[0]) * min(entries, 64))
        self.serving = serving_arrays(
            requests, rows, settings, ordering, cost, self.ledger.arrays, self._looks_at_all()
        )
        self.state = self.serving.state
        self.count = self.first_late = rows.shape[0]
        self._given_keys = int(requests.keys.size)
        self._all_keys = all_keys(requests, rows)
        self._widen_heaps()

    def _widen_heaps(self) -> None:
        """Give every table of the arena room for a heap of candidates, if there are any."""
        eviction = self.settings.eviction
        if eviction.order != "random" or eviction.when != "step" or eviction.run_tokens > 1:
            return
        candidates = np.zeros((self.ledger.arrays.dead.size, 2), np.int64)
        candidates[: self.serving.candidates.shape[0]] = self.serving.candidates
        self.serving = self.serving._replace(candidates=candidates)

    def _widen_tree(self) -> None:
        """Give the radix tree, if there is one, as many pages as the pool has now."""
        if self.radix:
            pages = int(self.ledger.arrays.scalars[f.PAGES])
            self.serving = self.serving._replace(tree=tree_of(pages, self.serving.tree))

    def _looks_at_all(self) -> bool:
        """Whether a member's table changes in every step by more than its cursor."""
        eviction, arrays = self.settings.eviction, self.ledger.arrays
        flags = arrays.holders.shape[0] + arrays.position.shape[0]
        return bool(flags) or (eviction.order != "none" and eviction.when == "step")

    def more_rows(self, keys: np.ndarray, own_keys: int, tokens: int) -> tuple[int, int, int]:
        """Make room for a request of `tokens` tokens, its given keys and some of its own.

        Returns its number, and where its given keys and its own ones begin.
        """
        found = self.count, self._given_keys, self._all_keys
        self.count += 1
        self._given_keys += keys.size
        self._all_keys += own_keys
        self.serving = with_request(
            self.serving,
            self.count,
            self._given_keys,
            self._all_keys,
            tokens,
            self.ledger.page_tokens,
        )
        self.serving.keys[found[1] : self._given_keys] = keys
        return found

    # Running

    def run_until(self, until_ns: int = FOREVER, most_steps: int = FOREVER) -> int:
        """Take steps until a time or a number of steps; return UNTIL, DONE or STUCK.

        Raises
        ------
        Infeasible
            If nothing new was computed for thousands of steps.
        """
        while True:
            answer = int(leap(self.ledger.arrays, self.serving, until_ns, most_steps, NOWHERE))
            if answer == s.GROW:
                self.grow()
            elif answer == s.POLICY_DUE:
                self._evict_due()
            elif answer == s.LIVELOCK:
                raise Infeasible(
                    f"a livelock: nothing new was computed for {s.PATIENCE_STEPS} steps, "
                    f"{int(self.state[s.PREEMPTIONS_TOTAL])} preemptions so far"
                )
            else:
                return answer

    def run(self) -> None:
        """Run all requests to their ends.

        Raises
        ------
        Infeasible
            If a request cannot be admitted even when nobody else runs.
        """
        if self.run_until() == s.STUCK:
            raise Infeasible(self.why_stuck())

    def why_stuck(self) -> str:
        """Say which request is not admitted, what it needs, and what there is."""
        waiting = self.rows[:, s.STATUS] == s.QUEUED
        swapped = self.rows[:, s.STATUS] == s.SWAPPED
        number = int(self.state[s.WAIT_HEAD])
        if self.settings.admission == "priority":
            number = int(self.serving.heap[0])
        row = self.rows[number]
        known = int(row[s.INPUT] + row[s.GENERATED])
        need = -(-known // self.ledger.page_tokens)
        if swapped[number]:
            need = int(row[s.HOST_PAGES_OF])
        pool = int(self.ledger.arrays.scalars[f.CEILING])
        count = int((waiting | swapped).sum())
        what = f"request {number} of {known} tokens is not admitted though nobody runs"
        if row[s.SAMPLES] > self.settings.max_running:
            return f"{what}: {int(row[s.SAMPLES])} samples, {self.settings.max_running} seats"
        if not self.settings.chunked and known > self.settings.step_tokens:
            return f"{what}: it is not chunked, and a step has {self.settings.step_tokens} tokens"
        return f"{what}: {need} pages needed densely, {pool} in the pool; {count} waiting"

    def grow(self) -> None:
        """Make larger what a kernel answered GROW for."""
        scalars = self.ledger.arrays.scalars
        what, need = int(scalars[f.GROW_WHAT]), int(scalars[f.NEED])
        scalars[f.NEED] = scalars[f.GROW_WHAT] = 0
        before = int(scalars[f.PAGES])
        self.ledger.make_room(what, need)
        if what == f.GROW_PAGES:
            self.ledger.new_pages_first(before)
            self._widen_tree()
        elif what == f.GROW_ARENA:
            self._widen_heaps()

    def _evict_due(self) -> None:
        """Let Python evict from the sequences that the step left due."""
        if self.ask is None:
            raise LedgerError("the engine has nobody to ask for victims")
        page_tokens = self.ledger.page_tokens
        for request in self.serving.due[: self.state[s.DUE]].tolist():
            sequence = int(self.rows[request, s.SEQUENCE])
            before = members.readable(self.ledger.arrays.tables, sequence, page_tokens)
            evicted = self.ask(self, sequence, request)
            after = members.readable(self.ledger.arrays.tables, sequence, page_tokens)
            # It was counted with the slots that it had before; they join READS later.
            self.state[s.READS] += after - before
            if evicted:
                self.rows[request, s.SPARSE] = 1
                self.rows[request, s.EVICTED] += evicted
                self.state[s.EVICTED_TOTAL] += evicted
                if self.settings.eviction.when != "step":
                    tables, calendar = self.ledger.arrays.tables, self.serving.calendar
                    members.strike(self.rows, calendar, request)
                    members.next_look(tables, self.state, self.rows, calendar, request)
        self.state[s.DUE] = 0

    # What may happen from outside, between two steps

    def set_ceiling(self, pages: int) -> None:
        """Ask for another ceiling; held pages above it stay until they are let go of.

        Raises
        ------
        ScenarioError
            If the pool is unlimited, or `pages` is below 1.
        """
        if not self.settings.ceiling_pages:
            raise ScenarioError("pool.ceiling_pages: an unlimited pool has no ceiling to change")
        if pages < 1:
            raise ScenarioError(f"a ceiling must be at least 1 page, not {pages}")
        scalars = self.ledger.arrays.scalars
        if pages > int(scalars[f.PAGES]):
            # Pages beyond the ceiling are parked at once, so that all of them are accounted for.
            before = int(scalars[f.PAGES])
            scalars[f.CEILING] = pages
            self.ledger.make_room(f.GROW_PAGES, pages - int(scalars[f.HELD]))
            if self.radix:
                self.ledger.new_pages_first(before)
                self._widen_tree()
        self.state[s.CEILING] = pages
        arrays = self.ledger.arrays
        ceiling_freeing(arrays.scalars, arrays.pages, self.serving.tree, self.state)
        self.state[s.BLOCKED] = -1

    def forget_cached(self, victims: Sequence[int]) -> None:
        """Take the keys of cached pages away, in this order: they are free from now on.

        Raises
        ------
        LedgerError
            If a page is not cached, or named twice, or lies in a radix tree. Nothing is changed.
        """
        if self.radix:
            raise LedgerError("single pages of a radix tree cannot be forgotten")
        arrays = self.ledger.arrays
        which = np.array(victims, np.int64)
        if np.unique(which).size != which.size:
            raise LedgerError("a cached page is to be forgotten twice")
        if (arrays.pages[f.STATE, which] != f.CACHED_PAGE).any():
            raise LedgerError("a page that is to be forgotten is not cached")
        for page in victims:
            forget(arrays.scalars, arrays.pages, page)
        self.state[s.BLOCKED] = -1

    def idle_until(self, time_ns: int) -> None:
        """Let time pass in which nobody runs."""
        self.state[s.NOW] = max(int(self.state[s.NOW]), time_ns)

    def cancel(self, request: int) -> bool:
        """Take a request out of the engine; tell whether it was still there."""
        return bool(events.cancel(self.ledger.arrays, self.serving, request))

    # Readings

    @property
    def rows(self) -> np.ndarray:
        """The requests, int64 [count, REQUEST_FIELDS]: a view, until one more arrives."""
        return self.serving.requests[: self.count]

    def known_tokens(self, request: int) -> int:
        """Return how many tokens of a request are known: its prompt and what it generated."""
        row = self.rows[request]
        ahead = int(self.state[s.STEP] - row[s.SINCE]) if row[s.STATUS] == s.DECODES else 0
        return int(row[s.INPUT] + row[s.GENERATED]) + ahead

    @property
    def now_ns(self) -> int:
        """The time of the engine."""
        return int(self.state[s.NOW])

    def check(self) -> None:
        """Recount the ledger, and the engine's own sums; raise LedgerError on a mismatch."""
        self.bring_up_to_date()
        self.ledger.check()
        if self.radix:
            check_tree(self.ledger.arrays, self.serving.tree)
            check_members(
                self.ledger.arrays, self.rows, self.serving.running[: self.state[s.RUNNING]]
            )
        recount(
            self.ledger.arrays.tables, self.state, self.rows, self.serving, self.ledger.page_tokens
        )

    def bring_up_to_date(self) -> None:
        """Write into the tables what their members appended since they were looked at."""
        arrays, step = self.ledger.arrays, int(self.state[s.STEP])
        for request in self.serving.running[: self.state[s.RUNNING]].tolist():
            if self.rows[request, s.STATUS] == s.DECODES:
                members.catch_up(arrays.scalars, arrays.tables, self.rows, request, step)
