"""The table of a scenario that says how requests branch, and when samples are beams."""

from __future__ import annotations

from dataclasses import dataclass

from kvsim.lab.keys import count, number


@dataclass(frozen=True)
class Branches:
    """Branches of requests under a serving engine, and beams.

    Attributes
    ----------
    per_request : int
        Branches of each request.
    after_ms : float
        Mean time between a request's arrival and each of its branches, exponential.
    pull_back : float
        Share of the branches that go on from an earlier point of their request's tokens, each
        point as likely as any other; the rest go on from its end.
    new_tokens : int
        What a branch adds to its prompt.
    output_tokens : int
        What a branch generates.
    beam_steps : int
        Generated tokens after which the samples of a request are drawn anew as beams; 0 for
        samples that do not know of each other.
    """

    per_request: int = count(0)
    after_ms: float = number(1000.0, 0.0, 1e9)
    pull_back: float = number(0.0, -1e-300, 1.0)
    new_tokens: int = count(64)
    output_tokens: int = count(64)
    beam_steps: int = count(0)
