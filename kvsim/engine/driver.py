"""The event-driven engine: arrivals, prefill, forks, eviction, decode steps, finish.

One SimPy process drives all sequences; arrivals are processes of their own. Time is integer
nanoseconds. Nothing yields inside a verb of the ledger.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any

import simpy

from kvsim.eviction import EvictionLoop, Signals

CHECK_EVERY_STEPS = 1000  # The ledger is recounted from its raw tables this often.


@dataclass(frozen=True)
class Request:
    """One sequence that arrives.

    Attributes
    ----------
    arrival_ns : int
    prompt_tokens, decode_tokens : int
    forks : int
        Sequences that fork from it once its prompt is prefilled, before any eviction.
    signals : Signals
    forks_evict : bool
        Whether the forks are evicted too, or only the sequence itself.
    leaves : bool
        Whether it finishes when its decode ends; otherwise it stays to the end of the run.
    """

    arrival_ns: int
    prompt_tokens: int
    decode_tokens: int
    forks: int
    signals: Signals
    forks_evict: bool = True
    leaves: bool = False


@dataclass(frozen=True)
class Clock:
    """How long a step takes. Nominal: it orders events, and no result of a run shows it.

    Attributes
    ----------
    prefill_token_ns : int
    decode_step_ns : int
    """

    prefill_token_ns: int = 20_000
    decode_step_ns: int = 20_000_000


@dataclass(frozen=True)
class When:
    """When eviction happens.

    Attributes
    ----------
    name : {"prefill_end", "chunk", "step"}
    chunk_tokens : int
        Under `chunk`: appended tokens between evictions, of the prompt and while decoding.
    """

    name: str = "prefill_end"
    chunk_tokens: int = 0


class Engine:
    """Runs requests to their ends on one eviction loop.

    Parameters
    ----------
    loop : EvictionLoop
    requests : sequence of Request
    when : When
    clock : Clock
    before_finish : callable
        Called once, after the last step and before any sequence finishes: stocks are read here.
    """

    def __init__(
        self,
        loop: EvictionLoop,
        requests: Sequence[Request],
        before_finish: Callable[[], None],
        when: When | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.loop = loop
        self.requests = requests
        self.before_finish = before_finish
        self.when = when or When()
        self.clock = clock or Clock()
        self.steps = 0
        self._remaining: dict[int, int] = {}
        self._since_eviction = 0
        self._evicting: set[int] = set()
        self._leaving: set[int] = set()

    def run(self) -> int:
        """Run all requests; return the end time in nanoseconds.

        Raises
        ------
        Infeasible
            If an append needs more pages than the ceiling leaves after evicting.
        """
        env = simpy.Environment()
        waiting = simpy.Store(env)
        for request in self.requests:
            env.process(self._arrive(env, waiting, request))
        env.run(until=env.process(self._drive(env, waiting)))
        return int(env.now)

    def _arrive(
        self, env: simpy.Environment, waiting: simpy.Store, request: Request
    ) -> Generator[simpy.Event, Any, None]:
        yield env.timeout(request.arrival_ns)
        yield waiting.put(request)

    def _drive(
        self, env: simpy.Environment, waiting: simpy.Store
    ) -> Generator[simpy.Event, Any, None]:
        """One step after another: a waiting prompt first, else one token for all that decode."""
        to_come = len(self.requests)
        checked = 0
        while to_come or any(self._remaining.values()):
            self._let_leave()
            if self.steps - checked >= CHECK_EVERY_STEPS:
                self.loop.ledger.check()
                checked = self.steps
            if to_come and (waiting.items or not any(self._remaining.values())):
                request = yield waiting.get()
                to_come -= 1
                yield from self._prefill(env, request)
            else:
                until_check = CHECK_EVERY_STEPS - (self.steps - checked)
                steps = self._decode(min(until_check, self._steps_until_next_event(env)))
                self.steps += steps
                yield env.timeout(steps * self.clock.decode_step_ns)
        self.before_finish()
        for sequence in list(self._remaining):
            self.loop.finish(sequence)
        self._remaining.clear()

    def _let_leave(self) -> None:
        """Finish what ended in an earlier step; what ends in the last one is still there."""
        for sequence in [s for s, left in self._remaining.items() if not left]:
            if sequence in self._leaving:
                self.loop.finish(sequence)
                self._leaving.discard(sequence)
                self._evicting.discard(sequence)
                del self._remaining[sequence]

    def _steps_until_next_event(self, env: simpy.Environment) -> int:
        """Return how many decode steps begin before anything else happens; at least 1."""
        ahead = env.peek()
        if ahead == float("inf"):
            return 1 << 60
        return max(1, -int((env.now - ahead) // self.clock.decode_step_ns))

    def _prefill(
        self, env: simpy.Environment, request: Request
    ) -> Generator[simpy.Event, Any, None]:
        """Append a prompt, whole or in chunks; a step each, which ends after its eviction."""
        sequence = self.loop.open(request.signals)
        chunked = self.when.name == "chunk"
        size = self.when.chunk_tokens if chunked else request.prompt_tokens
        for first in range(0, request.prompt_tokens, size):
            tokens = min(size, request.prompt_tokens - first)
            last = first + tokens == request.prompt_tokens
            self.loop.prefill(sequence, tokens)
            self._remaining[sequence] = request.decode_tokens if last else 0
            family = [sequence]
            if last:
                family += [self.loop.fork(sequence) for _ in range(request.forks)]
            for member in family:
                if request.leaves and last:
                    self._leaving.add(member)
                if member == sequence or request.forks_evict:
                    self._evicting.add(member)
                    self.loop.evict(member)
                self._remaining[member] = self._remaining[sequence]
            self.loop.end_step()
            self.steps += 1
            yield env.timeout(self.clock.prefill_token_ns * tokens)

    def _decode(self, most: int) -> int:
        """Let all sequences that still decode take up to `most` steps; return how many."""
        batch = [sequence for sequence, left in self._remaining.items() if left]
        most = min(most, *(self._remaining[sequence] for sequence in batch))
        if self.when.name == "chunk":
            most = min(most, self.when.chunk_tokens - self._since_eviction)
        stepwise = self.when.name == "step"
        evicting = [sequence for sequence in batch if stepwise and sequence in self._evicting]
        done = self.loop.step(batch, most, evicting)
        for sequence in batch:
            self._remaining[sequence] -= done
        self._since_eviction += done
        if self.when.name == "chunk":
            whole = self._since_eviction == self.when.chunk_tokens
            for sequence in batch:
                # The last chunk of a sequence may be a part of one, like that of its prompt.
                if sequence in self._evicting and (whole or not self._remaining[sequence]):
                    self.loop.evict(sequence)
            self.loop.end_step()
            self._since_eviction = 0 if whole else self._since_eviction
        return done
