"""Rotary position embedding: what turns, by how much at each position, and the turn itself.

Knows rows and positions; knows nothing about pages, tables of pages, or sequences. The tables are
made in float64 and cast once; the rotation is two float32 products and one sum per output, so
that the same key at the same position always has the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from kvsim.errors import LayoutError, RotationError
from kvsim.tensors import rope_scaling

SCALINGS = ("none", "linear", "llama3", "yarn", "proportional", "longrope")
PAIRINGS = ("half_split", "interleaved", "interleaved_to_half")
CANONICAL_NAN = 0x7FC00000
"""Bits of every NaN that a rotation stores: the machine's own sign and payload never leak."""

_CHUNK_POSITIONS = 4096
_POSITIVE = (
    "theta",
    "factor",
    "low_freq_factor",
    "high_freq_factor",
    "beta_fast",
    "beta_slow",
    "share",
)


@dataclass(frozen=True)
class Rope:
    """How a layer rotates its keys.

    Attributes
    ----------
    dim : int
        Elements of a head that rotate, even; 0 for a layer without rotation, or with ALiBi.
        Partial rotary is a `dim` smaller than the head.
    theta : float
    scaling : {"none", "linear", "llama3", "yarn", "proportional", "longrope"}
    factor : float
        How far the context is extended.
    original_context : int
        Tokens of the context before the extension (llama3, yarn, longrope).
    low_freq_factor, high_freq_factor : float
        llama3: turns within the original context below which a pair is slowed by `factor`, and
        above which it is left alone.
    beta_fast, beta_slow : float
        yarn: turns within the original context at which the blend begins and ends.
    truncate : bool
        yarn: whether the ends of the blend are whole pairs.
    mscale, mscale_all_dim : float
        yarn: DeepSeek's weights of the attention factor; 0 where a model has none.
    share : float
        proportional: the share of the pairs that turn. The others have frequency 0 and are
        "turned" by the same arithmetic, x * 1 - y * 0, as in the model's published code: they
        keep every finite value, but an infinity or NaN in y makes x NaN, and -0 may become +0.
        Position 0 does the same to every pair of every rope, so a cache must not skip either.
    short_factors, long_factors : tuple of float
        longrope: a divisor for each pair, up to the original context and beyond it.
    attention_factor : float, optional
        Multiplies cos and sin. None lets the scaling derive it.

    Raises
    ------
    RotationError
        If the parameters do not describe a rotation.
    """

    dim: int
    theta: float = 10000.0
    scaling: str = "none"
    factor: float = 1.0
    original_context: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    mscale: float = 0.0
    mscale_all_dim: float = 0.0
    share: float = 1.0
    short_factors: tuple[float, ...] = ()
    long_factors: tuple[float, ...] = ()
    attention_factor: float | None = None

    def __post_init__(self) -> None:
        if self.dim < 0 or self.dim % 2:
            raise RotationError(f"a rotation turns an even number of elements, not {self.dim}")
        if self.scaling not in SCALINGS:
            raise RotationError(
                f"scaling must be one of {', '.join(SCALINGS)}, not {self.scaling!r}"
            )
        for name in _POSITIVE:
            _positive(name, getattr(self, name))
        for name in ("mscale", "mscale_all_dim"):
            if getattr(self, name):
                _positive(name, getattr(self, name))
        if self.attention_factor is not None:
            _positive("attention_factor", self.attention_factor)
        for low, high in (("low_freq_factor", "high_freq_factor"), ("beta_slow", "beta_fast")):
            if getattr(self, low) > getattr(self, high):
                raise RotationError(
                    f"{low} {getattr(self, low)} is above {high} {getattr(self, high)}"
                )
        if self.share > 1:
            raise RotationError(f"share must be at most 1, not {self.share}")
        if self.scaling in ("llama3", "yarn", "longrope") and self.original_context < 2:
            raise RotationError(
                f"{self.scaling} needs an original_context of at least 2 tokens,"
                f" not {self.original_context}"
            )
        if self.scaling == "yarn" and self.theta <= 1:
            raise RotationError(f"yarn needs a theta above 1, not {self.theta}")
        if self.scaling == "longrope":
            for name in ("short_factors", "long_factors"):
                found = getattr(self, name)
                if len(found) != self.dim // 2:
                    raise RotationError(
                        f"{name} must be {self.dim // 2} numbers, one a pair, not {len(found)}"
                    )
                for factor in found:
                    _positive(name, factor)

    def regime(self, length: int) -> str:
        """Return which factors a context of `length` tokens uses: "short" or "long"."""
        if self.scaling == "longrope" and length > self.original_context:
            return "long"
        return "short"

    def attention(self) -> float:
        """Return the number that multiplies cos and sin."""
        if self.attention_factor is not None:
            return self.attention_factor
        if self.scaling == "yarn":
            return rope_scaling.yarn_attention_factor(self.factor, self.mscale, self.mscale_all_dim)
        if self.scaling == "longrope":
            return rope_scaling.longrope_attention_factor(self.factor, self.original_context)
        return 1.0

    def inverse_frequencies(self, regime: str = "short") -> np.ndarray:
        """Return radians per position of each pair, float64 [dim / 2].

        Parameters
        ----------
        regime : {"short", "long"}
            "long" exists for longrope alone.

        Raises
        ------
        RotationError
            If there is no such regime.
        """
        if regime != "short" and not (regime == "long" and self.scaling == "longrope"):
            raise RotationError(f"scaling {self.scaling} has no regime {regime!r}")
        inverse = rope_scaling.plain(self.dim, self.theta)
        if self.scaling == "linear":
            return inverse / self.factor
        if self.scaling == "llama3":
            band = self.low_freq_factor, self.high_freq_factor
            return rope_scaling.llama3(inverse, self.factor, self.original_context, *band)
        if self.scaling == "yarn":
            turns = [
                rope_scaling.yarn_pair(self.dim, self.theta, self.original_context, beta)
                for beta in (self.beta_fast, self.beta_slow)
            ]
            return rope_scaling.yarn(inverse, self.factor, *turns, truncate=self.truncate)
        if self.scaling == "proportional":
            return rope_scaling.proportional(inverse / self.factor, self.share)
        if self.scaling == "longrope":
            factors = self.long_factors if regime == "long" else self.short_factors
            return inverse / np.array(factors, np.float64)
        return inverse


