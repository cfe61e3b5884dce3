"""When eviction happens: at the end of the prompt, per chunk, per step; and with holes reused.

Every watched run is recounted at the end of each of its steps.
"""

from __future__ import annotations

import itertools
import math

import pytest
from recordings import row_of
from watching import Watch, synthetic

from kvsim.errors import ScenarioError

# What may differ between the two ways of one run: the ledger's kernel takes the steps, or,
# because rows have to be written, Python takes them one by one.
OF_THE_STORE = {"run_id", "store"}


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    return synthetic(tmp_path_factory.mktemp("when"))


def sizes(watch, which=0):
    """Return how many tokens the first sequence keeps in one set, step by step."""
    return [sample.kept[0][which] for sample in watch.samples]


def test_at_the_end_of_the_prompt_only_the_prompt_is_evicted(keys):
    # A store of rows keeps the kernel from leaping over the steps that are to be seen.
    watch = Watch(keys, budget__when="prefill_end", budget__fraction=0.5, store__kind="array")
    assert sizes(watch) == [12, *range(13, 43)]


@pytest.mark.parametrize("fraction", [0.5, 0.3, 0.9])
@pytest.mark.parametrize("policy", ["h2o", "random", "knorm"])
def test_per_step_a_fraction_is_of_the_tokens_so_far(keys, policy, fraction):
    watch = Watch(keys, policy__name=policy, budget__when="step", budget__fraction=fraction)
    assert [sample.appended[0] for sample in watch.samples] == list(range(24, 55))
    assert sizes(watch) == [int(fraction * appended) for appended in range(24, 55)]


