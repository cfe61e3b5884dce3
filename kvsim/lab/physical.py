"""From a scenario to physical memory: its buffers, its extents, and what the process holds.

A scenario has a physical model if its memory is mapped or if it says how large an extent is. Then
the pool has a fixed size, as engines give it: the buffers are made once.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from kvsim.errors import LedgerError, ScenarioError
from kvsim.lab.scenario import Scenario
from kvsim.layout import KVLayout
from kvsim.layout.families import of_layout
from kvsim.paging import Geometry
from kvsim.paging.physical import Extents
from kvsim.tensors.buffers import OS_PAGE_BYTES
from kvsim.tensors.mapped import buffers_of_shape, extents_of_shape
from kvsim.tensors.rope import Rope
from kvsim.tensors.shape import CacheShape
from kvsim.workload.arrivals import Arrival

DEFAULT_EXTENT_BYTES = 2 << 20
"""What mapped memory takes where the scenario does not say: the page of a GPU's memory."""
REAL_ELEMENT_BYTES = 4
"""Mapped planes are float32, and their bytes are counted as they are."""

_SMAPS = Path("/proc/self/smaps_rollup")


def extent_bytes(scenario: Scenario) -> int:
    """Return the unit of mapping, 0 where the scenario has no physical model."""
    store = scenario.store
    default = DEFAULT_EXTENT_BYTES if store.memory == "mapped" else 0
    return store.extent_bytes or default


def _shape(scenario: Scenario, layout: KVLayout) -> CacheShape:
    """Return the shape of the planes. Bytes do not depend on how keys rotate."""
    families = of_layout(layout, [0] * len(layout.layers()))
    return CacheShape(families, (Rope(0),), scenario.store.planes, 1)


def check(scenario: Scenario, layout: KVLayout, geometry: Geometry) -> None:
    """Refuse a physical model that the scenario cannot have.

    Raises
    ------
    ScenarioError
        Naming the key at fault.
    LayoutError
        If the layout caches more than dense rows.
    """
    store = scenario.store
    if store.memory == "mapped":
        if store.kind != "array":
            raise ScenarioError("store.memory: mapped memory holds rows; set store.kind to array")
        if store.element_bytes != REAL_ELEMENT_BYTES:
            raise ScenarioError(
                "store.memory: mapped planes are float32; set store.element_bytes to"
                f" {REAL_ELEMENT_BYTES}, not {store.element_bytes}"
            )
        if extent_bytes(scenario) % OS_PAGE_BYTES:
            raise ScenarioError(
                f"store.extent_bytes: {store.extent_bytes} is no multiple of this machine's page"
                f" of {OS_PAGE_BYTES} bytes, and memory is mapped by it"
            )
    if not extent_bytes(scenario):
        return
    try:
        buffers_of_shape(
            _shape(scenario, layout), geometry, scenario.pages.tokens, store.plane_layout
        )
    except LedgerError as refusal:
        raise ScenarioError(f"store.plane_layout: {refusal}") from None


def pool_pages(
    scenario: Scenario, geometry: Geometry, ceiling_pages: int, arrivals: Sequence[Arrival]
) -> int:
    """Return the pages that a pool of fixed size needs, so that it never has to grow.

    Each table names at most a page per `pages.tokens` tokens that it was given, and `rebuild`
    holds those of one sequence twice. A ceiling below that is the size.
    """
    tokens = scenario.pages.tokens
    dense = [-(-(prompt + decode) // tokens) for _, prompt, decode in arrivals]
    most = sum(dense) * (1 + scenario.workload.forks)
    if scenario.compaction.algorithm == "rebuild":
        most += max(dense)
    most *= geometry.scope_units
    return min(ceiling_pages, most) if ceiling_pages else most


def make_extents(
    scenario: Scenario, layout: KVLayout, geometry: Geometry, pages: int
) -> Extents | None:
    """Return the extents under a pool of so many pages; None if there is no physical model."""
    size = extent_bytes(scenario)
    if not size:
        return None
    return extents_of_shape(
        _shape(scenario, layout),
        geometry,
        scenario.pages.tokens,
        pages,
        plane_layout=scenario.store.plane_layout,
        extent_bytes=size,
        element_bytes=scenario.store.element_bytes,
    )


def process_rss_bytes() -> int | None:
    """Return what of this process is in memory, by smaps; None where the system does not say."""
    try:
        lines = _SMAPS.read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        name, _, rest = line.partition(":")
        if name == "Rss":
            return int(rest.split()[0]) * 1024
    return None
