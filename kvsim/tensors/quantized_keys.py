"""Quantized keys of one sequence under span eviction, and what inexact re-rotation costs.

Knows codes, rotation and positions that close up (`renumber`); knows nothing about pages. Three
modes say what is kept beside the codes, and so what evicting a span can do:

* `shadow`: the float32 pre-RoPE row (k_raw). A survivor's new code is quantize(rotate(k_raw, new
  position)), which is what it would have been had the span never been there: exact.
* `flush`: nothing. A span whose removal shifts a survivor is refused; the whole sequence has to be
  flushed and prefilled again.
* `lossy`: nothing. The code is decoded, turned by the difference of the two positions and encoded
  again. Inexact by design, to be measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from kvsim.errors import ExactnessRefused, LayoutError, RotationError
from kvsim.tensors.quantized import Codes, decode, encode
from kvsim.tensors.rope import Rope, Tables, rotate, rows, tables

MODES = ("shadow", "flush", "lossy")


class QuantizedKeys:
    """Keys of one sequence and layer, kept as codes.

    Parameters
    ----------
    kind : {"float32", "int8", "e4m3", "e4m3_scaled"}
        How a rotated key is kept. "float32" with `lossy` composes two rotations.
    mode : {"shadow", "flush", "lossy"}
    rope : Rope
        Turns the first `rope.dim` elements of each row.
    row_shape : tuple of int
        Shape of one token's keys; the last axis is a row, with a scale of its own.
    max_positions : int
    pairing : {"half_split", "interleaved", "interleaved_to_half"}
        The last cannot be composed with itself, so `lossy` refuses it.

    Raises
    ------
    LayoutError
        If the kind or mode is unknown, or a row is narrower than what rotates.
    RotationError
        If the pairing cannot be composed, or a longrope would change its factors within
        `max_positions`.
    """

    def __init__(
        self,
        kind: str,
        mode: str,
        rope: Rope,
        row_shape: tuple[int, ...],
        max_positions: int,
        pairing: str = "half_split",
    ) -> None:
        if mode not in MODES:
            raise LayoutError(f"mode must be one of {', '.join(MODES)}, not {mode!r}")
        if not row_shape or row_shape[-1] < rope.dim:
            raise LayoutError(f"{rope.dim} elements cannot turn in rows of shape {row_shape}")
        if mode == "lossy" and pairing == "interleaved_to_half":
            raise RotationError("interleaved_to_half moves elements, so two turns do not compose")
        if rope.regime(max_positions) != "short":
            raise RotationError(
                f"longrope changes its factors after {rope.original_context} tokens, so"
                f" {max_positions} positions cannot be renumbered"
            )
        self.kind = kind
        self.mode = mode
        self._rope = rope
        self._pairing = pairing
        self._tables = tables(rope, max_positions)
        # A kept key has its attention factor already; a further turn must not multiply it again.
        self._steps = tables(replace(rope, attention_factor=1.0), max_positions)
        empty = np.empty((0, *row_shape), np.float32)
        self._codes = encode(kind, empty)
        self._raw = empty if mode == "shadow" else None

    def __len__(self) -> int:
        return int(self._codes.codes.shape[0])

    @property
    def supports_exact_span(self) -> bool:
        """Whether any span can be evicted exactly; keys that do not rotate always can."""
        return self.mode == "shadow" or self._rope.dim == 0

    @property
    def codes(self) -> Codes:
        """What is kept, ascending in position: codes [tokens, ...] and their scales."""
        return self._codes

    def read(self) -> np.ndarray:
        """Return the keys that attention sees, float32 [tokens, *row_shape]."""
        return decode(self.kind, *self._codes)

    def append(self, raw: np.ndarray) -> None:
        """Rotate and keep the keys of new tokens.

        Parameters
        ----------
        raw : float32 [tokens, *row_shape]
            Before rotation.

        Raises
        ------
        LayoutError
            If the rows are not of this shape and type.
        RotationError
            If a position lies past `max_positions`.
        ExactnessRefused
            If the kind has no code for a NaN or an infinity among them.
        """
        if raw.shape[1:] != self._codes.codes.shape[1:] or raw.dtype != np.float32:
            raise LayoutError(
                f"keys are float32 {self._codes.codes.shape[1:]}, not {raw.dtype} {raw.shape[1:]}"
            )
        first = len(self)
        new = self._encoded(raw, np.arange(first, first + len(raw)))
        self._codes = _joined(self._codes, new)
        if self._raw is not None:
            self._raw = np.concatenate([self._raw, raw])

    def evict_span(self, first: int, count: int) -> int:
        """Remove `count` tokens from position `first` on and close the positions up.

        Nothing happens if first < 0, count <= 0 or first >= length; the end is clamped. A span
        at the very end shifts no survivor and is exact in every mode.

        Returns
        -------
        int
            Tokens removed.

        Raises
        ------
        ExactnessRefused
            Under `flush`, if a survivor would have to be turned. Nothing is changed.
        """
        length = len(self)
        if first < 0 or count <= 0 or first >= length:
            return 0
        end = min(first + count, length)
        before, after = _part(self._codes, slice(0, first)), _part(self._codes, slice(end, None))
        if end < length and self._rope.dim:
            after = self._moved(after, first, end)
        # Nothing below can fail: until here, all is as it was.
        self._codes = _joined(before, after)
        if self._raw is not None:
            self._raw = np.concatenate([self._raw[:first], self._raw[end:]])
        return end - first

    def flush(self) -> int:
        """Drop every token, the remedy where a span cannot be evicted; return how many."""
        dropped = len(self)
        self._codes = _part(self._codes, slice(0, 0))
        if self._raw is not None:
            self._raw = self._raw[:0]
        return dropped

    def _moved(self, codes: Codes, first: int, end: int) -> Codes:
        """Return the codes of the tokens from `end` on, for positions from `first` on."""
        if self._raw is not None:
            raw = self._raw[end:]
            return self._encoded(raw, np.arange(first, first + len(raw)))
        if self.mode == "flush":
            raise ExactnessRefused(
                f"{self.kind} keys without a pre-RoPE row cannot be renumbered exactly:"
                " flush the prefix, or keep a float32 k_raw"
            )
        back = rows(self._steps, np.array(end - first))
        turned = self._turned(decode(self.kind, *codes), Tables(back.cos, -back.sin))
        return encode(self.kind, turned)

    def _encoded(self, raw: np.ndarray, positions: np.ndarray) -> Codes:
        turns = rows(self._tables, positions)
        shape = (len(raw), *(1,) * (raw.ndim - 2), self._rope.dim // 2)
        return encode(
            self.kind,
            self._turned(raw, Tables(turns.cos.reshape(shape), turns.sin.reshape(shape))),
        )

    def _turned(self, keys: np.ndarray, turns: Tables) -> np.ndarray:
        out = keys.copy()
        out[..., : self._rope.dim] = rotate(keys[..., : self._rope.dim], *turns, self._pairing)
        return out


def _part(codes: Codes, tokens: slice) -> Codes:
    return Codes(codes.codes[tokens], None if codes.scale is None else codes.scale[tokens])


def _joined(left: Codes, right: Codes) -> Codes:
    scale = None
    if left.scale is not None and right.scale is not None:
        scale = np.concatenate([left.scale, right.scale])
    return Codes(np.concatenate([left.codes, right.codes]), scale)


class Drift(NamedTuple):
    """How far lossy keys are from exact ones after a number of evictions.

    Attributes
    ----------
    evictions : int
    codes_changed : float
        Share of elements whose code differs from the exact one; bits, for float32.
    values_changed : float
        Share of elements whose decoded bits differ. With a scale per row it is the larger: one
        new scale changes every value of the row.
    error_max : float
        Largest |lossy - exact|, both decoded.
    loss_max : float
        Largest |lossy - float32|: what lossy keys are from keys that were never quantized.
    exact_loss_max : float
        Largest |exact - float32|: what quantizing alone costs, the floor of `loss_max`.
    """

    evictions: int
    codes_changed: float
    values_changed: float
    error_max: float
    loss_max: float
    exact_loss_max: float


def drift(
    kind: str,
    rope: Rope,
    raw: np.ndarray,
    spans: Sequence[int],
    pairing: str = "half_split",
) -> list[Drift]:
    """Evict one span after another in front of the same tokens, and compare after each.

    Parameters
    ----------
    kind : {"float32", "int8", "e4m3", "e4m3_scaled"}
    rope : Rope
    raw : float32 [tokens, ..., width]
        Keys before rotation. The first sum(spans) tokens are those evicted; the rest is measured.
    spans : sequence of int
        Tokens of each eviction. Equal spans repeat the same rounding errors and drift further
        than spans drawn at random.
    pairing : {"half_split", "interleaved"}

    Returns
    -------
    list of Drift
        One for each eviction.

    Raises
    ------
    LayoutError
        If a span is below 1 token, or no token is left to be measured.
    """
    doomed = sum(spans)
    if min(spans, default=1) < 1 or len(raw) <= doomed:
        raise LayoutError(f"{len(raw)} tokens leave nothing behind spans of {doomed} in all")
    caches = [
        QuantizedKeys(kept, mode, rope, raw.shape[1:], len(raw), pairing)
        for kept, mode in ((kind, "lossy"), (kind, "shadow"), ("float32", "shadow"))
    ]
    for cache in caches:
        cache.append(raw)
    found = []
    for number, count in enumerate(spans, 1):
        doomed -= count
        for cache in caches:
            cache.evict_span(doomed, count)
        lossy, exact, plain = (cache.read()[doomed:] for cache in caches)
        ours, theirs = (_part(cache.codes, slice(doomed, None)).codes for cache in caches[:2])
        found.append(
            Drift(
                number,
                _differing(ours, theirs),
                _differing(lossy, exact),
                _largest(lossy, exact),
                _largest(lossy, plain),
                _largest(exact, plain),
            )
        )
    return found


def _differing(ours: np.ndarray, theirs: np.ndarray) -> float:
    """Return the share of elements whose bits differ."""
    integer = f"u{ours.dtype.itemsize}"
    return float(np.mean(np.ascontiguousarray(ours).view(integer) != theirs.view(integer)))


def _largest(ours: np.ndarray, theirs: np.ndarray) -> float:
    return float(np.max(np.abs(ours.astype(np.float64) - theirs)))
