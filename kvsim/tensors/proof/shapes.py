"""The rows that a proof's cases hold: small families, every kind of rotation, and their decoders.

Knows sizes and angles; knows nothing about pages or verbs.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from kvsim.layout.families import RowFamily, dense, glm_dsa
from kvsim.seeds import stream
from kvsim.tensors.decoder import DecoderConfig, TinyDecoder
from kvsim.tensors.rope import Rope
from kvsim.tensors.shape import CacheShape

#: Positions that the rotation tables cover: more than any case of the matrix appends.
MAX_POSITIONS = 512
LAYERS = 2
#: Family: (query heads, KV heads, elements of a head, latent, sliding window of each layer).
SIZES: dict[str, tuple[int, int, int, int, tuple[int | None, ...]]] = {
    "dense": (4, 2, 8, 0, (None, None)),
    "wide": (4, 2, 64, 0, (None, None)),
    "hybrid": (4, 2, 8, 0, (6, None)),
    "mla": (4, 2, 8, 16, (None, None)),
}
UNEVEN_HEADS, UNEVEN_KEYS, UNEVEN_VALUES = (2, 2), (8, 16), (12, 4)
GLM_NOPE, GLM_ROPE, GLM_VALUE, GLM_INDEX = 4, 4, 6, 8
# The context before the extension is short, so that the bands of llama3 and yarn fall inside the
# few pairs of a small head; longrope's is long, because renumbering may not leave it.
SHORT_CONTEXT, LONG_CONTEXT = 64, 4096


class Rows(NamedTuple):
    """What a case's cache holds.

    Attributes
    ----------
    shape : CacheShape
    decoder : TinyDecoder or None
        Runs on such rows, where the family has one.
    """

    shape: CacheShape
    decoder: TinyDecoder | None


def rope_of(rotation: str, dim: int, layer: int) -> Rope:
    """Return the rotation of a layer whose keys can turn `dim` elements."""
    if rotation in ("none", "alibi"):
        return Rope(0)
    if rotation == "partial":
        return Rope(dim // 2)
    if rotation == "per_layer_theta":
        return Rope(dim, (1e4, 1e6)[layer])
    if rotation in ("plain", "interleaved"):
        return Rope(dim)
    if rotation == "linear":
        return Rope(dim, scaling="linear", factor=4.0)
    if rotation == "proportional":
        return Rope(dim, scaling="proportional", factor=2.0, share=0.5)
    if rotation == "longrope":
        pairs = dim // 2
        return Rope(
            dim,
            scaling="longrope",
            factor=4.0,
            original_context=LONG_CONTEXT,
            short_factors=tuple(1.0 + 0.125 * pair for pair in range(pairs)),
            long_factors=tuple(2.0 + 0.5 * pair for pair in range(pairs)),
        )
    return Rope(dim, 5e5, scaling=rotation, factor=8.0, original_context=SHORT_CONTEXT)


@lru_cache(maxsize=256)
def rows_of(family: str, rotation: str, planes: str, max_positions: int = MAX_POSITIONS) -> Rows:
    """Return the shape and the decoder of a family under a rotation and a plane set."""
    pairing = "interleaved" if rotation == "interleaved" else "half_split"
    if family == "glm_dsa":
        ropes = _ropes(rotation, (GLM_ROPE,) * LAYERS)
        families = glm_dsa(LAYERS, 2, GLM_NOPE, GLM_ROPE, GLM_VALUE, GLM_INDEX, (1,))
        return Rows(CacheShape(families, ropes, planes, max_positions), None)
    if family == "uneven":
        ropes = _ropes(rotation, UNEVEN_KEYS)
        turned = [rope.dim for rope in ropes]
        families = dense(UNEVEN_HEADS, UNEVEN_KEYS, UNEVEN_VALUES, turned, pairing)
        return Rows(CacheShape(families, ropes, planes, max_positions), None)
    decoder = decoder_of(family, rotation, max_positions)
    return Rows(decoder.shape(planes), decoder)


@lru_cache(maxsize=64)
def decoder_of(family: str, rotation: str, max_positions: int = MAX_POSITIONS) -> TinyDecoder:
    """Return the decoder of a family under a rotation; its weights are always the same."""
    q_heads, kv_heads, head_dim, latent, windows = SIZES[family]
    pairing = "interleaved" if rotation == "interleaved" else "half_split"
    if latent and rotation != "interleaved":
        pairing = "interleaved_to_half"
    config = DecoderConfig(
        _ropes(rotation, (head_dim,) * LAYERS),
        windows,
        q_heads=q_heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        latent=latent,
        pairing=pairing,
        alibi=rotation == "alibi",
        max_positions=max_positions,
    )
    return TinyDecoder(config, stream(0, "test", 0))


def drawn_rows(
    shape: CacheShape, tokens: int, rng: np.random.Generator, *, odd: str = "none"
) -> list[dict[str, np.ndarray]]:
    """Draw what an append takes.

    Parameters
    ----------
    shape : CacheShape
    tokens : int
    rng : numpy.random.Generator
    odd : {"none", "values", "all"}
        In which planes an eighth of the elements are NaN with payloads, infinities, subnormals or
        zeros of either sign.
    """
    return [_drawn(family, tokens, rng, odd) for family in shape.families]


# Quiet and signalling NaN of both signs with payloads, infinities, subnormals, zeros, the largest.
ODD = np.array(
    (
        *(0x7FC00123, 0xFFC0BEEF, 0x7F800001, 0xFFA00001, 0x7F800000, 0xFF800000),
        *(0x00000001, 0x807FFFFF, 0x00000000, 0x80000000, 0x7F7FFFFF),
    ),
    np.uint32,
).view(np.float32)


def _drawn(
    family: RowFamily, tokens: int, rng: np.random.Generator, odd: str
) -> dict[str, np.ndarray]:
    widths = {
        "k": sum(row.carried + row.raw for row in family.rows),
        "v": sum(row.value for row in family.rows),
    }
    found = {}
    for name, width in widths.items():
        if width:
            rows = rng.standard_normal((tokens, width), dtype=np.float32)
            if odd == "all" or (odd == "values" and name == "v"):
                # As integers: a signalling NaN must not pass through a float register.
                chosen = rng.integers(0, 8, rows.shape) == 0
                bits = ODD.view(np.uint32)[rng.integers(0, ODD.size, rows.shape)]
                np.copyto(rows.view(np.uint32), bits, where=chosen)
            # Index keys are float32 numbers kept as float64.
            with np.errstate(invalid="ignore"):
                found[name] = rows.astype(family.dtype)
    return found


def _ropes(rotation: str, dims: tuple[int, ...]) -> tuple[Rope, ...]:
    return tuple(rope_of(rotation, dim, layer) for layer, dim in enumerate(dims))
