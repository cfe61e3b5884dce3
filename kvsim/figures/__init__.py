"""Figures: rows in, PDF + PNG + CSV out.

A figure shows rows that a run wrote and nothing else: it simulates nothing and holds no typed-in
result. A module here is a figure when it defines ``NAME`` (its file's name), ``COLUMNS`` (the
columns of its CSV), ``select(rows)`` (the flat rows that it shows) and ``draw(data)`` (a matplotlib
figure of them). A figure that shows files which rows name says ``NEEDS_FOLDER = True``, and its
``select(rows, folder)`` gets the folder of the rows too. Such a file is found by itself; ``style``
and names that begin with an underscore are no figures.
"""

from __future__ import annotations

import csv
import difflib
import importlib
import io
import os
import pkgutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, cast

from kvsim.errors import FigureError, ResultsError

__all__ = ["FIGURES", "FigureModule", "draw", "draw_all"]

Row = dict[str, Any]

NO_FIGURES = ("style",)
"""Modules of this room that are not figures although their names do not say so."""


class FigureModule(Protocol):
    """What a figure's file defines."""

    NAME: str
    COLUMNS: tuple[str, ...]

    @property
    def select(self) -> Callable[..., list[Row]]:
        """Flat rows that the figure shows, or a :class:`~kvsim.errors.FigureError`."""

    def draw(self, data: Sequence[Mapping[str, Any]]) -> Any:
        """Return a matplotlib figure of what ``select`` returned, inside ``style.context()``."""


class _Figures(Mapping[str, FigureModule]):
    """Names of the figures, and their modules, imported when they are first asked for."""

    def __init__(self, paths: Sequence[str], package: str) -> None:
        self._paths = paths
        self._package = package

    def __iter__(self) -> Iterator[str]:
        names = (module.name for module in pkgutil.iter_modules(self._paths))
        return iter(sorted(n for n in names if n not in NO_FIGURES and not n.startswith("_")))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, name: object) -> bool:
        # The mixin would import the module to answer.
        return name in list(self)

    def __getitem__(self, name: str) -> FigureModule:
        if name not in self:
            raise KeyError(name)
        return cast(FigureModule, importlib.import_module(f"{self._package}.{name}"))


FIGURES: Mapping[str, FigureModule] = _Figures(__path__, __name__)
"""Name of a figure -> its module."""


def draw(
    name: str, rows: Sequence[Mapping[str, Any]], out_dir: Path, folder: Path | None = None
) -> list[Path]:
    """Draw one figure and write what it shows.

    Parameters
    ----------
    name : str
        One of :data:`FIGURES`.
    rows : sequence of mapping
        Rows as a run returns them; their order does not matter.
    out_dir : Path
        Folder for the files; made where it is missing.
    folder : Path, optional
        Results folder of the rows, for figures that show files which rows name.

    Returns
    -------
    list of Path
        ``NAME.pdf``, ``NAME.png`` and ``NAME.csv``.

    Raises
    ------
    FigureError
        The figure is unknown, or its rows are absent; the text says which. Nothing is written.
    ResultsError
        The folder cannot be written. A file that is already there stays whole.
    """
    module = _module(name)
    return _write(module, _select(module, rows, folder), Path(out_dir))


def draw_all(
    rows: Sequence[Mapping[str, Any]],
    out_dir: Path,
    names: Sequence[str] | None = None,
    folder: Path | None = None,
) -> list[Path]:
    """Draw several figures, all of them unless ``names`` says which.

    No figure is skipped: if the rows of any are absent, a :class:`~kvsim.errors.FigureError`
    names every such figure with what it misses, before the first file is written.

    Parameters
    ----------
    rows, out_dir
        As for :func:`draw`.
    names : sequence of str, optional
        Figures to draw, in this order.
    folder
        As for :func:`draw`.

    Returns
    -------
    list of Path
        The files written, three per figure.
    """
    modules = [_module(name) for name in (FIGURES if names is None else names)]
    selected, missing = [], []
    for module in modules:
        try:
            selected.append((module, _select(module, rows, folder)))
        except FigureError as error:
            missing.append(str(error))
    if missing:
        raise FigureError("; ".join(missing))
    return [path for module, data in selected for path in _write(module, data, Path(out_dir))]


def _module(name: str) -> FigureModule:
    """Return the module of a figure, or refuse its name with the nearest valid one."""
    if name in FIGURES:
        return FIGURES[name]
    near = difflib.get_close_matches(name, FIGURES, n=1, cutoff=0.0)
    hint = f"did you mean {near[0]}?" if near else "there are none"
    raise FigureError(f"no figure is called {name!r}: {hint}")


def _select(
    module: FigureModule, rows: Sequence[Mapping[str, Any]], folder: Path | None
) -> list[Row]:
    if not getattr(module, "NEEDS_FOLDER", False):
        return module.select(rows)
    if folder is None:
        raise FigureError(f"{module.NAME} needs the results folder that its rows come from")
    return module.select(rows, Path(folder))


def _write(module: FigureModule, data: list[Row], out_dir: Path) -> list[Path]:
    """Render everything in memory, then put each file in place with one rename."""
    from kvsim.figures import style

    with style.context():
        figure = module.draw(data)
        files = {
            f"{module.NAME}.pdf": style.render(figure, "pdf"),
            f"{module.NAME}.png": style.render(figure, "png"),
            f"{module.NAME}.csv": _csv(module.COLUMNS, data),
        }
    try:
        out_dir.mkdir(parents=True, exist_ok=True)
        return [_replace(out_dir / name, content) for name, content in files.items()]
    except OSError as error:
        raise ResultsError(f"{out_dir}: cannot write {module.NAME}: {error.strerror}") from error


def _csv(columns: Sequence[str], data: list[Row]) -> bytes:
    """Rows as CSV. Floats are written so that they are read back bit for bit; null is empty."""
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(data)
    return text.getvalue().encode()


def _replace(path: Path, content: bytes) -> Path:
    """Write beside ``path`` and rename, so that a reader sees the old file or the new one."""
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        # mkstemp makes files that only their owner may read, which is not what a figure needs.
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
    return path
