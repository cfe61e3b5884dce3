"""KVLayout: what one model caches per token, layer and KV head, and for how many tokens.

Knows nothing about files (see `catalogue`), pages or eviction. All results are exact integers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from kvsim.errors import LayoutError
from kvsim.layout.kinds import SHARED, TOKENS_LIMIT, LayerGroup, LayerSpec, integer

#: More units than any model has; refused before lists of that length are built.
MAX_UNITS = 2**20


@dataclass(frozen=True)
class KVLayout:
    """The KV cache layout of one model.

    Attributes
    ----------
    name : str
        Name in the catalogue or in the file that it came from.
    groups : tuple of LayerGroup
        Every layer of the model, by kind and shape.
    context : int or None
        Tokens that the model accepts; None if unknown. Byte figures do not stop there.
    verified : bool
        Whether the facts were read from a source that can be trusted for this very model.
    dtype : str or None
        The model's own storage type; None if unknown. Byte figures do not use it.
    sources : tuple of str
        Where the facts come from.
    layer_indices : tuple of int or None
        Layers that are counted, ascending, as numbers in the model; None for all. A recording of
        some of the layers counts only those.
    rope : mapping or None
        How keys are rotated, as the catalogue says it; None if unknown. No byte depends on it.
    """

    name: str
    groups: tuple[LayerGroup, ...]
    context: int | None = None
    verified: bool = False
    dtype: str | None = None
    sources: tuple[str, ...] = ()
    layer_indices: tuple[int, ...] | None = None
    rope: Mapping[str, Any] | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if not self.groups:
            raise LayoutError(f"layout {self.name!r} has no layers")
        units = sum(group.count * group.kv_heads for group in self.groups)
        if units > MAX_UNITS:
            raise LayoutError(f"layout {self.name!r} has {units} units, more than {MAX_UNITS}")
        if self.context is not None:
            integer(self.context, "context", lowest=1, limit=TOKENS_LIMIT)
        placed = [group.indices for group in self.groups if group.indices is not None]
        if placed and len(placed) < len(self.groups):
            raise LayoutError(f"layout {self.name!r}: indices is given for some groups only")
        numbers = sorted(index for indices in placed for index in indices)
        if placed and numbers != list(range(self.num_layers)):
            raise LayoutError(
                f"layout {self.name!r}: indices must name each layer from 0 to"
                f" {self.num_layers - 1} once"
            )
        if self.layer_indices is not None:
            self._check_subset(self.layer_indices)
        if not self.layers():
            raise LayoutError(f"layout {self.name!r}: none of the counted layers caches anything")

    def _check_subset(self, indices: tuple[int, ...]) -> None:
        """Refuse layer numbers that are out of range, repeated or out of order."""
        last = -1
        for index in indices:
            where = f"layout {self.name!r}: layer {index}"
            if not 0 <= index < self.num_layers:
                raise LayoutError(f"{where} is out of range, layers are 0 to {self.num_layers - 1}")
            if index == last:
                raise LayoutError(f"{where} is named twice")
            if index < last:
                raise LayoutError(f"{where} stands after layer {last}; layer indices must ascend")
            last = index

    @property
    def num_layers(self) -> int:
        """Layers of the whole model, shared ones and those outside the subset included."""
        return sum(group.count for group in self.groups)

    @cached_property
    def _counted(self) -> tuple[LayerSpec, ...]:
        """Every counted layer in model order, shared ones included."""
        layers: list[LayerSpec] = []
        for group in self.groups:
            start = len(layers)
            indices = group.indices or range(start, start + group.count)
            layers.extend(group.layer(index) for index in indices)
        layers.sort(key=lambda layer: layer.index)
        if self.layer_indices is None:
            return tuple(layers)
        return tuple(layers[index] for index in self.layer_indices)

    @cached_property
    def _cached(self) -> tuple[LayerSpec, ...]:
        return tuple(layer for layer in self._counted if layer.kind != SHARED)

    def layers(self) -> tuple[LayerSpec, ...]:
        """Return one LayerSpec per layer that caches rows, in model order.

        Layers of kind ``shared`` read the rows of another layer and have no LayerSpec here, so
        ``layers()[i].index`` may exceed ``i``. Where a file does not say which layers a group
        covers, groups stand one after another; no byte figure depends on that.
        """
        return self._cached

    @property
    def units(self) -> int:
        """(layer, KV head) pairs that can keep or drop a token: the sum of KV heads."""
        return sum(layer.kv_heads for layer in self.layers())

    def unit_row_bytes(self, planes: str = "kv", element_bytes: int = 2) -> tuple[int, ...]:
        """Return the bytes of one token's row in each unit.

        Parameters
        ----------
        planes : str
            ``kv``, ``kv_raw`` or ``raw_only``.
        element_bytes : int
            Bytes per element, the same for all planes.

        Returns
        -------
        tuple of int, length `units`
            Row-major: layer, then head. Index elements of a layer belong to no head; they are
            added to the layer's head 0, so that sums over layers are right.
        """
        width = integer(element_bytes, "element_bytes", lowest=1)
        return tuple(
            elements * width
            for layer in self.layers()
            for elements in layer.unit_row_elements(planes)
        )

    def subset(self, layers: Sequence[int]) -> KVLayout:
        """Return this layout with only the given layers counted; the name stays.

        Parameters
        ----------
        layers : sequence of int
            Numbers of layers in the model, ascending, each once. Shared layers may be among
            them and add nothing. A subset of a subset may name only layers of the first.

        Returns
        -------
        KVLayout
        """
        indices = tuple(
            integer(index, f"layout {self.name!r}: layer index", lowest=0) for index in layers
        )
        if self.layer_indices is not None:
            for index in indices:
                if index not in self.layer_indices:
                    raise LayoutError(f"layout {self.name!r}: layer {index} was left out before")
        return replace(self, layer_indices=indices)

    def kinds(self) -> tuple[str, ...]:
        """Return the kinds of the counted layers, ``shared`` included, in the groups' order."""
        present = {layer.kind for layer in self._counted}
        ordered = dict.fromkeys(group.kind for group in self.groups)
        return tuple(kind for kind in ordered if kind in present)

    def by_kind(self, tokens: int, element_bytes: int = 2) -> dict[str, int]:
        """Return the bytes that the layers of each kind hold at `tokens`; ``shared`` holds 0.

        Parameters
        ----------
        tokens : int
            Tokens appended and not evicted.
        element_bytes : int
            Bytes per element.

        Returns
        -------
        dict of str to int
            Its values sum to ``dense_bytes(tokens, element_bytes)``.
        """
        tokens = integer(tokens, "tokens", lowest=0, limit=TOKENS_LIMIT)
        held = dict.fromkeys(self.kinds(), 0)
        for layer in self.layers():
            row = self._layer_row_bytes(layer, element_bytes)
            held[layer.kind] += row * layer.tokens_held(tokens)
        return held

    def dense_bytes(self, tokens: int, element_bytes: int = 2) -> int:
        """Return the bytes of the cache at `tokens`, windowed layers bounded by their window."""
        return sum(self.by_kind(tokens, element_bytes).values())

    def bounded_bytes(self, element_bytes: int = 2) -> int:
        """Return the bytes of the windowed layers once full, a constant of the layout."""
        return sum(
            self._layer_row_bytes(layer, element_bytes) * layer.window
            for layer in self.layers()
            if layer.window is not None
        )

    def marginal_bytes_per_token(self, element_bytes: int = 2) -> int:
        """Return the bytes that one more token adds beyond every window."""
        return sum(
            self._layer_row_bytes(layer, element_bytes)
            for layer in self.layers()
            if layer.window is None
        )

    def bytes_per_token_below_window(self, element_bytes: int = 2) -> int:
        """Return the bytes that one more token adds while no window is full."""
        return sum(self._layer_row_bytes(layer, element_bytes) for layer in self.layers())

    @staticmethod
    def _layer_row_bytes(layer: LayerSpec, element_bytes: int) -> int:
        """Return the bytes of one token in all heads of a layer, index elements included."""
        return sum(layer.unit_row_elements()) * integer(element_bytes, "element_bytes", lowest=1)
