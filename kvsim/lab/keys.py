"""Fields of a scenario's tables: what a value may be stands beside its default."""

from __future__ import annotations

from dataclasses import field
from typing import Any


def choice(default: str, *others: str) -> Any:
    """Return a field whose value must be one of these; the default comes first."""
    return field(default=default, metadata={"choices": (default, *others)})


def count(default: int, least: int = 0) -> Any:
    """Return a field that must be an integer of at least `least`."""
    return field(default=default, metadata={"least": least})


def number(default: float, above: float, most: float) -> Any:
    """Return a field that must be a float above `above` and at most `most`."""
    return field(default=default, metadata={"above": above, "most": most})
