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
    """

    arrival_ns: int
    prompt_tokens: int
    decode_tokens: int
    forks: int
    signals: Signals


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


class Engine:
    """Runs requests to their ends on one eviction loop.

    Parameters
    ----------
    loop : EvictionLoop
    requests : sequence of Request
    clock : Clock
    before_finish : callable
        Called once, after the last step and before any sequence finishes: stocks are read here.
    """

    def __init__(
        self,
        loop: EvictionLoop,
        requests: Sequence[Request],
        before_finish: Callable[[], None],
        clock: Clock | None = None,
    ) -> None:
        self.loop = loop
        self.requests = requests
        self.before_finish = before_finish
        self.clock = clock or Clock()
        self.steps = 0
        self._remaining: dict[int, int] = {}

    def run(self) -> int:
        """Run all requests; return the end time in nanoseconds.

        Raises
        ------
        CeilingExceeded
            If a verb needs more pages than the ceiling leaves and nothing can be evicted.
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
        while to_come or any(self._remaining.values()):
            if to_come and (waiting.items or not any(self._remaining.values())):
                request = yield waiting.get()
                to_come -= 1
                self._prefill(request)
                duration = self.clock.prefill_token_ns * request.prompt_tokens
            else:
                self._decode()
                duration = self.clock.decode_step_ns
            self.loop.end_step()
            self.steps += 1
            yield env.timeout(duration)
        self.before_finish()
        for sequence in list(self._remaining):
            self.loop.finish(sequence)
        self._remaining.clear()

    def _prefill(self, request: Request) -> None:
        sequence = self.loop.open(request.signals)
        self.loop.append(sequence, request.prompt_tokens)
        family = [sequence] + [self.loop.fork(sequence) for _ in range(request.forks)]
        for member in family:
            self.loop.evict(member)
            self._remaining[member] = request.decode_tokens

    def _decode(self) -> None:
        for sequence, left in self._remaining.items():
            if left:
                self.loop.append(sequence, 1)
                self._remaining[sequence] = left - 1