def _positive(name: str, value: float) -> None:
    if not (math.isfinite(value) and value > 0):
        raise RotationError(f"{name} must be finite and above 0, not {value}")


class Tables(NamedTuple):
    """cos and sin of every position, float32 [positions, dim / 2], C-contiguous."""

    cos: np.ndarray
    sin: np.ndarray


def tables(rope: Rope, positions: int, regime: str = "short") -> Tables:
    """Return cos and sin for positions 0 to `positions` - 1.

    Angle, cos and sin are float64 and cast to float32 once; where the attention factor is not 1,
    the cast value is then multiplied by it in float32.

    Parameters
    ----------
    rope : Rope
    positions : int
    regime : {"short", "long"}

    Raises
    ------
    RotationError
        If `positions` is negative, or there is no such regime.
    """
    if positions < 0:
        raise RotationError(f"tables cover at least 0 positions, not {positions}")
    inverse = rope.inverse_frequencies(regime)
    cos = np.empty((positions, inverse.size), np.float32)
    sin = np.empty((positions, inverse.size), np.float32)
    # In pieces, so that the float64 angles of a long table never stand in memory at once.
    for first in range(0, positions, _CHUNK_POSITIONS):
        last = min(first + _CHUNK_POSITIONS, positions)
        angles = np.arange(first, last, dtype=np.float64)[:, None] * inverse
        cos[first:last] = np.cos(angles)
        sin[first:last] = np.sin(angles)
    attention = rope.attention()
    if attention != 1.0:
        cos *= np.float32(attention)
        sin *= np.float32(attention)
    return Tables(cos, sin)


def rows(turns: Tables, positions: np.ndarray) -> Tables:
    """Return the rows of the tables at these positions, [*positions.shape, dim / 2].

    Raises
    ------
    RotationError
        If a position is not an integer, is negative, or lies past the tables. int64 and uint64
        are checked over their whole range.
    """
    wanted = np.asarray(positions)
    if wanted.size == 0:
        wanted = wanted.astype(np.int64)
    if wanted.dtype.kind not in "iu":
        raise RotationError(f"positions must be integers of at most 64 bits, not {wanted.dtype}")
    covered = turns.cos.shape[0]
    for position in (int(wanted.min()), int(wanted.max())) if wanted.size else ():
        if not 0 <= position < covered:
            raise RotationError(f"position {position} lies outside tables of {covered} positions")
    wanted = wanted.astype(np.int64)
    return Tables(turns.cos[wanted], turns.sin[wanted])


