"""The baseline of `kvsim bench evict`: a contiguous cache that evicts a span in NumPy, tiled.

The best that we could write: rows are moved tile by tile so that no copy overlaps itself, and a
tile's keys are rotated while its pre-RoPE rows are still in the cache, into place, without
temporaries but one. It does not canonicalise NaN, which our kernels do.
"""

from __future__ import annotations

import numpy as np

TILE = 64


class ContiguousNumpy:
    """K, k_raw and V of one sequence, [token, unit, 2, half] float32 each.

    Parameters
    ----------
    raw, value : float32 [tokens, units * head_dim]
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
        tokens, half = raw.shape[0], cosines.shape[1]
        self.raw = raw.reshape(tokens, units, 2, half).copy()
        self.value = value.copy()
        self.key = np.empty_like(self.raw)
        self.cosines, self.sines = cosines[:, None], sines[:, None]
        self._product = np.empty((TILE, units, half), np.float32)
        for begin in range(0, tokens, TILE):
            self._rotate(begin, min(begin + TILE, tokens))

    def _rotate(self, begin: int, end: int) -> None:
        near, far = self.raw[begin:end, :, 0], self.raw[begin:end, :, 1]
        upper, lower = self.key[begin:end, :, 0], self.key[begin:end, :, 1]
        c, s = self.cosines[begin:end], self.sines[begin:end]
        product = self._product[: end - begin]
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
        self.raw[tokens:end] = raw.reshape(self.raw[tokens:end].shape)
        self.value[tokens:end] = value
        for begin in range(tokens, end, TILE):
            self._rotate(begin, min(begin + TILE, end))
