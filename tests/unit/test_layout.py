"""Layouts: byte figures against the survey of models and against figures worked by hand."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from kvsim.errors import LayoutError
from kvsim.layout import (
    ELEMENT_BYTES,
    PLANES,
    KVLayout,
    LayerGroup,
    LayerSpec,
    catalogue_names,
    describe,
    describe_all,
    load_layout,
)
from kvsim.layout.catalogue import CATALOGUE

SURVEY = Path(__file__).parents[2].parent / "shared" / "models.json"
ENTRIES = json.loads(SURVEY.read_text(encoding="utf-8")) if SURVEY.is_file() else []
needs_survey = pytest.mark.skipif(not ENTRIES, reason=f"{SURVEY} is absent")

NOT_COUNTED = {
    "GLM-5.2": "mla",
    "DeepSeek-V3": "mla",
    "Mistral-Small-4 (119B-2603)": "mla",
    "DeepSeek-V4-Flash": "csa",
}
UNKNOWN = "Command-A (03-2025, 111B)"

SIZES = {
    "bytes_128K": 131_072,
    "bytes_256K": 262_144,
    "bytes_512K": 524_288,
    "bytes_1M": 1_048_576,
}
CONSTANTS = {
    "bytes_per_token_below_window": "bytes_per_token_below_window",
    "bytes_per_token_marginal": "marginal_bytes_per_token",
    "bounded_bytes": "bounded_bytes",
}
FIGURES = [
    pytest.param(entry, figure, id=f"{entry['name']}-{figure}")
    for entry in ENTRIES
    if entry["name"] not in NOT_COUNTED and entry["name"] != UNKNOWN
    for figure in (*SIZES, *CONSTANTS)
]

# One full layer between two windowed ones and a shared one, each of another shape. Bytes of one
# token at 2 bytes per element: full 2*(3+5)*2 = 32; sliding 1*(4+4)*2 + 7*2 = 30; chunked
# 3*(2+2)*2 = 24; shared nothing.
SMALL = KVLayout(
    name="small",
    groups=(
        LayerGroup(1, "full", None, 2, 3, 5, indices=(1,)),
        LayerGroup(2, "sliding", 10, 1, 4, 4, index_elements=7, indices=(0, 4)),
        LayerGroup(1, "chunked", 6, 3, 2, 2, indices=(3,)),
        LayerGroup(1, "shared", None, 9, 9, 9, indices=(2,)),
    ),
)

CUSTOM = {
    "name": "mine",
    "context": 4096,
    "dtype": "float16",
    "num_layers": 6,
    "layers": [
        {"count": 2, "kind": "full", "kv_heads": 2, "k_head_dim": 8, "v_head_dim": 4},
        {
            "count": 4,
            "kind": "sliding",
            "window": 16,
            "q_heads": 4,
            "kv_heads": 1,
            "k_head_dim": 8,
            "v_head_dim": 8,
        },
    ],
    "source": ["a card"],
    "verified": True,
    "notes": "made up",
}


def write(tmp_path: Path, entry: object, name: str = "mine.json") -> str:
    path = tmp_path / name
    path.write_text(entry if isinstance(entry, str) else json.dumps(entry), encoding="utf-8")
    return str(path)


def refusal(name_or_path: str) -> str:
    """Return the text of the refusal, which is one line."""
    with pytest.raises(LayoutError) as caught:
        load_layout(name_or_path)
    text = str(caught.value)
    assert len(text.splitlines()) == 1
    return text


# The survey: every figure, every fact.


@needs_survey
@pytest.mark.parametrize(("entry", "figure"), FIGURES)
def test_figure_equals_the_survey(entry: dict, figure: str) -> None:
    expected = entry["kv_fp16"][figure]
    if figure in SIZES:
        shown = describe(entry["name"], SIZES[figure])
        assert shown["dense_bytes"] == expected
        assert sum(shown["by_kind"].values()) == expected
    else:
        assert describe(entry["name"], 0)[CONSTANTS[figure]] == expected


@needs_survey
@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry["name"])
def test_catalogue_keeps_every_fact_of_the_survey(entry: dict) -> None:
    ours = next(
        e for e in json.loads(CATALOGUE.read_text(encoding="utf-8")) if e["name"] == entry["name"]
    )
    assert "kv_fp16" not in ours
    for key, value in entry.items():
        if key == "inferred":
            assert ours[key][: len(value)] == value
        elif key == "layers":
            assert len(ours[key]) == len(value)
            for mine, theirs in zip(ours[key], value, strict=True):
                known = {k: v for k, v in theirs.items() if v is not None}
                indices = mine.pop("indices", None)
                assert {k: v for k, v in mine.items() if v is not None} == known
                assert indices is None or len(indices) == mine["count"]
        elif key == "rope":
            assert _within(value, ours[key])
        elif key != "kv_fp16":
            assert ours[key] == value


def _within(stated: object, ours: object) -> bool:
    """Tell whether ours says all that is stated; it may know more, such as a scaling's factors."""
    if isinstance(stated, dict) and isinstance(ours, dict):
        return all(key in ours and _within(value, ours[key]) for key, value in stated.items())
    return stated == ours


