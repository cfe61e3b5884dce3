"""Orphans among a serving engine's cached pages, and a cap on them: by hand, and against twins."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvsim.engine.costs.roofline import COEFFICIENTS
from kvsim.engine.serving import fields as s
from kvsim.engine.serving.drive import Drive, Foreign, Recurring
from kvsim.engine.serving.engine import ServingEngine
from kvsim.engine.serving.settings import Settings
from kvsim.errors import Infeasible, KvsimError, LedgerError
from kvsim.lab import reading
from kvsim.lab.run import run
from kvsim.lab.scenario import Scenario
from kvsim.lab.studies.serving_cache import Cap, Chains, in_order_of_use, parents_of_keys
from kvsim.lab.studies.serving_keys import Prefix
from kvsim.layout import load_layout
from kvsim.paging import fields as f
from kvsim.paging import single
from kvsim.paging.physical import kvcached_victims
from kvsim.workload.requests import Requests
from tests.engine.serving_fuzz import COST, draw

SCENARIO = Path(__file__).parents[2] / "scenarios" / "serving-pressure.toml"
RULES = ("lru", "page_aligned", "chain_aware")
MS = 1_000_000


def _engine(rows: list[tuple[int, int, int, list[int]]], samples: int = 1) -> ServingEngine:
    """Rows of (arrival in ms, input, output, keys); pages of 4 tokens, steps of a millisecond."""
    cost = np.zeros(COEFFICIENTS)
    cost[2] = cost[5] = cost[6] = 1e30
    cost[7] = MS
    keys = [key for row in rows for key in row[3]]
    count = len(rows)
    requests = Requests(
        page_tokens=4,
        arrival_ns=np.array([row[0] * MS for row in rows]),
        input_tokens=np.array([row[1] for row in rows]),
        output_tokens=np.array([row[2] for row in rows]),
        priority=np.zeros(count, np.int64),
        samples=np.full(count, samples),
        keys=np.array(keys, np.int32),
        key_start=np.cumsum([0, *(len(row[3]) for row in rows)]),
        given_keys=max(keys, default=-1) + 1,
    )
    settings = Settings(step_tokens=64, max_running=4, ceiling_pages=9, prefix="blocks")
    return ServingEngine(requests, settings, cost, single())


def _cap(engine: ServingEngine, rule: str, cap_pages: int, per_extent: int) -> Cap:
    scenario = replace(Scenario(), prefix=Prefix(cap_pages=cap_pages, victims=rule))
    cap = Cap(scenario, load_layout("SmolLM2-135M"), Chains(engine))
    cap.pages_per_extent = per_extent
    return cap


# Two chains: pages 0 to 3 of the first request under keys 0 to 3, pages 4 and 5 of the second
# under 4 and 5. Each is freed from its last page to its first. Page 4 was the first one's partial
# page, and 6 the second one's. The third request comes at 20 ms with the first one's prompt.
TWO_CHAINS = [
    (0, 17, 1, [0, 1, 2, 3]),
    (5, 9, 1, [4, 5]),
    (20, 17, 1, [0, 1, 2, 3]),
]


def test_a_key_has_the_page_before_it_for_a_parent() -> None:
    # Request 0 has two given keys and two of its own (pages 2 and 3), request 1 shares the first.
    # Own keys follow the given ones 0 to 2: 3 and 4 of request 0; 5 of request 1, its page 1.
    engine = _engine([(0, 12, 4, [0, 1]), (0, 8, 1, [0])])
    assert parents_of_keys(engine).tolist() == [-1, 0, 1, 2, 0]


def test_samples_share_the_keys_of_their_prompt() -> None:
    # One prompt of two pages, two samples of a page each: keys 0 and 1 are the prompt's, 2 is the
    # first sample's own. The fork numbers its own pages from 3 on: 3 and 4 stand for nothing.
    engine = _engine([(0, 8, 4, [])], samples=2)
    assert parents_of_keys(engine).tolist() == [-1, 0, 1, -1, -1, 1]


def test_what_stands_behind_a_forgotten_page_cannot_be_hit() -> None:
    engine = _engine(TWO_CHAINS)
    chains = Chains(engine)
    seen = []

    def forget(key: int) -> None:
        engine.forget_cached([int(engine.serving.page_of[key])])
        engine.check()
        chains(engine)
        seen.append(tuple(chains.broken(engine)))

    # The end of a chain cuts off nothing. Its second page cuts off the third. The first page cuts
    # off no further one: the second is gone already.
    Drive(engine, tuple(Foreign(15 * MS, lambda _, k=k: forget(k)) for k in (3, 1, 0, 5))).run()  # type: ignore[misc]
    assert seen == [(0, 0), (1, 1), (1, 1), (1, 1)]
    assert engine.rows[2, s.HIT_TOKENS] == 0
    # The third request has published its pages under keys 0, 1 and 3; key 2 was there, and leads
    # on again. Nothing is lost in the end, and the peak remembers.
    assert chains.columns(engine) == {
        "orphan_pages": 0,
        "orphan_pages_peak": 1,
        "unreachable_pages": 0,
    }


def test_all_behind_a_first_page_is_unreachable_and_one_page_is_its_orphan() -> None:
    engine = _engine(TWO_CHAINS[:2])
    engine.run()
    engine.forget_cached([int(engine.serving.page_of[0])])
    assert tuple(Chains(engine).broken(engine)) == (1, 3)


@pytest.mark.parametrize(
    ("rule", "kept", "extents", "broken", "hits"),
    [
        # The three used longest ago: the end of the first chain.
        ("lru", [0, 5, 4], 0, (0, 0), 1),
        # Extents hold 3 pages: 0 to 2, and 3 to 5. Both are full of cached pages; the first was
        # used last a little earlier, and what it leaves of its chain is lost.
        ("page_aligned", [3, 5, 4], 1, (1, 1), 0),
        # The other one holds the end of one chain and the whole of the other: it cuts off nothing.
        ("chain_aware", [2, 1, 0], 1, (0, 0), 3),
    ],
)
def test_a_cap_takes_pages_by_its_rule(
    rule: str, kept: list[int], extents: int, broken: tuple[int, int], hits: int
) -> None:
    engine = _engine(TWO_CHAINS)
    cap = _cap(engine, rule, cap_pages=3, per_extent=3)
    seen = []

    def look(engine: ServingEngine) -> None:
        before = in_order_of_use(engine)
        cap(engine)
        engine.check()
        seen.append((before, in_order_of_use(engine), tuple(cap.chains.broken(engine))))

    Drive(engine, recurring=(Recurring(15 * MS, look),)).run()
    assert seen == [([3, 2, 1, 0, 5, 4], kept, broken)]
    assert cap.columns() == {"trimmed_pages_total": 3, "trimmed_extents_total": extents}
    assert engine.rows[2, s.HIT_TOKENS] == 4 * hits


def test_a_held_page_keeps_its_extent() -> None:
    # Page 0 is held by a request that hit it, so only the extent of pages 3 to 5 could empty: five
    # cached pages are above the cap, and after its three the oldest two go, 2 and 1.
    engine = _engine([*TWO_CHAINS[:2], (9, 5, 20, [0])])
    cap = _cap(engine, "page_aligned", cap_pages=0, per_extent=3)
    seen = []

    def look(engine: ServingEngine) -> None:
        count = len(in_order_of_use(engine))
        seen.append(cap.victims(engine, in_order_of_use(engine), count))

    Drive(engine, (Foreign(15 * MS, look),)).run()
    assert seen == [[3, 5, 4, 2, 1]]


def test_single_pages_go_from_the_ends_of_chains() -> None:
    # No extent of 3 fits into one page. By use the first page of the first chain would go, whatever
    # stands behind it; the last one of it is the end that was used longest ago.
    engine = _engine(TWO_CHAINS[:2])
    engine.run()
    order = [0, 1, 2, 3, 5, 4]
    assert _cap(engine, "page_aligned", 5, 3).victims(engine, order, 1) == [0]
    assert _cap(engine, "chain_aware", 5, 3).victims(engine, order, 1) == [3]


def test_only_cached_pages_are_forgotten() -> None:
    engine = _engine(TWO_CHAINS[:2])
    engine.run()
    for pages, match in (([3, 3], "twice"), ([3, 8], "not cached")):
        with pytest.raises(LedgerError, match=match):
            engine.forget_cached(pages)
    assert in_order_of_use(engine) == [3, 2, 1, 0, 5, 4]
    engine.check()


def test_random_runs_agree_with_counting_page_by_page() -> None:
    cut = trimmed = 0
    for seed in range(40):
        case = draw(np.random.default_rng(seed))
        settings = replace(case.settings, prefix="blocks")
        engine = ServingEngine(case.requests, settings, COST, single())
        cap = _cap(engine, RULES[seed % 3], cap_pages=seed % 7, per_extent=1 + seed % 4)

        def look(engine: ServingEngine, cap: Cap = cap) -> None:
            nonlocal cut, trimmed
            cached = in_order_of_use(engine)
            assert len(cached) == engine.ledger.total(f.CACHED)
            found = cap.chains.broken(engine)
            assert found == kvcached_victims.broken(cached, cap.chains.mapping(engine))
            cut += found.unreachable_pages
            if int(engine.state[s.STEP]) % 3 == 0:
                before = cap.trimmed_pages_total
                cap(engine)
                trimmed += cap.trimmed_pages_total - before
                assert len(in_order_of_use(engine)) == min(len(cached), cap.cap_pages)
            engine.check()

        try:
            Drive(engine, every_steps=1, watch=look).run()
        except Infeasible:
            continue
    assert cut > 100
    assert trimmed > 100


def _row(**changes: Any) -> dict[str, Any]:
    extra = {key.replace("__", "."): value for key, value in changes.items()}
    return run(reading.load(SCENARIO, {"workload.requests": 40, **extra}))


def test_a_row_tells_what_a_cap_took_and_what_it_cost() -> None:
    shared = {"serving__shared_prefix_tokens": 256}
    free, none = _row(**shared), _row(**shared, prefix__cache="none")
    assert free["orphan_pages"] == free["unreachable_pages"] == 0
    assert free["trimmed_pages_total"] is None
    assert none["orphan_pages"] is None
    capped = _row(**shared, prefix__cap_pages=20, prefix__trim_ms=50.0, prefix__victims="lru")
    assert capped["trimmed_pages_total"] > 20
    assert capped["prefix_cap_pages"] == 20
    assert capped["outcome"] == "completed"


def test_looking_changes_nothing() -> None:
    """A cap has a time of its own: how often a run is sampled is no part of it."""
    cap = {"prefix__cap_pages": 5, "prefix__trim_ms": 30.0, "serving__shared_prefix_tokens": 256}
    seldom, often = _row(**cap), _row(**cap, serving__sample_ms=7.0)
    apart = {"run_id", "series", "orphan_pages_peak"}
    assert {k: v for k, v in seldom.items() if k not in apart} == {
        k: v for k, v in often.items() if k not in apart
    }


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"prefix.victims": "page_aligned"}, "prefix.victims: without prefix.cap_pages"),
        ({"prefix.cap_pages": 9, "prefix.cache": "none"}, "prefix.cap_pages: without prefix.cache"),
        ({"prefix.cap_pages": 9, "prefix.cache": "radix"}, "prefix.cap_pages: a radix tree"),
        (
            {"prefix.cap_pages": 9, "prefix.victims": "chain_aware", "pages.tokens": 3},
            "prefix.victims: chain_aware needs whole pages in an extent",
        ),
        ({"prefix.cap_pages": -1}, "prefix.cap_pages"),
        ({"prefix.trim_ms": 0.0}, "prefix.trim_ms"),
        ({"prefix.victims": "mru"}, "prefix.victims"),
    ],
)
def test_refusals_name_the_key(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(KvsimError, match=named):
        run(reading.load(SCENARIO, changes))
