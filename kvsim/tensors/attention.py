"""Attention of one query over gathered rows, in float32 NumPy with one fixed order of operations.

Knows arrays and distances; knows nothing about caches, pages, layers of a model or rotation.
"""

from __future__ import annotations

import numpy as np

from kvsim.errors import LayoutError


def attend(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    scale: float,
    distance: np.ndarray,
    *,
    window: int | None = None,
    slopes: np.ndarray | None = None,
) -> np.ndarray:
    """Return softmax(scale * q k + bias) v of one query token.

    Claimed: the same rows in the same order give the same bits, wherever they were gathered
    from, on one machine with one BLAS and thread count. Rows outside the window are left out
    before anything is multiplied, so whatever they hold changes no bit.

    Not claimed: equal bits when the rows stand in another order or are multiplied in other
    shapes (matrix products of other heights, blocked or page-wise softmax), or on another BLAS
    kernel or machine; each of these has been measured to change bits.

    Parameters
    ----------
    q : float32 [q_heads, k_dim]
        Query head h reads KV head h // (q_heads / kv_heads).
    k : float32 [n, kv_heads, k_dim]
    v : float32 [n, kv_heads, v_dim]
    scale : float
    distance : int64 [n]
        The query's position minus each row's; the query's own row is at 0.
    window : int, optional
        Only rows with distance < window are read: the window includes the query itself.
    slopes : float32 [q_heads], optional
        ALiBi: slope * distance is taken from the scores (Press et al. 2022, arXiv:2108.12409).

    Returns
    -------
    float32 [q_heads, v_dim]

    Raises
    ------
    LayoutError
        If an array is not float32, C-contiguous and of these shapes, a row comes after the
        query, or no row is within the window.
    """
    _check(q, k, v, distance)
    if window is not None:
        reach = distance < window
        distance, k, v = distance[reach], k[reach], v[reach]
    if distance.size == 0 or distance.min() < 0:
        raise LayoutError(f"a query needs rows at or before it, inside its window {window}")
    group = q.shape[0] // k.shape[1]
    out = np.empty((q.shape[0], v.shape[2]), np.float32)
    # A bad row is the caller's to find in the result; the arithmetic itself raises no warning.
    with np.errstate(all="ignore"):
        for head in range(k.shape[1]):
            queries = slice(head * group, (head + 1) * group)
            keys = np.ascontiguousarray(k[:, head])
            values = np.ascontiguousarray(v[:, head])
            scores = (q[queries] @ keys.T) * np.float32(scale)
            if slopes is not None:
                scores = scores - slopes[queries, None] * distance.astype(np.float32)
            weights = np.exp(scores - scores.max(axis=1, keepdims=True))
            out[queries] = (weights / weights.sum(axis=1, keepdims=True)) @ values
    return out


def _check(q: np.ndarray, k: np.ndarray, v: np.ndarray, distance: np.ndarray) -> None:
    for name, array, axes in (("q", q, 2), ("k", k, 3), ("v", v, 3)):
        if array.dtype != np.float32 or array.ndim != axes or not array.flags.c_contiguous:
            raise LayoutError(
                f"{name} must be C-contiguous float32 of {axes} axes, not {array.dtype}"
                f" {array.shape}"
            )
    heads, width = q.shape
    rows, kv_heads, key_width = k.shape
    if v.shape[:2] != (rows, kv_heads) or key_width != width or distance.shape != (rows,):
        raise LayoutError(
            f"q {q.shape}, k {k.shape}, v {v.shape} and distance {distance.shape} do not fit"
        )
    if kv_heads == 0 or heads % kv_heads:
        raise LayoutError(f"{heads} query heads cannot share {kv_heads} KV heads")