@needs_survey
def test_the_survey_is_covered_in_its_order() -> None:
    assert catalogue_names() == tuple(entry["name"] for entry in ENTRIES)
    assert len(FIGURES) == (36 - 5) * 7


@needs_survey
def test_a_survey_entry_is_accepted_as_a_file(tmp_path: Path) -> None:
    entry = next(e for e in ENTRIES if e["name"] == "MiniMax-M3")
    layout = load_layout(write(tmp_path, entry))
    assert layout.dense_bytes(131_072) == entry["kv_fp16"]["bytes_128K"]


# Figures worked by hand, which need no survey.


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


# Subsets.


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


# The catalogue's own refusals and lists.


@pytest.mark.parametrize(("name", "kind"), NOT_COUNTED.items())
def test_kinds_not_counted_are_refused_by_name(name: str, kind: str) -> None:
    text = refusal(name)
    assert text.startswith(f"layout {name!r}: kind {kind!r} is not counted yet")


def test_unknown_facts_are_named() -> None:
    assert refusal(UNKNOWN) == (
        f"layout {UNKNOWN!r}: cannot be counted, unknown facts: layers[0].count,"
        " layers[0].kv_heads, layers[1].count, layers[1].kv_heads, layers[1].window"
    )


@pytest.mark.parametrize(
    ("given", "nearest"),
    [
        ("SmolLM2-135", "SmolLM2-135M"),
        ("smollm2-135m", "SmolLM2-135M"),
        ("gpt-oss-20B", "gpt-oss-20b"),
        ("llama-3.1-70b", "Llama-3.1-70B"),
    ],
)
def test_an_unknown_name_gets_the_nearest(given: str, nearest: str) -> None:
    assert f"unknown layout {given!r}; the nearest is {nearest!r}" in refusal(given)


@pytest.mark.parametrize("given", ["", "\0", "x" * 5000, "/nowhere/else", "."])
def test_odd_names_are_refused(given: str) -> None:
    assert "unknown layout" in refusal(given)


def test_describe() -> None:
    assert describe("gpt-oss-20b", 100) == {
        "name": "gpt-oss-20b",
        "tokens": 100,
        # 24 layers of 8 heads of 2 * 64 elements of 2 bytes; 12 of them keep 128 tokens.
        "dense_bytes": 4_915_200,
        "bounded_bytes": 3_145_728,
        "marginal_bytes_per_token": 24_576,
        "bytes_per_token_below_window": 49_152,
        "verified": True,
        "context": 131_072,
        "by_kind": {"full": 2_457_600, "sliding": 2_457_600},
        "sources": list(load_layout("gpt-oss-20b").sources),
        "notes": "Attention sinks are learned per-head logits, not cached tokens. No dtype field in"
        " the copy (MXFP4 weights).",
        "inferred": [],
    }
    assert describe("gpt-oss-20b", 100, 1)["dense_bytes"] == 2_457_600
    assert describe("Granite-4.1-8B", 1)["verified"] is False
    json.dumps(describe("Gemma-4-31B", 10))


