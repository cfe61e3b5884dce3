"""What a review found: each test here failed before its fix."""

from __future__ import annotations

import json

import pytest
from recordings import arrays as signals
from recordings import row_of, tiny

from kvsim.errors import LedgerError, ScenarioError
from kvsim.lab import sweep
from kvsim.paging import Ledger

SYNTHETIC = {"workload.kind": "synthetic", "layout": "SmolLM2-135M", "selection.protect_recent": 8}
NEWEST_FIRST = """
from dataclasses import dataclass
from kvsim.policies import Policy


@dataclass(frozen=True)
class Backwards(Policy):
    static = STATIC

    def score(self, view):
        return SCORE

    def protected(self, view):
        return GUARD
"""


def run(**keys):
    return row_of(SYNTHETIC, **keys)


@pytest.mark.parametrize(
    ("score", "guard"),
    [
        ("-view.positions", "view.positions < 0"),
        ("view.positions", "view.positions % 16 == 0"),
        ("view.positions % 7", "view.positions < 4"),
        ("view.positions", "view.positions < 3"),
    ],
)
def test_a_policy_that_says_static_gets_the_victims_of_its_own_score(tmp_path, score, guard):
    """A kernel that takes the oldest token whatever the policy scores or protects."""
    rows = []
    for static in (True, False):
        file = tmp_path / str(static) / "mine.py"
        file.parent.mkdir()
        text = NEWEST_FIRST.replace("STATIC", str(static)).replace("SCORE", score)
        file.write_text(text.replace("GUARD", guard))
        rows.append(
            run(
                policy__name=str(file),
                workload__tokens=96,
                workload__decode_tokens=40,
                budget__tokens=64,
                budget__when="step",
            )
        )
        del rows[-1]["run_id"]
    assert rows[0]["outcome"] == "completed"
    assert rows[0] == rows[1]


@pytest.mark.parametrize("when", ["step", "chunk"])
@pytest.mark.parametrize("policy", ["streaming_llm", "random"])
def test_forks_that_do_not_evict_do_not_while_decoding_either(when, policy):
    keys = {
        "policy__name": policy,
        "workload__tokens": 128,
        "workload__forks": 2,
        "workload__decode_tokens": 16,
        "budget__tokens": 64,
        "budget__when": when,
        "budget__chunk_tokens": 16,
    }
    assert run(**keys)["retained_tokens"] == 3 * 64
    # Under chunk the prompt is evicted on the way, and the forks inherit 64 and a chunk.
    inherited = 128 if when == "step" else 64 + 16
    kept = run(**keys, workload__forks_evict=False)["retained_tokens"]
    assert kept == 64 + 2 * (inherited + 16)


@pytest.mark.parametrize("decode", [20, 24, 32, 40])
def test_the_last_part_of_a_chunk_is_evicted_while_decoding_too(decode):
    row = run(
        policy__name="h2o",
        workload__tokens=96,
        workload__decode_tokens=decode,
        budget__tokens=48,
        budget__when="chunk",
        budget__chunk_tokens=32,
    )
    assert row["retained_tokens"] == 48


def test_a_run_recounts_its_ledger_while_something_is_in_it(tmp_path, monkeypatch):
    held = []
    check = Ledger.check

    def counted(ledger):
        held.append(ledger.held_pages)
        check(ledger)

    monkeypatch.setattr(Ledger, "check", counted)
    row_of(tiny(tmp_path, signals(1, 2, 64)), selection__protect_recent=0)
    assert held
    assert min(held) > 0


def test_a_flag_that_is_wrong_at_the_end_stops_the_run(tmp_path, monkeypatch):
    evict = Ledger.evict

    def damaging(ledger, sequence, victims):
        evict(ledger, sequence, victims)
        ledger._arrays.dead[ledger._arrays.dead == 1] = 0

    monkeypatch.setattr(Ledger, "evict", damaging)
    with pytest.raises(LedgerError, match="check failed"):
        row_of(tiny(tmp_path, signals(1, 2, 64)), selection__protect_recent=0)


def test_requests_that_end_give_their_pages_back(tmp_path):
    lengths = tmp_path / "lengths.csv"
    lines = ["TIMESTAMP,ContextTokens,GeneratedTokens"]
    lines += [f"2023-11-16 18:17:{n:02d}.0,64,8" for n in range(10)]
    lengths.write_text("\n".join(lines) + "\n")
    keys = {
        "workload__kind": "requests",
        "workload__path": str(lengths),
        "workload__requests": 10,
        "policy__name": "streaming_llm",
    }
    busy = run(**keys, workload__rate_per_s=1e6)
    quiet = run(**keys, workload__rate_per_s=1e-4)
    # All at once, or one at a time: 72 tokens are five pages at most.
    assert busy["held_pages_peak"] > quiet["held_pages_peak"]
    assert quiet["held_pages_peak"] <= 5
    assert quiet["tokens"] == busy["tokens"] == 10 * 72
    assert (quiet["requests"], quiet["rate_per_s"], quiet["sequences"]) == (10, 1e-4, None)
    assert run(**keys, workload__rate_per_s=1e-4, pool__ceiling_pages=5)["outcome"] == "completed"


def test_a_key_in_two_axes_is_refused(tmp_path):
    file = tmp_path / "sweep.toml"
    file.write_text("[[axes]]\nseed = [1, 2]\n[[axes]]\nseed = [3, 4]\n")
    with pytest.raises(ScenarioError, match="key seed stands in two axes"):
        sweep.read(file)


def test_a_budget_in_tokens_shows_as_the_fraction_that_it_is():
    row = run(policy__name="random", workload__tokens=128, budget__tokens=32)
    assert row["budget_fraction"] == 0.25
    assert json.dumps(row)
