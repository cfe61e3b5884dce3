"""One run as one flat row: the columns of the contract, in their order, with units last."""

from __future__ import annotations

import math
from typing import Any

from kvsim.eviction import EvictionLoop
from kvsim.lab import physical
from kvsim.lab.scenario import Scenario
from kvsim.layout import KVLayout
from kvsim.paging import fields as f
from kvsim.paging.physical import Extents

# Columns that a run measures; null in a row whose outcome is not `completed`.
MEASURED = (
    "layers_counted",
    "plane_price",
    "tokens",
    "retained_tokens",
    "evicted_tokens_total",
    "live_slots",
    "dead_slots",
    "tail_slots",
    "logical_live_slots",
    "held_pages",
    "logical_pages",
    "held_pages_peak",
    "freed_pages_total",
    "packed_floor_pages",
    "packed_floor_slot_pages",
    "dense_pages",
    "held_fraction",
    "fragmentation",
    "row_fragmentation",
    "reclaim_efficiency",
    "held_bytes",
    "dense_bytes",
    "evicted_bytes_total",
    "metadata_bytes",
    "charged_fraction",
    "copied_rows_total",
    "rotated_rows_total",
    "copied_bytes_total",
    "cow_pages_total",
    "extra_pages_peak",
    "page_bytes",
    "read_rotated_rows",
    "mapped_extents",
    "mapped_bytes",
    "returned_extents_total",
    "empty_mapped_bytes",
    "refused_verbs_total",
    "retained_mass",
    "budget_met",
    "steps",
    "page_map",
)


def settings(
    scenario: Scenario, policy: str, parameters: dict[str, Any], layout: str
) -> dict[str, Any]:
    """Return the columns that repeat what the scenario asked for; names instead of paths."""
    arrives = scenario.workload.kind == "requests"
    size = physical.extent_bytes(scenario)
    return {
        "seed": scenario.seed,
        "layout": layout,
        "policy": policy,
        "policy_parameters": ", ".join(f"{k}={v}" for k, v in sorted(parameters.items())),
        "granularity": scenario.selection.granularity,
        "sets": scenario.selection.sets,
        "window_tokens": scenario.selection.window_tokens,
        "protect_recent": scenario.selection.protect_recent,
        "protect_sinks": scenario.selection.protect_sinks,
        "scope": scenario.pages.scope,
        "page_tokens": scenario.pages.tokens,
        "budget_fraction": scenario.budget.fraction,
        "budget_tokens": scenario.budget.tokens,
        "ceiling_pages": scenario.pool.ceiling_pages,
        "ceiling_bytes": scenario.pool.ceiling_bytes,
        "order": scenario.pool.order,
        "when": scenario.budget.when,
        "chunk_tokens": scenario.budget.chunk_tokens,
        "compaction": scenario.compaction.algorithm,
        "compaction_unit": scenario.compaction.unit,
        "positions": scenario.compaction.positions,
        "append": scenario.pages.append,
        "workload": scenario.workload.kind,
        "sequences": None if arrives else scenario.workload.sequences,
        "requests": scenario.workload.requests if arrives else None,
        "rate_per_s": scenario.workload.rate_per_s if arrives else None,
        "forks": scenario.workload.forks,
        "forks_evict": scenario.workload.forks_evict,
        "decode_tokens": scenario.workload.decode_tokens,
        "store": scenario.store.kind,
        "planes": scenario.store.planes,
        "element_bytes": scenario.store.element_bytes,
        "memory": scenario.store.memory,
        "plane_layout": scenario.store.plane_layout if size else None,
        "extent_bytes": size or None,
    }


