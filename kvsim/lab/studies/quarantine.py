"""How a poisoned span leaves a shared context: pages, bytes, time, and what of it stays behind.

The ledger is the real one, with rows counted and not stored. What rows were computed from is no
business of a ledger, so `conditioned_tokens` says how many were computed with the span in sight.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np

from kvsim.engine.costs.settings import cost_model
from kvsim.errors import ScenarioError
from kvsim.lab.scenario import Scenario
from kvsim.lab.studies.quarantine_keys import RECOMPUTES, REWRITES, Quarantine
from kvsim.lab.studies.quarantine_removal import Removal
from kvsim.lab.studies.quarantine_time import moving_ns, prefill
from kvsim.lab.studies.study import Study
from kvsim.layout import KVLayout, load_layout
from kvsim.paging import Ledger, Order, geometry
from kvsim.paging import fields as f

FLOWS = {
    "freed_pages_total": f.FREED_TOTAL,
    "copied_rows_total": f.COPIED_ROWS_TOTAL,
    "rotated_rows_total": f.ROTATED_ROWS_TOTAL,
    "copied_bytes_total": f.COPIED_BYTES_TOTAL,
    "cow_pages_total": f.COW_TOTAL,
}
MOST_SLOTS = 1 << 28  # Of all sequences together; a ledger holds a few bytes for each.


def _key_bytes(scenario: Scenario, layout: KVLayout) -> int:
    """Return the bytes of one unit's key.

    Raises
    ------
    ScenarioError
        If a layer is not full attention, or its rows have another width.
    """
    layers = layout.layers()
    strange = sorted({layer.kind for layer in layers} - {"full"})
    widths = {(layer.kv_heads, layer.k_head_dim, layer.v_head_dim) for layer in layers}
    if strange or len(widths) != 1 or not all(next(iter(widths))):
        raise ScenarioError(
            f"layout: a quarantine needs layers of full attention that are alike, and "
            f"{layout.name} has others"
        )
    _, k_head_dim, _ = widths.pop()
    return int(k_head_dim or 0) * scenario.store.element_bytes


def _check(scenario: Scenario) -> None:
    study = scenario.quarantine
    layout = load_layout(scenario.layout)
    _key_bytes(scenario, layout)
    cost_model(layout, scenario.cost, scenario.store.planes, scenario.store.element_bytes)
    if scenario.pages.scope != "sequence":
        raise ScenarioError("pages.scope: a span leaves all layers alike, so it is sequence")
    if scenario.pages.append != "tail":
        raise ScenarioError("pages.append: a quarantine fills no holes, so it is tail")
    if study.method in REWRITES and scenario.store.planes == "kv":
        raise ScenarioError(
            f"store.planes: {study.method} needs the pre-RoPE key, which planes kv do not keep; "
            "set it to kv_raw or raw_only"
        )
    if study.method not in REWRITES and study.sharing != "each":
        raise ScenarioError(f"quarantine.sharing: the method {study.method} does not read it")
    tokens = study.prefix_tokens + study.span_tokens + study.suffix_tokens + study.tail_tokens
    if tokens * study.fan_out > MOST_SLOTS:
        raise ScenarioError(
            f"quarantine.fan_out: {study.fan_out} tables of {tokens} tokens are too many slots"
        )


def _ordering(scenario: Scenario) -> Order:
    method = scenario.quarantine.method
    return Order(
        compaction="forward" if method == "compact" else "none",
        positions="renumber" if method in REWRITES else "keep",
        renumber_writes=scenario.store.planes == "kv_raw",
    )


def _settings(scenario: Scenario) -> dict[str, Any]:
    """Return the keys of [quarantine] and what follows from them."""
    study, order = scenario.quarantine, _ordering(scenario)
    own = {field.name: getattr(study, field.name) for field in fields(Quarantine)}
    page_tokens = scenario.pages.tokens
    edges = (study.prefix_tokens, study.prefix_tokens + study.span_tokens)
    return {
        **own,
        "sharing": study.sharing if study.method in REWRITES else None,
        "step_tokens": study.step_tokens if study.method in RECOMPUTES else None,
        "aligned": all(edge % page_tokens == 0 for edge in edges),
        "device": scenario.cost.device,
        "sequences": study.fan_out,
        "forks": study.fan_out - 1,
        "forks_evict": True,
        "decode_tokens": study.tail_tokens,
        "when": None,
        "chunk_tokens": None,
        "rate_per_s": None,
        "policy": study.method,
        "policy_parameters": "",
        "granularity": "page" if study.method == "keep_aligned" else "token",
        "window_tokens": None,
        "protect_recent": None,
        "protect_sinks": None,
        "budget_fraction": None,
        "budget_tokens": None,
        "compaction": order.compaction,
        "compaction_unit": order.unit if study.method == "compact" else None,
        "positions": order.positions,
        "ceiling_pages": 0,
        "ceiling_bytes": 0,
        "order": "fifo",
    }


def _flows(ledger: Ledger) -> dict[str, int]:
    return {name: ledger.total(field) for name, field in FLOWS.items()}


def _left(removal: Removal, row_bytes: int) -> dict[str, int]:
    """Return what of the span stays: read by attention, in held pages, and in other rows."""
    study, ledger = removal.study, removal.ledger
    span = removal.span_left()
    places = [ledger.physical(member, 0, span) for member in removal.members]
    distinct = np.unique(np.concatenate(places)).size
    followers = study.suffix_tokens + study.fan_out * study.tail_tokens
    return {
        "readable_span_tokens": int(span.size),
        "residual_bytes": (ledger.slots().dead + distinct) * row_bytes,
        "conditioned_tokens": 0 if study.method in RECOMPUTES else followers,
    }


def measure(scenario: Scenario) -> dict[str, Any]:
    """Build the context, remove its span, and return the measured columns.

    Bytes of rotations are those of the keys written; `moved_bytes_total` are all bytes read and
    written by copies and rotations.
    """
    study, layout = scenario.quarantine, load_layout(scenario.layout)
    planes, element_bytes = scenario.store.planes, scenario.store.element_bytes
    shape = geometry(layout, "sequence", "shared", planes, element_bytes)
    row_bytes = int(shape.page_row_bytes()[0])
    ledger = Ledger(shape, scenario.pages.tokens, ordering=_ordering(scenario))
    removal = Removal(ledger, study)
    removal.build()
    ledger.check()
    before, reads = _flows(ledger), removal.slots_read()
    dense_pages, dense_bytes = ledger.held_pages, ledger.held_bytes
    removal.remove()
    ledger.check()
    found = {name: value - before[name] for name, value in _flows(ledger).items()}
    carried = removal.moved_tail_tokens
    found["copied_rows_total"] += carried * shape.units
    found["copied_bytes_total"] += carried * row_bytes
    if planes == "kv_raw":
        found["rotated_rows_total"] += carried * sum(shape.unit_turns)
    rotated_bytes = found["rotated_rows_total"] * _key_bytes(scenario, layout)
    moved_bytes = 2 * (found["copied_bytes_total"] + rotated_bytes)
    model, _ = cost_model(layout, scenario.cost, planes, element_bytes)
    again = prefill(model, removal.prefilled, study.step_tokens)
    moving = moving_ns(model, moved_bytes)
    slots, floors = ledger.slots(), ledger.floors()
    gone = study.fan_out * (study.span_tokens - removal.span_left().size)
    tokens = study.fan_out * (removal.context_tokens + study.tail_tokens)
    page_bytes = row_bytes * ledger.page_tokens
    return {
        **found,
        **_left(removal, row_bytes),
        "layers_counted": f"{len(layout.layers())}/{layout.num_layers}",
        "tokens": tokens,
        "retained_tokens": float(ledger.retained_rows / shape.units),
        "evicted_tokens_total": float(gone),
        "evicted_bytes_total": gone * row_bytes,
        "live_slots": slots.live,
        "dead_slots": slots.dead,
        "tail_slots": slots.tail,
        "logical_live_slots": ledger.logical_live_slots,
        "held_pages": ledger.held_pages,
        "logical_pages": ledger.logical_pages,
        "held_pages_peak": removal.most_pages,
        "extra_pages_peak": removal.most_pages - dense_pages,
        "packed_floor_pages": floors.row_pages,
        "packed_floor_slot_pages": floors.slot_pages,
        "dense_pages": dense_pages,
        "net_freed_pages": dense_pages - ledger.held_pages,
        "held_fraction": ledger.held_bytes / dense_bytes,
        "held_bytes": ledger.held_bytes,
        "dense_bytes": dense_bytes,
        "fragmentation": 1 - slots.live / (ledger.held_pages * ledger.page_tokens),
        "row_fragmentation": 1 - floors.live_row_bytes / ledger.held_bytes,
        "reclaim_efficiency": (dense_bytes - ledger.held_bytes) / (gone * row_bytes)
        if gone
        else None,
        "page_bytes": page_bytes,
        "row_bytes": row_bytes,
        "plane_price": sum(layout.unit_row_bytes(planes)) / sum(layout.unit_row_bytes("kv")),
        "rotated_bytes_total": rotated_bytes,
        "moved_bytes_total": moved_bytes,
        "moved_tail_tokens": carried,
        "prefilled_tokens_total": again.tokens,
        "prefill_steps": again.steps,
        "prefill_bytes_total": again.read_bytes,
        "prefill_flops_total": again.flops,
        "decode_read_bytes_before": reads * row_bytes,
        "decode_read_bytes": removal.slots_read() * row_bytes,
        "moving_time_ns": moving,
        "prefill_time_ns": again.time_ns,
        "time_ns": moving + again.time_ns,
    }


def _run(scenario: Scenario, measured: dict[str, Any], series: dict[str, Any]) -> dict[str, Any]:
    return measure(scenario)


STUDY = Study(
    concerns=(
        "layout",
        "pages.tokens",
        "pages.scope",
        "pages.append",
        "workload.kind",
        "store.planes",
        "store.element_bytes",
        "quarantine.",
        "cost.",
    ),
    check=_check,
    settings=_settings,
    run=_run,
)
