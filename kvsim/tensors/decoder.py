"""A tiny decoder with random weights, so that next-token logits can be compared as integers.

It runs token by token, on anything that has `rows`, `append` and `next_position`: it cannot tell
a paged cache from a contiguous one. It knows nothing about pages or eviction, and its words mean
nothing: rows that depend on every earlier row are what it is for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from kvsim.errors import LayoutError, LedgerError, RotationError
from kvsim.layout.families import RowFamily, dense, mla
from kvsim.tensors.angles import position_tables
from kvsim.tensors.attention import attend
from kvsim.tensors.rope import Rope, rotate
from kvsim.tensors.shape import CacheShape

EPSILON = np.float32(1e-6)


class Rows(Protocol):
    """What the decoder needs of a cache."""

    @property
    def next_position(self) -> int:
        """The position of the next token."""

    def rows(self, family: int = 0) -> dict[str, np.ndarray]:
        """Return rows in ascending position: K (rotated), V where there is one, positions."""

    def append(self, rows: Sequence[Mapping[str, np.ndarray]]) -> None:
        """Append tokens; keys come before rotation."""


@dataclass(frozen=True)
class DecoderConfig:
    """Sizes of a decoder.

    Attributes
    ----------
    ropes : tuple of Rope
        The rotation of each layer; a dim below the head's is partial rotary, 0 is none.
    windows : tuple of int or None
        The sliding window of each layer, the query included; None where all rows are read.
    q_heads, kv_heads, head_dim : int
        Beside a latent there are no KV heads, and `head_dim` is the part of a query head that
        does not rotate.
    latent : int
        Elements of an MLA latent (kv_lora_rank), with a rope part of the ropes' dim; 0 for
        dense attention.
    pairing : str
        One of `kvsim.layout.families.PAIRINGS`.
    alibi : bool
        Whether scores fall with distance; the ropes should then turn nothing.
    hidden, intermediate, vocabulary : int
    max_positions : int
        Positions that the decoder's own rotation tables cover.
    """

    ropes: tuple[Rope, ...]
    windows: tuple[int | None, ...]
    q_heads: int = 4
    kv_heads: int = 2
    head_dim: int = 8
    latent: int = 0
    pairing: str = "half_split"
    alibi: bool = False
    hidden: int = 32
    intermediate: int = 64
    vocabulary: int = 64
    max_positions: int = 4096

    def __post_init__(self) -> None:
        if len(self.ropes) != len(self.windows) or not self.ropes:
            raise LayoutError(f"{len(self.ropes)} ropes and {len(self.windows)} windows: one each")
        if any(window is not None and window < 1 for window in self.windows):
            raise LayoutError("a window holds at least the query itself")
        if self.alibi and self.latent:
            raise LayoutError("ALiBi is for dense attention, not for a latent")

    @property
    def families(self) -> tuple[RowFamily, ...]:
        """What a token caches."""
        layers = len(self.ropes)
        if self.latent:
            return mla(layers, self.latent, self.ropes[0].dim, self.pairing)
        turned = [rope.dim for rope in self.ropes]
        return dense(
            [self.kv_heads] * layers, self.head_dim, self.head_dim, turned, pairing=self.pairing
        )


_TWO = (Rope(8, 1e4), Rope(8, 1e6))
#: One decoder for each kind of rows and rotation. `dense` has the sizes of fak's tests.
CONFIGS: dict[str, DecoderConfig] = {
    "dense": DecoderConfig(_TWO, (None, None)),
    "hybrid": DecoderConfig(_TWO, (6, None)),
    "alibi": DecoderConfig((Rope(0), Rope(0)), (None, None), alibi=True),
    "nope": DecoderConfig((Rope(8, 1e4), Rope(0)), (6, None)),
    "partial": DecoderConfig((Rope(4, 1e4), Rope(4, 1e6)), (None, None)),
    "interleaved": DecoderConfig(_TWO, (None, None), pairing="interleaved"),
    "mla": DecoderConfig(_TWO, (None, None), latent=16, pairing="interleaved_to_half"),
}


class TinyDecoder:
    """A decoder of pre-norm layers: attention, then a gated MLP.

    Parameters
    ----------
    config : DecoderConfig
    rng : numpy.random.Generator
        Draws every weight, in a fixed order.
    """

    def __init__(self, config: DecoderConfig, rng: np.random.Generator) -> None:
        self.config = config
        self._embedding = rng.standard_normal((config.vocabulary, config.hidden), dtype=np.float32)
        self._layers = [_weights(config, rope, rng) for rope in config.ropes]
        self._head = _matrix(rng, config.vocabulary, config.hidden)
        self._gain = _gain(rng, config.hidden)
        self._tables = [position_tables(rope, config.max_positions) for rope in config.ropes]
        # ALiBi's geometric series: 2 ** (-8 / heads) and its powers.
        exponents = -8.0 * np.arange(1, config.q_heads + 1) / config.q_heads
        self._slopes = (2.0**exponents).astype(np.float32) if config.alibi else None

    def shape(self, planes: str = "kv_raw", max_positions: int | None = None) -> CacheShape:
        """Return the shape of the caches that this decoder runs on."""
        config = self.config
        return CacheShape(
            config.families, config.ropes, planes, max_positions or config.max_positions
        )

    def step(self, cache: Rows, token: int) -> np.ndarray:
        """Append one token to the cache and return the next token's logits.

        The rows of all layers are appended at once, behind the last layer's attention.

        Parameters
        ----------
        cache : Rows
        token : int

        Returns
        -------
        float32 [vocabulary]

        Raises
        ------
        LedgerError
            If the token is not in the vocabulary. Nothing is changed.
        RotationError
            If the position lies past the rotation tables. Nothing is changed.
        """
        logits, row = self._forward(cache, token)
        cache.append([row])
        return logits

    def next_logits(self, cache: Rows, token: int) -> np.ndarray:
        """Return what `step` would, and leave the cache as it was."""
        return self._forward(cache, token)[0]

    def _forward(self, cache: Rows, token: int) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Return the logits, and the rows of all layers as an append takes them."""
        position = cache.next_position
        if not 0 <= token < self.config.vocabulary:
            raise LedgerError(f"token {token} is not one of {self.config.vocabulary}")
        if position >= self.config.max_positions:
            raise RotationError(f"position {position} lies past the decoder's rotation tables")
        held = cache.rows(0)
        attention = self._latent if self.config.latent else self._dense
        new: dict[str, list[np.ndarray]] = {}
        hidden = self._embedding[token]
        for layer, weights in enumerate(self._layers):
            normed = _rms_norm(hidden, weights["attention_gain"])
            mixed, own = attention(layer, normed, held, position)
            hidden = hidden + weights["o"] @ mixed.ravel()
            normed = _rms_norm(hidden, weights["mlp_gain"])
            gated = _silu(weights["gate"] @ normed) * (weights["up"] @ normed)
            hidden = hidden + weights["down"] @ gated
            for name, row in own.items():
                new.setdefault(name, []).append(row.ravel())
        logits = self._head @ _rms_norm(hidden, self._gain)
        return logits, {name: np.concatenate(rows)[None] for name, rows in new.items()}

    def _dense(
        self, layer: int, x: np.ndarray, held: Mapping[str, np.ndarray], position: int
    ) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Return grouped-query attention [q_heads, head_dim], and the token's own rows."""
        config, weights = self.config, self._layers[layer]
        q = (weights["q"] @ x).reshape(config.q_heads, config.head_dim)
        k = (weights["k"] @ x).reshape(config.kv_heads, config.head_dim)
        v = (weights["v"] @ x).reshape(config.kv_heads, config.head_dim)
        mixed = attend(
            self._turned(layer, q, position),
            self._with_own(layer, held["K"], self._turned(layer, k, position)),
            self._with_own(layer, held["V"], v),
            config.head_dim**-0.5,
            position - np.append(held["positions"], position),
            window=config.windows[layer],
            slopes=self._slopes,
        )
        return mixed, {"k": k, "v": v}

    def _latent(
        self, layer: int, x: np.ndarray, held: Mapping[str, np.ndarray], position: int
    ) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Return multi-head latent attention in its absorbed form, and the token's own row.

        Each head's key matrix is multiplied into its query, so that all heads read one row of
        latent and rope part, and the latent again as their value (DeepSeek-V2,
        arXiv:2405.04434, section 2.1).
        """
        config, weights = self.config, self._layers[layer]
        q = (weights["q"] @ x).reshape(config.q_heads, -1)
        row = weights["k"] @ x
        row[: config.latent] = _rms_norm(row[: config.latent], weights["latent_gain"])
        own = row[None]
        plain, rope_part = q[:, : config.head_dim], q[:, config.head_dim :]
        absorbed = np.matmul(weights["up_k"], plain[:, :, None])[:, :, 0]
        keys = self._with_own(layer, held["K"], self._turned(layer, own, position, config.latent))
        mixed = attend(
            self._turned(layer, np.hstack([absorbed, rope_part]), position, config.latent),
            keys,
            np.ascontiguousarray(keys[:, :, : config.latent]),
            q.shape[1] ** -0.5,
            position - np.append(held["positions"], position),
            window=config.windows[layer],
        )
        return np.matmul(weights["up_v"], mixed[:, :, None])[:, :, 0], {"k": own}

    def _turned(self, layer: int, heads: np.ndarray, position: int, first: int = 0) -> np.ndarray:
        """Return vectors [heads, width], their elements from `first` on rotated at a position."""
        dim = self.config.ropes[layer].dim
        turned = heads.copy()
        if dim:
            cos, sin = self._tables[layer]
            window = slice(first, first + dim)
            turned[:, window] = rotate(
                heads[:, window], cos[position], sin[position], self.config.pairing
            )
        return turned

    def _with_own(self, layer: int, held: np.ndarray, own: np.ndarray) -> np.ndarray:
        """Return a layer's rows and the token's own behind them, [n + 1, heads, width]."""
        count = len(held)
        rows = np.empty((count + 1, *own.shape), np.float32)
        rows[:count] = held.reshape(count, len(self._layers), *own.shape)[:, layer]
        rows[count] = own
        return rows


def _weights(config: DecoderConfig, rope: Rope, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Draw one layer."""
    mixed = config.q_heads * config.head_dim
    sizes: dict[str, tuple[int, ...]] = {
        "o": (config.hidden, mixed),
        "gate": (config.intermediate, config.hidden),
        "up": (config.intermediate, config.hidden),
        "down": (config.hidden, config.intermediate),
    }
    gains = {"attention_gain": config.hidden, "mlp_gain": config.hidden}
    if config.latent:
        gains["latent_gain"] = config.latent
        sizes |= {
            "q": (config.q_heads * (config.head_dim + rope.dim), config.hidden),
            "k": (config.latent + rope.dim, config.hidden),
            "up_k": (config.q_heads, config.latent, config.head_dim),
            "up_v": (config.q_heads, config.head_dim, config.latent),
        }
    else:
        cached = config.kv_heads * config.head_dim
        sizes |= {
            "q": (mixed, config.hidden),
            "k": (cached, config.hidden),
            "v": (cached, config.hidden),
        }
    drawn = {name: _matrix(rng, *size) for name, size in sizes.items()}
    return drawn | {name: _gain(rng, size) for name, size in gains.items()}


def _matrix(rng: np.random.Generator, *size: int) -> np.ndarray:
    """Draw float32 weights that keep the scale of what they multiply."""
    return rng.standard_normal(size, dtype=np.float32) * np.float32(size[-1] ** -0.5)


def _gain(rng: np.random.Generator, size: int) -> np.ndarray:
    return np.float32(1) + np.float32(0.1) * rng.standard_normal(size, dtype=np.float32)


def _rms_norm(x: np.ndarray, gain: np.ndarray) -> np.ndarray:
    """Scale a vector to a root mean square of 1 (Zhang and Sennrich 2019)."""
    return x / np.sqrt(np.mean(x * x) + EPSILON) * gain


def _silu(x: np.ndarray) -> np.ndarray:
    # exp overflows to infinity for a very negative x, and x / infinity is the right 0.
    with np.errstate(over="ignore"):
        return x / (np.float32(1) + np.exp(-x))
