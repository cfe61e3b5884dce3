"""What a policy may see: read-only arrays about the tokens of one sequence. No ledger in sight."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Attention:
    """Attention that cached tokens received, float [layers, kv_heads, tokens].

    Attributes
    ----------
    cumulative : ndarray
        Summed over all queries so far and over the query heads of the group.
    last : ndarray
        From the last query, averaged over the group.
    window : ndarray
        Averaged over the last queries (32 in the recordings) and over the group.
    """

    cumulative: np.ndarray
    last: np.ndarray
    window: np.ndarray


@dataclass(frozen=True)
class View:
    """One sequence at the moment of eviction.

    A column stands for a token that at least one set still retains, oldest first.

    Attributes
    ----------
    positions : int64 [tokens]
        Which token of the text this is, from 0: ascending, and never renumbered.
    ages : int64 [tokens]
        Tokens appended since, this one included: `appended - index`, at least 1.
    retained : bool [set layers, set heads, tokens]
        Which sets still retain which column.
    set_shape : tuple of int
        (1, 1) for shared sets, (layers, 1) for sets per layer, (layers, kv_heads) per head.
    unit_shape : tuple of int
        (layers, kv_heads).
    rng : numpy.random.Generator
        The policy's own stream.
    attention, key_norms, value_norms, keys, values, queries, hidden
        Signals; None where the workload has none, which a policy that declares them never sees.
        `attention` is an :class:`Attention`. Norms are float [layers, kv_heads, tokens].
    """

    positions: np.ndarray
    ages: np.ndarray
    retained: np.ndarray
    set_shape: tuple[int, int]
    unit_shape: tuple[int, int]
    rng: np.random.Generator
    attention: Any = None
    key_norms: Any = None
    value_norms: Any = None
    keys: Any = None
    values: Any = None
    queries: Any = None
    hidden: Any = None

    @property
    def tokens(self) -> int:
        """Columns: tokens that some set retains."""
        return int(self.positions.size)

    @property
    def sets(self) -> int:
        """Sets of the sequence."""
        return self.set_shape[0] * self.set_shape[1]


SIGNALS = ("attention", "keys", "values", "key_norms", "value_norms", "queries", "hidden")
