"""Row families: which elements one token caches in each (layer, head), plane by plane.

A family is a kind of rows with its own widths, its own element type and its own page table: the
K and V rows of dense attention, an MLA latent, the index keys of sparse attention. Bytes and
widths only; nothing here knows an angle, a page or a policy.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kvsim.errors import LayoutError
from kvsim.layout.kinds import PLANES, integer
from kvsim.layout.layout import KVLayout

#: How the two elements of a rotated pair lie: (j, j + half), (2j, 2j + 1), or read as the second
#: and written as the first.
PAIRINGS = ("half_split", "interleaved", "interleaved_to_half")

#: Element types of a real row, in bytes.
ROW_TYPES = {"float32": 4, "float64": 8}


@dataclass(frozen=True)
class RowSpec:
    """One token's row of one (layer, head).

    A key is `carried` elements that never rotate and are kept once, then `raw` elements whose
    pre-RoPE form is worth keeping; of these, `rope_dim` from `rope_from` on rotate.

    Attributes
    ----------
    layer, head : int
    carried : int
        Leading key elements without a pre-RoPE twin: an MLA latent. Usually 0.
    raw : int
        The other key elements; `k_raw` holds them as they were before rotation.
    rope_from, rope_dim : int
        Where the rotated elements begin inside the raw ones, and how many they are (even; 0 for
        a layer without rotation and for ALiBi).
    value : int
        Elements of V; 0 where the family has none.
    pairing : str
        One of :data:`PAIRINGS`.
    """

    layer: int
    head: int
    carried: int
    raw: int
    rope_from: int
    rope_dim: int
    value: int
    pairing: str = "half_split"

    def __post_init__(self) -> None:
        for name in ("layer", "head", "carried", "raw", "rope_from", "rope_dim", "value"):
            integer(getattr(self, name), name, lowest=0)
        if self.pairing not in PAIRINGS:
            raise LayoutError(f"pairing must be one of {', '.join(PAIRINGS)}, not {self.pairing!r}")
        if self.rope_dim % 2:
            raise LayoutError(f"rope_dim must be even, not {self.rope_dim}")
        if self.rope_from + self.rope_dim > self.raw:
            raise LayoutError(
                f"rotated elements end at {self.rope_from + self.rope_dim},"
                f" behind the {self.raw} of the key"
            )
        if not self.carried + self.raw + self.value:
            raise LayoutError("a row must have at least one element")

    def widths(self, planes: str) -> dict[str, int]:
        """Return the elements of this row in each plane that has any, under a plane set.

        Parameters
        ----------
        planes : {"kv", "kv_raw", "raw_only"}
        """
        if planes not in PLANES:
            raise LayoutError(f"planes must be one of {', '.join(PLANES)}, not {planes!r:.60}")
        alone = planes == "raw_only"
        widths = {
            "K": self.carried + self.raw,
            "k_raw": self.raw + (self.carried if alone else 0),
            "V": self.value,
        }
        return {name: widths[name] for name in PLANES[planes] if widths[name]}


@dataclass(frozen=True)
class RowFamily:
    """Rows of one kind, in layer-major order of their (layer, head).

    Attributes
    ----------
    name : str
    rows : tuple of RowSpec
        Layers that cache nothing in this family have no row.
    dtype : {"float32", "float64"}
    """

    name: str
    rows: tuple[RowSpec, ...]
    dtype: str = "float32"

    def __post_init__(self) -> None:
        if not self.rows:
            raise LayoutError(f"row family {self.name!r} has no rows")
        if self.dtype not in ROW_TYPES:
            raise LayoutError(f"dtype must be one of {', '.join(ROW_TYPES)}, not {self.dtype!r}")
        order = [(row.layer, row.head) for row in self.rows]
        if order != sorted(set(order)):
            raise LayoutError(f"rows of family {self.name!r} must ascend by layer and head")

    @property
    def layers(self) -> tuple[int, ...]:
        """Layers that cache a row in this family, ascending."""
        return tuple(sorted({row.layer for row in self.rows}))

    def token_bytes(self, planes: str) -> int:
        """Return the bytes that one token caches in this family."""
        return ROW_TYPES[self.dtype] * sum(sum(row.widths(planes).values()) for row in self.rows)


def dense(
    kv_heads: Sequence[int],
    k_head_dim: int | Sequence[int],
    v_head_dim: int | Sequence[int],
    rope_dim: int | Sequence[int] | None = None,
    pairing: str = "half_split",
) -> tuple[RowFamily, ...]:
    """Return the one family of dense attention: K (with k_raw) and V per KV head.

    Parameters
    ----------
    kv_heads : sequence of int
        KV heads of each layer.
    k_head_dim, v_head_dim : int or sequence of int
        Elements of a key and of a value, for all layers or for each.
    rope_dim : int or sequence of int, optional
        Rotated elements of a key, from its first on; by default all. 0: no rotation.
    """
    layers = len(kv_heads)
    keys, values = (_each(width, layers) for width in (k_head_dim, v_head_dim))
    turned = keys if rope_dim is None else _each(rope_dim, layers)
    rows = [
        RowSpec(layer, head, 0, keys[layer], 0, turned[layer], values[layer], pairing)
        for layer in range(layers)
        for head in range(kv_heads[layer])
    ]
    return (RowFamily("kv", tuple(rows)),)


def of_layout(layout: KVLayout, rope_dim: Sequence[int] | None = None) -> tuple[RowFamily, ...]:
    """Return the dense family of a layout that counts K and V rows per (layer, KV head)."""
    layers = layout.layers()
    if any(layer.index_elements for layer in layers):
        raise LayoutError(f"layout {layout.name!r} caches index keys: it has no dense rows alone")
    return dense(
        [layer.kv_heads for layer in layers],
        [layer.k_head_dim for layer in layers],
        [layer.v_head_dim for layer in layers],
        rope_dim,
    )


def mla(
    layers: int, kv_lora_rank: int, rope_dim: int, pairing: str = "interleaved_to_half"
) -> tuple[RowFamily, ...]:
    """Return the family of multi-head latent attention: one latent row per layer, no V.

    Only the rope part rotates, so only that part has a pre-RoPE twin: 640 elements instead of
    576 at DeepSeek-V3's sizes (kv_lora_rank 512, rope part 64), 1.11 times the bytes.

    Source: DeepSeek-V2, arXiv:2405.04434, section 2.1.
    """
    rows = [RowSpec(i, 0, kv_lora_rank, rope_dim, 0, rope_dim, 0, pairing) for i in range(layers)]
    return (RowFamily("latent", tuple(rows)),)


def glm_dsa(
    layers: int,
    heads: int,
    nope_dim: int,
    rope_dim: int,
    v_head_dim: int,
    index_dim: int,
    index_layers: Iterable[int],
) -> tuple[RowFamily, ...]:
    """Return the three families of GLM's sparse attention with expanded heads.

    `key` and `value` have a row per (layer, head); the key's rope part follows its `nope_dim`
    elements, is read as interleaved pairs and written half-split. `index` has one row for each
    layer in `index_layers`: float32 numbers kept as float64, rotated half-split from its start.
    """
    heads_of = [(layer, head) for layer in range(layers) for head in range(heads)]
    families = [
        RowFamily(
            "key",
            tuple(
                RowSpec(
                    layer,
                    head,
                    0,
                    nope_dim + rope_dim,
                    nope_dim,
                    rope_dim,
                    0,
                    "interleaved_to_half",
                )
                for layer, head in heads_of
            ),
        ),
        RowFamily(
            "value",
            tuple(RowSpec(layer, head, 0, 0, 0, 0, v_head_dim) for layer, head in heads_of),
        ),
    ]
    indexed = sorted(set(index_layers))
    if indexed:
        rows = tuple(RowSpec(layer, 0, 0, index_dim, 0, rope_dim, 0) for layer in indexed)
        families.append(RowFamily("index", rows, "float64"))
    return tuple(families)


def _each(width: int | Sequence[int], layers: int) -> list[int]:
    widths = [width] * layers if isinstance(width, int) else list(width)
    if len(widths) != layers:
        raise LayoutError(f"{len(widths)} widths are given for {layers} layers")
    return widths
