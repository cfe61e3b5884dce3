"""Random eviction against the hypergeometric null model, through the whole run.

T tokens, k kept at random, B tokens a page. A page is free when none of its B tokens is among
the k: p = C(T-B, k) / C(T, k). Two given pages are both free with probability
p2 = C(T-2B, k) / C(T, k), which is below p * p: pages are negatively dependent. The number of
free pages X of n = T / B therefore has exactly

    E[X] = n p        Var[X] = n p (1 - p) + n (n - 1) (p2 - p * p)

Twenty independent seeds are pooled, so both are times twenty. Where at least five pages are
expected the pooled count must lie in the normal interval of that mean and that variance (the
binomial's variance is up to 6.6 times this one, at keep 0.1 and 4 tokens a page, and would let
defects pass). Where fewer are expected the normal says nothing; there the count must not exceed
the Poisson 99.9% bound.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from recordings import arrays, row_of, tiny
from scipy import stats
from scipy.special import gammaln

TOKENS = 65_536
SEEDS = range(20)
CONFIDENCE = 0.999

# A control that keeps and drops whole runs of 16 tokens: as many tokens go, far more pages.
RUNS = '''
"""A control that must fail: its holes are runs, not independent tokens."""

from dataclasses import dataclass

import numpy as np

from kvsim.policies import Policy, View


@dataclass(frozen=True)
class Runs(Policy):
    """Score_j is uniform, drawn once per run of 16 tokens."""

    def score(self, view: View) -> np.ndarray:
        return view.rng.random(-(-view.tokens // 16)).repeat(16)[: view.tokens]
'''


def chance(kept: int, slots: int) -> float:
    """Return C(T - slots, k) / C(T, k): how likely given slots all lose their tokens."""
    terms = gammaln(np.array([TOKENS - slots + 1, TOKENS - slots - kept + 1, TOKENS - kept + 1]))
    return math.exp(terms[0] - terms[1] + terms[2] - gammaln(TOKENS + 1))


def bounds(kept: int, page_tokens: int) -> tuple[float, float]:
    """Return the least and the most free pages that twenty seeds may leave together."""
    pages = TOKENS // page_tokens
    p, both = chance(kept, page_tokens), chance(kept, 2 * page_tokens)
    mean = len(SEEDS) * pages * p
    if mean < 5:
        return 0.0, float(stats.poisson.ppf(CONFIDENCE, mean))
    variance = len(SEEDS) * pages * (p * (1 - p) + (pages - 1) * (both - p * p))
    reach = stats.norm.ppf((1 + CONFIDENCE) / 2) * math.sqrt(variance)
    return mean - reach, mean + reach


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    folder = tmp_path_factory.mktemp("null")
    (folder / "runs.py").write_text(RUNS)
    return {
        **tiny(folder, arrays(1, 1, TOKENS)),
        "selection.protect_recent": 0,
        "policy.name": "random",
    }


def freed(keys, fraction: float, page_tokens: int) -> int:
    """Return the pages that twenty seeds free together, each run a draw of its own."""
    total = 0
    for seed in SEEDS:
        row = row_of(keys, seed=seed, budget__fraction=fraction, pages__tokens=page_tokens)
        assert row["retained_tokens"] == int(fraction * TOKENS)
        total += row["freed_pages_total"]
    return total


def test_the_null_model_itself():
    # Small enough to count: 2 of 4 tokens kept, pages of 2. Of C(4, 2) = 6 ways 1 frees page 0.
    assert math.comb(2, 2) / math.comb(4, 2) == pytest.approx(1 / 6)
    # And the formula in use agrees with exact integers where they can still be written out.
    kept, page_tokens = int(0.5 * TOKENS), 4
    exact = 1.0
    for slot in range(page_tokens):
        exact *= (TOKENS - kept - slot) / (TOKENS - slot)
    assert chance(kept, page_tokens) == pytest.approx(exact, rel=1e-6)


@pytest.mark.parametrize("page_tokens", [4, 16, 32, 64])
@pytest.mark.parametrize("fraction", [0.5, 0.1])
def test_random_eviction_frees_what_chance_frees(fraction, page_tokens, keys):
    least, most = bounds(int(fraction * TOKENS), page_tokens)
    assert least <= freed(keys, fraction, page_tokens) <= most


@pytest.mark.parametrize(("fraction", "page_tokens"), [(0.5, 4), (0.5, 16), (0.1, 32)])
def test_holes_in_runs_are_told_from_random_ones(fraction, page_tokens, keys):
    runs = {**keys, "policy.name": str(keys["layout"]).rpartition("/")[0] + "/runs.py"}
    least, most = bounds(int(fraction * TOKENS), page_tokens)
    assert not least <= freed(runs, fraction, page_tokens) <= most
