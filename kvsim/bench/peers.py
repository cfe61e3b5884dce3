"""Other simulators, which `kvsim bench replay` is timed against where they are installed."""

from __future__ import annotations

import importlib
import importlib.metadata
from typing import Any

INSTALL = "uv sync --group peers"


class PeerMissing(Exception):
    """A peer cannot be run here; the message says why and what to do."""


def peer(distribution: str, module: str) -> tuple[Any, str]:
    """Return a module of a peer, and the peer's name and version.

    Raises
    ------
    PeerMissing
        If it is not installed.
    """
    try:
        found = importlib.import_module(module)
    except ImportError as error:
        raise PeerMissing(f"{distribution} is not there ({error}); install it: {INSTALL}") from None
    return found, f"{distribution} {importlib.metadata.version(distribution)}"
