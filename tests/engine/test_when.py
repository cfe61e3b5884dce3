"""When eviction happens: at the end of the prompt, per chunk, per step; and under a hard ceiling.

Every watched run is recounted at the end of each of its steps.
"""

from __future__ import annotations

import itertools
import math

import pytest
from recordings import row_of
from watching import Watch, synthetic

from kvsim.engine import driver
from kvsim.errors import Infeasible, ScenarioError
from kvsim.lab.execute import execute
from kvsim.paging import Ledger

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
    watch = Watch(keys, budget__when="prefill_end", budget__fraction=0.5)
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
    {"budget__when": "step", "budget__tokens": 9, "selection__sets": "head", "pages__scope": "head"},
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
    assert steps == [2, 31]
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


@pytest.mark.parametrize(("policy", "cut", "page_tokens"), BOUNDED)
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


# Ceilings


@pytest.mark.parametrize(("ceiling", "outcome"), [(4, "completed"), (3, "infeasible")])
def test_a_ceiling_that_just_fits_and_one_that_just_does_not(keys, ceiling, outcome):
    # Twelve tokens in pages of four, and one page for the token of the step before it is evicted.
    row = row_of(
        keys,
        policy__name="h2o",
        pages__append="reuse_holes",
        budget__when="step",
        budget__tokens=12,
        workload__tokens=8,
        pool__ceiling_pages=ceiling,
    )
    assert row["outcome"] == outcome
    if outcome == "infeasible":
        assert row["outcome_reason"] == (
            "append needs 1 pages and the ceiling leaves 0, and nothing is left to evict"
        )
        assert row["held_pages"] is row["refused_verbs_total"] is None
    else:
        assert (row["held_pages_peak"], row["refused_verbs_total"]) == (4, 0)


def test_a_refused_append_evicts_and_is_tried_again(keys):
    # Eight tokens are evicted to the newest four. Tokens 12 and 16 find both pages full: each
    # is refused once, the four oldest go with their page, and then it fits.
    row = row_of(
        keys,
        policy__name="streaming_llm",
        policy__n_sink=0,
        selection__protect_recent=0,
        budget__tokens=4,
        workload__tokens=8,
        workload__decode_tokens=12,
        pool__ceiling_pages=2,
    )
    assert (row["outcome"], row["refused_verbs_total"]) == ("completed", 2)
    assert (row["retained_tokens"], row["held_pages"], row["freed_pages_total"]) == (8.0, 2, 3)


def test_an_append_that_evicting_does_not_help_is_infeasible_with_its_reason(keys):
    # Ten of twelve tokens stay, in all three pages.
    row = row_of(
        keys,
        policy__name="h2o",
        budget__fraction=0.9,
        workload__tokens=12,
        pool__ceiling_pages=3,
    )
    assert row["outcome"] == "infeasible"
    assert row["outcome_reason"] == (
        "append needs 1 pages and the ceiling leaves 0, after evicting to the budget"
    )


@pytest.mark.parametrize(("ceiling", "refused"), [(6, 1), (9, 1), (10, 0), (0, 0)])
def test_a_refused_compaction_is_left_out_and_counted(keys, ceiling, refused):
    # Sixteen survivors of 24 need four fresh pages beside the six that they come from.
    row = row_of(
        keys,
        compaction__algorithm="rebuild",
        budget__tokens=16,
        workload__decode_tokens=0,
        pool__ceiling_pages=ceiling,
    )
    assert (row["outcome"], row["refused_verbs_total"]) == ("completed", refused)
    assert (row["held_pages"] == 4) is not refused
    assert row["extra_pages_peak"] >= 4 * (1 - refused)


def test_a_refused_eviction_is_left_out_and_counted(keys):
    # Renumbering would copy pages that the fork shares, and no page is left.
    more = {
        "policy__name": "h2o",
        "budget__fraction": 0.75,
        "workload__decode_tokens": 0,
        "workload__forks": 1,
        "workload__forks_evict": False,
        "compaction__positions": "renumber",
        "store__planes": "kv_raw",
    }
    row = row_of(keys, **more, pool__ceiling_pages=6)
    assert (row["outcome"], row["refused_verbs_total"]) == ("completed", 1)
    assert (row["held_pages"], row["evicted_tokens_total"], row["retained_tokens"]) == (6, 0, 48)
    free = row_of(keys, **more)
    assert (free["refused_verbs_total"], free["evicted_tokens_total"]) == (0, 6)
    assert free["held_pages"] > 6, "evicting has raised what is held"


# Forks, arrivals, checks


