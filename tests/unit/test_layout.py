"""Layouts: byte figures against figures worked by hand, which need no survey."""

from __future__ import annotations

import subprocess
import sys

import pytest
from layout_entries import SMALL

from kvsim.errors import LayoutError
from kvsim.layout import (
    ELEMENT_BYTES,
    PLANES,
    KVLayout,
    LayerGroup,
    LayerSpec,
    describe,
    load_layout,
)


def test_smollm2_by_hand() -> None:
    layout = load_layout("SmolLM2-135M")
    # 30 layers of 3 heads; K and V of 64 elements of 2 bytes: 256 bytes a row.
    assert layout.num_layers == 30
    assert layout.units == 90
    assert layout.unit_row_bytes() == (256,) * 90
    assert layout.unit_row_bytes("kv_raw", element_bytes=4) == (768,) * 90
    assert layout.dense_bytes(4096) == 94_371_840
    assert (layout.context, layout.verified, layout.dtype) == (8192, True, "bfloat16")
    assert layout.sources[0].startswith("PyPI litgpt")


def test_minimax_counts_index_keys_in_head_0() -> None:
    layout = load_layout("MiniMax-M3")
    # A row is 2 * 128 elements; layers 3 to 59 add 128 elements per token, to head 0.
    assert layout.unit_row_bytes()[:20] == (512,) * 12 + (768, 512, 512, 512) * 2
    assert layout.marginal_bytes_per_token() == 60 * 4 * 512 + 57 * 256


def test_a_hybrid_stands_in_model_order() -> None:
    layers = load_layout("Gemma-3-270M").layers()
    assert [layer.index for layer in layers] == list(range(18))
    assert [layer.index for layer in layers if layer.kind == "full"] == [5, 11, 17]
    assert {layer.window for layer in layers if layer.kind == "sliding"} == {512}


def test_shared_layers_cache_nothing() -> None:
    layout = load_layout("Gemma-4-E2B")
    assert layout.num_layers == 35
    assert [layer.index for layer in layout.layers()] == list(range(15))
    assert layout.kinds() == ("full", "sliding", "shared")
    # 3 layers of 2 * 512 elements without bound, 12 of 2 * 256 bounded at 512 tokens.
    expected = {"full": 6_144_000, "sliding": 12 * 1024 * 512, "shared": 0}
    assert layout.by_kind(1000) == expected


def test_small_layers() -> None:
    assert SMALL.num_layers == 5
    assert SMALL.units == 1 + 2 + 3 + 1
    assert SMALL.layers()[1] == LayerSpec(1, "full", None, 2, 3, 5, 0)
    assert [(layer.index, layer.kind) for layer in SMALL.layers()] == [
        (0, "sliding"),
        (1, "full"),
        (3, "chunked"),
        (4, "sliding"),
    ]


def test_small_rows_per_plane_set() -> None:
    assert SMALL.unit_row_bytes() == (30, 16, 16, 8, 8, 8, 30)
    # k_raw is as wide as K: 4, 3 and 2 more elements.
    assert SMALL.unit_row_bytes("kv_raw") == (38, 22, 22, 12, 12, 12, 38)
    assert SMALL.unit_row_bytes("raw_only") == SMALL.unit_row_bytes("kv")
    assert SMALL.unit_row_bytes("kv", 1) == (15, 8, 8, 4, 4, 4, 15)
    assert PLANES == {
        "kv": ("K", "V"),
        "kv_raw": ("K", "V", "k_raw"),
        "raw_only": ("k_raw", "V"),
    }


@pytest.mark.parametrize(
    ("tokens", "full", "sliding", "chunked"),
    [
        (0, 0, 0, 0),
        (1, 32, 60, 24),
        (6, 192, 360, 144),
        (7, 224, 420, 144),
        (10, 320, 600, 144),
        (11, 352, 600, 144),
        (1000, 32_000, 600, 144),
    ],
)
def test_small_bytes_around_the_windows(tokens: int, full: int, sliding: int, chunked: int) -> None:
    by_kind = {"full": full, "sliding": sliding, "chunked": chunked, "shared": 0}
    assert SMALL.by_kind(tokens) == by_kind
    assert SMALL.dense_bytes(tokens) == full + sliding + chunked
    assert SMALL.dense_bytes(tokens, 4) == 2 * (full + sliding + chunked)


def test_small_constants() -> None:
    assert SMALL.bounded_bytes() == 744
    assert SMALL.marginal_bytes_per_token() == 32
    assert SMALL.bytes_per_token_below_window() == 116
    assert (SMALL.bounded_bytes(1), SMALL.marginal_bytes_per_token(1)) == (372, 16)
    assert SMALL.bytes_per_token_below_window(4) == 232


def test_groups_without_indices_follow_one_another() -> None:
    layout = KVLayout(
        name="x",
        groups=(LayerGroup(2, "sliding", 4, 1, 2, 2), LayerGroup(1, "full", None, 1, 2, 2)),
    )
    assert [layer.kind for layer in layout.layers()] == ["sliding", "sliding", "full"]


def test_the_largest_number_of_tokens_is_exact() -> None:
    layout = load_layout("Llama-3.1-70B")
    assert layout.dense_bytes(2**53 - 1) == (2**53 - 1) * 327_680


def test_element_bytes() -> None:
    assert ELEMENT_BYTES == {"float32": 4, "bfloat16": 2, "float16": 2, "fp8": 1, "int8": 1}
    for width in (0, -1, 2.0, True):
        with pytest.raises(LayoutError, match="element_bytes must be a positive integer"):
            SMALL.dense_bytes(1, width)  # type: ignore[arg-type]
        with pytest.raises(LayoutError, match="element_bytes must be a positive integer"):
            SMALL.unit_row_bytes("kv", width)  # type: ignore[arg-type]


@pytest.mark.parametrize("tokens", [-1, 1.0, 2**53, True, "9", None])
def test_tokens_are_refused(tokens: object) -> None:
    with pytest.raises(LayoutError, match="tokens must be"):
        SMALL.dense_bytes(tokens)  # type: ignore[arg-type]
    with pytest.raises(LayoutError, match="tokens must be"):
        describe("SmolLM2-135M", tokens)  # type: ignore[arg-type]


def test_an_unknown_plane_set_is_refused() -> None:
    with pytest.raises(LayoutError, match="unknown plane set 'raw'; the nearest is '"):
        SMALL.unit_row_bytes("raw")


def test_import_is_light() -> None:
    code = "import sys, kvsim.layout; print(sorted({'numpy', 'numba', 'scipy'} & set(sys.modules)))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
