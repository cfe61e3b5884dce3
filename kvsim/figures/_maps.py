"""Page maps: the .npz that a row names, read and checked.

Knows the file's arrays and states, and nothing about drawing.
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from kvsim.errors import FigureError

STAGES = ("before", "evicted", "after")
LETTERS = "TDLF"
"""Tail, dead and live slot, and a slot of a page that is not held: states 0 to 3 of the file."""
FREE = 3

DAMAGE = (
    # What NumPy and zipfile raise of bytes that are no archive, or one that is spoilt. A single
    # array is a TypeError, because it cannot be opened as an archive can.
    ValueError,
    TypeError,
    KeyError,
    EOFError,
    RuntimeError,
    MemoryError,
    zipfile.BadZipFile,
    zlib.error,
)

Maps = dict[str, list[str]]


def load(name: str, row: Mapping[str, Any], folder: Path) -> Maps:
    """Return the slots of every page at every stage, one letter of :data:`LETTERS` per slot.

    Parameters
    ----------
    name : str
        The figure, for the text of an error.
    row : mapping
        A row whose ``page_map`` names a file.
    folder : Path
        Results folder that the name is relative to.

    Raises
    ------
    FigureError
        The file is missing or is no page map of this row; the text names it.
    """
    import numpy as np

    path = folder / inside(name, row["page_map"])
    try:
        with np.load(path, allow_pickle=False) as archive:
            absent = [stage for stage in STAGES if stage not in archive.files]
            if absent:
                raise FigureError(f"{name}: {path} has no array {absent[0]}")
            arrays = {stage: archive[stage] for stage in STAGES}
    except OSError as error:
        # NumPy says so too of a file that is none of its own, without a system's error number.
        reason = error.strerror or "it is no .npz"
        raise FigureError(f"{name}: {path} cannot be read: {reason}") from None
    except DAMAGE:
        raise FigureError(f"{name}: {path} is damaged, or no .npz of page maps") from None
    page_tokens = row["page_tokens"]
    for stage, array in arrays.items():
        if not isinstance(array, np.ndarray):
            raise FigureError(f"{name}: {path}: {stage} is no array")
        if array.dtype != np.uint8 or array.ndim != 2 or array.shape[1] != page_tokens:
            raise FigureError(
                f"{name}: {path}: {stage} is {array.dtype} {list(array.shape)}, not uint8"
                f" [pages, {page_tokens}]"
            )
        if array.size and array.max() > FREE:
            raise FigureError(f"{name}: {path}: {stage} has state {array.max()}, not 0 to {FREE}")
        held = array != FREE
        if (held.any(axis=1) != held.all(axis=1)).any():
            raise FigureError(f"{name}: {path}: {stage} has a page that is held in part")
    letters = np.frombuffer(LETTERS.encode(), dtype=np.uint8)
    return {
        stage: [letters[page].tobytes().decode() for page in array]
        for stage, array in arrays.items()
    }


def inside(name: str, file: str) -> PurePosixPath:
    """Refuse a name that leads out of the results folder."""
    path = PurePosixPath(file)
    if path.is_absolute() or ".." in path.parts or "\0" in file:
        raise FigureError(f"{name}: {file!r} does not lie in the results folder")
    return path
