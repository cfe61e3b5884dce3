"""How many extents come back when cached pages are evicted, and which pages that orphans.

One allocator, kvcached's, under one recipe that says where cached pages lie, and one rule that says
which go. An extent is one id of kvcached's: mapped, parked and returned in all layers and buffers
at once. No engine, no time, no rows; every page counts as full but for the recipe `idle`, whose
requests have tails.
"""

from __future__ import annotations

import random
from dataclasses import fields
from typing import Any, NamedTuple

from kvsim.errors import ScenarioError
from kvsim.lab.scenario import Scenario
from kvsim.lab.studies import extents_recipes as recipes
from kvsim.lab.studies.extents_idle import Server, traffic
from kvsim.lab.studies.extents_keys import READ, ExtentStudy
from kvsim.lab.studies.extents_published import published
from kvsim.lab.studies.study import Study
from kvsim.layout import PLANES, KVLayout, load_layout
from kvsim.paging.physical.kvcached import EXTENT_UNIT_BYTES, Kvcached, KvcachedParameters
from kvsim.paging.physical.kvcached_victims import Broken, broken

NULL_PAGES = 1
# What kvcached's thread parks ahead of need, where the reserve has room for as many.
RESERVE_MIN = 5
EVERYWHERE = ("recipe", "victims", "top_up", "reserve_extents")


class Sizes(NamedTuple):
    """Bytes of a scenario's pages and extents, in one buffer of one layer."""

    page_bytes: int
    layers: int
    buffers: int
    extent_bytes: int

    @property
    def pages_per_extent(self) -> int:
        """Pages that fit into an extent."""
        return self.extent_bytes // self.page_bytes


def sizes(scenario: Scenario, layout: KVLayout) -> Sizes:
    """Return the sizes of a scenario.

    Raises
    ------
    ScenarioError
        If the layout's buffers are not alike, or a page or an extent has a size that kvcached
        cannot map.
    """
    layers = layout.layers()
    widths = {layer.kv_heads * width for layer in layers for width in _widths(layer)}
    if len(widths) != 1 or any(layer.index_elements for layer in layers):
        raise ScenarioError(
            f"layout: kvcached maps all layers and buffers alike, and {layout.name}'s differ"
        )
    token_bytes = widths.pop() * scenario.store.element_bytes
    extent_bytes = scenario.store.extent_bytes or EXTENT_UNIT_BYTES
    if extent_bytes % EXTENT_UNIT_BYTES:
        raise ScenarioError(
            f"store.extent_bytes: {extent_bytes} is no multiple of {EXTENT_UNIT_BYTES}, "
            "which kvcached maps at once"
        )
    page_bytes = token_bytes * scenario.pages.tokens
    if page_bytes > extent_bytes:
        raise ScenarioError(
            f"pages.tokens: a page of {page_bytes} bytes a layer passes an extent of {extent_bytes}"
        )
    return Sizes(page_bytes, len(layers), len(PLANES[scenario.store.planes]), extent_bytes)


def _widths(layer: Any) -> tuple[int, int]:
    return layer.k_head_dim, layer.v_head_dim


