"""Baseline: a serving engine as the natural SimPy program, with one process for each request.

A scheduler process decides each step; the process of every member that takes part in it is
woken at its end and takes its token. Pages are plain Python counters. It is a second reading of
docs/serving.md, which shares no code with the engine that it is compared with.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import numpy as np
import simpy

from kvsim.bench.engine_process_batch import Batch
from kvsim.bench.engine_process_members import Member
from kvsim.bench.engine_report import PATIENCE_STEPS, Report, StepNs, Terms
from kvsim.workload.requests import Requests


class ProcessEngine:
    """One run.

    Parameters
    ----------
    requests : Requests
    terms : Terms
    step_ns : callable
        How long a step takes.
    checking : bool
        Whether everything is recounted after every step.
    """

    def __init__(
        self, requests: Requests, terms: Terms, step_ns: StepNs, checking: bool = False
    ) -> None:
        self.requests = requests
        self.row_bytes = terms.row_bytes
        self.step_ns = step_ns
        self.checking = checking
        self.env = simpy.Environment()
        self.batch = Batch(requests, terms)
        self.to_come = len(requests)
        self.awaited: simpy.Event | None = None
        self.step_end = self.env.event()
        self.progress = False
        self.now = self.steps = self.generated = self.prefilled = 0
        self.peak = self.integral = 0
        self.first_ns = [-1] * len(requests)
        self.last_ns = [-1] * len(requests)
        self.outcome = "completed"

    def run(self) -> Report:
        """Serve all requests, or as many as can be."""
        requests = self.requests
        columns = (
            requests.arrival_ns.tolist(),
            requests.priority.tolist(),
            requests.input_tokens.tolist(),
            requests.output_tokens.tolist(),
            requests.samples.tolist(),
        )
        for number, of in enumerate(zip(*columns, strict=True)):
            self.env.process(self._live(Member(number, 0, *of)))
        # Made last, so that arrivals of an instant come before the step that begins in it.
        self.env.run(until=self.env.process(self._drive()))
        batch = self.batch
        evicting = batch.evicting
        return Report(
            steps=self.steps,
            end_ns=self.now,
            generated_tokens_total=self.generated,
            prefilled_tokens_total=self.prefilled,
            hit_tokens_total=batch.hits_total,
            allocated_pages_total=batch.pages.allocated_total,
            cow_pages_total=batch.cow_pages_total,
            copied_rows_total=batch.copied_rows_total,
            preemptions_total=batch.preemptions_total,
            freed_pages_total=evicting.freed_pages_total if evicting else 0,
            evicted_tokens_total=evicting.evicted_tokens_total if evicting else 0,
            held_pages_peak=self.peak,
            page_integral=self.integral,
            finished=batch.finished,
            outcome=self.outcome,
            first_token_ns=np.array(self.first_ns, np.int64),
            last_token_ns=np.array(self.last_ns, np.int64),
            request_preemptions=np.array(batch.preemptions, np.int64),
            hit_tokens=np.array(batch.hit_tokens, np.int64),
        )

    def _live(self, member: Member) -> Generator[simpy.Event, Any, None]:
        """Arrive, unless forked; wait for a seat; take part in steps until the last token."""
        if not member.sample:
            yield self.env.timeout(member.arrival)
            self.to_come -= 1
            self.batch.wait(member)
            if self.awaited is not None:
                self.awaited.succeed()
                self.awaited = None
        last_ns = self.last_ns
        number = member.number
        outputs = member.outputs
        while not member.finished:
            if not member.running:
                member.turn = self.env.event()
                yield member.turn
                member.turn = None
            yield self.step_end
            if not member.rows:
                # It was preempted, or there was no budget for it.
                continue
            member.rows = 0
            if not member.decoding:
                self._computed(member)
                continue
            generated = member.generated = member.generated + 1
            last_ns[number] = self.now
            if generated == outputs:
                member.finished = self.batch.leaving = True

    def _computed(self, member: Member) -> None:
        """Note what a chunk brought; after the last one a token is generated."""
        if member.cursor > member.most:
            member.most = member.cursor
            self.progress = True
        if member.cursor < member.known:
            return
        member.decoding = member.due = True
        if member.outputs:
            member.generated += 1
            self.generated += member.seats
            self.progress = True
            self.last_ns[member.number] = self.now
            if self.first_ns[member.number] < 0:
                self.first_ns[member.number] = self.now
        else:
            # Nothing is sampled, so there is nothing to fork for.
            self.batch.seats -= member.seats - 1
            member.seats = 1
        if member.generated == member.outputs:
            member.finished = self.batch.leaving = True

    def _drive(self) -> Generator[simpy.Event, Any, None]:
        """Take one step after another."""
        env = self.env
        batch = self.batch
        stale_steps = 0
        while True:
            if batch.leaving:
                batch.leave()
            preempted = batch.schedule()
            if not batch.decode_tokens + batch.prefill_tokens:
                # Running members have a token in every step, or one of them is preempted.
                if preempted:
                    continue
                if batch.anyone_waits():
                    self.outcome = f"infeasible: {batch.refusal()}"
                    return
                if not self.to_come:
                    return
                self.awaited = env.event()
                yield self.awaited
                continue
            for member in batch.admitted:
                # One that lost its seat in this very instant waits for the end of a step.
                if member.turn is not None:
                    member.turn.succeed()
            yield env.timeout(
                self.step_ns(
                    batch.decode_tokens,
                    batch.decode_reads,
                    batch.prefill_tokens,
                    batch.prefill_reads,
                    batch.prefill_pairs,
                    2 * self.row_bytes * batch.moved_rows,
                    0,
                )
            )
            self.now = int(env.now)
            self.progress = batch.decode_tokens > 0
            self.generated += batch.decode_tokens
            ended, self.step_end = self.step_end, env.event()
            ended.succeed()
            # The last to wait for it, so that all members have their token when this goes on.
            yield ended
            for member in batch.chunks:
                if member.decoding and member.seats > 1:
                    for twin in batch.fork(member):
                        env.process(self._live(twin))
            batch.evict()
            held = batch.pages.held
            self.steps += 1
            self.prefilled += batch.prefill_tokens
            self.integral += held
            self.peak = max(self.peak, held)
            if self.checking:
                batch.pages.check([member.table for member in batch.running])
            stale_steps = 0 if self.progress else stale_steps + 1
            if stale_steps >= PATIENCE_STEPS:
                self.outcome = f"infeasible: nothing new in {PATIENCE_STEPS} steps"
                return


def serve(requests: Requests, terms: Terms, step_ns: StepNs, checking: bool = False) -> Report:
    """Serve requests with one SimPy process for each.

    Parameters
    ----------
    requests : Requests
    terms : Terms
    step_ns : callable
        How long a step takes, in nanoseconds.
    checking : bool
        Whether everything is recounted after every step.

    Returns
    -------
    Report
        Of a run that came to its end or is infeasible.
    """
    return ProcessEngine(requests, terms, step_ns, checking).run()
