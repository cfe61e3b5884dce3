"""Cases of the paged cache that choosers draw from: shapes, cuts, orderings, spans."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np

from differential.paged import PagedLockstep
from differential.paged_rows import MAX_POSITIONS
from kvsim.layout.families import dense, glm_dsa, mla
from kvsim.tensors.decoder import CONFIGS, TinyDecoder
from kvsim.tensors.rope import Rope
from kvsim.tensors.shape import CacheShape

PLANES = ("kv_raw", "raw_only", "kv")
# (scope, sets): one set for each table, two sets in one table, one set over several tables.
CUTS = (
    ("sequence", "shared"),
    ("layer", "layer"),
    ("sequence", "layer"),
    ("layer", "shared"),
    ("head", "head"),
    ("sequence", "head"),
)
PAGE_TOKENS = (4, 3, 2, 16, 1, 8, 32)
# How rotated keys are kept; float32 more often, as all that moves rows by kernels needs it.
KEYS = ("float32", "float32", "float32", "int8", "e4m3", "e4m3_scaled")

TWO_THETAS = (Rope(8, 1e4), Rope(8, 1e6))
# One rotation for both layers of a dense cache with keys of 8 elements, or one for each.
ROTATIONS = {
    "two thetas": TWO_THETAS,
    "partial": (Rope(4), Rope(0)),
    "none": (Rope(0), Rope(0)),
    "linear": (Rope(8, scaling="linear", factor=4.0),),
    "llama3": (Rope(8, 5e5, "llama3", factor=8.0, original_context=32),),
    "yarn": (Rope(8, 1e4, "yarn", factor=4.0, original_context=64),),
    "proportional": (Rope(8, 1e4, "proportional", share=0.5), Rope(8)),
    "attention factor": (Rope(8, attention_factor=1.2),),
    "longrope": (
        Rope(
            8,
            scaling="longrope",
            factor=4.0,
            original_context=30,
            short_factors=(1.0, 1.0, 1.5, 2.0),
            long_factors=(1.0, 2.0, 4.0, 8.0),
        ),
    ),
}
SPANS = ("span", "aligned", "head", "tail", "one", "all", "clamped")
# Spans that name nothing: fak's rules, and the ends of an int64.
NOTHING = (
    (-1, 3),
    (0, 0),
    (2, -1),
    (2**63 - 1, 1),
    (-(2**63), 5),
    (1, -(2**63)),
    (MAX_POSITIONS, 2),
)
FAMILIES = ("dense", "interleaved", "latent", "sparse", "wide", "decoder")


@cache
def decoder(name):
    """Return one of the tiny decoders; its weights are always the same."""
    return TinyDecoder(CONFIGS[name], np.random.default_rng(list(CONFIGS).index(name)))


class Case(NamedTuple):
    """Everything that a cache is made of, as a chooser draws it.

    Attributes
    ----------
    spare : int or None
        Pages for each table beyond those of the first tokens; None: no ceiling.
    number : int
        Seeds the rows, and chooses a rotation or a decoder among several.
    """

    compaction: str
    unit: str
    positions: str
    family: str = "dense"
    planes: str = "kv_raw"
    cut: tuple = CUTS[0]
    page_tokens: int = 4
    spare: int | None = None
    tokens: int = 14
    append: str = "tail"
    order: str = "fifo"
    layout: str = "page_major"
    portable: bool = False
    mapped: bool = False
    keys: str = "float32"
    number: int = 0


def step_of(case, note=None):
    """Return the lockstep of a case, with one sequence of its tokens."""
    names = list(CONFIGS if case.family == "decoder" else ROTATIONS)
    rotation = names[case.number % len(names)]
    shape = shape_of(case.family, rotation, case.planes)
    scope, sets = case.cut
    if case.family == "decoder":
        # The decoder reads all of a family's rows at once.
        sets = "shared"
    elif (case.family, case.cut) == ("sparse", ("sequence", "head")):
        # An index has no heads, and every table must hold as many sets as any other.
        sets = "layer"
    tables = shape.geometry(scope, sets).scope_units
    ceiling = 0
    if case.spare is not None:
        ceiling = tables * (-(-case.tokens // case.page_tokens) + case.spare)
    # Keys that are not stored are not encoded.
    keys = "float32" if case.planes == "raw_only" else case.keys
    # A buffer holds the pages of one table or of all, and buffers of codes are not mapped.
    mixed = case.layout == "page_major" and scope == "layer" and len(shape.families) > 1
    mapped = case.mapped and ceiling and not mixed and scope != "head" and keys == "float32"
    for path in (f"cut {scope} {sets}", f"pages of {case.page_tokens}", f"keys {keys}"):
        if note is not None:
            note(path)
    step = PagedLockstep(
        shape,
        case.page_tokens,
        {
            "scope": scope,
            "sets": sets,
            "compaction": case.compaction,
            "unit": case.unit,
            "positions": case.positions,
            "append": case.append,
            "order": case.order,
            "layout": case.layout,
            "portable": case.portable,
            "keys": keys,
        },
        ceiling=ceiling,
        mapped=bool(mapped),
        seed=case.number,
        hard=case.family != "decoder",
        decoder=decoder(rotation) if case.family == "decoder" else None,
        note=note,
    )
    step.append(step.open(), case.tokens)
    return step


def span_of(shape, length, page_tokens, a, b):
    """Return (first, count) of a span among `length` positions.

    Parameters
    ----------
    shape : str
        One of SPANS.
    length, page_tokens : int
    a, b : int
        0 to 255: where it begins and how long it is.
    """
    first, some = a * length // 256, 1 + b * length // 512
    if shape == "aligned":
        first -= first % page_tokens
        some = -(-some // page_tokens) * page_tokens
    spans = {
        "head": (0, some),
        "tail": (max(0, length - some), some),
        "all": (0, max(1, length)),
        "one": (first, 1),
        "clamped": (first, 2**63 - 1),
    }
    return spans.get(shape, (first, some))


def shape_of(family, rotation, planes):
    """Return the shape of a case.

    Parameters
    ----------
    family : str
        One of FAMILIES.
    rotation : str
        One of ROTATIONS for dense rows, one of the decoder's configurations for a decoder.
    planes : str
    """
    if family == "decoder":
        return decoder(rotation).shape(planes, MAX_POSITIONS)
    ropes = ROTATIONS[rotation]
    if family in ("dense", "interleaved"):
        pairing = "half_split" if family == "dense" else "interleaved"
        turned = [rope.dim for rope in ropes] * (2 // len(ropes))
        # Layers of unequal widths, so that no two ways to cut a row agree.
        families = dense([2, 1], 8, [6, 8], turned, pairing)
    elif family == "latent":
        families, ropes = mla(2, 6, 4), (Rope(4, 1e4), Rope(4, 1e6))
    elif family == "sparse":
        families, ropes = glm_dsa(2, 2, 4, 4, 6, 8, [0, 1]), (Rope(4, 1e4), Rope(4, 1e6))
    else:
        # Whole cache lines: what non-temporal stores need. The second layer does not rotate.
        families, ropes = dense([1, 1], [64, 32], [64, 32], [64, 0]), (Rope(64), Rope(0))
    return CacheShape(families, ropes, planes, MAX_POSITIONS)