def build(scenario: Scenario, layout: KVLayout) -> Kvcached:
    """Return the allocator of a scenario, of as many extents as its pool lies in."""
    study, size = scenario.extents, sizes(scenario, layout)
    extents = -(-study.pool_pages * size.page_bytes // size.extent_bytes)
    return Kvcached(
        KvcachedParameters(
            pages=-(-extents * size.extent_bytes // size.page_bytes),
            page_bytes=size.page_bytes,
            layers=size.layers,
            buffers=size.buffers,
            extent_bytes=size.extent_bytes,
            reserve_min=min(RESERVE_MIN, study.reserve_extents),
            reserve_max=study.reserve_extents,
            allocation=study.allocation,
            null_pages=NULL_PAGES,
        )
    )


def _check(scenario: Scenario) -> None:
    study = scenario.extents
    for field in fields(ExtentStudy):
        unread = field.name not in (*EVERYWHERE, *READ[study.recipe])
        if unread and getattr(study, field.name) != field.default:
            raise ScenarioError(f"extents.{field.name}: the recipe {study.recipe} does not read it")
    if study.victims == "lru" and not study.top_up:
        raise ScenarioError("extents.top_up: lru takes single pages alone, so there is no top-up")
    if study.recipe != "idle" and study.evict_pages > study.cached_pages:
        raise ScenarioError(
            f"extents.evict_pages: {study.evict_pages} of {study.cached_pages} cached pages"
        )
    for least, most in (
        ("request_pages_least", "request_pages_most"),
        ("decode_tokens_least", "decode_tokens_most"),
    ):
        if getattr(study, least) > getattr(study, most):
            raise ScenarioError(f"extents.{least}: it is above {most}")
    if scenario.pages.scope != "sequence":
        raise ScenarioError("pages.scope: cached pages hold all layers, so it is sequence")
    model = build(scenario, load_layout(scenario.layout))
    usable = sum(model.extent_of(page) is not None for page in range(1, study.pool_pages))
    needed = study.cached_pages + study.pinned_pages
    if needed > usable:
        raise ScenarioError(
            f"extents.pool_pages: {needed} pages are to be cached and pinned, and {usable} lie in "
            "an extent"
        )
    reach = recipes.spread_pages(study, model)
    drawn = max(study.pinned_pages, study.request_pages_most)
    if study.recipe == "random" and drawn > min(reach, usable):
        raise ScenarioError(
            f"extents.spread_extents: {drawn} pages are drawn at once, among {min(reach, usable)}"
        )


def _settings(scenario: Scenario) -> dict[str, Any]:
    """Return the keys of [extents], null where the recipe does not read them."""
    study, layout = scenario.extents, load_layout(scenario.layout)
    size = sizes(scenario, layout)
    known = (*EVERYWHERE, *READ[study.recipe])
    own = {
        field.name: getattr(study, field.name) if field.name in known else None
        for field in fields(ExtentStudy)
    }
    idle = study.recipe == "idle"
    total = study.cached_pages + study.pinned_pages
    kept = total - study.evict_pages
    columns = {
        "sequences": None,
        "forks": None,
        "forks_evict": None,
        "decode_tokens": None,
        "when": None,
        "chunk_tokens": None,
        "positions": None,
        "append": None,
        "order": None,
        "rate_per_s": None,
        "policy": study.victims,
        "policy_parameters": "",
        "granularity": "page",
        "window_tokens": None,
        "protect_recent": None,
        "protect_sinks": None,
        "compaction": "none",
        "compaction_unit": None,
        "budget_tokens": (study.cached_pages if idle else kept) * scenario.pages.tokens,
        "budget_fraction": None if idle else kept / total,
        "memory_model": "kvcached",
        "extent_bytes": size.extent_bytes,
        "pages_per_extent": size.pages_per_extent,
        **own,
        "pinned_fraction": None if idle else study.pinned_pages / total,
    }
    return columns | published({"seed": scenario.seed, **columns})


def _physical(model: Kvcached) -> dict[str, int]:
    """Return the four figures, and where extents are."""
    figures, counters = model.figures(), model.counters()
    return {
        **figures._asdict(),
        "mapped_bytes": figures.mapped_bytes,
        "mapped_bytes_peak": counters["mapped_bytes_peak"],
        "empty_mapped_bytes": figures.empty_bytes + figures.parked_bytes,
        "used_extents": model.used_extents,
        "mapped_extents": model.used_extents + model.parked_extents,
        "parked_extents": model.parked_extents,
        "emptied_extents_total": counters["emptied_extents_total"],
        "returned_extents_total": counters["returned_extents_total"],
        "reused_extents_total": counters["reused_extents_total"],
        "whole_extent_bytes": model.whole_bytes,
    }


def _evicted(model: Kvcached, evicted: int, stranded: int, cut: Broken) -> dict[str, Any]:
    """Return what was evicted, what of it emptied nothing, and what it cost the cache.

    `stranded_pages_total` are evicted pages whose extent still holds others. What emptied is
    whole extents, which may have been filled in part: their bytes over those evicted may pass 1.
    """
    page_bytes = model.parameters.page_bytes * model.copies
    emptied = model.counters()["emptied_extents_total"]
    return {
        "freed_pages_total": evicted,
        "evicted_bytes_total": evicted * page_bytes,
        "stranded_pages_total": stranded,
        "emptied_bytes_total": emptied * model.whole_bytes,
        "orphan_pages": cut.orphan_pages,
        "unreachable_pages": cut.unreachable_pages,
        "page_bytes": page_bytes,
    }


def _once(scenario: Scenario, model: Kvcached) -> dict[str, Any]:
    """Lay pages out by a recipe, evict once, and look."""
    study, page_tokens = scenario.extents, scenario.pages.tokens
    if study.recipe == "stride":
        cached = recipes.stride(study, model)
    else:
        # Python's own generator: with its seed the published table is met draw by draw.
        cached = recipes.scatter(study, model, random.Random(scenario.seed))
    dense = model.figures()
    before = {
        "eligible_extents": len(model.eligible_extents(cached.order)),
        "used_extents_peak": model.used_extents,
    }
    victims = model.victims(
        cached.order,
        study.evict_pages,
        study.victims != "lru",
        parents=cached.parents if study.victims == "chain_aware" else None,
        top_up=study.top_up,
    )
    model.let_go(victims)
    gone = frozenset(victims)
    left = [page for page in cached.order if page not in gone]
    extents = map(model.extent_of, victims)
    stranded = sum(model.occupied(extent) > 0 for extent in extents if extent is not None)
    found = _evicted(model, len(victims), stranded, broken(left, cached.parents, gone))
    figures = model.figures()
    pages = study.cached_pages + study.pinned_pages
    kept = pages - len(victims)
    bytes_total = found["evicted_bytes_total"]
    return {
        **before,
        **_physical(model),
        **found,
        "tokens": pages * page_tokens,
        "retained_tokens": float(kept * page_tokens),
        "evicted_tokens_total": float(len(victims) * page_tokens),
        "held_pages": kept,
        "held_pages_peak": pages,
        "packed_floor_pages": kept,
        "dense_pages": pages,
        "dense_bytes": dense.held_bytes,
        "held_fraction": figures.held_bytes / dense.held_bytes,
        "reclaim_efficiency": _over(dense.held_bytes - figures.held_bytes, bytes_total),
        "extent_reclaim_efficiency": _over(found["emptied_bytes_total"], bytes_total),
        "hit_pages_total": None,
        "budget_met": len(victims) == study.evict_pages,
    }


def _over(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def _idle(scenario: Scenario, model: Kvcached) -> dict[str, Any]:
    """Serve the traffic to its end, trimming as it goes, and look at what is left.

    Extents empty and are used again all the time, so no efficiency of one eviction is given.
    """
    study = scenario.extents
    server = Server(study, model, scenario.pages.tokens)
    server.serve(traffic(study, random.Random(scenario.seed)))
    left, parents = server.cached, server.parents()
    cut = broken(left, parents)
    page_tokens = scenario.pages.tokens
    return {
        "eligible_extents": len(model.eligible_extents(left)),
        "used_extents_peak": server.used_extents_peak,
        **_physical(model),
        **_evicted(model, server.evicted_pages_total, server.stranded_pages_total, cut),
        "tokens": server.tokens_total,
        "retained_tokens": float(len(left) * page_tokens),
        "evicted_tokens_total": float(server.evicted_pages_total * page_tokens),
        "held_pages": len(left),
        "packed_floor_pages": len(left),
        "extent_reclaim_efficiency": None,
        "hit_pages_total": server.hit_pages_total,
        "budget_met": len(left) <= study.cached_pages,
    }


def _run(scenario: Scenario, measured: dict[str, Any], series: dict[str, Any]) -> dict[str, Any]:
    layout = load_layout(scenario.layout)
    model = build(scenario, layout)
    found = (_idle if scenario.extents.recipe == "idle" else _once)(scenario, model)
    model.check()
    packed = -(-found["held_pages"] // sizes(scenario, layout).pages_per_extent)
    counted = f"{len(layout.layers())}/{layout.num_layers}"
    return {**found, "packed_floor_extents": packed, "layers_counted": counted}


STUDY = Study(
    concerns=(
        "seed",
        "layout",
        "pages.tokens",
        "pages.scope",
        "workload.kind",
        "store.planes",
        "store.element_bytes",
        "store.extent_bytes",
        "extents.",
    ),
    check=_check,
    settings=_settings,
    run=_run,
)
