"""The allocator under a serving engine's pool, told at the end of steps what changed hands.

Held and cached pages are taken, as the engines that it imitates see them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from kvsim.engine.serving import fields as s
from kvsim.engine.serving.engine import ServingEngine
from kvsim.errors import ScenarioError
from kvsim.lab.scenario import Scenario
from kvsim.layout import KVLayout
from kvsim.paging import fields as f
from kvsim.paging.physical import models

MIB = 1 << 20


def buffer_page_bytes(scenario: Scenario, layout: KVLayout) -> int:
    """Return the bytes of a page in one buffer: each layer has two, of keys and of values."""
    widths = layout.unit_row_bytes(scenario.store.planes, scenario.store.element_bytes)
    return int(sum(widths)) * scenario.pages.tokens // len(layout.layers()) // 2


def extent_bytes(scenario: Scenario) -> int:
    """Return the bytes of an extent of one buffer, 2 MiB unless the scenario says otherwise."""
    return scenario.store.extent_bytes or 2 * MIB


class Allocator:
    """One model of physical memory beside one engine.

    Parameters
    ----------
    scenario : Scenario
    layout : KVLayout
    longest_tokens : int
        Of all requests: what `contiguous` reserves for each.
    """

    def __init__(self, scenario: Scenario, layout: KVLayout, longest_tokens: int) -> None:
        self.name = scenario.memory.model
        token_bytes = sum(
            layout.unit_row_bytes(scenario.store.planes, scenario.store.element_bytes)
        )
        self.page_bytes = token_bytes * scenario.pages.tokens
        pages = scenario.pool.ceiling_pages
        if not pages:
            raise ScenarioError("memory.model: the pool under an allocator needs a ceiling")
        if self.name == "token_pool" and scenario.pages.tokens != 1:
            raise ScenarioError("memory.model: token_pool has pages of one token")
        layers = len(layout.layers())
        size = extent_bytes(scenario)
        parked = scenario.memory.reserve_extents
        buffer_bytes = buffer_page_bytes(scenario, layout)
        if self.name == "kvcached" and (size % buffer_bytes or buffer_bytes > size):
            # Pages that straddle two extents belong to none there, and the pool would offer them.
            raise ScenarioError(
                f"memory.model: kvcached needs whole pages in an extent of {size} bytes, and a "
                f"page of one buffer has {buffer_bytes}"
            )
        whole = -(-pages * buffer_bytes // size) * size // max(1, buffer_bytes)
        values: dict[str, dict[str, Any]] = {
            "fixed_pool": {"pages": pages, "page_bytes": self.page_bytes, "null_pages": 0},
            "token_pool": {"slots": pages, "token_bytes": token_bytes, "padding_slots": 0},
            "extents": {
                "pages": pages,
                "page_bytes": buffer_bytes,
                "layers": layers,
                "buffers": 2,
                "extent_bytes": size,
            },
            "kvcached": {
                "pages": whole,
                "page_bytes": buffer_bytes,
                "layers": layers,
                "extent_bytes": size,
                "reserve_min": min(5, parked),
                "reserve_max": parked,
                "null_pages": 0,
            },
            "slab": {"pages": pages, "page_bytes": self.page_bytes, "parked_slabs": parked},
            "caching_allocator": {},
            "async_pool": {},
            "contiguous": {"max_tokens": longest_tokens, "token_bytes": token_bytes},
        }
        self.model: Any = models.build(self.name, **values[self.name])
        self._taken = np.zeros(pages, np.bool_)
        self._address: dict[int, int] = {}
        self._sequences: dict[int, tuple[int, int, int]] = {}
        events = models.MODELS[self.name].events
        tell: dict[str, Callable[[ServingEngine], None]] = {
            "pages": self._tell_pages,
            "bytes": self._tell_bytes,
            "sequences": self._tell_sequences,
        }
        self._tell = tell[events]

    def __call__(self, engine: ServingEngine) -> None:
        """Tell the model what changed since it was told last."""
        self._tell(engine)

    def _changes(self, engine: ServingEngine) -> tuple[list[int], list[int]]:
        state = engine.ledger.arrays.pages[f.STATE, :-1]
        now = (state == f.HELD_PAGE) | (state == f.CACHED_PAGE)
        if now.size > self._taken.size:
            raise ScenarioError(f"memory.model: {self.name} cannot follow a ceiling that rises")
        gone = np.flatnonzero(self._taken & ~now).tolist()
        come = np.flatnonzero(now & ~self._taken).tolist()
        self._taken = now
        return gone, come

    def _tell_pages(self, engine: ServingEngine) -> None:
        gone, come = self._changes(engine)
        if gone:
            self.model.let_go(gone)
        if come:
            self.model.take(come)

    def _tell_bytes(self, engine: ServingEngine) -> None:
        gone, come = self._changes(engine)
        for page in gone:
            self.model.free(self._address.pop(page))
        for page in come:
            self._address[page] = self.model.allocate(self.page_bytes)

    def _tell_sequences(self, engine: ServingEngine) -> None:
        engine.bring_up_to_date()
        now: dict[int, tuple[int, int]] = {}
        for request in engine.serving.running[: engine.state[s.RUNNING]].tolist():
            sequence = int(engine.rows[request, s.SEQUENCE])
            table = engine.ledger.arrays.tables[sequence]
            now[request] = (int(engine.rows[request, s.PREEMPTIONS]), int(table[f.CURSOR]))
        for request, (number, life, _) in list(self._sequences.items()):
            if request not in now or now[request][0] != life:
                self.model.free(number)
                del self._sequences[request]
        for request, (life, tokens) in now.items():
            number, _, before = self._sequences.get(request, (-1, life, 0))
            if number < 0:
                number = self.model.open()
            if tokens > before:
                self.model.append(number, tokens - before)
            self._sequences[request] = (number, life, max(tokens, before))

    def columns(self) -> dict[str, int]:
        """Return the four figures at this moment, in bytes."""
        return dict(self.model.figures()._asdict())
