"""The time series of a serving run: what a monitor sees at the boundaries between steps.

At each sample the slots of the pool add up: live, dead and tail slots of held pages, and the pages
that are cached, parked or free, times the tokens of a page, are `pool_pages` of them. Dead slots
are the holes that eviction left. Beside the columns stands `pages_by_live_slots`, [sample, slots]:
how many held pages have so many live slots, from 0 to a whole page.
"""

from __future__ import annotations

import numpy as np

from kvsim.engine.serving import fields as s
from kvsim.engine.serving.engine import ServingEngine
from kvsim.lab.studies.serving_memory import Allocator
from kvsim.paging import fields as f
from kvsim.paging.samples import occupancy

# Names and units are those of the row's columns.
COLUMNS = (
    "time_ns",
    "running",
    "waiting",
    "held_pages",
    "cached_pages",
    "free_pages",
    "parked_pages",
    "live_slots",
    "dead_slots",
    "tail_slots",
    "generated_tokens_total",
    "preemptions_total",
    "finished_requests",
    "pool_pages",
    "evicted_tokens_total",
    "freed_pages_total",
)
OCCUPANCY = "pages_by_live_slots"
MEMORY_COLUMNS = ("held_bytes", "empty_bytes", "parked_bytes", "returned_bytes")


class Series:
    """Samples of an engine, and of the allocator under it if there is one."""

    def __init__(self, allocator: Allocator | None) -> None:
        self.allocator = allocator
        self.samples: list[tuple[int, ...]] = []
        self.occupancy: list[np.ndarray] = []

    def __call__(self, engine: ServingEngine) -> None:
        """Take one sample."""
        engine.bring_up_to_date()
        scalars, state = engine.ledger.arrays.scalars, engine.state
        slots, pages = occupancy(engine.ledger.arrays)
        held, cached, parked = (int(scalars[x]) for x in (f.HELD, f.CACHED, f.PARKED))
        sample: tuple[int, ...] = (
            int(state[s.NOW]),
            int(state[s.RUNNING]),
            int(state[s.WAITING]),
            held,
            cached,
            int(scalars[f.PAGES]) - held - cached - parked,
            parked,
            slots.live,
            slots.dead,
            slots.tail,
            int(state[s.GENERATED_TOTAL]),
            int(state[s.PREEMPTIONS_TOTAL]),
            int(state[s.FINISHED]),
            int(scalars[f.PAGES]),
            int(state[s.EVICTED_TOTAL]),
            int(scalars[f.FREED_TOTAL]),
        )
        if self.allocator is not None:
            self.allocator(engine)
            sample += tuple(self.allocator.columns().values())
        self.samples.append(sample)
        self.occupancy.append(pages)

    def arrays(self) -> dict[str, np.ndarray]:
        """Return one int64 array for each column, and the occupancy of pages."""
        names = COLUMNS + (MEMORY_COLUMNS if self.allocator is not None else ())
        table = np.array(self.samples, np.int64).reshape(-1, len(names))
        found = {name: table[:, column].copy() for column, name in enumerate(names)}
        return {**found, OCCUPANCY: np.array(self.occupancy, np.int64)}


class Audit:
    """Recounts an engine at the first sample, the second, the fourth, and so on.

    A recount takes much longer than a sample, so that it is made ever more seldom; one is made at
    the end of every run besides.
    """

    def __init__(self) -> None:
        self._samples = 0

    def __call__(self, engine: ServingEngine) -> None:
        """See one sample; raise LedgerError if a recount finds another sum."""
        self._samples += 1
        if self._samples & (self._samples - 1) == 0:
            engine.check()
