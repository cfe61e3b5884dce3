"""Layer kinds and the rows that they cache. Knows nothing about models, files or pages.

A layer of a counted kind caches, per token and KV head, one row: K and V (and the pre-RoPE K
where the plane set has it). Rows are measured in elements here; a width in bytes is given by
whoever asks.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from kvsim.errors import LayoutError

#: Planes of each plane set. ``kv`` cannot be renumbered exactly, ``raw_only`` rotates on reading.
PLANES: dict[str, tuple[str, ...]] = {
    "kv": ("K", "V"),
    "kv_raw": ("K", "V", "k_raw"),
    "raw_only": ("k_raw", "V"),
}

#: Bytes of one element of each storage type.
ELEMENT_BYTES: dict[str, int] = {
    "float32": 4,
    "bfloat16": 2,
    "float16": 2,
    "fp8": 1,
    "int8": 1,
}

FULL, SLIDING, CHUNKED, SHARED = "full", "sliding", "chunked", "shared"

#: Kinds that keep at most ``window`` tokens. Chunked layers reset at multiples of their window
#: instead of sliding over it, which bounds their bytes at the same number of tokens.
WINDOWED = (SLIDING, CHUNKED)

#: Kinds that are counted. A shared layer reads another layer's rows and caches none of its own.
COUNTED = (FULL, SLIDING, CHUNKED, SHARED)

#: Sizes stay below this so that no product of them leaves an int64 unnoticed further down.
SIZE_LIMIT = 2**31

#: Numbers of tokens stay exact as JSON numbers below this.
TOKENS_LIMIT = 2**53


def nearest(name: str, valid: Iterable[str]) -> str:
    """Return the valid name that looks most like `name`, letter case aside."""
    by_folded = {candidate.casefold(): candidate for candidate in valid}
    close = get_close_matches(name.casefold(), list(by_folded), n=1, cutoff=0.0)
    return by_folded[close[0]]


def integer(value: Any, name: str, lowest: int, limit: int = SIZE_LIMIT) -> int:
    """Return `value` as an int in [lowest, limit), or refuse it under `name`.

    NumPy integers pass; booleans and floats do not, since ``true`` or ``16.0`` in a file is a
    mistake that should be seen.
    """
    wanted = "a positive integer" if lowest == 1 else "a non-negative integer"
    try:
        number = operator.index(value)
    except TypeError:
        raise LayoutError(f"{name} must be {wanted}, not {value!r:.60}") from None
    if isinstance(value, bool) or number < lowest:
        raise LayoutError(f"{name} must be {wanted}, not {value!r:.60}")
    if number >= limit:
        raise LayoutError(f"{name} must be below {limit}")
    return number


@dataclass(frozen=True)
class LayerSpec:
    """One layer that caches rows.

    Attributes
    ----------
    index : int
        The layer's number in the model, from 0, shared layers included in the numbering.
    kind : str
        ``full``, ``sliding`` or ``chunked``.
    window : int or None
        Most tokens that the layer keeps; None for ``full``.
    kv_heads : int
        KV heads, that is units, of the layer.
    k_head_dim, v_head_dim : int
        Elements of a K and of a V row, per token and head.
    index_elements : int
        Elements cached per token and layer beside K and V (an indexer's key); usually 0.
    """

    index: int
    kind: str
    window: int | None
    kv_heads: int
    k_head_dim: int
    v_head_dim: int
    index_elements: int

    def unit_row_elements(self, planes: str = "kv") -> tuple[int, ...]:
        """Return the elements of one token's row in each unit of the layer.

        Parameters
        ----------
        planes : str
            A key of :data:`PLANES`.

        Returns
        -------
        tuple of int, length `kv_heads`
            Index elements belong to no head; head 0 carries them, so that the sum is right.
        """
        if planes not in PLANES:
            raise LayoutError(
                f"unknown plane set {planes!r:.60}; the nearest is {nearest(str(planes), PLANES)!r}"
            )
        row = sum(self.v_head_dim if plane == "V" else self.k_head_dim for plane in PLANES[planes])
        return (row + self.index_elements, *(row for _ in range(self.kv_heads - 1)))

    def tokens_held(self, tokens: int) -> int:
        """Return how many of `tokens` appended tokens the layer keeps when nothing is evicted."""
        return tokens if self.window is None else min(tokens, self.window)


@dataclass(frozen=True)
class LayerGroup:
    """`count` layers of one kind and shape.

    Attributes
    ----------
    count : int
        Number of layers.
    kind : str
        One of :data:`COUNTED`.
    window : int or None
        Most tokens kept: needed for ``sliding`` and ``chunked``, None for ``full``.
    kv_heads, k_head_dim, v_head_dim : int
        As in :class:`LayerSpec`. A ``shared`` group states the shape of the rows that it reads.
    index_elements : int
        Elements cached per token and layer beside K and V, bounded by the window like them.
    pattern : str
        Where the layers stand in the model, in words.
    indices : tuple of int or None
        Where they stand, as layer numbers. None: the group follows the one before it.
    q_heads : int
        Query heads of a layer; 0 if unknown. No byte depends on it, a step's operations do.
    """

    count: int
    kind: str
    window: int | None
    kv_heads: int
    k_head_dim: int
    v_head_dim: int
    index_elements: int = 0
    pattern: str = ""
    indices: tuple[int, ...] | None = None
    q_heads: int = 0

    def __post_init__(self) -> None:
        if self.kind not in COUNTED:
            raise LayoutError(f"kind {self.kind!r:.60} is not counted yet ({', '.join(COUNTED)})")
        for name in ("count", "kv_heads", "k_head_dim", "v_head_dim"):
            integer(getattr(self, name), name, lowest=1)
        integer(self.index_elements, "index_elements", lowest=0)
        if self.window is None:
            if self.kind in WINDOWED:
                raise LayoutError(f"window is missing, and a {self.kind} layer needs one")
        elif self.kind == FULL:
            raise LayoutError(f"window must be absent for a full layer, not {self.window!r:.60}")
        else:
            integer(self.window, "window", lowest=1)
        if self.indices is not None:
            for index in self.indices:
                integer(index, "indices", lowest=0)
            if len(self.indices) != self.count:
                raise LayoutError(
                    f"indices names {len(self.indices)} layers where count says {self.count}"
                )
            if list(self.indices) != sorted(set(self.indices)):
                raise LayoutError("indices must ascend without repeats")

    def layer(self, index: int) -> LayerSpec:
        """Return the group's layer that stands at `index` in the model."""
        return LayerSpec(
            index=index,
            kind=self.kind,
            window=self.window,
            kv_heads=self.kv_heads,
            k_head_dim=self.k_head_dim,
            v_head_dim=self.v_head_dim,
            index_elements=self.index_elements,
        )