def rotate(window: np.ndarray, cos: np.ndarray, sin: np.ndarray, pairing: str) -> np.ndarray:
    """Rotate pairs of elements: the reference that every kernel equals bit for bit.

    out_a = f32(a * cos) - f32(b * sin) and out_b = f32(b * cos) + f32(a * sin): each product and
    each sum is rounded to float32 by a ufunc of its own, so that no FMA can enter. A NaN result
    is stored as `CANONICAL_NAN`. Positions are the caller's affair: see `rows`.

    Parameters
    ----------
    window : float32 [..., dim]
    cos, sin : float32 [..., dim / 2]
        Broadcast against each half of the window.
    pairing : {"half_split", "interleaved", "interleaved_to_half"}
        Which elements are a pair: (j, j + dim / 2); (2j, 2j + 1); or read as the latter and
        written as the former.

    Returns
    -------
    float32 [..., dim]

    Raises
    ------
    RotationError
        If the pairing is unknown, or shapes or dtypes do not fit.
    """
    if pairing not in PAIRINGS:
        raise RotationError(f"pairing must be one of {', '.join(PAIRINGS)}, not {pairing!r}")
    if not window.dtype == cos.dtype == sin.dtype == np.float32:
        raise RotationError(
            f"a rotation is float32, not {window.dtype} with {cos.dtype} and {sin.dtype}"
        )
    fits = cos.shape == sin.shape and cos.ndim > 0 and window.ndim > 0
    if not fits or window.shape[-1] != 2 * cos.shape[-1]:
        raise RotationError(
            f"a window {window.shape} does not fit cos {cos.shape} and sin {sin.shape}"
        )
    half = cos.shape[-1]
    try:
        leading = np.broadcast_shapes(window.shape[:-1], cos.shape[:-1])
    except ValueError:
        raise RotationError(f"a window {window.shape} does not fit cos {cos.shape}") from None
    if pairing == "half_split":
        a, b = window[..., :half], window[..., half:]
    else:
        a, b = window[..., 0::2], window[..., 1::2]
    out = np.empty((*leading, 2 * half), np.float32)
    if pairing == "interleaved":
        first, second = out[..., 0::2], out[..., 1::2]
    else:
        first, second = out[..., :half], out[..., half:]
    # Infinities and NaN may come in and go out: that is stated above, and is not worth a warning.
    with np.errstate(all="ignore"):
        np.subtract(np.multiply(a, cos), np.multiply(b, sin), out=first)
        np.add(np.multiply(b, cos), np.multiply(a, sin), out=second)
    out.view(np.uint32)[np.isnan(out)] = CANONICAL_NAN
    return out


_NEEDED = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "original_max"),
    "yarn": ("factor", "original_max"),
    "proportional": (),
    "longrope": ("short_factors", "long_factors", "factor", "original_max"),
}
_NUMBERS = (
    "theta",
    "partial",
    "factor",
    "original_max",
    "low_freq_factor",
    "high_freq_factor",
    "beta_fast",
    "beta_slow",
    "truncate",
    "mscale",
    "mscale_all_dim",
    "attention_factor",
)


def rope_of_facts(facts: Mapping[str, Any], head_dim: int) -> Rope:
    """Return the rotation that a catalogue's `rope` entry states.

    What the facts leave out of llama3's and yarn's finer parameters takes the defaults of
    `Rope`, which are Llama 3.1's and the YaRN paper's. A model with others must say so: gpt-oss
    has `truncate` false, DeepSeek-V3 has `mscale` and `mscale_all_dim` 1, Step-3.7-Flash has
    `high_freq_factor` 32, Llama-4-Scout 1.

    Parameters
    ----------
    facts : Mapping
        `theta`, `type`, `partial`, `original_max`, and fields of `Rope` by their names. An entry
        with a dictionary for each layer kind is the caller's to resolve.
    head_dim : int
        Elements of a key, or of its rotary part where that has its own width (MLA).

    Raises
    ------
    LayoutError
        If a fact that the rotation needs is missing or unknown; the text names it.
    RotationError
        If the facts do not describe a rotation.
    """
    stated = {"type": "default", "partial": 1.0, **facts}
    kind = stated["type"]
    if kind is not None and kind not in _NEEDED:
        raise LayoutError(f"the rope's type must be one of {', '.join(_NEEDED)}, not {kind!r}")
    for name in ("theta", "type", "partial", *_NEEDED.get(kind, ())):
        if stated.get(name) is None:
            raise LayoutError(f"the rope's {name} is unknown (type {kind})")
    found = {name: _number(name, stated[name]) for name in _NUMBERS if stated.get(name) is not None}
    partial = found.pop("partial")
    found["dim"] = int(head_dim * partial)
    if kind == "proportional":
        found |= {"dim": head_dim, "share": partial}
    if stated.get("rotary_dim", found["dim"]) != found["dim"]:
        raise LayoutError(
            f"the rope's rotary_dim is {stated['rotary_dim']}, but {partial} of {head_dim}"
            f" elements are {found['dim']}"
        )
    if "original_max" in found:
        found["original_context"] = int(found.pop("original_max"))
    for name in ("short_factors", "long_factors"):
        if stated.get(name) is not None:
            found[name] = tuple(_number(name, factor) for factor in stated[name])
    return Rope(scaling="none" if kind == "default" else kind, **found)


def _number(name: str, value: Any) -> Any:
    if not isinstance(value, int | float) or not math.isfinite(value):
        raise LayoutError(f"the rope's {name} must be finite numbers, not {value!r}")
    return value
