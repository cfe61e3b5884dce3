"""What decides how the serving engine runs, checked before anything is made."""

from __future__ import annotations

from dataclasses import dataclass, field

from kvsim.engine.serving import fields as s
from kvsim.errors import ScenarioError

ADMISSIONS = {"fcfs": s.FCFS, "priority": s.BY_PRIORITY}
PREEMPTIONS = {"recompute": s.RECOMPUTE, "swap": s.SWAP}
CACHES = {"none": s.NO_CACHE, "blocks": s.BLOCKS, "radix": s.RADIX}
PUBLICATIONS = {"prompt": s.PROMPT, "all": s.ALL}
EVICTIONS = {"none": s.NO_EVICTION, "oldest": s.OLDEST, "random": s.RANDOM, "ask": s.ASK}
MOMENTS = {"prefill_end": s.PREFILL_END, "step": s.EVERY_STEP, "pressure": s.UNDER_PRESSURE}


@dataclass(frozen=True)
class Eviction:
    """Which tokens are evicted, and when.

    Attributes
    ----------
    order : {"none", "oldest", "random", "ask"}
        Oldest first and fixed random priorities are taken in the kernel; `ask` calls Python.
    when : {"prefill_end", "step", "pressure"}
    fraction, tokens : float, int
        What is kept: `tokens`, or if that is 0 int(fraction * rows written).
    run_tokens : int
        Victims are whole aligned runs of this many tokens; 1 for single ones.
    sinks, recent : int
        Protected tokens at both ends.
    seed : int
        Of the fixed priorities.
    """

    order: str = "none"
    when: str = "prefill_end"
    fraction: float = 1.0
    tokens: int = 0
    run_tokens: int = 1
    sinks: int = 0
    recent: int = 0
    seed: int = 0


@dataclass(frozen=True)
class Settings:
    """The scheduler, the prefix cache and the pool.

    Attributes
    ----------
    ceiling_pages : int
        0 for a pool that grows as needed.
    watermark : float
        Share of the ceiling that an admission leaves free.
    prefix : {"none", "blocks", "radix"}
    publish : {"all", "prompt"}
    unhashed : {"head", "tail"}
        Where in the queue a freed page without a key goes.
    planes : int
        Planes of a row, for the bytes of a rotation.
    """

    step_tokens: int = 2048
    max_running: int = 256
    chunked: bool = True
    ceiling_pages: int = 0
    watermark: float = 0.0
    admission: str = "fcfs"
    preemption: str = "recompute"
    prefix: str = "none"
    publish: str = "all"
    unhashed: str = "head"
    planes: int = 2
    eviction: Eviction = field(default_factory=Eviction)

    def __post_init__(self) -> None:
        """Refuse values that contradict each other."""
        for name, known in (
            ("admission", ADMISSIONS),
            ("preemption", PREEMPTIONS),
            ("prefix", CACHES),
            ("publish", PUBLICATIONS),
            ("unhashed", ("head", "tail")),
        ):
            if getattr(self, name) not in known:
                raise ScenarioError(f"serving: {name} must be one of {', '.join(known)}")
        if self.step_tokens < self.max_running:
            raise ScenarioError(
                f"serving.step_tokens: {self.step_tokens} is below serving.max_running "
                f"({self.max_running}): a step could not give every member its token"
            )
        if self.prefix == "radix":
            self._check_radix()
        if not 0 <= self.watermark < 1:
            raise ScenarioError("serving.watermark: must be at least 0 and below 1")
        if self.eviction.when == "pressure" and self.eviction.order == "ask":
            raise ScenarioError(
                "serving.pressure: evict needs a policy whose order is fixed when a token is "
                "appended (streaming_llm, random)"
            )

    def _check_radix(self) -> None:
        if self.unhashed != "head":
            raise ScenarioError(
                "prefix.unhashed: tail has no meaning with prefix.cache = radix: free pages are "
                "always taken before leaves are evicted"
            )
        if self.eviction.order != "none":
            raise ScenarioError(
                "prefix.cache: radix does not go with a policy that evicts tokens: its pool frees "
                "a page with any one of its tokens, so it lets go of whole pages only"
            )