def test_describe_all() -> None:
    rows = {row["name"]: row for row in describe_all()}
    assert tuple(rows) == catalogue_names()
    assert len(rows) == 36
    assert {name for name, row in rows.items() if not row["supported"]} == {*NOT_COUNTED, UNKNOWN}
    for row in rows.values():
        assert (row["reason"] is None) == row["supported"]
        assert (row["bounded_bytes"] is None) != row["supported"]
    assert rows["DeepSeek-V4-Flash"]["kinds"] == ["sliding", "csa", "hca"]
    assert rows["Mistral-7B-v0.1"]["marginal_bytes_per_token"] == 0
    assert rows["Mistral-7B-v0.1"]["bounded_bytes"] == 536_870_912
    assert rows["Gemma-4-E4B"]["kinds"] == ["full", "sliding", "shared"]
    assert rows[UNKNOWN]["num_layers"] is None
    json.dumps(list(rows.values()))


def test_import_is_light() -> None:
    code = "import sys, kvsim.layout; print(sorted({'numpy', 'numba', 'scipy'} & set(sys.modules)))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


# A file of one's own.


def test_a_json_file(tmp_path: Path) -> None:
    layout = load_layout(write(tmp_path, CUSTOM))
    assert (layout.name, layout.units, layout.num_layers) == ("mine", 8, 6)
    # Two full layers of 2 * 12 elements, four sliding ones of 16 elements up to 16 tokens.
    assert layout.dense_bytes(20) == 2 * 24 * 2 * 20 + 4 * 16 * 2 * 16
    assert describe(write(tmp_path, CUSTOM), 1)["notes"] == "made up"


def test_a_toml_file(tmp_path: Path) -> None:
    text = """
        name = "mine"
        [[layers]]
        count = 3
        kind = "chunked"
        window = 8
        kv_heads = 2
        k_head_dim = 4
        v_head_dim = 6
        indexer = {cached_per_token = 5}
    """
    layout = load_layout(write(tmp_path, text, "mine.toml"))
    assert layout.dense_bytes(100) == 3 * (2 * 10 + 5) * 2 * 8
    assert (layout.context, layout.verified, layout.sources) == (None, False, ())


@pytest.mark.parametrize("key", ["count", "kv_heads", "k_head_dim", "v_head_dim", "window"])
@pytest.mark.parametrize("value", [0, -3, 2.0, True, "8", 2**31, 2**80, [1]])
def test_a_bad_size_is_refused(tmp_path: Path, key: str, value: object) -> None:
    entry = copy.deepcopy(CUSTOM)
    entry["layers"][1][key] = value
    path = write(tmp_path, entry)
    assert refusal(path).startswith(f"{path}: layers[1].{key} must be ")


@pytest.mark.parametrize("key", ["count", "kind", "kv_heads", "k_head_dim", "v_head_dim", "window"])
def test_a_missing_layer_key_is_refused(tmp_path: Path, key: str) -> None:
    entry = copy.deepcopy(CUSTOM)
    del entry["layers"][1][key]
    path = write(tmp_path, entry)
    assert refusal(path).startswith(f"{path}: layers[1].{key} ")


