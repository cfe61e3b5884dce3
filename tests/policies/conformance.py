"""What every policy must do, as functions that raise AssertionError where one does not.

Kept apart from the tests that call them, so that controls can show that each check can fail.
"""

from __future__ import annotations

import copy
import dataclasses
import random
import re
from pathlib import Path

import numpy as np
import views

from kvsim.policies import Policy, View, registry
from kvsim.policies.base import GRANULARITIES, SETS
from kvsim.policies.selection import Target, select

UNITS = (3, 2)
TOKENS = 70
MOST_LINES = 40


def set_shape(sets: str) -> tuple[int, int]:
    """Return the shape of each kind of sets for the layers and heads of these tests."""
    return {"shared": (1, 1), "layer": (UNITS[0], 1), "head": UNITS}[sets]


def view_for(policy: type[Policy] | Policy, sets: str = "shared", seed: int = 3) -> View:
    """Return a view that has the declared signals, and only those, in read-only arrays."""
    return views.make(
        TOKENS,
        set_shape=set_shape(sets),
        unit_shape=UNITS,
        seed=seed,
        **views.signals(policy.signals, UNITS, TOKENS, seed),
    )


def check_declared(cls: type[Policy]) -> None:
    """A frozen dataclass whose class attributes are of the values that the rest relies on."""
    assert dataclasses.is_dataclass(cls)
    assert cls.__dataclass_params__.frozen, "a policy is a frozen dataclass"
    assert set(cls.granularities) <= set(GRANULARITIES)
    assert cls.granularities
    assert set(cls.sets) <= set(SETS)
    assert cls.sets
    assert cls.kind in ("evict", "merge", "encode", "summarise")


def check_text(cls: type[Policy], file: Path) -> None:
    """A docstring that cites the paper and gives the formula, in a file of under 40 lines."""
    text = file.read_text()
    assert len(text.splitlines()) < MOST_LINES, f"{file.name} needs {MOST_LINES} lines or more"
    assert cls.paper, "where does the method come from?"
    document = cls.__doc__ or ""
    cited = re.findall(r"arXiv \d{4}\.\d{4,5}", cls.paper)
    assert cited or cls.paper == "control"
    for paper in cited:
        assert paper in document, f"the docstring does not cite {paper}"
    assert re.search(r"\bScore", document), "the docstring does not give the formula"


def check_scores(policy: Policy) -> None:
    """Finite numbers of a shape that broadcasts to [layers, kv_heads, tokens], for any sets."""
    for sets in policy.sets:
        view = view_for(policy, sets)
        raw = np.asarray(policy.score(view))
        assert raw.dtype.kind in "fiu"
        np.broadcast_to(raw, (*UNITS, TOKENS))
        assert raw.shape[-1] == TOKENS
        assert np.isfinite(raw).all()
        averaged = registry.scores(policy, view_for(policy, sets), "under test")
        assert averaged.shape == (*set_shape(sets), TOKENS)
        mask = policy.protected(view)
        assert mask.dtype == np.bool_
        assert mask.shape == (TOKENS,)


def check_pure(policy: Policy) -> None:
    """The same view and the same stream give the same bytes; nothing else is read or written."""
    for sets in policy.sets:
        view = view_for(policy, sets)
        before = {name: array.copy() for name, array in views.arrays_of(view).items()}
        fields = copy.deepcopy(vars(policy))
        streams = (random.getstate(), repr(np.random.get_state()))  # noqa: NPY002
        first = np.array(policy.score(view))
        guarded = np.array(policy.protected(view))
        # Another sequence between the two: a policy that remembers would show here.
        policy.score(view_for(policy, sets, seed=4))
        for _ in range(2):
            again = view_for(policy, sets)
            assert np.array(policy.score(again)).tobytes() == first.tobytes()
            assert np.array(policy.protected(again)).tobytes() == guarded.tobytes()
        for name, array in views.arrays_of(view).items():
            assert array.tobytes() == before[name].tobytes(), f"{name} was written"
        assert vars(policy) == fields
        assert streams == (random.getstate(), repr(np.random.get_state()))  # noqa: NPY002


def check_monotone(policy: Policy) -> None:
    """A larger budget never keeps less, and what a smaller one keeps a larger one keeps too.

    Under page_completion pages compete by what the token victims left of them, and another
    budget leaves other rankings: there the rows kept by all sets together must not shrink.
    """
    page_tokens = 8
    for sets in policy.sets:
        view = view_for(policy, sets)
        scores = registry.scores(policy, view, "under test")
        guarded = policy.protected(view) | (view.ages <= 4)
        for granularity in policy.granularities:
            smaller = np.zeros(view.retained.shape, bool)
            for kept in range(int(guarded.sum()), TOKENS + 1):
                victims = select(
                    view,
                    scores,
                    guarded,
                    Target(kept, kept / TOKENS),
                    granularity=granularity,
                    window_tokens=5,
                    places=views.places(view, page_tokens),
                )
                assert not (victims & guarded).any()
                larger = ~victims
                if granularity == "page_completion":
                    assert larger.sum() >= smaller.sum()
                else:
                    assert (larger | ~smaller).all(), f"{granularity}: not nested at {kept}"
                    assert (larger.sum(axis=-1) >= kept).all()
                smaller = larger
            assert smaller.all(), "the whole budget keeps everything"


def check(cls: type[Policy], file: Path) -> None:
    """Check a policy of defaults."""
    check_declared(cls)
    check_text(cls, file)
    policy = cls()
    check_scores(policy)
    check_pure(policy)
    check_monotone(policy)
