"""Every policy that kvsim ships, found by its file: a new one is tested with no edit here."""

from __future__ import annotations

from pathlib import Path

import conformance
import pytest

import kvsim.policies
from kvsim.policies import describe, names, policy_class

FOLDER = Path(kvsim.policies.__file__).parent

SHIPPED = ("h2o", "h2o_age", "knorm", "random", "snapkv", "streaming_llm", "tova")


def test_every_file_is_found():
    # Were a file not found, the tests below would pass without having looked at it.
    assert set(SHIPPED) <= set(names())
    assert [entry["name"] for entry in describe()] == list(names())


@pytest.mark.parametrize("name", names())
class TestConformance:
    def test_the_file_is_named_as_scenarios_name_it(self, name):
        module = policy_class(name).__module__
        assert module == f"kvsim.policies.{name}"
        assert (FOLDER / f"{name}.py").is_file()

    def test_declares_what_it_needs(self, name):
        conformance.check_declared(policy_class(name))

    def test_says_where_it_comes_from_in_under_40_lines(self, name):
        conformance.check_text(policy_class(name), FOLDER / f"{name}.py")

    def test_scores_are_finite_and_fit(self, name):
        conformance.check_scores(policy_class(name)())

    def test_is_pure_and_deterministic(self, name):
        conformance.check_pure(policy_class(name)())

    def test_is_monotone_in_the_budget(self, name):
        conformance.check_monotone(policy_class(name)())

    def test_is_described(self, name):
        entry = next(entry for entry in describe() if entry["name"] == name)
        cls = policy_class(name)
        wanted = {"signals": cls.signals, "granularities": cls.granularities, "sets": cls.sets}
        for key, value in wanted.items():
            assert entry[key] == list(value)
        assert entry["paper"] == cls.paper
        assert entry["kind"] == cls.kind
        assert entry["reconstructed"] is cls.reconstructed
        assert entry["summary"].endswith(".")


HEAD = '''"""A policy that is wrong in one way."""

import random
from dataclasses import dataclass, field

import numpy as np

from kvsim.policies import Policy, View


@dataclass(frozen=True)
class Wrong(Policy):
    """Score_j = something. Paper: arXiv 2306.14048."""

'''

# What each of these does wrong is told by its name; the conformance checks must notice.
WRONG = {
    "writes_into_the_view": """
    signals = ("key_norms",)
    paper = "arXiv 2306.14048"

    def score(self, view: View) -> np.ndarray:
        view.key_norms[:] = 0
        return view.key_norms
""",
    "draws_from_a_global_stream": """
    paper = "control"

    def score(self, view: View) -> np.ndarray:
        return np.full(view.tokens, random.random())
""",
    "remembers": """
    paper = "control"
    seen: list = field(default_factory=list)

    def score(self, view: View) -> np.ndarray:
        self.seen.append(0)
        return np.full(view.tokens, len(self.seen))
""",
    "remembers_and_forgets_at_once": """
    paper = "control"
    seen: dict = field(default_factory=dict)

    def score(self, view: View) -> np.ndarray:
        self.seen[0] = self.seen.get(0, 0) + 1
        return np.full(view.tokens, self.seen[0] % 2)
""",
    "reads_a_signal_that_it_does_not_declare": """
    paper = "control"

    def score(self, view: View) -> np.ndarray:
        return view.attention.last
""",
    "returns_infinity": """
    paper = "control"

    def score(self, view: View) -> np.ndarray:
        return np.full(view.tokens, np.inf)
""",
    "scores_one_token_for_all": """
    paper = "control"

    def score(self, view: View) -> np.ndarray:
        return np.zeros(1)
""",
    "protects_by_number_and_not_by_mask": """
    paper = "control"

    def score(self, view: View) -> np.ndarray:
        return np.zeros(view.tokens)

    def protected(self, view: View) -> np.ndarray:
        return np.arange(4)
""",
    "cites_nothing": """
    def score(self, view: View) -> np.ndarray:
        return np.zeros(view.tokens)
""",
    "cites_another_paper_than_its_docstring": """
    paper = "arXiv 2404.14469"

    def score(self, view: View) -> np.ndarray:
        return np.zeros(view.tokens)
""",
    "is_long": """
    paper = "control"

    def score(self, view: View) -> np.ndarray:
        return np.zeros(view.tokens)
"""
    + "#\n" * 30,
}
RIGHT = """
    paper = "control"

    def score(self, view: View) -> np.ndarray:
        return np.zeros(view.tokens)
"""


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_policy_is_noticed(what, tmp_path):
    file = tmp_path / f"{what}.py"
    file.write_text(HEAD + WRONG[what])
    with pytest.raises((AssertionError, AttributeError, ValueError, TypeError)):
        conformance.check(policy_class(str(file)), file)


def test_a_right_policy_in_the_same_frame_passes(tmp_path):
    # Else the controls above could fail for a reason that they all share.
    file = tmp_path / "right.py"
    file.write_text(HEAD + RIGHT)
    conformance.check(policy_class(str(file)), file)
