"""From scores to victims: token, window, page and page_completion, for any policy.

A set is what keeps and drops tokens together. Everything here is about columns of a view;
pages arrive as plain arrays. Lowest score goes first, and among equals the oldest.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from kvsim.errors import Infeasible
from kvsim.policies.view import View


@dataclass(frozen=True)
class Places:
    """Where the columns of a view lie in the block tables.

    Attributes
    ----------
    position : int64 [set layers, set heads, tokens]
        Position of each column in the sets' tables; any value where it is not retained.
    next_position : int64 [set layers, set heads]
        Positions below this number have been appended.
    entry : int64 [set layers, set heads, tokens]
        Block-table entry of each column; any value where the set does not retain it.
    complete : int64 [set layers, set heads]
        Entries below this number are fully written.
    table : int64 [set layers, set heads]
        A number per table; sets that share a table share it. A set that spans several tables
        names one of them: their histories agree.
    dense : int64 [set layers, set heads]
        Pages that the table would hold had nothing been evicted.
    page_tokens : int
    """

    position: np.ndarray
    next_position: np.ndarray
    entry: np.ndarray
    complete: np.ndarray
    table: np.ndarray
    dense: np.ndarray
    page_tokens: int


@dataclass(frozen=True)
class Target:
    """What is to be kept.

    Attributes
    ----------
    kept : int
        Tokens that each set keeps, protected ones included.
    fraction : float
        The budget as a fraction of the dense footprint, for page_completion.
    """

    kept: int
    fraction: float


_NOTHING = np.zeros((0, 0), np.int64)
_NOWHERE = Places(_NOTHING, _NOTHING, _NOTHING, _NOTHING, _NOTHING, _NOTHING, 1)


def lowest(scores: np.ndarray, count: int) -> np.ndarray:
    """Return the indices of the `count` lowest scores, ascending; ties go to the first.

    Parameters
    ----------
    scores : float64 [n]
    count : int
        0 <= count <= n.

    Returns
    -------
    int64 [count]
    """
    if count <= 0:
        return np.zeros(0, np.int64)
    threshold = np.partition(scores, count - 1)[count - 1]
    chosen = scores < threshold
    ties = np.flatnonzero(scores == threshold)
    chosen[ties[: count - int(np.count_nonzero(chosen))]] = True
    return np.flatnonzero(chosen)


def _whole_runs(
    scores: np.ndarray,
    protected: np.ndarray,
    run: np.ndarray,
    complete: int,
    count: int,
) -> np.ndarray:
    """Return which of a set's retained columns lie in the `count` lowest candidate runs.

    Parameters
    ----------
    scores, protected, run : [columns]
        Of the columns that the set retains.
    complete : int
        Runs below this number are complete.
    count : int
        Runs to evict; if fewer are candidates, all of them go.
    """
    live = np.bincount(run)
    mean = np.bincount(run, weights=scores) / np.maximum(live, 1)
    guarded = np.bincount(run, weights=protected) > 0
    guarded[complete:] = True
    candidates = np.flatnonzero((live > 0) & ~guarded)
    chosen = np.zeros(live.size, np.bool_)
    chosen[candidates[lowest(mean[candidates], min(count, candidates.size))]] = True
    return chosen[run]


def _check_protected(view: View, protected: np.ndarray, kept: int) -> None:
    guarded = (view.retained & protected).sum(axis=-1).max(initial=0)
    if guarded > kept:
        raise Infeasible(f"{int(guarded)} tokens are protected and the budget keeps {kept}")


def _complete_pages(
    view: View, victims: np.ndarray, protected: np.ndarray, target: Target, places: Places
) -> None:
    """Drop, in each table, the emptiest unprotected pages until it holds its share. In place."""
    surviving = view.retained & ~victims
    for table in np.unique(places.table):
        members = places.table == table
        entry = places.entry[members]
        kept = surviving[members]
        size = int(entry[kept].max(initial=-1)) + 1
        rows = np.bincount(entry[kept], minlength=size)
        guarded = np.bincount(entry[kept & protected], minlength=size) > 0
        limit = math.ceil(target.fraction * int(places.dense[members].max()))
        excess = int(np.count_nonzero(rows)) - limit
        candidates = np.flatnonzero((rows > 0) & ~guarded)
        if excess <= 0 or candidates.size == 0:
            continue
        chosen = np.zeros(size, np.bool_)
        chosen[candidates[lowest(rows[candidates], min(excess, candidates.size))]] = True
        doomed = kept.copy()
        doomed[kept] = chosen[entry[kept]]
        victims[members] |= doomed


def select(
    view: View,
    scores: np.ndarray,
    protected: np.ndarray,
    target: Target,
    *,
    granularity: str,
    window_tokens: int,
    places: Places | None,
) -> np.ndarray:
    """Return the victims of each set.

    Parameters
    ----------
    view : View
    scores : float64 [set layers, set heads, tokens]
        Higher is kept.
    protected : bool [tokens]
        Columns that must stay. A mask and not a sentinel score: a mean over a page or a window
        must not see it.
    target : Target
    granularity : {"token", "window", "page", "page_completion"}
    window_tokens : int
        Length of a run under `window`, aligned in positions.
    places : Places or None
        Not needed at granularity `token`.

    Returns
    -------
    bool [set layers, set heads, tokens]

    Raises
    ------
    Infeasible
        If more tokens are protected than the budget keeps.
    """
    _check_protected(view, protected, target.kept)
    if places is None:
        if granularity != "token":
            raise ValueError(f"granularity {granularity} needs places")
        places = _NOWHERE
    victims = np.zeros(view.retained.shape, np.bool_)
    for index in np.ndindex(*view.set_shape):
        columns = np.flatnonzero(view.retained[index])
        excess = columns.size - target.kept
        if excess <= 0:
            continue
        mine, guarded = scores[index][columns], protected[columns]
        if granularity in ("token", "page_completion"):
            open_columns = columns[~guarded]
            victims[index][open_columns[lowest(mine[~guarded], excess)]] = True
        elif granularity == "window":
            run = places.position[index][columns] // window_tokens
            complete = int(places.next_position[index]) // window_tokens
            gone = _whole_runs(mine, guarded, run, complete, excess // window_tokens)
            victims[index][columns[gone]] = True
        else:
            run = places.entry[index][columns]
            gone = _whole_runs(
                mine, guarded, run, int(places.complete[index]), excess // places.page_tokens
            )
            victims[index][columns[gone]] = True
    if granularity == "page_completion":
        _complete_pages(view, victims, protected, target, places)
    return victims
