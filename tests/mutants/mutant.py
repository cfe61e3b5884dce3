"""What a planted bug is, and how a copy of the package gets it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]


class Mutant(NamedTuple):
    """One bug: in `file` of the package, `old` becomes `new`, and then `test` must fail."""

    name: str
    file: str
    old: str
    new: str
    test: str


def copy_of_package(folder: Path) -> Path:
    """Copy kvsim/ into a folder; return the folder, which is what goes on the path."""
    # Compiled files come along with the times of their sources, so that only what is patched
    # is compiled again. Recordings stay: no named test needs one.
    shutil.copytree(ROOT / "kvsim", folder / "kvsim", ignore=shutil.ignore_patterns("data"))
    return folder


def plant(mutant: Mutant, folder: Path) -> Path:
    """Copy the package into a folder and plant a bug in it.

    Raises
    ------
    AssertionError
        If the text to replace is not there exactly once: the mutant is stale.
    """
    copy_of_package(folder)
    file = folder / "kvsim" / mutant.file
    text = file.read_text()
    found = text.count(mutant.old)
    assert found == 1, f"mutant {mutant.name}: {found} places in {mutant.file} to plant it in"
    assert mutant.old != mutant.new, f"mutant {mutant.name} changes nothing"
    file.write_text(text.replace(mutant.old, mutant.new))
    return folder
