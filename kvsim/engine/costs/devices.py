"""The catalogue of devices: published figures as data, each with its source.

Nothing here was measured or tuned. A file of the same schema stands for a device of one's own.
"""

from __future__ import annotations

import difflib
import json
import math
from dataclasses import asdict, dataclass, fields
from importlib import resources
from pathlib import Path
from typing import Any

from kvsim.errors import ScenarioError

# What `flops_per_s` holds for.
DTYPES = ("float16", "bfloat16")


@dataclass(frozen=True)
class Device:
    """What a vendor publishes about an accelerator.

    Attributes
    ----------
    name : str
    memory_bytes : int
    bandwidth_bytes_per_s : float
        Of device memory.
    flops_per_s : float
        Dense 16-bit matrix operations with 32-bit accumulation.
    host_bytes_per_s : float
        Of the link to host memory, one way.
    verified : bool
        Whether each figure stands in the source, and none was derived.
    source : str
    """

    name: str
    memory_bytes: int
    bandwidth_bytes_per_s: float
    flops_per_s: float
    host_bytes_per_s: float
    verified: bool
    source: str


def _device(entry: Any, place: str) -> Device:
    wanted = {field.name: field.type for field in fields(Device)}
    if not isinstance(entry, dict) or set(entry) != set(wanted):
        raise ScenarioError(f"{place}: a device has the keys {', '.join(wanted)}")
    for name, value in entry.items():
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        kind = {"str": isinstance(value, str), "bool": isinstance(value, bool)}
        if not kind.get(str(wanted[name]), number and math.isfinite(value) and value > 0):
            raise ScenarioError(f"{place}: {name} cannot be {value!r:.40}")
    return Device(**entry)


def catalogue() -> list[Device]:
    """Return all devices that kvsim knows."""
    text = resources.files("kvsim.engine.costs").joinpath("devices.json").read_text("utf-8")
    return [_device(entry, "devices.json") for entry in json.loads(text)]


def describe() -> list[dict[str, Any]]:
    """Return the catalogue for a program: a device's fields, its rates by element type.

    The two 16-bit types have one rate on all of these; the cost model knows no other type.
    """
    return [
        asdict(device) | {"flops_per_s": dict.fromkeys(DTYPES, device.flops_per_s)}
        for device in catalogue()
    ]


def load_device(name: str) -> Device:
    """Return a device of the catalogue, or of a JSON file.

    Raises
    ------
    ScenarioError
        Naming the nearest device, or what is wrong with the file.
    """
    if name.endswith(".json"):
        try:
            return _device(json.loads(Path(name).read_text("utf-8")), name)
        except OSError as error:
            raise ScenarioError(f"{name}: {error.strerror}") from None
        except ValueError as error:
            raise ScenarioError(f"{name}: {error}") from None
    known = {device.name: device for device in catalogue()}
    if name not in known:
        near = difflib.get_close_matches(name, known, 1, 0.3)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise ScenarioError(f"cost.device: there is no device {name!r}{hint}")
    return known[name]