@pytest.mark.parametrize(
    ("layer", "words"),
    [
        ({"window": 5}, "layers[0].window must be absent for a full layer"),
        ({"kind": "mamba"}, "kind 'mamba' is not counted yet"),
        ({"kv_heads": None}, "unknown facts: layers[0].kv_heads"),
        ({"kv_head": 2}, "layers[0]: unknown key 'kv_head'; the nearest is 'kv_heads'"),
        ({"kv_lora_rank": 512}, "layers[0].kv_lora_rank is not counted yet for kind 'full'"),
        ({"kv_shared_k_eq_v": True}, "layers[0].kv_shared_k_eq_v is not counted yet"),
        ({"compress_ratio": 4}, "layers[0].compress_ratio is not counted yet"),
        ({"q_heads": 0}, "layers[0].q_heads must be a positive integer"),
        ({"rope_dim": -1}, "layers[0].rope_dim must be a positive integer"),
        ({"pattern": 3}, "layers[0].pattern must be a string"),
        ({"indexer": 128}, "layers[0].indexer must be a table"),
        ({"indexer": {}}, "layers[0].indexer.cached_per_token is missing"),
        ({"indexer": {"cached_per_token": -1}}, "layers[0].indexer.cached_per_token must be"),
        ({"indices": 0}, "layers[0].indices must be a list"),
        ({"indices": [0]}, "layers[0].indices names 1 layers where count says 2"),
        ({"indices": [1, 0]}, "layers[0].indices must ascend"),
        ({"indices": [1, 1]}, "layers[0].indices must ascend"),
        ({"indices": [-1, 0]}, "layers[0].indices must be a non-negative integer"),
        ({"indices": [0, 1]}, "indices is given for some groups only"),
        ({"count": 3}, "num_layers is 6 where the layers add up to 7"),
        ({"kv_heads": 2**20}, "units, more than"),
    ],
)
def test_a_bad_layer_is_refused(tmp_path: Path, layer: dict, words: str) -> None:
    entry = copy.deepcopy(CUSTOM)
    entry["layers"][0].update(layer)
    path = write(tmp_path, entry)
    text = refusal(path)
    assert text.startswith(f"{path}: ")
    assert words in text


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"context": 0}, "context must be a positive integer"),
        ({"context": "8k"}, "context must be an integer, not '8k'"),
        ({"context": True}, "context must be an integer, not True"),
        ({"verified": 1}, "verified must be a bool"),
        ({"name": ""}, "name is empty"),
        ({"name": 7}, "name must be a string"),
        ({"layers": []}, "layers is empty"),
        ({"layers": {}}, "layers must be a list"),
        ({"layers": [3]}, "layers[0] must be a table"),
        ({"source": [1]}, "source must be a list of strings"),
        ({"num_layers": 7}, "num_layers is 7 where the layers add up to 6"),
        ({"num_layer": 6}, "unknown key 'num_layer'; the nearest is 'num_layers'"),
        ({"kv_sharing": {"num_kv_shared_layers": 2}}, "num_kv_shared_layers is 2 where"),
    ],
)
def test_a_bad_entry_is_refused(tmp_path: Path, change: dict, words: str) -> None:
    path = write(tmp_path, {**CUSTOM, **change})
    text = refusal(path)
    assert text.startswith(f"{path}: ")
    assert words in text


@pytest.mark.parametrize("key", ["name", "layers"])
def test_a_missing_entry_key_is_refused(tmp_path: Path, key: str) -> None:
    path = write(tmp_path, {k: v for k, v in CUSTOM.items() if k != key})
    assert refusal(path) == f"{path}: key {key!r} is missing"


def test_indices_must_cover_every_layer(tmp_path: Path) -> None:
    entry = copy.deepcopy(CUSTOM)
    entry["layers"][0]["indices"] = [0, 1]
    entry["layers"][1]["indices"] = [1, 2, 3, 4]
    assert "indices must name each layer from 0 to 5 once" in refusal(write(tmp_path, entry))


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.json", "{", "cannot be parsed: "),
        ("a.json", "[" * 200_000, "cannot be parsed: "),
        ("a.json", '{"name": "x", "name": "y"}', "key 'name' is given twice"),
        ("a.json", "[]", "must hold one layout entry, not a list"),
        ("a.json", '{"name": NaN}', "name must be a string"),
        ("a.toml", "name = ", "cannot be parsed: "),
        ("a.toml", "num_layers = 0x" + "f" * 9000 + '\nname="x"\nlayers=[]', "layers is empty"),
        ("a.yaml", "name: x", "must end in .json or .toml"),
    ],
)
def test_a_bad_file_is_refused(tmp_path: Path, name: str, content: str, words: str) -> None:
    path = write(tmp_path, content, name)
    text = refusal(path)
    assert text.startswith(f"{path}: ")
    assert words in text


def test_unreadable_files_are_refused(tmp_path: Path) -> None:
    missing = str(tmp_path / "no.json")
    assert "cannot be read: No such file" in refusal(missing)
    assert "cannot be read" in refusal("a\0.json")
    (tmp_path / "folder.json").mkdir()
    assert "cannot be read" in refusal(str(tmp_path / "folder.json"))
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe\x00")
    assert "is not UTF-8 text" in refusal(str(tmp_path / "binary.json"))
