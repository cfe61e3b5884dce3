"""The radix cache of the serving engine against a second reading of its rules, step by step."""

from __future__ import annotations

import os
from collections import Counter

import numpy as np
import pytest

from kvsim.engine.serving import fields as s
from kvsim.engine.serving.drive import Drive
from kvsim.engine.serving.engine import ServingEngine
from kvsim.engine.serving.settings import Settings
from kvsim.errors import Infeasible
from kvsim.paging import fields as f
from kvsim.paging import single
from kvsim.workload.requests import Requests
from tests.engine.serving_clock import MS, a_millisecond
from tests.oracles.radix_engine import Engine, Member, Stuck

DAILY = 60
NIGHTLY = int(os.environ.get("KVSIM_FUZZ_SCENARIOS", "10000")) // 10
MOST_STEPS = 5000


def _texts(rng: np.random.Generator, count: int) -> list[list[int]]:
    """Draw token sequences that branch off earlier ones at any token."""
    texts: list[list[int]] = []
    for _ in range(count):
        text: list[int] = []
        if texts and rng.random() < 0.8:
            other = texts[int(rng.integers(len(texts)))]
            text = other[: int(rng.integers(len(other) + 1))]
        wanted = int(rng.integers(2, 70))
        text = text[: wanted - 1] + rng.integers(0, 3, max(1, wanted - len(text))).tolist()
        texts.append(text)
    return texts


def _draw(rng: np.random.Generator) -> tuple[Engine, Requests, Settings]:
    page_tokens = int(rng.choice([1, 2, 3, 4, 8]))
    count = int(rng.integers(2, 25))
    texts = _texts(rng, count)
    arrivals = np.sort(rng.integers(0, int(rng.choice([1, 30, 200])), count))
    prompts = [int(rng.integers(1, len(text) + 1)) for text in texts]
    numbers: dict[tuple[int, ...], int] = {}
    keys: list[int] = []
    starts = [0]
    for text in texts:
        for end in range(page_tokens, len(text) + 1, page_tokens):
            keys.append(numbers.setdefault(tuple(text[:end]), len(numbers)))
        starts.append(len(keys))
    requests = Requests(
        page_tokens=page_tokens,
        arrival_ns=arrivals * MS,
        input_tokens=np.array(prompts),
        output_tokens=np.array([len(t) - p for t, p in zip(texts, prompts, strict=True)]),
        priority=np.zeros(count, np.int64),
        samples=np.ones(count, np.int64),
        keys=np.array(keys, np.int32),
        key_start=np.array(starts),
        given_keys=len(numbers),
    )
    longest = -(-70 // page_tokens)
    settings = Settings(
        step_tokens=8 + int(rng.choice([0, 10, 80])),
        max_running=int(rng.integers(1, 9)),
        chunked=bool(rng.random() < 0.7),
        ceiling_pages=longest + int(rng.integers(0, 4 * longest)),
        prefix="radix",
        publish=str(rng.choice(["all", "all", "prompt"])),
    )
    members = [
        Member(number, int(arrivals[number]), prompts[number], len(text) - prompts[number], text)
        for number, text in enumerate(texts)
    ]
    oracle = Engine(
        page_tokens,
        settings.ceiling_pages,
        settings.step_tokens,
        settings.max_running,
        settings.chunked,
        members,
        settings.publish == "all",
    )
    return oracle, requests, settings


def _compare(seed: int) -> Counter[str]:
    """Run both; return how often what matters came up."""
    oracle, requests, settings = _draw(np.random.default_rng(seed))
    engine = ServingEngine(requests, settings, a_millisecond(), single())
    seen: list[tuple[int, ...]] = []

    def watch(of: ServingEngine) -> None:
        of.check()
        scalars, state = of.ledger.arrays.scalars, of.state
        if state[s.STEP]:
            fields = (s.RUNNING, s.HIT_TOKENS_TOTAL, s.PREEMPTIONS_TOTAL)
            fields += (s.CUTS_TOTAL, s.EVICTED_LEAVES_TOTAL)
            pages = (int(scalars[f.HELD]), int(scalars[f.CACHED]))
            seen.append((*pages, *(int(state[field]) for field in fields)))

    stuck = [False, False]
    try:
        oracle.run(MOST_STEPS)
    except Stuck:
        stuck[0] = True
    try:
        Drive(engine, every_steps=1, watch=watch).run()
    except Infeasible:
        stuck[1] = True
    assert len(oracle.seen) < MOST_STEPS, seed
    assert seen == oracle.seen, (seed, settings)
    assert stuck[0] == stuck[1], (seed, settings)
    assert engine.rows[:, s.HIT_TOKENS].tolist() == [m.hits for m in oracle.members], seed
    ends = [m.finished_at * MS if m.finished_at >= 0 else -1 for m in oracle.members]
    assert engine.rows[:, s.LAST_NS].tolist() == ends, seed
    return Counter(
        hits=oracle.hits,
        preemptions=oracle.preemptions,
        splits=oracle.tree.splits,
        leaves=len(oracle.tree.evicted),
        done=not stuck[0],
    )


def test_the_engine_and_its_second_reading_agree_at_every_step() -> None:
    total: Counter[str] = Counter()
    for seed in range(DAILY):
        total += _compare(seed)
    # All of it came up, or the drawing would test less than it should.
    assert min(total[x] for x in ("hits", "preemptions", "splits", "leaves", "done")) > 20, total


@pytest.mark.nightly
def test_many_scenarios_agree() -> None:
    for seed in range(DAILY, NIGHTLY):
        _compare(seed)