@pytest.mark.parametrize("append", ["tail", "reuse_holes"])
@pytest.mark.parametrize("compaction", ["none", "hole_fill", "forward", "rebuild"])
def test_forks_that_decode_and_evict_keep_their_own_rows(keys, append, compaction):
    watch = Watch(
        keys,
        policy__name="random",
        budget__when="step",
        budget__tokens=10,
        pages__append=append,
        compaction__algorithm=compaction,
        selection__sets="head",
        workload__forks=2,
        workload__tokens=14,
        workload__decode_tokens=12,
        store__kind="array",
    )
    assert watch.samples[-1].appended == [26, 26, 26]
    assert watch.samples[-1].kept == [[10] * 4] * 3
    # Three sequences, four units, ten rows of four floats, in two planes: each compared.
    assert watch.words == 3 * 4 * 10 * 4 * 2


@pytest.fixture(scope="module")
def arriving(tmp_path_factory):
    """Requests whose lengths stand in a small file, close enough to overlap."""
    folder = tmp_path_factory.mktemp("arriving")
    lines = ["TIMESTAMP,ContextTokens,GeneratedTokens"]
    for number, lengths in enumerate(("9,5", "4,12", "17,0", "6,30")):
        lines.append(f"2023-11-16 18:15:4{number}.68,{lengths}")
    (folder / "lengths.csv").write_text("\n".join(lines) + "\n")
    return synthetic(folder) | {
        "workload.kind": "requests",
        "workload.path": str(folder / "lengths.csv"),
        "workload.requests": 10,
        "workload.rate_per_s": 8.0,
        "budget.tokens": 7,
    }


def test_requests_arrive_decode_together_and_finish(arriving):
    watch = Watch(arriving, budget__when="step")
    row = watch.row
    assert row["outcome"] if "outcome" in row else True
    # More than one sequence decoded at once, and all have come in the end.
    assert len(watch.samples[-1].appended) == 10
    assert any(
        sum(b > a for a, b in zip(x.appended, y.appended, strict=False)) > 1
        for x, y in itertools.pairwise(watch.samples)
    )
    assert all(kept[0] <= 7 or appended <= 7 for sample in watch.samples[-1:] for kept, appended in
               zip(sample.kept, sample.appended, strict=True))
    assert row["retained_tokens"] == sum(min(7, total) for total in watch.samples[-1].appended)


@pytest.mark.parametrize("policy", ["h2o", "streaming_llm"])
@pytest.mark.parametrize("when", ["step", "chunk", "prefill_end"])
def test_requests_give_one_row_by_either_path(arriving, policy, when):
    chunk = 5 if when == "chunk" else 0
    rows = [
        row_of(
            arriving,
            policy__name=policy,
            budget__when=when,
            budget__chunk_tokens=chunk,
            store__kind=kind,
        )
        for kind in ("counting", "array")
    ]
    assert {name for name in rows[0] if rows[0][name] != rows[1][name]} == OF_THE_STORE
    assert rows[0]["outcome"] == "completed"


def test_rows_of_arriving_and_decoding_runs_do_not_depend_on_jobs(arriving, keys, tmp_path):
    from recordings import scenario

    scenarios = [
        scenario(given, policy__name=policy, budget__when="step", seed=seed)
        for given in (arriving, keys)
        for policy in ("h2o", "random", "streaming_llm")
        for seed in (1, 2)
    ]
    files = []
    for jobs in (1, 2, 1):
        out = tmp_path / str(len(files))
        execute(scenarios, out, jobs=jobs, command=["test"])
        files.append((out / "rows.jsonl").read_bytes())
    assert files[0] == files[1] == files[2]
    assert files[0].count(b"\n") == 12
    # Another seed is another workload, or the comparison would show nothing.
    held = {line.split(b'"retained_mass":')[1].split(b",")[0] for line in files[0].splitlines()}
    assert len(held) > 6


@pytest.mark.parametrize("path", ["python", "kernel"])
def test_the_ledger_is_recounted_every_so_many_steps(keys, path, monkeypatch):
    counted = []
    check = Ledger.check
    monkeypatch.setattr(Ledger, "check", lambda ledger: counted.append(ledger) or check(ledger))
    monkeypatch.setattr(driver, "CHECK_EVERY_STEPS", 10)
    row = row_of(
        keys,
        policy__name="random" if path == "python" else "streaming_llm",
        budget__when="step",
        budget__tokens=8,
        workload__decode_tokens=45,
    )
    assert row["steps"] == 46
    # After steps 10, 20, 30 and 40, and once at the end of the run.
    assert len(counted) == 5


def test_a_recount_that_fails_ends_the_run(keys, monkeypatch):
    # The control: a ledger that is damaged on the way does not go unnoticed.
    monkeypatch.setattr(driver, "CHECK_EVERY_STEPS", 10)
    watch_check = Ledger.check
    calls = []

    def damaged(ledger):
        calls.append(1)
        if len(calls) == 2:
            raise Infeasible("the second recount")
        watch_check(ledger)

    monkeypatch.setattr(Ledger, "check", damaged)
    row = row_of(keys, policy__name="random", budget__when="step", budget__tokens=8)
    assert row["outcome_reason"] == "the second recount"
