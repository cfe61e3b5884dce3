"""A layout in a file of one's own: JSON, TOML, and every way for one to be wrong."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
from layout_entries import refusal, write

from kvsim.layout import describe, load_layout

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
