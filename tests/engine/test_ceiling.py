"""Hard ceilings: what is refused, tried again, left out and counted, and what cannot run."""

from __future__ import annotations

import pytest
from recordings import row_of
from watching import synthetic


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    return synthetic(tmp_path_factory.mktemp("when"))


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
    # Half of the tokens go, and every page still has some of the others.
    row = row_of(
        keys,
        policy__name="h2o",
        budget__fraction=0.5,
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
