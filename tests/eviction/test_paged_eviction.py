"""paged_eviction: a prompt's victims are never paged, and decoding drops whole pages."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from recordings import arrays, row_of, scenario, tiny
from watching import Watch, synthetic

from kvsim.errors import PolicyError
from kvsim.lab import setup
from kvsim.policies import registry

PROMPT = 21  # Five pages of 4 tokens and one token.


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    return synthetic(
        tmp_path_factory.mktemp("paged"),
        policy__name="paged_eviction",
        selection__granularity="page",
        selection__protect_recent=0,
        workload__tokens=PROMPT,
        workload__decode_tokens=0,
    )


CUTS = [
    ("shared", "sequence", 1),
    ("shared", "head", 4),
    ("layer", "sequence", 1),
    ("layer", "layer", 2),
    ("head", "sequence", 1),
    ("head", "head", 4),
]


@pytest.mark.parametrize(("sets", "scope", "tables"), CUTS)
@pytest.mark.parametrize("fraction", [0.05, 0.25, 0.5, 0.9, 1.0])
def test_victims_of_the_prompt_never_have_a_page(keys, sets, scope, tables, fraction):
    row = row_of(keys, selection__sets=sets, pages__scope=scope, budget__fraction=fraction)
    kept = int(fraction * PROMPT)
    assert row["outcome"] == "completed"
    # Whatever the sets: each takes the same slots for different tokens.
    assert row["held_pages"] == row["packed_floor_pages"] == tables * -(-kept // 4)
    assert (row["retained_tokens"], row["evicted_tokens_total"]) == (kept, PROMPT - kept)
    assert row["held_pages_peak"] == row["held_pages"]
    assert (row["dead_slots"], row["freed_pages_total"], row["copied_rows_total"]) == (0, 0, 0)
    assert row["dense_pages"] == tables * 6


def test_evicted_bytes_are_those_of_what_was_dropped(keys):
    row = row_of(keys, budget__fraction=0.5)
    # 2 layers x 2 heads x (4 + 4) elements of 2 bytes are 64 bytes a token.
    assert row["evicted_bytes_total"] == 11 * 64
    assert row["reclaim_efficiency"] == (6 - 3) * 4 * 64 / (11 * 64)


def norms(keys):
    """Return the norms that a run sees at the end of its prompt."""
    given = scenario(keys)
    (request,) = setup.requests(given, setup.understand(given))
    request.signals.extend(PROMPT)
    return request.signals.observe(np.arange(PROMPT))


def test_the_highest_scores_are_kept_at_their_positions(keys):
    watch = Watch(keys, budget__fraction=0.5)
    signals = norms(keys)
    scores = (signals["value_norms"] / signals["key_norms"]).mean(axis=(0, 1), dtype=np.float64)
    best = sorted(np.argsort(-scores, kind="stable")[:10].tolist())
    assert watch.positions == [best]
    # The control: neither the newest nor the oldest would have been the same.
    assert best not in (list(range(10)), list(range(PROMPT - 10, PROMPT)))


def test_protected_tokens_are_paged_whatever_their_scores(keys):
    watch = Watch(keys, budget__tokens=6, selection__protect_recent=3, selection__protect_sinks=2)
    (positions,) = watch.positions
    assert len(positions) == 6
    assert {0, 1, 18, 19, 20} <= set(positions)


def test_more_protected_than_kept_is_infeasible(keys):
    row = row_of(keys, budget__tokens=4, selection__protect_recent=5)
    assert row["outcome"] == "infeasible"
    assert row["outcome_reason"] == "5 tokens are protected and the budget keeps 4"


@pytest.mark.parametrize(("sets", "scope", "tables"), CUTS)
def test_decoding_drops_whole_pages(keys, sets, scope, tables):
    watch = Watch(
        keys,
        selection__sets=sets,
        pages__scope=scope,
        budget__when="step",
        budget__tokens=10,
        workload__decode_tokens=30,
    )
    kept = [sample.kept[0] for sample in watch.samples]
    assert kept[0] == [10] * len(kept[0])
    # One more each step, until a page's worth is over: then four go at once.
    drops = {
        before - after
        for a, b in itertools.pairwise(kept)
        for before, after in zip(a, b, strict=True)
        if after < before
    }
    assert drops == {3}, "one token came and four went"
    assert max(max(sizes) for sizes in kept) == 13
    assert watch.row["retained_tokens"] + watch.row["evicted_tokens_total"] == PROMPT + 30
    if (sets, tables) in (("shared", 1), ("head", 4)):
        # Sets no finer than the scope: what is evicted is freed.
        assert watch.row["dead_slots"] == 0
        assert watch.row["held_pages"] <= 4 * tables
        assert watch.row["freed_pages_total"] > 0


def test_positions_of_the_prompt_are_kept_while_decoding(keys):
    more = {"budget__tokens": 10, "budget__when": "step"}
    before = Watch(keys, **more).positions[0]
    after = Watch(keys, **more, workload__decode_tokens=2).positions[0]
    assert after == [*before, PROMPT, PROMPT + 1]


@pytest.mark.parametrize(("sets", "scope"), [("shared", "sequence"), ("head", "sequence")])
@pytest.mark.parametrize("forks", [0, 2])
def test_rows_are_those_of_the_tokens_that_were_kept(keys, sets, scope, forks):
    watch = Watch(
        keys,
        selection__sets=sets,
        pages__scope=scope,
        budget__when="step",
        budget__tokens=10,
        workload__decode_tokens=9,
        workload__forks=forks,
        store__kind="array",
    )
    assert watch.words == watch.row["retained_tokens"] * 4 * 4 * 2
    assert watch.row["retained_tokens"] >= 10 * (1 + forks)


@pytest.mark.parametrize(("ceiling", "outcome"), [(3, "completed"), (2, "infeasible")])
def test_a_ceiling_binds_what_is_kept_and_not_the_prompt(keys, ceiling, outcome):
    row = row_of(keys, budget__tokens=10, pool__ceiling_pages=ceiling)
    assert row["outcome"] == outcome
    if outcome == "infeasible":
        assert row["outcome_reason"] == "append needs 3 pages and the ceiling leaves 2"


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"budget__when": "chunk", "budget__chunk_tokens": 4}, "the whole prompt, which comes in"),
        ({"compaction__algorithm": "forward"}, "leaves no holes in the prompt to compact"),
        ({"compaction__algorithm": "hole_fill"}, "leaves no holes in the prompt to compact"),
        ({"selection__granularity": "token"}, "does not work at granularity token"),
        ({"selection__granularity": "window"}, "does not work at granularity window"),
        ({"selection__granularity": "page_completion"}, "at granularity page_completion"),
    ],
)
def test_what_the_method_rules_out_is_not_applicable(keys, more, says):
    row = row_of(keys, **more)
    assert row["outcome"] == "not_applicable"
    assert says in row["outcome_reason"]
    assert row["held_pages"] is row["retained_tokens"] is None


def test_a_recording_has_no_value_norms(tmp_path):
    row = row_of(
        tiny(tmp_path, arrays(1, 2, 32)),
        policy__name="paged_eviction",
        selection__granularity="page",
    )
    assert row["outcome"] == "not_applicable"
    assert row["outcome_reason"] == (
        "paged_eviction needs value_norms, which the workload does not have"
    )


def test_it_has_no_parameters():
    with pytest.raises(PolicyError, match="no such parameter"):
        registry.build("paged_eviction", {"window": 3})