def _budget_met(loop: EvictionLoop, scenario: Scenario, held_bytes: int) -> bool:
    """Compare held bytes with the budget, one partial page or window a table allowed."""
    page_tokens = scenario.pages.tokens
    slack = 1.0
    if scenario.selection.granularity == "window":
        slack = max(1.0, scenario.selection.window_tokens / page_tokens)
    page_bytes = int(loop.ledger.geometry.page_row_bytes().sum()) * page_tokens
    allowed = 0.0
    for state in loop.tracked.values():
        dense = -(-state.appended // page_tokens)
        fraction = loop.rules.target(state.appended).fraction
        allowed += page_bytes * (math.ceil(fraction * dense) + slack)
    return held_bytes <= allowed


def plane_price(layout: KVLayout, planes: str) -> float:
    """Return the bytes of a token's rows in these planes over those in planes kv.

    Over all scope units, so that it is one number where their pages differ.
    """
    return sum(layout.unit_row_bytes(planes)) / sum(layout.unit_row_bytes("kv"))


def _physical(loop: EvictionLoop) -> dict[str, int | None]:
    """Read the physical model; its columns are null where there is none."""
    model = loop.ledger.physical_model
    known = isinstance(model, Extents)
    names = ("mapped_extents", "mapped_bytes", "returned_extents_total", "empty_mapped_bytes")
    return {name: getattr(model, name) if known else None for name in names}


def measure(loop: EvictionLoop, scenario: Scenario, steps: int) -> dict[str, Any]:
    """Read every stock, flow and peak of a run, after its last step and before finish."""
    ledger, geometry = loop.ledger, loop.ledger.geometry
    slots, floors = ledger.slots(), ledger.floors()
    held_pages, held_bytes = ledger.held_pages, ledger.held_bytes
    dense_pages = loop.dense.held_pages * geometry.scope_units
    dense_bytes = loop.dense.held_bytes
    evicted_bytes = ledger.total(f.EVICTED_BYTES_TOTAL)
    metadata = ledger.metadata_bytes
    appended = sum(state.appended for state in loop.tracked.values()) + loop.finished_tokens_total
    evicted = ledger.total(f.EVICTED_ROWS_TOTAL) / geometry.units
    return {
        "tokens": appended,
        "retained_tokens": float(ledger.retained_rows / geometry.units),
        "evicted_tokens_total": float(evicted),
        "live_slots": slots.live,
        "dead_slots": slots.dead,
        "tail_slots": slots.tail,
        "logical_live_slots": ledger.logical_live_slots,
        "held_pages": held_pages,
        "logical_pages": ledger.logical_pages,
        "held_pages_peak": ledger.total(f.HELD_PEAK),
        "freed_pages_total": ledger.total(f.FREED_TOTAL),
        "packed_floor_pages": floors.row_pages,
        "packed_floor_slot_pages": floors.slot_pages,
        "dense_pages": dense_pages,
        "held_fraction": held_bytes / dense_bytes,
        "fragmentation": 1 - slots.live / (held_pages * ledger.page_tokens) if held_pages else 0.0,
        "row_fragmentation": 1 - floors.live_row_bytes / held_bytes if held_bytes else 0.0,
        "reclaim_efficiency": (dense_bytes - held_bytes) / evicted_bytes if evicted_bytes else None,
        "held_bytes": held_bytes,
        "dense_bytes": dense_bytes,
        "evicted_bytes_total": evicted_bytes,
        "metadata_bytes": metadata,
        "charged_fraction": (held_bytes + metadata) / dense_bytes,
        "copied_rows_total": ledger.total(f.COPIED_ROWS_TOTAL),
        "rotated_rows_total": ledger.total(f.ROTATED_ROWS_TOTAL),
        "copied_bytes_total": ledger.total(f.COPIED_BYTES_TOTAL),
        "cow_pages_total": ledger.total(f.COW_TOTAL),
        "extra_pages_peak": ledger.total(f.EXTRA_PEAK),
        "page_bytes": max(geometry.page_row_bytes().tolist()) * ledger.page_tokens,
        # What one reading of every retained row has to rotate.
        "read_rotated_rows": ledger.retained_rows if scenario.store.planes == "raw_only" else 0,
        **_physical(loop),
        "refused_verbs_total": loop.refused_verbs_total,
        "retained_mass": loop.retained_mass(),
        "budget_met": _budget_met(loop, scenario, held_bytes),
        "steps": steps,
    }
