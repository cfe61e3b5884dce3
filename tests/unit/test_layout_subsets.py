"""Subsets of a layout's layers: what they count, and which are refused."""

from __future__ import annotations

import numpy as np
import pytest
from layout_entries import SMALL

from kvsim.errors import LayoutError
from kvsim.layout import load_layout


def test_a_subset_counts_only_its_layers() -> None:
    part = SMALL.subset([1, 2, 3])
    assert (part.name, part.layer_indices) == ("small", (1, 2, 3))
    assert (part.num_layers, part.units) == (5, 5)
    assert [layer.index for layer in part.layers()] == [1, 3]
    assert part.kinds() == ("full", "chunked", "shared")
    assert part.dense_bytes(7) == 224 + 144
    assert part.subset([3]).dense_bytes(7) == 144
    assert SMALL.dense_bytes(7) == 788


def test_a_subset_takes_numpy_indices() -> None:
    part = load_layout("SmolLM2-135M").subset(np.array([0, 29]))
    assert part.layer_indices == (0, 29)
    assert part.units == 6


@pytest.mark.parametrize(
    ("layers", "words"),
    [
        ([5], "layer 5 is out of range, layers are 0 to 4"),
        ([-1], "layer index must be a non-negative integer"),
        ([1, 1], "layer 1 is named twice"),
        ([3, 1], "layer 1 stands after layer 3"),
        ([1.0], "layer index must be a non-negative integer"),
        ([], "none of the counted layers caches anything"),
        ([2], "none of the counted layers caches anything"),
    ],
)
def test_a_subset_is_refused(layers: list, words: str) -> None:
    with pytest.raises(LayoutError, match=words):
        SMALL.subset(layers)


def test_a_subset_of_a_subset_cannot_grow() -> None:
    with pytest.raises(LayoutError, match="layer 0 was left out before"):
        SMALL.subset([1, 3]).subset([0, 1])
