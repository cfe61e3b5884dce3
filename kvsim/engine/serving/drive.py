"""One SimPy process that drives the engine, and the foreign events that happen beside it.

The kernel leaps to the next foreign event; the event itself takes place at the first boundary
between two steps at or after its time, and sees the engine as it is there.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

import simpy

from kvsim.engine.serving import fields as s
from kvsim.engine.serving.arrays import FOREVER
from kvsim.engine.serving.engine import ServingEngine
from kvsim.errors import Infeasible

# SimPy's own priorities are 0 and 1: at one time, what is foreign comes before the engine.
AFTER_FOREIGN_EVENTS = 2
# Most steps at one go while somebody wants to hear how far the engine is.
REPORT_STEPS = 2048


@dataclass(frozen=True)
class Foreign:
    """Something that happens once, at a time, whatever the engine does.

    Attributes
    ----------
    at_ns : int
    act : callable (engine) -> None
        Called between two steps.
    """

    at_ns: int
    act: Callable[[ServingEngine], None]


Monitor = Callable[[ServingEngine], None]


@dataclass(frozen=True)
class Recurring:
    """Something that happens again and again, and never keeps an engine waiting.

    Attributes
    ----------
    every_ns : int
        Time between two of them, and until the first.
    act : callable (engine) -> None
        Called between two steps, before a monitor that looks at the same time.
    """

    every_ns: int
    act: Monitor


class Drive:
    """Runs an engine to its end beside foreign events and monitors.

    Parameters
    ----------
    engine : ServingEngine
    foreign : sequence of Foreign
    sample_ns : int
        Time between two calls of `monitor`; 0 for none.
    monitor : callable (engine) -> None
    every_steps : int
        Steps between two calls of `watch`; 0 for none.
    watch : callable (engine) -> None
        Sees every state in which a step leaves the engine, if every_steps is 1.
    report : callable (engine) -> None
        Called every `REPORT_STEPS` steps or oftener, for a display.
    recurring : sequence of Recurring
    leaping : bool
        False takes every step alone: the results are the same, which tests rely on.
    """

    def __init__(
        self,
        engine: ServingEngine,
        foreign: tuple[Foreign, ...] = (),
        *,
        sample_ns: int = 0,
        monitor: Monitor | None = None,
        every_steps: int = 0,
        watch: Monitor | None = None,
        report: Monitor | None = None,
        recurring: tuple[Recurring, ...] = (),
        leaping: bool = True,
    ) -> None:
        self.engine = engine
        self.foreign = foreign
        self.sample_ns = sample_ns
        self.monitor = monitor
        self.every_steps = every_steps
        self.watch = watch
        self.report = report
        self.recurring = recurring
        self.leaping = leaping
        self._to_come = len(foreign)

    def run(self) -> None:
        """Run all requests to their ends.

        Raises
        ------
        Infeasible
            If nobody runs, the head of the queue is not admitted, and nothing foreign is to
            come that might let it in; or in a livelock.
        """
        env = simpy.Environment()
        for event in self.foreign:
            env.process(self._happen(env, event))
        for again in self.recurring:
            env.process(self._recur(env, again))
        if self.sample_ns and self.monitor is not None:
            env.process(self._sample(env, self.monitor))
        env.run(until=env.process(self._drive(env)))

    def _happen(self, env: simpy.Environment, event: Foreign) -> Generator[simpy.Event, Any, None]:
        yield env.timeout(event.at_ns)
        event.act(self.engine)
        self._to_come -= 1

    def _recur(self, env: simpy.Environment, again: Recurring) -> Generator[simpy.Event, Any, None]:
        while True:
            yield env.timeout(again.every_ns)
            again.act(self.engine)

    def _sample(
        self, env: simpy.Environment, monitor: Monitor
    ) -> Generator[simpy.Event, Any, None]:
        while True:
            monitor(self.engine)
            yield env.timeout(self.sample_ns)

    def _drive(self, env: simpy.Environment) -> Generator[simpy.Event, Any, None]:
        engine, state = self.engine, self.engine.state
        seen = -1
        while True:
            until = min(env.peek(), FOREVER)
            steps = FOREVER
            if not self.leaping:
                steps = int(state[s.STEP]) + 1
            elif self.watch is not None and self.every_steps:
                steps = int(state[s.STEP]) // self.every_steps * self.every_steps
                steps += self.every_steps
            if self.report is not None:
                steps = min(steps, int(state[s.STEP]) + REPORT_STEPS)
            answer = engine.run_until(int(until), steps)
            now = int(state[s.STEP])
            if self.report is not None:
                self.report(engine)
            if self.every_steps and now != seen and now % self.every_steps == 0:
                seen = now
                if self.watch is not None:
                    self.watch(engine)
            if answer == s.DONE and not self._to_come:
                return
            if answer == s.STUCK and not self._to_come:
                raise Infeasible(engine.why_stuck())
            ahead = engine.now_ns - env.now
            if answer in (s.DONE, s.STUCK):
                # Only something foreign can change anything now, and it is the next to come.
                ahead = max(ahead, until - env.now)
                engine.idle_until(int(env.now + ahead))
            if ahead > 0 or env.peek() <= env.now:
                wait = simpy.Event(env)
                wait._ok, wait._value = True, None
                env.schedule(wait, AFTER_FOREIGN_EVENTS, ahead)  # type: ignore[arg-type]
                yield wait
