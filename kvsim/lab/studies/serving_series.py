"""The time series of a serving run: what a monitor sees at the boundaries between steps."""

from __future__ import annotations

import numpy as np

from kvsim.engine.serving import fields as s
from kvsim.engine.serving.engine import ServingEngine
from kvsim.lab.studies.serving_memory import Allocator
from kvsim.paging import fields as f

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
)
MEMORY_COLUMNS = ("held_bytes", "empty_bytes", "parked_bytes", "returned_bytes")


class Series:
    """Samples of an engine, and of the allocator under it if there is one."""

    def __init__(self, allocator: Allocator | None) -> None:
        self.allocator = allocator
        self.samples: list[tuple[int, ...]] = []

    def __call__(self, engine: ServingEngine) -> None:
        """Take one sample."""
        engine.bring_up_to_date()
        scalars, state = engine.ledger.arrays.scalars, engine.state
        slots = engine.ledger.slots()
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
        )
        if self.allocator is not None:
            self.allocator(engine)
            sample += tuple(self.allocator.columns().values())
        self.samples.append(sample)

    def arrays(self) -> dict[str, np.ndarray]:
        """Return one int64 array for each column."""
        names = COLUMNS + (MEMORY_COLUMNS if self.allocator is not None else ())
        table = np.array(self.samples, np.int64).reshape(-1, len(names))
        return {name: table[:, column].copy() for column, name in enumerate(names)}
