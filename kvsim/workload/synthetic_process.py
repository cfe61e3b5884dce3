"""The parameters of the synthetic attention process, and what they make of each unit.

Knows nothing about tokens or sequences: those are in `synthetic_tokens`. The defaults were
fitted to one recorded model; docs/synthetic.md says how well, and where they do not fit.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from dataclasses import dataclass

import numpy as np

from kvsim.errors import WorkloadError
from kvsim.seeds import stream

_SHARES = ("shared", "layer", "passage", "sink_share", "recency_short", "recency_long")
_CORRELATIONS = ("neighbour", "key_norm_salience", "key_mean", "value_norm_salience")
_POSITIVE = (
    "depth_layers",
    "passage_tokens",
    "short_tokens",
    "long_tokens",
    "key_norm",
    "sink_key_norm",
    "value_norm",
    "sink_value_norm",
)
_SPREADS = (
    "spread",
    "spread_sd",
    "sink_sd",
    "mixture_sd",
    "key_norm_sd",
    "key_norm_cv",
    "key_tilt",
    "value_norm_cv",
)
MOST_SPREAD = 4.0
"""Most spread of log salience: above it, salience leaves the range of float32."""


@dataclass(frozen=True)
class Process:
    """Parameters of the process. "Log salience" is the logarithm of a token's weight w in a unit.

    Attributes
    ----------
    spread : float
        Standard deviation of log salience in a typical unit: how heavy the heavy hitters are.
    spread_sd : float
        Standard deviation, over units, of the logarithm of that spread.
    shared, layer : float
        Shares of the variance of log salience that all units have in common, and that the heads
        of a layer have in common. The rest is each unit's own.
    depth_layers : float
        Layers after which the correlation between layers of the `layer` part has fallen to 1/e.
    neighbour : float
        Correlation with the previous token of the part of log salience that is not `passage`.
    passage : float
        Share of the variance of log salience that changes slowly: heavy hitters cluster in it.
    passage_tokens : float
        Tokens after which its correlation has fallen to 1/e.
    sinks : int
        First tokens that are attention sinks; they divide `sink_share` equally.
    sink_share : float
        Share of the attention that a typical unit gives to its sinks at `context` tokens.
    sink_sd : float
        Standard deviation of that share's log odds over units.
    recency_short, recency_long : float
        Shares of the other attention that fall off with distance, exponentially.
    short_tokens, long_tokens : float
        Tokens after which each has fallen to 1/e. What remains does not fall off.
    mixture_sd : float
        Standard deviation, over units, of the logarithms of the three shares (which are then
        scaled to sum to 1 again).
    context : int
        Tokens at which the shares hold. Beyond it, the part that does not fall off weighs more.
    dim : int
        Dimensions of a key.
    key_norm, key_norm_sd : float
        Typical norm of a key, and the standard deviation of its logarithm over units.
    key_norm_cv : float
        Standard deviation, within a unit, of the logarithm of a key's norm.
    key_norm_salience : float
        Correlation of that logarithm with log salience.
    sink_key_norm : float
        A sink's key norm over the typical one.
    key_mean : float
        Cosine between a token's key and the mean direction of its unit, at mean salience.
    key_tilt : float
        How much that cosine falls for one standard deviation more of log salience.
    value_norm, value_norm_cv, value_norm_salience, sink_value_norm : float
        The same for values.
    """

    spread: float = 0.88
    spread_sd: float = 0.3
    shared: float = 0.05
    layer: float = 0.5
    depth_layers: float = 14.0
    neighbour: float = 0.2
    passage: float = 0.12
    passage_tokens: float = 25.0
    sinks: int = 1
    sink_share: float = 0.12
    sink_sd: float = 2.0
    recency_short: float = 0.44
    recency_long: float = 0.17
    short_tokens: float = 7.0
    long_tokens: float = 270.0
    mixture_sd: float = 0.25
    context: int = 4096
    dim: int = 64
    key_norm: float = 17.5
    key_norm_sd: float = 0.15
    key_norm_cv: float = 0.1
    key_norm_salience: float = -0.25
    sink_key_norm: float = 0.3
    key_mean: float = 0.6
    key_tilt: float = 0.1
    value_norm: float = 1.0
    value_norm_cv: float = 0.2
    value_norm_salience: float = 0.0
    sink_value_norm: float = 0.1

    def __post_init__(self) -> None:
        """Refuse values that the process cannot be run with.

        Raises
        ------
        WorkloadError
            Naming the parameter at fault.
        """
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            wanted = (int,) if field.type == "int" else (int, float)
            if isinstance(value, bool) or not isinstance(value, wanted):
                raise WorkloadError(f"process.{field.name}: must be {field.type}, not {value!r}")
            if not math.isfinite(value):
                raise WorkloadError(f"process.{field.name}: must be finite, not {value!r}")
        for names, low, high in (
            (_SHARES, 0.0, 0.999),
            (_CORRELATIONS, -0.999, 0.999),
            (_SPREADS, 0.0, MOST_SPREAD),
            (_POSITIVE, 1e-3, 1e9),
            (("sinks",), 0, 1 << 20),
            (("context", "dim"), 1, 1 << 40),
        ):
            for name in names:
                if not low <= getattr(self, name) <= high:
                    raise WorkloadError(
                        f"process.{name}: must be from {low:g} to {high:g}, "
                        f"not {getattr(self, name)!r}"
                    )
        for pair in (("shared", "layer"), ("recency_short", "recency_long")):
            if sum(getattr(self, name) for name in pair) >= 1.0:
                raise WorkloadError(f"process.{pair[0]}: with process.{pair[1]} it must be below 1")
        if self.sinks and self.sink_share == 0.0:
            raise WorkloadError("process.sink_share: sinks without attention; set sinks = 0")

    @property
    def decays(self) -> tuple[float, float, float]:
        """Factor per token of distance of the three parts of attention: never, short, long."""
        return 1.0, math.exp(-1.0 / self.short_tokens), math.exp(-1.0 / self.long_tokens)


@dataclass(frozen=True)
class Units:
    """What tells the units of one model apart. All sequences of a run share it.

    Attributes
    ----------
    spread : float64 [units]
        Standard deviation of log salience.
    sink : float64 [units]
        Weight w of each sink.
    amplitude : float64 [3, units]
        Height at distance 0 of the three parts of attention, in the order of `Process.decays`.
    key_norm : float64 [units]
        Typical norm of a key.
    direction : float64 [units, dim]
        Mean direction of the keys, of length 1.
    """

    spread: np.ndarray
    sink: np.ndarray
    amplitude: np.ndarray
    key_norm: np.ndarray
    direction: np.ndarray


@functools.lru_cache(maxsize=8)
def draw_units(process: Process, units: int, seed: int) -> Units:
    """Return the units of the model that a seed stands for."""
    rng = stream(seed, "workload")
    spread = process.spread * np.exp(process.spread_sd * rng.standard_normal(units))
    level = 1.0 - process.recency_short - process.recency_long
    share = np.array([level, process.recency_short, process.recency_long])[:, None]
    share = share * np.exp(process.mixture_sd * rng.standard_normal((3, units)))
    share /= share.sum(axis=0)
    # What an exponential collects, over all distances, from tokens of weight 1.
    reach = [process.context, *(1.0 / (1.0 - decay) for decay in process.decays[1:])]
    amplitude = share / np.array(reach)[:, None]
    odds = np.exp(process.sink_sd * rng.standard_normal(units))
    if process.sinks:
        odds *= process.sink_share / (1.0 - process.sink_share) / process.sinks
    key_norm = process.key_norm * np.exp(process.key_norm_sd * rng.standard_normal(units))
    direction = rng.standard_normal((units, process.dim))
    direction /= np.linalg.norm(direction, axis=1, keepdims=True)
    drawn = Units(
        spread=np.minimum(spread, MOST_SPREAD),
        sink=odds / amplitude[0],
        amplitude=amplitude,
        key_norm=key_norm,
        direction=direction,
    )
    # All sequences of a run share them.
    for array in vars(drawn).values():
        array.setflags(write=False)
    return drawn
