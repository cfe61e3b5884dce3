"""What the baselines of `kvsim bench engine` are told and what they tell: terms and a report.

Knows no engine. The rules behind every field are those of docs/serving.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from kvsim.errors import ScenarioError

#: (decode_tokens, decode_reads, prefill_tokens, prefill_reads, prefill_pairs, moved_bytes,
#: host_bytes) of a step -> how long it takes, in nanoseconds.
StepNs = Callable[[int, int, int, int, int, int, int], int]

#: Steps in which nothing new is computed or generated, before a run is called infeasible.
PATIENCE_STEPS = 10_000

#: Above every priority of a token that may go.
NEVER = np.iinfo(np.int64).max


@dataclass(frozen=True)
class StaticEviction:
    """A policy whose order is fixed when a token is appended.

    Attributes
    ----------
    policy : {"streaming", "random"}
        Oldest first (StreamingLLM), or by a fixed random priority, lowest first.
    tokens : int
        Live rows that are kept; 0 keeps int(fraction * tokens appended so far).
    fraction : float
    sinks, recent : int
        Protected: the first positions, and the last ones appended.
    when : {"step", "prefill_end"}
        After a completed prefill, and with `step` after every decode step too.
    seed : int
        Of the random priorities.
    """

    policy: str
    tokens: int = 0
    fraction: float = 0.0
    sinks: int = 0
    recent: int = 0
    when: str = "step"
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse what no policy can mean."""
        if self.policy not in ("streaming", "random"):
            raise ScenarioError(f"eviction: no static policy {self.policy!r}")
        if self.when not in ("step", "prefill_end"):
            raise ScenarioError(f"eviction: no time {self.when!r}")
        if min(self.tokens, self.sinks, self.recent, self.seed) < 0 or not 0 <= self.fraction <= 1:
            raise ScenarioError("eviction: counts are not negative, and a fraction is from 0 to 1")

    def kept(self, appended: int) -> int:
        """Return how many rows stay live of those appended so far."""
        return self.tokens or int(self.fraction * appended)

    def priorities(self, number: int, first: int, last: int) -> np.ndarray:
        """Return the priorities of positions `first` to `last` - 1 of a request, int64.

        The random ones are splitmix64's output function (Steele, Lea and Flood 2014) over a
        product of request, position and seed, less its lowest bit.
        """
        position = np.arange(first, max(first, last), dtype=np.uint64)
        if self.policy == "streaming":
            return position.astype(np.int64)
        base = (number * 0x9E3779B97F4A7C15 + self.seed * 0x94D049BB133111EB) % (1 << 64)
        x = position * np.uint64(0xBF58476D1CE4E5B9) + np.uint64(base)
        x ^= x >> np.uint64(30)
        x *= np.uint64(0xBF58476D1CE4E5B9)
        x ^= x >> np.uint64(27)
        x *= np.uint64(0x94D049BB133111EB)
        x ^= x >> np.uint64(31)
        return (x >> np.uint64(1)).astype(np.int64)


@dataclass(frozen=True)
class Terms:
    """The terms on which requests are served.

    Attributes
    ----------
    step_tokens, max_running : int
        Budget and seats of a step.
    ceiling_pages : int
        0 is unlimited; then no cached page is ever taken for another use.
    chunked : bool
        Whether a prompt may be computed in parts.
    watermark : float
        Share of the ceiling that admission leaves free.
    order : {"fcfs", "priority"}
    cache : {"none", "blocks"}
    publish : {"prompt", "all"}
    unhashed : {"head", "tail"}
        Where in the queue a freed page without a key goes.
    row_bytes : int
        Bytes of one token's row.
    eviction : StaticEviction, optional
    """

    step_tokens: int
    max_running: int
    ceiling_pages: int = 0
    chunked: bool = True
    watermark: float = 0.0
    order: str = "fcfs"
    cache: str = "none"
    publish: str = "all"
    unhashed: str = "head"
    row_bytes: int = 1
    eviction: StaticEviction | None = None

    def __post_init__(self) -> None:
        """Refuse terms that are unknown."""
        for name, known in (
            ("order", ("fcfs", "priority")),
            ("cache", ("none", "blocks")),
            ("publish", ("prompt", "all")),
            ("unhashed", ("head", "tail")),
        ):
            if getattr(self, name) not in known:
                raise ScenarioError(f"{name} must be one of {', '.join(known)}")
        if min(self.step_tokens, self.max_running) < 1 or self.ceiling_pages < 0:
            raise ScenarioError("a step has at least one token and one seat, and a ceiling is >= 0")
        if not 0 <= self.watermark < 1:
            raise ScenarioError("a watermark is a share of the ceiling, below 1")


@dataclass(frozen=True)
class Report:
    """What a run did.

    Attributes
    ----------
    steps : int
        Steps in which at least one token was computed.
    end_ns : int
        When the last of them ended.
    prefilled_tokens_total : int
        Computed in prefills, recomputation included and hits left out.
    allocated_pages_total, cow_pages_total, copied_rows_total : int
        Pages taken from the queue, those of them that are copies, and the rows copied into them.
    freed_pages_total : int
        Pages whose refcount reached 0 by an eviction.
    held_pages_peak, page_integral : int
        The most pages held at the end of a step, and their sum over steps.
    finished : int
        Sequences that came to their end; each sample is one.
    outcome : str
        "completed", or "infeasible: ..." with the reason.
    first_token_ns, last_token_ns : int64 [requests]
        -1 where there is no token; over all samples.
    request_preemptions : int64 [requests]
        Over all samples.
    hit_tokens : int64 [requests]
        Of the last admission of the first sample.
    """

    steps: int
    end_ns: int
    generated_tokens_total: int
    prefilled_tokens_total: int
    hit_tokens_total: int
    allocated_pages_total: int
    cow_pages_total: int
    copied_rows_total: int
    preemptions_total: int
    freed_pages_total: int
    evicted_tokens_total: int
    held_pages_peak: int
    page_integral: int
    finished: int
    outcome: str
    first_token_ns: np.ndarray = field(compare=False)
    last_token_ns: np.ndarray = field(compare=False)
    request_preemptions: np.ndarray = field(compare=False)
    hit_tokens: np.ndarray = field(compare=False)

    def differences(self, other: Report) -> list[str]:
        """Return the names of the fields in which two reports differ."""
        differing = []
        for name in self.__dataclass_fields__:
            ours, theirs = getattr(self, name), getattr(other, name)
            same = np.array_equal(ours, theirs) if isinstance(ours, np.ndarray) else ours == theirs
            if not same:
                differing.append(f"{name}: {ours} and {theirs}")
        return differing
