"""Eviction loops on tiny models, with signals that tests write down themselves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from kvsim.eviction import EvictionLoop, Rules
from kvsim.layout import KVLayout, LayerGroup
from kvsim.paging import Ledger, geometry, single
from kvsim.policies import Policy, View

BYTES = 8


@dataclass(frozen=True)
class ByNorm(Policy):
    """Score = what the test wrote into `key_norms`."""

    def score(self, view: View) -> np.ndarray:
        return view.key_norms


class Written:
    """Signals [layers, kv_heads, tokens] for as many tokens as a test will ever append."""

    def __init__(self, scores: Any, queries: Any = None) -> None:
        self.scores = np.array(scores, np.float64)
        self.queries = np.array(self.scores if queries is None else queries, np.float64)

    def extend(self, tokens: int) -> None:
        """They are written for all tokens already."""

    def fork(self, sequence: int) -> Written:
        return self

    def observe(self, columns: np.ndarray) -> dict[str, Any]:
        return {"key_norms": self.scores[..., columns]}

    def next_query(self, appended: int) -> np.ndarray:
        return self.queries[..., :appended]


def rules(**changed: Any) -> Rules:
    """Return rules that keep half of the tokens, one by one, and protect none."""
    plain: dict[str, Any] = {
        "granularity": "token",
        "window_tokens": 4,
        "protect_recent": 0,
        "protect_sinks": 0,
        "fraction": 0.5,
        "tokens": 0,
    }
    return Rules(**{**plain, **changed})


def make(
    layers: int = 1,
    heads: int = 1,
    *,
    scope: str = "sequence",
    sets: str = "shared",
    page_tokens: int = 4,
    ceiling_pages: int = 0,
    policy: Policy | None = None,
    seed: int = 0,
    **changed: Any,
) -> EvictionLoop:
    """Return a loop over an empty ledger; a row of each unit is 8 bytes."""
    group = LayerGroup(layers, "full", None, heads, BYTES // 4, BYTES // 4)
    shape = geometry(KVLayout("tiny", (group,)), scope, sets)
    return EvictionLoop(
        ledger=Ledger(shape, page_tokens, ceiling_pages=ceiling_pages),
        dense=Ledger(single(sum(shape.unit_row_bytes)), page_tokens),
        policy=policy or ByNorm(),
        name="under test",
        rules=rules(**changed),
        set_shape={"shared": (1, 1), "layer": (layers, 1), "head": (layers, heads)}[sets],
        unit_shape=(layers, heads),
        rng=np.random.default_rng(seed),
    )


def kept(loop: EvictionLoop, sequence: int) -> list[list[int]]:
    """Return the tokens that each set retains."""
    return [tokens.tolist() for tokens in loop.tracked[sequence].tokens]
