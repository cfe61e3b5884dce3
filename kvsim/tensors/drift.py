"""What composing rotations costs: keys and next-token logits after eviction upon eviction.

The exact way turns each survivor once, from its pre-RoPE row. The lossy way turns again what the
cache holds, decoded and encoded as its kind has it. Both start from the same rows, so all that
differs between them is that. Knows nothing about pages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from kvsim.errors import LayoutError
from kvsim.seeds import stream
from kvsim.tensors.contiguous import ContiguousCache
from kvsim.tensors.decoder import CONFIGS, DecoderConfig, TinyDecoder
from kvsim.tensors.quantized import KINDS
from kvsim.tensors.quantized_keys import QuantizedKeys, drift
from kvsim.tensors.rope import Rope

#: Tokens of an eviction: always as many, or any number of the same mean.
SPANS = ("equal", "random")
SPAN_TOKENS = 16
#: Tokens that are never evicted, and the only ones that a measurement attends to.
KEPT_TOKENS = 128
#: Keys as models of today have them, standard normal: 2 heads of 128.
KEY_SHAPE = (2, 128)
KEY_ROPE = Rope(128, 5e5)


class LogitDrift(NamedTuple):
    """How far logits are from exact ones after a number of evictions.

    Attributes
    ----------
    error_max : float
        Largest |lossy - exact|, both over keys of one kind.
    words_changed : float
        Share of logits whose bits differ between the two.
    argmax_changed : float
        Share of asking tokens after which another token would be chosen.
    loss_max, loss_argmax_changed : float
        The same two of lossy keys against float32 keys that were turned once.
    exact_loss_max, exact_loss_argmax_changed : float
        And of exact keys against those: what quantizing alone costs.
    deviation : float
        Standard deviation of the float32 logits, to which all of these compare.
    """

    error_max: float
    words_changed: float
    argmax_changed: float
    loss_max: float
    loss_argmax_changed: float
    exact_loss_max: float
    exact_loss_argmax_changed: float
    deviation: float


class KeptTokens:
    """One sequence of a dense decoder, with a decoder's view of its last tokens alone.

    Were all tokens attended to, the context would shrink with every eviction, and its logits
    would change for that reason too.

    Parameters
    ----------
    kind, mode : str
        As in `QuantizedKeys`.
    config : DecoderConfig
    attended : int
        Tokens that `rows` returns, the last ones.
    """

    def __init__(self, kind: str, mode: str, config: DecoderConfig, attended: int) -> None:
        if config.latent:
            raise LayoutError("a decoder with a latent has no keys to quantize per head")
        row_shape = (config.kv_heads, config.head_dim)
        self._keys = [
            QuantizedKeys(kind, mode, rope, row_shape, config.max_positions, config.pairing)
            for rope in config.ropes
        ]
        self._row_shape = row_shape
        width = len(config.ropes) * config.kv_heads * config.head_dim
        self._values = np.empty((0, width), np.float32)
        self._attended = attended
        # Every asking token reads what one eviction left, so it is decoded once.
        self._shown: dict[str, np.ndarray] | None = None

    @property
    def next_position(self) -> int:
        """The position of the next token."""
        return len(self._values)

    def append(self, rows: Sequence[Mapping[str, np.ndarray]]) -> None:
        """Append tokens, their keys before rotation, as a decoder gives them."""
        given = rows[0]["k"].reshape(len(rows[0]["k"]), len(self._keys), *self._row_shape)
        for layer, keys in enumerate(self._keys):
            keys.append(np.ascontiguousarray(given[:, layer]))
        self._values = np.concatenate([self._values, rows[0]["v"]])
        self._shown = None

    def evict_span(self, first: int, count: int) -> None:
        """Evict tokens inside the sequence, and close the positions up."""
        for keys in self._keys:
            keys.evict_span(first, count)
        self._values = np.concatenate([self._values[:first], self._values[first + count :]])
        self._shown = None

    def rows(self, family: int = 0) -> dict[str, np.ndarray]:
        """Return the rows of the last tokens, keys as attention reads them."""
        if self._shown is None:
            count = self.next_position
            first = max(0, count - self._attended)
            keys = np.stack([keys.read()[first:] for keys in self._keys], axis=1)
            self._shown = {
                "K": keys.reshape(count - first, -1),
                "V": self._values[first:],
                "positions": np.arange(first, count),
            }
        return self._shown


def spans_of(which: str, evictions: int, seed: int) -> list[int]:
    """Return the tokens of each eviction.

    Parameters
    ----------
    which : {"equal", "random"}
        Always 16, or 1 to 31, each as likely.
    evictions, seed : int
    """
    if which == "equal":
        return [SPAN_TOKENS] * evictions
    if which == "random":
        return stream(seed, "victims").integers(1, 2 * SPAN_TOKENS, evictions).tolist()
    raise LayoutError(f"spans are one of {', '.join(SPANS)}, not {which!r}")


def logit_drift(
    spans: Sequence[int],
    seed: int,
    config: DecoderConfig = CONFIGS["dense"],
    kinds: Sequence[str] = KINDS,
) -> dict[str, list[LogitDrift]]:
    """Evict spans in front of the same tokens, and compare next-token logits after each.

    The token that asks is each of the vocabulary in turn.

    Parameters
    ----------
    spans : sequence of int
        Tokens of each eviction, at least 1.
    seed : int
        Of weights and tokens.
    config : DecoderConfig
        A decoder with dense attention.
    kinds : sequence of str
        How keys are kept.

    Returns
    -------
    dict of list of LogitDrift
        For each kind, one after each eviction.
    """
    doomed = sum(spans)
    rng = stream(seed, "workload")
    decoder = TinyDecoder(config, rng)
    source = ContiguousCache(decoder.shape())
    prompt = rng.integers(0, config.vocabulary, doomed + KEPT_TOKENS)
    for token in prompt.tolist():
        decoder.step(source, token)
    held = source.rows(0)
    rows = [{"k": held["k_raw"], "v": held["V"]}]
    modes = {(kind, mode) for kind in kinds for mode in ("lossy", "shadow")}
    caches = {
        each: KeptTokens(*each, config, KEPT_TOKENS)
        for each in sorted(modes | {("float32", "shadow")})
    }
    for cache in caches.values():
        cache.append(rows)
    found: dict[str, list[LogitDrift]] = {kind: [] for kind in kinds}
    for count in spans:
        doomed -= count
        logits = {}
        for each, cache in caches.items():
            cache.evict_span(doomed, count)
            logits[each] = np.stack(
                [decoder.next_logits(cache, token) for token in range(config.vocabulary)]
            )
        plain = logits["float32", "shadow"]
        for kind in kinds:
            found[kind].append(_compared(logits[kind, "lossy"], logits[kind, "shadow"], plain))
    return found


def measure(
    which: str, seed: int, evictions: int = 20, kinds: Sequence[str] = KINDS
) -> list[dict[str, Any]]:
    """Return flat rows of both drifts: of keys, and of logits.

    Parameters
    ----------
    which : {"equal", "random"}
        Which spans are evicted.
    seed : int
    evictions : int
    kinds : sequence of str
        How keys are kept.

    Returns
    -------
    list of dict
        One for each kind and number of evictions. `keys_*` are the fields of
        `quantized_keys.Drift` over standard normal keys of `KEY_SHAPE`, `logits_*` those of
        LogitDrift over the tiny decoder.
    """
    spans = spans_of(which, evictions, seed)
    shape = (sum(spans) + KEPT_TOKENS, *KEY_SHAPE)
    raw = stream(seed, "workload", 1).standard_normal(shape, dtype=np.float32)
    logits = logit_drift(spans, seed, kinds=kinds)
    rows = []
    for kind in kinds:
        pairs = zip(drift(kind, KEY_ROPE, raw, spans), logits[kind], strict=True)
        for keys, words in pairs:
            row = {"spans": which, "keys": kind, "seed": seed, "evictions": keys.evictions}
            row["evicted_tokens"] = sum(spans[: keys.evictions])
            row |= {f"keys_{name}": value for name, value in keys._asdict().items()}
            del row["keys_evictions"]
            rows.append(row | {f"logits_{name}": v for name, v in words._asdict().items()})
    return rows


def _compared(lossy: np.ndarray, exact: np.ndarray, plain: np.ndarray) -> LogitDrift:
    return LogitDrift(
        error_max=_largest(lossy, exact),
        words_changed=float(np.mean(lossy.view(np.uint32) != exact.view(np.uint32))),
        argmax_changed=_chosen_apart(lossy, exact),
        loss_max=_largest(lossy, plain),
        loss_argmax_changed=_chosen_apart(lossy, plain),
        exact_loss_max=_largest(exact, plain),
        exact_loss_argmax_changed=_chosen_apart(exact, plain),
        deviation=float(np.std(plain, dtype=np.float64)),
    )


def _largest(ours: np.ndarray, theirs: np.ndarray) -> float:
    return float(np.max(np.abs(ours.astype(np.float64) - theirs)))


def _chosen_apart(ours: np.ndarray, theirs: np.ndarray) -> float:
    return float(np.mean(ours.argmax(axis=1) != theirs.argmax(axis=1)))
