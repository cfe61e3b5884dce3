"""Baseline: a serving engine whose decode step is done for the whole batch with NumPy.

One driver process takes one step after another. It reads docs/serving.md for the case without
prefix cache, priorities and samples: there the running order is all decoding members and then
all prefilling ones, so that decoding members are columns of one array in running order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import numpy as np
import simpy

from kvsim.bench.engine_numpy_rows import (
    CURSOR,
    FIELDS,
    LEFT,
    NULLS,
    NUMBER,
    ROOM,
    ROW,
    Rows,
)
from kvsim.bench.engine_report import PATIENCE_STEPS, Report, StepNs, Terms
from kvsim.errors import ScenarioError
from kvsim.workload.requests import Requests


@dataclass(slots=True)
class Prefill:
    """A member that is being prefilled."""

    number: int
    row: int
    known: int
    computed: int = 0


class NumpyEngine:
    """One run.

    Parameters
    ----------
    requests : Requests
        One sample each.
    terms : Terms
        First come, first served, without a cache.
    step_ns : callable
        How long a step takes.

    Raises
    ------
    ScenarioError
        If the terms or the requests ask for what this baseline leaves out.
    """

    def __init__(self, requests: Requests, terms: Terms, step_ns: StepNs) -> None:
        if terms.cache != "none" or terms.order != "fcfs" or requests.samples.max() > 1:
            raise ScenarioError("the NumPy baseline has no prefix cache, priorities or samples")
        self.terms = terms
        self.step_ns = step_ns
        self.size = requests.page_tokens
        self.arrivals = requests.arrival_ns.tolist()
        self.inputs = requests.input_tokens.tolist()
        self.outputs = requests.output_tokens.tolist()
        self.any_output = requests.output_tokens > 0
        longest = int((requests.input_tokens + requests.output_tokens).max())
        self.rows = Rows(terms, requests.page_tokens, longest)
        self.watermark = int(terms.watermark * terms.ceiling_pages)
        self.waiting: deque[int] = deque()
        self.decoding = np.zeros((FIELDS, 0), np.int64)
        self.prefilling: list[Prefill] = []
        count = len(requests)
        self.generated = [0] * count
        self.most = [0] * count
        self.first_ns = np.full(count, -1, np.int64)
        self.last_ns = np.full(count, -1, np.int64)
        self.preemptions = [0] * count
        self.now = self.steps = self.generated_total = self.prefilled = 0
        self.peak = self.integral = self.finished = self.preempted = 0
        self.arrived = 0
        self.ended = False
        self.progress = False
        self.outcome = "completed"

    def run(self) -> Report:
        """Serve all requests, or as many as can be."""
        env = simpy.Environment()
        env.run(until=env.process(self._drive(env)))
        # Those that a run which is not feasible leaves behind had a token in its last step.
        self._stamp(self.decoding[NUMBER])
        rows = self.rows
        return Report(
            steps=self.steps,
            end_ns=self.now,
            generated_tokens_total=self.generated_total,
            prefilled_tokens_total=self.prefilled,
            hit_tokens_total=0,
            allocated_pages_total=rows.allocated_total,
            cow_pages_total=0,
            copied_rows_total=0,
            preemptions_total=self.preempted,
            freed_pages_total=rows.freed_total,
            evicted_tokens_total=rows.evicted_total,
            held_pages_peak=self.peak,
            page_integral=self.integral,
            finished=self.finished,
            outcome=self.outcome,
            first_token_ns=self.first_ns,
            last_token_ns=self.last_ns,
            request_preemptions=np.array(self.preemptions, np.int64),
            hit_tokens=np.zeros(len(self.preemptions), np.int64),
        )

    def _drive(self, env: simpy.Environment) -> Generator[simpy.Event, Any, None]:
        """Take one step after another."""
        rows = self.rows
        stale_steps = 0
        now = 0
        while True:
            while self.arrived < len(self.arrivals) and self.arrivals[self.arrived] <= now:
                self.waiting.append(self.arrived)
                self.arrived += 1
            if self.ended:
                self._leave()
            before = self.preempted
            self._decode()
            writing = self.decoding.shape[1]
            budget = self.terms.step_tokens - writing
            chunks = self._prefill(budget) if self.prefilling else []
            if self.preempted == before and self.waiting:
                self._admit(budget - sum(tokens for _, tokens in chunks), chunks)
            if not writing and not chunks:
                if self.preempted > before:
                    continue
                if self.waiting:
                    self.outcome = f"infeasible: {self._refusal()}"
                    return
                if self.arrived == len(self.arrivals):
                    return
                yield env.timeout(self.arrivals[self.arrived] - now)
                now = int(env.now)
                continue
            reads = int(self.decoding[CURSOR].sum())
            if rows.eviction is not None:
                reads -= self.size * int(self.decoding[NULLS].sum())
            # Of each chunk (c before, n now): computed is c + n already.
            tokens = sum(n for _, n in chunks)
            chunk_reads = sum(member.computed for member, _ in chunks)
            pairs = sum((m.computed - n) * n + n * (n + 1) // 2 for m, n in chunks)
            yield env.timeout(self.step_ns(writing, reads, tokens, chunk_reads, pairs, 0, 0))
            now = self.now = int(env.now)
            self.progress = writing > 0
            self._tokens(chunks)
            self.steps += 1
            self.generated_total += writing
            self.prefilled += tokens
            self.integral += rows.held
            self.peak = max(self.peak, rows.held)
            stale_steps = 0 if self.progress else stale_steps + 1
            if stale_steps >= PATIENCE_STEPS:
                self.outcome = f"infeasible: nothing new in {PATIENCE_STEPS} steps"
                return

    def _stamp(self, numbers: np.ndarray) -> None:
        """Write down when requests had their last token: in the step before."""
        self.last_ns[numbers[self.any_output[numbers]]] = self.now

    def _leave(self) -> None:
        """Free the members that generated their last token."""
        state = self.decoding
        stays = state[LEFT] > 0
        gone = state[:, ~stays]
        for row, cursor in zip(gone[ROW].tolist(), gone[CURSOR].tolist(), strict=True):
            self.rows.free(row, cursor)
        self._stamp(gone[NUMBER])
        self.finished += gone.shape[1]
        self.decoding = np.ascontiguousarray(state[:, stays])
        self.ended = False

    def _decode(self) -> None:
        """Write one row for every decoding member, preempting from the end of running order."""
        state = self.decoding
        fresh = np.flatnonzero(state[ROOM] == 0)
        while fresh.size > self.rows.left:
            self._preempt()
            state = self.decoding
            fresh = fresh[: np.searchsorted(fresh, state.shape[1])]
        if fresh.size:
            state[ROOM, fresh] = self.size
            self.rows.extend(state[ROW, fresh], state[CURSOR, fresh] // self.size)
        state[CURSOR] += 1
        state[ROOM] -= 1
        state[LEFT] -= 1

    def _preempt(self) -> None:
        """Send the last running member back to the queue's front."""
        if self.prefilling:
            member = self.prefilling.pop()
            number = member.number
            self.rows.free(member.row, member.computed)
        else:
            last = self.decoding[:, -1]
            number = int(last[NUMBER])
            self.rows.free(int(last[ROW]), int(last[CURSOR]))
            self.generated[number] = self.outputs[number] - int(last[LEFT])
            self.most[number] = self.inputs[number] + self.generated[number] - 1
            # It had a token in every step so far.
            self.last_ns[number] = self.now
            self.decoding = np.ascontiguousarray(self.decoding[:, :-1])
        self.preempted += 1
        self.preemptions[number] += 1
        self.waiting.appendleft(number)

    def _prefill(self, budget: int) -> list[tuple[Prefill, int]]:
        """Compute chunks of the prefilling members in running order; return them."""
        chunks: list[tuple[Prefill, int]] = []
        index = 0
        while budget > 0 and index < len(self.prefilling):
            member = self.prefilling[index]
            tokens = min(member.known - member.computed, budget)
            need = -(-(member.computed + tokens) // self.size) - -(-member.computed // self.size)
            # Victims are taken from the end, the member itself being the last that can be.
            while need > self.rows.left and index < len(self.prefilling):
                self._preempt()
            if index == len(self.prefilling):
                break
            self._compute(member, tokens, need)
            chunks.append((member, tokens))
            budget -= tokens
            index += 1
        return chunks

    def _compute(self, member: Prefill, tokens: int, need: int) -> None:
        """Give a member the rows of a chunk, for which there is room."""
        first = -(-member.computed // self.size)
        if need:
            self.rows.extend(member.row, np.arange(first, first + need))
        member.computed += tokens

    def _admit(self, budget: int, chunks: list[tuple[Prefill, int]]) -> None:
        """Admit from the head of the queue while budget, seats and pages allow it."""
        rows = self.rows
        while budget > 0 and self.waiting:
            number = self.waiting[0]
            known = self.inputs[number] + self.generated[number]
            tokens = min(known, budget)
            if tokens < known and not self.terms.chunked:
                return
            running = self.decoding.shape[1] + len(self.prefilling)
            if running == self.terms.max_running:
                return
            need = -(-tokens // self.size)
            if need > rows.left - (self.watermark if running else 0):
                return
            self.waiting.popleft()
            member = Prefill(number, rows.seat(), known)
            self.prefilling.append(member)
            self._compute(member, tokens, need)
            chunks.append((member, tokens))
            budget -= tokens

    def _tokens(self, chunks: list[tuple[Prefill, int]]) -> None:
        """Let members whose prefill is complete decode from now on; then evict."""
        eviction = self.rows.eviction
        joining = []
        for member, _ in chunks:
            number = member.number
            if member.computed > self.most[number]:
                self.most[number] = member.computed
                self.progress = True
            if member.computed == member.known:
                joining.append(self._join(member))
        if joining:
            self.prefilling = [m for m in self.prefilling if m.computed < m.known]
        before = self.decoding.shape[1]
        if before and not self.ended:
            self.ended = bool((self.decoding[LEFT] == 0).any())
        if joining:
            columns = np.array(joining, np.int64).T
            self.decoding = np.concatenate([self.decoding, columns], axis=1)
            self.ended = self.ended or bool((columns[LEFT] == 0).any())
        if eviction is None:
            return
        if before and eviction.when == "step":
            self.rows.evict_each(self.decoding[:, :before])
        for column in range(before, self.decoding.shape[1]):
            number = int(self.decoding[NUMBER, column])
            self.rows.evict_first(self.decoding, column, self.inputs[number] + self.outputs[number])

    def _join(self, member: Prefill) -> list[int]:
        """Return the column of a member that decodes from the next step on."""
        number = member.number
        left = self.outputs[number] - self.generated[number]
        if left:
            # Its first token, or the one after those that it had before a preemption.
            left -= 1
            self.generated_total += 1
            self.progress = True
            if self.first_ns[number] < 0:
                self.first_ns[number] = self.now
        known = member.known
        return [number, member.row, known, -known % self.size, left, known, known, 0]

    def _refusal(self) -> str:
        """Say why the head of the queue is not admitted although nobody runs."""
        number = self.waiting[0]
        known = self.inputs[number] + self.generated[number]
        terms = self.terms
        if known > terms.step_tokens and not terms.chunked:
            needs = f"{known} tokens in a step and there are {terms.step_tokens}"
        else:
            least = min(known, terms.step_tokens)
            needs = f"at least {-(-least // self.size)} pages and there are {self.rows.left}"
        return f"request {number} needs {needs}"


def serve(requests: Requests, terms: Terms, step_ns: StepNs) -> Report:
    """Serve requests with NumPy steps.

    Parameters
    ----------
    requests : Requests
        One sample each.
    terms : Terms
        First come, first served, without a cache.
    step_ns : callable
        How long a step takes, in nanoseconds.

    Returns
    -------
    Report
        Of a run that came to its end or is infeasible.

    Raises
    ------
    ScenarioError
        If the terms or the requests ask for what this baseline leaves out.
    """
    return NumpyEngine(requests, terms, step_ns).run()
