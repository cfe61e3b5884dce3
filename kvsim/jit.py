"""How a kernel is compiled: `njit` with a cache folder named by the sources of all kernels.

Numba's cache does not see a change in a function that a kernel calls from another module, so a
stale build could be served. The folder's name therefore hashes every source file that can reach
one: those that import this module, and those named in CONSTANTS. No fastmath: the counts are
integers, and the rows are proved bit by bit.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import tempfile
from pathlib import Path
from typing import Any

CONSTANTS = ("fields.py", "lanes.py", "streaming.py")
# Rooms, or parts of them, whose kernels allocate nothing, and so are compiled without counting
# references to arrays: the counting would take most of a step's time.
WITHOUT_REFERENCES = (
    "kvsim.paging",
    "kvsim.engine",
    "kvsim.workload.replay",
    "kvsim.workload.traces",
)
ROOMS = ("paging", "tensors", "workload", "engine")


def _sources_hash() -> str:
    package = Path(__file__).parent
    # This file says how they are compiled.
    digest = hashlib.sha256(Path(__file__).read_bytes())
    for room in ROOMS:
        for source in sorted((package / room).rglob("*.py")):
            text = source.read_bytes()
            if b"kvsim.jit" in text or source.name in CONSTANTS:
                digest.update(source.relative_to(package).as_posix().encode())
                digest.update(text)
    return digest.hexdigest()[:16]


def _cache_folder() -> Path:
    """A writable folder for compiled kernels, below the user's own choice if there is one."""
    chosen = os.environ.get("NUMBA_CACHE_DIR")
    caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = (Path(chosen) if chosen else Path(caches) / "kvsim" / "numba") / _sources_hash()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK):
            return folder
    except OSError:
        pass
    # A home that cannot be written still compiles, once a process instead of once a machine.
    return Path(tempfile.mkdtemp(prefix="kvsim-numba-"))


def _numba_njit() -> Any:
    numba: Any = importlib.import_module("numba")
    numba.config.CACHE_DIR = str(_cache_folder())
    return numba.njit


_njit = _numba_njit()


def kernel(function: Any) -> Any:
    """Compile `function` when it is first called, and keep the build on disk."""
    counts = not function.__module__.startswith(WITHOUT_REFERENCES)
    return _njit(cache=True, nogil=True, error_model="numpy", _nrt=counts)(function)
