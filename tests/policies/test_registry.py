"""Finding and building policies, a user's own file too: what is refused, and with which words."""

from __future__ import annotations

import numpy as np
import pytest
import views

from kvsim.errors import PolicyError
from kvsim.policies import build, names, policy_class, registry

HEAD = '''"""A policy of a test."""

from dataclasses import dataclass

import numpy as np

from kvsim.policies import Policy, View
'''
MINE = (
    HEAD
    + '''
@dataclass(frozen=True)
class Mine(Policy):
    """Score = weight * position."""

    weight: float = 1.0
    bend: int = 2

    def score(self, view: View) -> np.ndarray:
        return self.weight * view.positions
'''
)


@pytest.fixture
def own(tmp_path):
    """Write a policy file and return its path."""

    def write(text: str) -> str:
        file = tmp_path / "mine.py"
        file.write_text(text)
        return str(file)

    return write


def returning(expression: str) -> str:
    """Return the text of a policy whose score is an expression of the view."""
    body = "\n\n@dataclass(frozen=True)\nclass Mine(Policy):\n    def score(self, view):\n"
    return f"{HEAD}{body}        return {expression}\n"


def test_a_users_own_file_works_by_its_path(own):
    path = own(MINE)
    policy = build(path, {"weight": 3})
    assert policy.score(views.make(3)).tolist() == [0, 3, 6]
    assert registry.short_name(path) == "mine"
    assert registry.short_name("h2o") == "h2o"


def test_an_unknown_policy_is_refused_with_the_nearest_name():
    with pytest.raises(PolicyError, match=r"policy\.name: unknown policy 'h20'.*'h2o'"):
        policy_class("h20")
    with pytest.raises(PolicyError, match="unknown policy"):
        policy_class("selection")
    assert "selection" not in names()


def test_a_missing_file_is_named():
    with pytest.raises(PolicyError, match=r"there is no file nowhere/mine\.py"):
        policy_class("nowhere/mine.py")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("def (:\n", r"mine\.py:1: "),
        ("raise RuntimeError('no')\n", r"mine\.py: RuntimeError: no"),
        (HEAD, "one policy class is needed, 0 are defined"),
        (MINE + MINE.partition(HEAD)[2].replace("Mine", "Other"), "needed, 2 are defined"),
        (HEAD + "\n\nclass Mine(Policy):\n    pass\n", "must be a frozen dataclass"),
        (MINE.replace("(frozen=True)", ""), "cannot inherit non-frozen dataclass"),
        (MINE.replace("    bend", "    signals = ('smell',)\n    bend"), "unknown signal 'smell'"),
    ],
)
def test_a_file_that_is_no_policy_is_refused(own, text, words):
    with pytest.raises(PolicyError, match=words):
        policy_class(own(text))


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        (
            {"wieght": 1.0},
            r"policy\.wieght: mine has no such parameter.*did you mean policy\.weight",
        ),
        ({"weight": "1"}, r"policy\.weight: must be float, not str"),
        ({"weight": True}, r"policy\.weight: must be float, not bool"),
        ({"bend": 1.0}, r"policy\.bend: must be int, not float"),
        ({"bend": False}, r"policy\.bend: must be int, not bool"),
    ],
)
def test_unknown_parameters_and_wrong_types_are_refused(own, parameters, words):
    with pytest.raises(PolicyError, match=words):
        build(own(MINE), parameters)


@pytest.mark.parametrize(
    ("name", "parameters", "words"),
    [
        ("h2o", {"kernel": 3}, "h2o has no such parameter"),
        ("snapkv", {"kernel": 4}, "kernel must be odd"),
        ("snapkv", {"kernel": 0}, "at least 1"),
        ("snapkv", {"kernel": -1}, "at least 1"),
        ("streaming_llm", {"n_sink": -1}, "n_sink must not be negative"),
    ],
)
def test_parameters_that_make_no_sense_are_refused(name, parameters, words):
    with pytest.raises(PolicyError, match=words):
        build(name, parameters)


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("np.full(view.tokens, np.nan)", "not finite"),
        ("np.full(view.tokens, -np.inf)", "not finite"),
        ("np.zeros(view.tokens + 1)", r"shape \(4,\) do not fit"),
        ("np.zeros(1)", "do not fit"),
        ("np.float64(1)", "do not fit"),
        ("np.zeros((3, 2, view.tokens))", r"do not fit \[layers, kv_heads, tokens\] = \(2, 2, 3\)"),
        ("np.zeros((1, 2, 2, view.tokens))", "do not fit"),
        ("np.zeros(view.tokens, complex)", "must be numbers, not complex128"),
        ("np.zeros(view.tokens, bool)", "must be numbers, not bool"),
        ("['a', 'b', 'c']", "must be numbers"),
        ("None", "must be numbers"),
        ("view.nothing", "score raised AttributeError"),
        ("view.positions.__setitem__(0, 1)", "score raised ValueError"),
    ],
)
def test_scores_that_cannot_be_used_are_refused(own, expression, words):
    view = views.make(3, unit_shape=(2, 2))
    with pytest.raises(PolicyError, match=words):
        registry.scores(build(own(returning(expression)), {}), view, "mine")


@pytest.mark.parametrize(
    "expression",
    ["np.arange(3)", "[1, 2, 3]", "np.arange(3.0).reshape(1, 1, 3)", "np.arange(3, dtype='f2')"],
)
def test_scores_of_fewer_axes_hold_for_every_layer_and_head(own, expression):
    view = views.make(3, set_shape=(2, 2), unit_shape=(2, 2))
    got = registry.scores(build(own(returning(expression)), {}), view, "mine")
    assert got.dtype == np.float64
    assert got.shape == (2, 2, 3)
    assert (np.diff(got) == 1).all()


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("return view.positions", r"protected must return bool \[3\]"),
        ("return np.zeros(2, bool)", r"protected must return bool \[3\]"),
        ("raise RuntimeError('no')", "protected raised RuntimeError: no"),
    ],
)
def test_a_protected_mask_that_cannot_be_used_is_refused(own, body, words):
    text = returning("view.positions") + f"\n    def protected(self, view):\n        {body}\n"
    with pytest.raises(PolicyError, match=words):
        registry.protected(build(own(text), {}), views.make(3), "mine")
