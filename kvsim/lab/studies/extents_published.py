"""What kvcached published about the very run that a row describes, if it did.

The numbers stand in a JSON file beside this one, each with its source and the columns that a row
must show to be that run. Nothing here computes one.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_suffix(".json")
COLUMNS = (
    "published_emptied_extents",
    "published_eligible_extents",
    "published_used_extents",
    "published_used_extents_peak",
    "published_source",
)


@functools.cache
def entries() -> tuple[dict[str, Any], ...]:
    """Return every published figure with its source and its run."""
    return tuple(json.loads(FILE.read_text(encoding="utf-8")))


def published(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns of :data:`COLUMNS` for a row's settings; null where nothing is known."""
    found = dict.fromkeys(COLUMNS)
    for entry in entries():
        if all(settings.get(key) == value for key, value in entry["when"].items()):
            found |= {key: value for key, value in entry.items() if key in found}
            found["published_source"] = entry["source"]
    return found
