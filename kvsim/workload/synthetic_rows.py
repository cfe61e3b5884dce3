"""The compiled sums over a row of the synthetic process: one pass over units and columns.

Written so that NumPy alone runs it too, with the same result: every operation is one rounding
in float32, none is fused (no fastmath), and the order of the operations is the one written.
"""

from __future__ import annotations

import numpy as np

from kvsim.jit import kernel


@kernel
def _fetch(values: np.ndarray, columns: np.ndarray, out: np.ndarray) -> None:
    """Copy these columns; a run of neighbours in one piece."""
    first, last = columns[0], columns[columns.size - 1]
    if last - first == columns.size - 1:
        out[:] = values[first : last + 1]
        return
    for i in range(columns.size):
        out[i] = values[np.uint64(columns[i])]


@kernel
def _mix(
    flat: np.float32,
    short: np.float32,
    long: np.float32,
    powers: np.ndarray,
    weight: np.ndarray,
    out: np.ndarray,
) -> None:
    """Write weight times the mixture of a constant and two exponentials."""
    steep, slow = powers[0], powers[1]
    for i in range(out.size):
        out[i] = ((short * steep[i] + long * slow[i]) + flat) * weight[i]


@kernel
def attend(
    columns: np.ndarray,
    bounds: np.ndarray,
    salience: np.ndarray,
    local: np.ndarray,
    later: np.ndarray,
    to_end: np.ndarray,
    heights: np.ndarray,
    powers: np.ndarray,
    within: np.ndarray,
    out: np.ndarray,
) -> None:
    """Write cumulative, last and window.

    Parameters
    ----------
    columns : int64 [columns]
        Tokens, ascending.
    bounds : int64 [blocks + 1]
        Columns bounds[b] to bounds[b + 1] lie in block b.
    salience, local : float32 [units, tokens]
        The weight, and what the queries of a token's own block give to a weight of 1.
    later : float32 [3, units, blocks]
        The three parts of what all later blocks' queries give to the block's end.
    to_end : float32 [2, columns]
        The two decays to the power of each column's distance from its block's end.
    heights : float32 [2, 3, units]
        The three parts of a row at distance 0: of the last query, and of the mean of the window
        at its first query.
    powers : float32 [2, 2, columns]
        The two decays to the power of each column's distance from those two queries.
    within : float32 [units, columns in the window]
        What the window's mean gives to a weight of 1 inside it: the last columns.
    out : float32 [3, units, columns]
    """
    count = columns.size
    early = count - within.shape[1]
    weight = np.empty(count, np.float32)
    own = np.empty(count, np.float32)
    near, far = to_end[0], to_end[1]
    for unit in range(salience.shape[0]):
        _fetch(salience[unit], columns, weight)
        _fetch(local[unit], columns, own)
        total = out[0, unit]
        for block in range(bounds.size - 1):
            flat, short, long = later[0, unit, block], later[1, unit, block], later[2, unit, block]
            a, b = bounds[block], bounds[block + 1]
            given, steep, slow = total[a:b], near[a:b], far[a:b]
            for i in range(given.size):
                given[i] = (short * steep[i] + long * slow[i]) + flat
        for i in range(count):
            total[i] = (total[i] + own[i]) * weight[i]
        _mix(
            heights[0, 0, unit],
            heights[0, 1, unit],
            heights[0, 2, unit],
            powers[0],
            weight,
            out[1, unit],
        )
        _mix(
            heights[1, 0, unit],
            heights[1, 1, unit],
            heights[1, 2, unit],
            powers[1],
            weight,
            out[2, unit, :early],
        )
        mean, late, inside = out[2, unit, early:], weight[early:], within[unit]
        for i in range(mean.size):
            mean[i] = inside[i] * late[i]
