"""What was measured beside the rows of a results folder: measured.jsonl, read and checked.

Knows the file's name and that each line belongs to a run, and nothing about drawing.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from kvsim.errors import FigureError

FILE = "measured.jsonl"


def load(name: str, folder: Path) -> dict[str, dict[str, Any]]:
    """Return the measurements of each run, by its run id.

    Parameters
    ----------
    name : str
        The figure, for the text of an error.
    folder : Path
        Results folder. A torn last line, of a run that was killed, is left out.

    Raises
    ------
    FigureError
        The file cannot be read, or a line is not one of a run.
    """
    path = folder / FILE
    try:
        *lines, _ = path.read_bytes().split(b"\n")
    except OSError as error:
        raise FigureError(f"{name}: {path} cannot be read: {error.strerror}") from None
    found = {}
    for number, line in enumerate(lines, start=1):
        try:
            entry = json.loads(line)
            found[entry["run_id"]] = entry
        except (ValueError, KeyError, TypeError):
            raise FigureError(f"{name}: {path}:{number} is no measurement of a run") from None
    return found