def test_per_chunk_a_fraction_is_of_the_tokens_so_far(keys):
    watch = Watch(keys, budget__when="chunk", budget__chunk_tokens=10, budget__fraction=0.5)
    # Chunks of 10, 10 and 4 of the prompt; then 30 tokens, one by one, evicted after each ten.
    wanted = [(10, 5), (20, 10), (24, 12)]
    for first in (24, 34, 44):
        half = wanted[-1][1]
        wanted += [(first + more, half + more) for more in range(1, 11)]
        wanted.append((first + 10, (first + 10) // 2))
    found = [(sample.appended[0], sample.kept[0][0]) for sample in watch.samples]
    # A step of the kernel may take several tokens; the ends of chunks are always seen.
    assert set(found) <= set(wanted)
    assert {(10, 5), (20, 10), (24, 12), (34, 17), (44, 22), (54, 27)} <= set(found)


def test_a_budget_in_tokens_is_met_at_the_end_of_every_step(keys):
    watch = Watch(keys, budget__when="step", budget__tokens=9)
    assert set(sizes(watch)) == {9}


def test_a_chunked_prompt_never_needs_its_dense_pages(keys):
    whole = row_of(keys, budget__tokens=8, pool__ceiling_pages=5)
    assert whole["outcome"] == "infeasible"
    assert whole["outcome_reason"].startswith("append needs 6 pages and the ceiling leaves 5")
    row = row_of(
        keys,
        policy__name="streaming_llm",
        policy__n_sink=0,
        budget__tokens=8,
        budget__when="chunk",
        budget__chunk_tokens=8,
        pool__ceiling_pages=5,
    )
    assert (row["outcome"], row["refused_verbs_total"]) == ("completed", 0)


@pytest.mark.parametrize(
    ("size", "says"),
    [
        (0, r"budget\.chunk_tokens: must be at least 1 when budget\.when is chunk"),
        (25, r"budget\.chunk_tokens: 25 is longer than the prompt of 24"),
    ],
)
def test_a_chunk_that_does_not_fit_is_refused(keys, size, says):
    with pytest.raises(ScenarioError, match=says):
        row_of(keys, budget__when="chunk", budget__chunk_tokens=size)


def test_a_chunk_as_long_as_the_prompt_is_the_prompt(keys):
    rows = [
        row_of(keys, workload__decode_tokens=0, budget__when=when, budget__chunk_tokens=24)
        for when in ("chunk", "prefill_end")
    ]
    differing = {name for name in rows[0] if rows[0][name] != rows[1][name]}
    assert differing == {"run_id", "when"}


# The kernel's path and Python's

LEAPS = [
    {"budget__when": "step", "budget__tokens": 10},
    {"budget__when": "step", "budget__fraction": 0.4, "policy__n_sink": 0},
    {"budget__when": "step", "budget__tokens": 12, "workload__forks": 2},
    {"budget__when": "step", "budget__fraction": 0.6, "selection__sets": "head"},
    {
        "budget__when": "step",
        "budget__tokens": 9,
        "selection__sets": "head",
        "pages__scope": "head",
    },
    {"budget__when": "step", "budget__tokens": 9, "selection__sets": "layer", "pages__tokens": 3},
    {"budget__when": "step", "budget__fraction": 0.5, "workload__sequences": 3},
    {"budget__when": "step", "budget__tokens": 30, "pages__tokens": 1},
    {"budget__when": "step", "budget__tokens": 8, "pages__tokens": 16, "pool__order": "lifo"},
    {"budget__when": "step", "budget__tokens": 10, "pool__ceiling_pages": 6},
    {"budget__when": "step", "budget__tokens": 3, "pool__ceiling_pages": 9},
    {"budget__when": "chunk", "budget__chunk_tokens": 7, "budget__fraction": 0.5},
    {"budget__when": "chunk", "budget__chunk_tokens": 5, "workload__sequences": 2},
    {"budget__when": "chunk", "budget__chunk_tokens": 24, "workload__forks": 3},
    {"budget__when": "prefill_end", "budget__tokens": 8, "pool__ceiling_pages": 7},
    {"budget__when": "prefill_end", "budget__tokens": 8, "pool__ceiling_pages": 6},
    {"budget__when": "prefill_end", "workload__forks": 3, "workload__forks_evict": False},
    {"budget__when": "prefill_end", "workload__forks": 3, "pool__ceiling_pages": 20},
]


@pytest.mark.parametrize("more", LEAPS, ids=lambda more: " ".join(map(str, more.values())))
def test_steps_in_the_kernel_and_in_python_give_one_row(keys, more):
    more = {"policy__name": "streaming_llm", "policy__n_sink": 2, **more}
    rows = [row_of(keys, **more, store__kind=kind) for kind in ("counting", "array")]
    assert {name for name in rows[0] if rows[0][name] != rows[1][name]} == OF_THE_STORE
    assert rows[0]["outcome_reason"] or rows[0]["steps"] > 30


def test_those_rows_come_from_two_paths_and_some_of_them_from_refusals(keys):
    # Controls of the test above: one path leaps, the other does not, and ceilings do bind.
    more = {"policy__name": "streaming_llm", **LEAPS[0]}
    steps = [len(Watch(keys, **more, store__kind=kind).samples) for kind in ("counting", "array")]
    assert steps == [1, 31]
    rows = [row_of(keys, **{"policy__name": "streaming_llm", **leap}) for leap in LEAPS]
    assert {row["outcome"] for row in rows} == {"completed", "infeasible"}
    assert max(row["refused_verbs_total"] or 0 for row in rows) > 0


# Holes taken again

COARSE = [
    ("shared", "sequence"),
    ("shared", "layer"),
    ("layer", "layer"),
    ("layer", "head"),
    ("head", "head"),
]
BOUNDED = list(itertools.product(["h2o", "random", "tova"], COARSE, [1, 3, 4, 16]))


@pytest.mark.parametrize(
    ("policy", "cut", "page_tokens"),
    BOUNDED,
    ids=["-".join(map(str, (p, *c, n))) for p, c, n in BOUNDED],
)
def test_holes_taken_again_keep_every_table_within_a_page_of_its_budget(
    keys, policy, cut, page_tokens
):
    if (policy, cut[0]) == ("tova", "head"):
        # Ruled out by its own definition.
        policy = "streaming_llm"
    for budget, prompt in ((8, 8), (13, 5)):
        watch = Watch(
            keys,
            policy__name=policy,
            selection__sets=cut[0],
            pages__scope=cut[1],
            pages__tokens=page_tokens,
            pages__append="reuse_holes",
            budget__when="step",
            budget__tokens=budget,
            workload__tokens=prompt,
            workload__decode_tokens=40,
        )
        tables = watch.loop.ledger.geometry.scope_units
        wanted = math.ceil(budget / page_tokens)
        full = [sample.held / tables for sample in watch.samples if sample.appended[0] >= budget]
        assert len(full) > 30
        assert wanted <= min(full) <= max(full) <= wanted + 1


def test_without_holes_taken_again_pages_grow_and_the_row_says_so(keys):
    more = {
        "policy__name": "h2o",
        "budget__when": "step",
        "budget__tokens": 12,
        "workload__tokens": 8,
        "workload__decode_tokens": 60,
    }
    tail = Watch(keys, **more, pages__append="tail")
    reuse = Watch(keys, **more, pages__append="reuse_holes")
    assert tail.row["held_pages"] > reuse.row["held_pages"] == 4
    assert (tail.row["budget_met"], reuse.row["budget_met"]) == (False, True)
    assert tail.row["dead_slots"] > reuse.row["dead_slots"]
    assert tail.row["retained_tokens"] == reuse.row["retained_tokens"] == 12
    assert tail.row["live_slots"] == reuse.row["live_slots"] == 12
    # Growing, until pages empty: never below what the live tokens need.
    assert max(sample.held for sample in tail.samples) > 4


def test_where_pages_empty_by_themselves_the_tail_is_bounded_too(keys):
    watch = Watch(
        keys,
        policy__name="streaming_llm",
        policy__n_sink=0,
        budget__when="step",
        budget__tokens=12,
        store__kind="array",
    )
    assert {sample.held for sample in watch.samples} == {3, 4}


def test_sets_finer_than_the_scope_may_hold_more_than_the_budget(keys):
    # The control of the bound: two heads that want different tokens in one table.
    watch = Watch(
        keys,
        policy__name="h2o",
        selection__sets="head",
        pages__append="reuse_holes",
        budget__when="step",
        budget__tokens=8,
        workload__tokens=8,
    )
    assert max(sample.held for sample in watch.samples) > 3
