"""Inverse frequencies of rotary position embeddings, plain and scaled, in float64.

Knows formulas and their parameters; knows nothing about positions, tables, rows or models.

Sources: RoFormer (Su et al. 2021) for the plain series; NTK-by-parts as Llama 3.1 published it for
`llama3`; YaRN (Peng et al. 2023) and DeepSeek-V2/V3's mscale for `yarn`; LongRoPE (Ding et al.
2024) and Phi-3's published code for the attention factor of longrope; Gemma 4 as Hugging Face
transformers has it (`_compute_proportional_rope_parameters`) for `proportional`.
"""

from __future__ import annotations

import math

import numpy as np


def plain(dim: int, theta: float) -> np.ndarray:
    """Return theta ** (-2j / dim) for j < dim / 2."""
    return 1.0 / theta ** (np.arange(0, dim, 2, dtype=np.float64) / dim)


def llama3(
    inverse: np.ndarray, factor: float, original_context: int, low: float, high: float
) -> np.ndarray:
    """Divide slow frequencies by `factor`, keep fast ones, and blend between.

    Slow is a pair with fewer than `low` turns within the original context, fast one with more
    than `high`.
    """
    turns = original_context * inverse / (2.0 * math.pi)
    kept = np.where(turns < low, 0.0, 1.0)
    if high > low:
        between = (turns >= low) & (turns <= high)
        kept[between] = (turns[between] - low) / (high - low)
    return (1.0 - kept) * inverse / factor + kept * inverse


def yarn_pair(dim: int, theta: float, original_context: int, turns: float) -> float:
    """Return the (fractional) pair that makes `turns` turns within the original context."""
    return dim * math.log(original_context / (turns * 2.0 * math.pi)) / (2.0 * math.log(theta))


def yarn(
    inverse: np.ndarray, factor: float, low: float, high: float, *, truncate: bool
) -> np.ndarray:
    """Blend from plain frequencies, up to pair `low`, to divided ones, from pair `high`.

    With `truncate` the two ends move outwards to whole pairs, as in most models; gpt-oss keeps
    them fractional.
    """
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    # The upper bound is dim - 1 and not dim / 2 - 1, and an empty ramp is widened by 0.001
    # instead of dividing by 0: so the common implementation has it, and models are used with it.
    low, high = max(low, 0), min(high, 2 * inverse.size - 1)
    width = high - low if high != low else 0.001
    divided = np.clip((np.arange(inverse.size, dtype=np.float64) - low) / width, 0.0, 1.0)
    return inverse / factor * divided + inverse * (1.0 - divided)


def yarn_attention_factor(factor: float, mscale: float = 0.0, mscale_all_dim: float = 0.0) -> float:
    """Return YaRN's 0.1 ln(factor) + 1, or with both weights DeepSeek's ratio of two such."""

    def magnitude(weight: float) -> float:
        return 0.1 * weight * math.log(factor) + 1.0 if factor > 1.0 else 1.0

    if mscale and mscale_all_dim:
        return magnitude(mscale) / magnitude(mscale_all_dim)
    return magnitude(1.0)


def longrope_attention_factor(factor: float, original_context: int) -> float:
    """Return sqrt(1 + ln(factor) / ln(original_context)), or 1 without an extension."""
    if factor <= 1.0:
        return 1.0
    return math.sqrt(1.0 + math.log(factor) / math.log(original_context))


def proportional(inverse: np.ndarray, share: float) -> np.ndarray:
    """Return the series with 0 after its first `share`, rounded down to whole pairs."""
    turning = int(share * 2 * inverse.size // 2)
    return np.where(np.arange(inverse.size) < turning, inverse, 0.0)
