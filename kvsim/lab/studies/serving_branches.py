"""Requests that branch while they are served, and samples that are beams."""

from __future__ import annotations

from collections import defaultdict
from functools import partial
from typing import Any

import numpy as np

from kvsim.engine.serving import fields as s
from kvsim.engine.serving import outside
from kvsim.engine.serving.drive import Foreign
from kvsim.engine.serving.engine import ServingEngine
from kvsim.errors import ScenarioError
from kvsim.lab.scenario import Scenario
from kvsim.seeds import stream


def check(scenario: Scenario) -> None:
    """Refuse what the keys of `branches` cannot mean together.

    Raises
    ------
    ScenarioError
        Naming the key.
    """
    branches, prefix = scenario.branches, scenario.prefix
    if not branches.beam_steps:
        return
    if scenario.serving.samples < 2:
        raise ScenarioError(
            "branches.beam_steps: beams are samples; set serving.samples to 2 or more"
        )
    if prefix.cache == "radix" or (prefix.cache == "blocks" and prefix.publish == "all"):
        raise ScenarioError(
            "branches.beam_steps: beams change what they generated; set prefix.publish to prompt, "
            "or prefix.cache to none"
        )


class Branching:
    """The branches of one run, drawn before it begins.

    Parameters
    ----------
    scenario : Scenario
    arrival_ns : int64 [requests]

    Attributes
    ----------
    shared, queued : int
        Branches that shared pages with a decoding request from the start, and those that waited.
    """

    def __init__(self, scenario: Scenario, arrival_ns: np.ndarray) -> None:
        self._of = of = scenario.branches
        rng = stream(scenario.seed, "branches")
        parents = np.repeat(np.arange(arrival_ns.size), of.per_request)
        after = rng.exponential(of.after_ms * 1e6, parents.size)
        pulled = rng.random(parents.size) < of.pull_back
        # A share of the tokens that are known then; all of them where nothing is pulled back.
        share = np.where(pulled, rng.random(parents.size), 1.0)
        at_ns = arrival_ns[parents] + after.astype(np.int64)
        self._plan = list(zip(at_ns.tolist(), parents.tolist(), share.tolist(), strict=True))
        self.shared = self.queued = 0

    def events(self) -> tuple[Foreign, ...]:
        """Return the branches as foreign events."""
        return tuple(
            Foreign(at_ns, partial(self._act, parent, share)) for at_ns, parent, share in self._plan
        )

    def _act(self, parent: int, share: float, engine: ServingEngine) -> None:
        known = engine.known_tokens(parent)
        kept = max(1, int(share * known))
        _, shared = outside.branch(
            engine, parent, kept, self._of.new_tokens, self._of.output_tokens
        )
        self.shared += shared
        self.queued += not shared


class Beams:
    """Draws the beams of every request anew, each time they have generated so many tokens.

    The n beams of a request draw n times among themselves, each as likely as any other, in place
    of a model's scores. Those that nobody drew become copies of those that were drawn again.

    Parameters
    ----------
    scenario : Scenario

    Attributes
    ----------
    replaced : int
    """

    def __init__(self, scenario: Scenario) -> None:
        self._every = scenario.branches.beam_steps
        self._rng = stream(scenario.seed, "beams")
        self.replaced = 0

    def __call__(self, engine: ServingEngine) -> None:
        """Look at all groups between two steps."""
        rows = engine.rows
        running = engine.serving.running[: engine.state[s.RUNNING]]
        groups = defaultdict(list)
        for member in np.sort(running).tolist():
            parent = int(rows[member, s.PARENT])
            if rows[member, s.STATUS] == s.DECODES and member < engine.first_late:
                groups[member if parent < 0 else parent].append(member)
        for parent, beams in sorted(groups.items()):
            # Beams one of which was preempted are not in step, and wait for it.
            if len(beams) == rows[parent, s.SAMPLES]:
                self._draw(engine, beams)

    def _draw(self, engine: ServingEngine, beams: list[int]) -> None:
        known = {engine.known_tokens(beam) for beam in beams}
        generated = known.pop() - int(engine.rows[beams[0], s.INPUT])
        if known or generated % self._every:
            return
        drawn = np.bincount(self._rng.integers(len(beams), size=len(beams)), minlength=len(beams))
        again = [beams[at] for at, times in enumerate(drawn) for _ in range(times - 1)]
        lost = [beams[at] for at, times in enumerate(drawn) if times == 0]
        for beam, by in zip(lost, again, strict=True):
            outside.rejoin(engine, beam, by)
            self.replaced += 1


def columns(branching: Branching | None, beams: Beams | None) -> dict[str, Any]:
    """Return what became of branches and beams; null where a scenario has none."""
    return {
        "shared_branches": branching.shared if branching else None,
        "queued_branches": branching.queued if branching else None,
        "replaced_beams": beams.replaced if beams else None,
    }
