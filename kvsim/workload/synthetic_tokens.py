"""The tokens of one synthetic sequence: salience, norms and keys, drawn in blocks of 64.

A block is drawn whole, from a stream of its own, when its first token is asked for. What a token
is therefore depends on the seed, the sequence and the token's index, and on nothing else: not on
how many tokens were appended at a time, nor on what was asked first. Knows nothing about queries
that have or have not been made yet; that is `synthetic`'s.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.signal import lfilter

from kvsim.seeds import stream
from kvsim.workload.synthetic_process import Process, Units, draw_units

BLOCK = 64
_SALIENCE, _NORMS, _KEYS = range(3)
# In the order of a lineage: from which token on, which sequence's streams are drawn from.
Lineage = tuple[tuple[int, int], ...]


def decayed(values: np.ndarray, decay: float, before: np.ndarray | None = None) -> np.ndarray:
    """Return y[..., n] = values[..., n] + decay * y[..., n - 1] along the last axis.

    Parameters
    ----------
    values : float64 [..., n]
    decay : float
    before : float64 [...] or None
        y[..., -1]; None means 0.
    """
    taps, feedback = [1.0], [1.0, -decay]
    if before is None:
        return lfilter(taps, feedback, values, axis=-1)
    return lfilter(taps, feedback, values, axis=-1, zi=decay * before[..., None])[0]


def grown(array: np.ndarray, size: int, axis: int) -> np.ndarray:
    """Return an array with room for `size` along an axis: itself, or a copy twice as long."""
    have = array.shape[axis]
    if have >= size:
        return array
    shape = list(array.shape)
    shape[axis] = max(size, 2 * have)
    result = np.zeros(shape, array.dtype)
    result[tuple(slice(0, length) for length in array.shape)] = array
    return result


class Tokens:
    """What each token of a sequence is.

    Parameters
    ----------
    process : Process
    unit_shape : (layers, kv_heads)
    seed, sequence : int
    norms, keys : bool
        Whether norms and keys are drawn too. Neither changes what else is drawn.

    Attributes
    ----------
    units : Units
    blocks : int
        Blocks drawn so far.
    salience : float32 [units, tokens]
        The weight w.
    inverse : float64 [units, tokens]
        1 / Z of each token as a query.
    key_norms, value_norms : float32 [units, tokens]
    keys : float32 [units, tokens, dim]
    """

    def __init__(
        self,
        process: Process,
        unit_shape: tuple[int, int],
        seed: int,
        sequence: int,
        *,
        norms: bool,
        keys: bool,
    ) -> None:
        layers, heads = unit_shape
        units = layers * heads
        self.units: Units = draw_units(process, units, seed)
        self.blocks = 0
        self.salience = np.zeros((units, 0), np.float32)
        self.inverse = np.zeros((units, 0), np.float64)
        self.key_norms = np.zeros((units, 0), np.float32)
        self.value_norms = np.zeros((units, 0), np.float32)
        self.keys = np.zeros((units, 0, process.dim), np.float32)
        self._process = process
        self._unit_shape = unit_shape
        self._seed = seed
        self._norms, self._keys = norms or keys, keys
        self._lineage: Lineage = ((0, sequence),)
        # What each block starts from: the two series before it, and the three sums of salience.
        first = stream(seed, "workload", sequence).standard_normal((2, 1 + layers + units))
        self._series = [self._across_layers(first)]
        self._sums = [np.zeros((3, units))]

    def reach(self, tokens: int) -> None:
        """Draw blocks until this many tokens are there."""
        end = -(-tokens // BLOCK) * BLOCK
        self.salience = grown(self.salience, end, 1)
        self.inverse = grown(self.inverse, end, 1)
        if self._norms:
            self.key_norms = grown(self.key_norms, end, 1)
            self.value_norms = grown(self.value_norms, end, 1)
        if self._keys:
            self.keys = grown(self.keys, end, 1)
        while self.blocks * BLOCK < tokens:
            self._draw(self.blocks)
            self.blocks += 1

    def fork(self, tokens: int, sequence: int) -> Tokens:
        """Return a copy whose tokens from this index on are drawn from another sequence's streams.

        The copy shares only what never changes.
        """
        child = object.__new__(Tokens)
        child.__dict__.update(self.__dict__)
        whole = min(tokens // BLOCK, self.blocks)
        for name in ("salience", "inverse", "key_norms", "value_norms", "keys"):
            setattr(child, name, getattr(self, name)[:, : whole * BLOCK].copy())
        child.blocks = whole
        child._series = self._series[: whole + 1]
        child._sums = self._sums[: whole + 1]
        child._lineage = (*self._lineage, (tokens, sequence))
        child.reach(tokens)
        return child

    def has_drawn_from(self, sequence: int) -> bool:
        """Whether tokens of this sequence may come from that sequence's streams."""
        return any(owner == sequence for _, owner in self._lineage)

    def _normal(self, block: int, part: int, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """Return a block's normal draws, [..., BLOCK], each token from its owner's stream."""
        start = block * BLOCK
        result: np.ndarray | None = None
        for since, owner in self._lineage:
            if since >= start + BLOCK:
                continue
            rng = stream(self._seed, "workload", owner, block, part)
            drawn = rng.standard_normal((*shape, BLOCK), dtype)
            if result is None or since <= start:
                result = drawn
            else:
                result[..., since - start :] = drawn[..., since - start :]
        assert result is not None
        return result

    def _across_layers(self, noise: np.ndarray) -> np.ndarray:
        """Correlate, in place, the rows of the layers: row 0 is all units', then a row per layer.

        Parameters
        ----------
        noise : float64 [2, 1 + layers + units, ...]
        """
        near = float(np.exp(-1.0 / self._process.depth_layers))
        for layer in range(1, self._unit_shape[0]):
            noise[:, layer + 1] *= np.sqrt(1.0 - near * near)
            noise[:, layer + 1] += near * noise[:, layer]
        return noise

    def _log_salience(self, block: int) -> np.ndarray:
        """Return a block's log salience of mean 0 and variance 1, float64 [units, BLOCK]."""
        p = self._process
        layers, heads = self._unit_shape
        rows = 1 + layers + layers * heads
        noise = self._across_layers(self._normal(block, _SALIENCE, (2, rows), np.float64))
        near = (p.neighbour, float(np.exp(-1.0 / p.passage_tokens)))
        before = self._series[block]
        series = np.stack(
            [
                decayed(np.sqrt(1.0 - phi * phi) * noise[i], phi, before[i])
                for i, phi in enumerate(near)
            ]
        )
        del self._series[block + 1 :]
        self._series.append(series[..., -1].copy())
        mixed = np.sqrt(1.0 - p.passage) * series[0] + np.sqrt(p.passage) * series[1]
        common = np.sqrt(p.shared) * mixed[0] + np.sqrt(p.layer) * mixed[1 : 1 + layers]
        own = np.sqrt(1.0 - p.shared - p.layer) * mixed[1 + layers :]
        return np.repeat(common, heads, axis=0) + own

    def _draw(self, block: int) -> None:
        process, units = self._process, self.units
        start = block * BLOCK
        span = slice(start, start + BLOCK)
        sinks = max(0, min(BLOCK, process.sinks - start))
        z = self._log_salience(block)
        weight = np.exp(units.spread[:, None] * (z - 0.5 * units.spread[:, None]))
        weight[:, :sinks] = units.sink[:, None]
        self.salience[:, span] = weight
        # Z is summed from what was stored, so that the rows made of it sum to 1.
        weight = self.salience[:, span].astype(np.float64)
        total = np.zeros_like(weight)
        sums = np.empty((3, weight.shape[0]))
        for part, decay in enumerate(process.decays):
            collected = decayed(weight, decay, self._sums[block][part])
            sums[part] = collected[:, -1]
            total += units.amplitude[part][:, None] * collected
        del self._sums[block + 1 :]
        self._sums.append(sums)
        self.inverse[:, span] = 1.0 / total
        if self._norms:
            self._draw_norms(block, span, z, sinks)
        if self._keys:
            self._draw_keys(block, span, z, sinks)

    def _draw_norms(self, block: int, span: slice, z: np.ndarray, sinks: int) -> None:
        p = self._process
        noise = self._normal(block, _NORMS, (2, z.shape[0]), np.float64)
        for target, own, spread, like, typical, sink in (
            (
                self.key_norms,
                noise[0],
                p.key_norm_cv,
                p.key_norm_salience,
                self.units.key_norm[:, None],
                p.sink_key_norm,
            ),
            (
                self.value_norms,
                noise[1],
                p.value_norm_cv,
                p.value_norm_salience,
                p.value_norm,
                p.sink_value_norm,
            ),
        ):
            norm = np.exp(spread * (like * z + np.sqrt(1.0 - like * like) * own))
            norm[:, :sinks] *= sink
            target[:, span] = typical * norm

    def _draw_keys(self, block: int, span: slice, z: np.ndarray, sinks: int) -> None:
        p = self._process
        noise = self._normal(block, _KEYS, (z.shape[0], p.dim), np.float32)
        noise = np.moveaxis(noise, -1, 1).astype(np.float64)
        # The cosine with the mean direction is exact: the noise keeps only what is orthogonal.
        mean = self.units.direction[:, None, :]
        noise -= (noise * mean).sum(axis=-1, keepdims=True) * mean
        length = np.sqrt((noise * noise).sum(axis=-1, keepdims=True))
        cosine = np.clip(p.key_mean - p.key_tilt * z, -1.0, 1.0)[..., None]
        cosine[:, :sinks] = 0.0
        direction = cosine * mean
        across = np.sqrt(1.0 - cosine * cosine)
        direction += across * np.divide(noise, length, out=np.zeros_like(noise), where=length > 0)
        self.keys[:, span] = self.key_norms[:, span, None] * direction
