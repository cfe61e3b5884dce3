"""The baseline of `kvsim bench evict`: a contiguous cache that evicts a span in NumPy, tiled.

The best that we know how to write. Rows are moved tile by tile, so that no copy overlaps itself;
the two halves of all heads lie side by side, so that every ufunc runs over long rows; and a tile's
keys are rotated while its pre-RoPE rows are still in the cache, into place, with one temporary. It
does not canonicalise NaN, which our kernels do.
"""

from __future__ import annotations

import numpy as np

TILE = 16


class ContiguousNumpy:
    """K and k_raw of one sequence, float32 [token, 2, units * half], and V, [token, elements].

    Parameters
    ----------
    raw, value : float32 [tokens, units * head_dim]
        As a paged cache hands them out: each head's two halves behind one another.
    units : int
        (layer, KV head) pairs.
    cosines, sines : float32 [positions, half]
    """

    def __init__(
        self,
        raw: np.ndarray,
        value: np.ndarray,
        units: int,
        cosines: np.ndarray,
        sines: np.ndarray,
    ) -> None:
        self._units, self._half = units, cosines.shape[1]
        self.raw = self._halves(raw)
        self.value = value.copy()
        self.key = np.empty_like(self.raw)
        self._cosines, self._sines = cosines, sines
        self._product = np.empty((TILE, units * self._half), np.float32)
        self._spread = np.empty((2, TILE, units, self._half), np.float32)
        for begin in range(0, raw.shape[0], TILE):
            self._rotate(begin, min(begin + TILE, raw.shape[0]))

    def _halves(self, rows: np.ndarray) -> np.ndarray:
        apart = rows.reshape(-1, self._units, 2, self._half).transpose(0, 2, 1, 3)
        return np.ascontiguousarray(apart).reshape(-1, 2, self._units * self._half)

    def rows(self, plane: np.ndarray, tokens: int) -> np.ndarray:
        """Return the first rows of K or k_raw as a paged cache hands them out."""
        apart = plane[:tokens].reshape(tokens, 2, self._units, self._half)
        return np.ascontiguousarray(apart.transpose(0, 2, 1, 3)).reshape(tokens, -1)

    def _rotate(self, begin: int, end: int) -> None:
        tile = end - begin
        spread = self._spread[:, :tile]
        spread[0] = self._cosines[begin:end, None]
        spread[1] = self._sines[begin:end, None]
        c, s = spread.reshape(2, tile, -1)
        near, far = self.raw[begin:end, 0], self.raw[begin:end, 1]
        upper, lower = self.key[begin:end, 0], self.key[begin:end, 1]
        product = self._product[:tile]
        np.multiply(near, c, out=upper)
        np.multiply(far, s, out=product)
        np.subtract(upper, product, out=upper)
        np.multiply(far, c, out=lower)
        np.multiply(near, s, out=product)
        np.add(lower, product, out=lower)

    def evict(self, first: int, count: int, tokens: int) -> int:
        """Evict a span of the first `tokens` tokens and return how many are left.

        A tile is never longer than the span, so that source and target do not overlap.
        """
        left = tokens - count
        tile = min(TILE, count)
        for begin in range(first, left, tile):
            end = min(begin + tile, left)
            np.copyto(self.raw[begin:end], self.raw[begin + count : end + count])
            np.copyto(self.value[begin:end], self.value[begin + count : end + count])
            self._rotate(begin, end)
        return left

    def append(self, raw: np.ndarray, value: np.ndarray, tokens: int) -> None:
        """Put rows behind the first `tokens` tokens."""
        end = tokens + raw.shape[0]
        self.raw[tokens:end] = self._halves(raw)
        self.value[tokens:end] = value
        for begin in range(tokens, end, TILE):
            self._rotate(begin, min(begin + TILE, end))
