"""Layouts for tests: a small one worked by hand, a file of one, and the text of a refusal."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvsim.errors import LayoutError
from kvsim.layout import KVLayout, LayerGroup, load_layout

NOT_COUNTED = {
    "GLM-5.2": "mla",
    "DeepSeek-V3": "mla",
    "Mistral-Small-4 (119B-2603)": "mla",
    "DeepSeek-V4-Flash": "csa",
}
UNKNOWN = "Command-A (03-2025, 111B)"

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
