"""Recordings and layouts that tests make up, and rows of scenarios that run on them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from kvsim.lab import reading
from kvsim.lab.run import run
from kvsim.lab.scenario import Scenario

NAMES = ("cum", "last", "snap", "knorm")

# How the tiny layouts rotate their keys.
ROPE = {"theta": 10000.0, "type": "default", "partial": 1.0}


def arrays(layers: int, heads: int, tokens: int, seed: int = 1) -> dict[str, np.ndarray]:
    """Return the four arrays of a recording: positive, and no two scores alike."""
    rng = np.random.default_rng(seed)
    shape = (layers, heads, tokens)
    return {name: rng.random(shape).astype(np.float32) + np.float32(0.01) for name in NAMES}


def write_recording(folder: Path, made: dict[str, Any], name: str = "recording") -> str:
    """Write an .npz and return its path."""
    path = folder / f"{name}.npz"
    np.savez(path, **made)
    return str(path)


def write_layout(folder: Path, layers: int, heads: int, kind: str = "full") -> str:
    """Write a layout file of equal layers, 4 elements a row, and return its path."""
    layer = {"count": layers, "kind": kind, "kv_heads": heads, "k_head_dim": 4, "v_head_dim": 4}
    if kind != "full":
        layer["window"] = 8
    path = folder / f"layout-{layers}x{heads}-{kind}.json"
    path.write_text(json.dumps({"name": f"tiny-{layers}x{heads}", "layers": [layer], "rope": ROPE}))
    return str(path)


def tiny(folder: Path, made: dict[str, np.ndarray]) -> dict[str, Any]:
    """Write a recording with the layout that fits it; return the keys that name both."""
    layers, heads, _ = made["cum"].shape
    return {
        "layout": write_layout(folder, layers, heads),
        "workload.path": write_recording(folder, made),
    }


def scenario(keys: dict[str, Any], **more: Any) -> Scenario:
    """Return a scenario; `more` names keys with a double underscore for the dot."""
    dotted = {key.replace("__", "."): value for key, value in more.items()}
    return reading.build({**keys, **dotted}, "test")


def row_of(keys: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Return the row of a scenario."""
    return run(scenario(keys, **more))
