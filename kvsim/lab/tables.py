"""One JSON-lines file: how a row becomes a line, how lines are read, appended and taken back.

Knows nothing about manifests, locks or runs, only that every line is an object with a ``run_id``.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
from pathlib import Path
from typing import Any, NamedTuple

from kvsim.errors import ResultsError

TEMPORARY_SUFFIX = ".tmp"


class Line(NamedTuple):
    """One complete line of a table, as it stands in the file and as it reads."""

    text: bytes
    row: dict[str, Any]


class Table(NamedTuple):
    """What one file holds: its complete lines, and the bytes of a torn last one."""

    path: Path
    lines: list[Line]
    whole_bytes: int
    torn_bytes: int

    def run_ids(self) -> list[str]:
        """Return the run ids in file order."""
        return [line.row["run_id"] for line in self.lines]

    def rewrite(self, kept: list[Line]) -> None:
        """Make the file hold ``kept`` and nothing else; a file that already does is not touched."""
        if len(kept) < len(self.lines):
            replace_file(self.path, b"".join(line.text for line in kept))
        elif self.torn_bytes:
            try:
                os.truncate(self.path, self.whole_bytes)
            except OSError as error:
                raise refusal(self.path, "cannot cut its torn last line", error) from None


def refusal(path: Path, what: str, error: OSError) -> ResultsError:
    """Return the one-line error for an operating system's refusal."""
    return ResultsError(f"{path}: {what}: {error.strerror or error}")


def canonical_line(row: dict[str, Any]) -> str:
    """Return the one text that a row has, newline included.

    Parameters
    ----------
    row : dict
        Column to int, float, str, bool, None or a list of these. The row's own order is kept.

    Returns
    -------
    str

    Raises
    ------
    ResultsError
        A value is not finite or is of another type; the column is named.
    """
    for column, value in row.items():
        if not isinstance(column, str):
            raise ResultsError(f"column {column!r}: a column's name must be a string")
        _check_text(column, column)
        _check_value(column, value)
    return json.dumps(row, separators=(",", ":"), allow_nan=False, ensure_ascii=False) + "\n"


def _check_value(column: str, value: Any) -> None:
    if value is None or isinstance(value, int):
        return
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ResultsError(f"column {column!r}: {value!r} cannot stand in a row")
    elif isinstance(value, str):
        _check_text(column, value)
    elif isinstance(value, list):
        for item in value:
            _check_value(column, item)
    else:
        raise ResultsError(f"column {column!r}: {type(value).__name__} cannot stand in a row")


def _check_text(column: str, text: str) -> None:
    # A lone surrogate (an undecodable file name, say) would pass json and fail in the file.
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ResultsError(f"column {column!r}: {text!a} is not valid Unicode text") from None


def read_table(path: Path) -> Table:
    """Read a table; a last line without newline is counted and left out.

    Raises
    ------
    ResultsError
        The file cannot be read, or a complete line is not an object with a run_id of its own.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise refusal(path, "cannot be read", error) from None
    # Only b"\n" ends a line: str.splitlines would also split at the separators that text may hold.
    *texts, torn = content.split(b"\n")
    lines: list[Line] = []
    first_seen: dict[str, int] = {}
    for number, text in enumerate(texts, start=1):
        row = _parse(path, number, text)
        run_id = row["run_id"]
        if run_id in first_seen:
            raise ResultsError(
                f"{path}:{number}: run_id {run_id!r} stands already in line {first_seen[run_id]}"
            )
        first_seen[run_id] = number
        lines.append(Line(text + b"\n", row))
    return Table(path, lines, len(content) - len(torn), len(torn))


def _parse(path: Path, number: int, text: bytes) -> dict[str, Any]:
    try:
        row = json.loads(text.decode(), parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        raise ResultsError(f"{path}:{number}: the line is not valid JSON") from None
    if not isinstance(row, dict) or not isinstance(row.get("run_id"), str):
        raise ResultsError(f"{path}:{number}: the line is not a JSON object with a run_id")
    return row


def _refuse_constant(name: str) -> None:
    raise ValueError(name)


def replace_file(path: Path, content: bytes) -> None:
    """Give a file new content in one step: a reader or a kill sees the old bytes or the new.

    The temporary name is fixed, so a leftover of a kill is overwritten; callers hold the lock.
    """
    temporary = path.with_name(path.name + TEMPORARY_SUFFIX)
    try:
        with open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        _sync_folder(path.parent)
    except OSError as error:
        # What cannot be removed here is removed by the next opening.
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise refusal(path, "cannot be written", error) from None


def _sync_folder(folder: Path) -> None:
    # The rename is durable only when the folder is: without this a power cut may undo it.
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class Appender:
    """The writing end of a table: whole lines to the end of the file, and back again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        except OSError as error:
            raise refusal(path, "cannot be opened for writing", error) from None

    def length(self) -> int:
        """Return the file's length in bytes."""
        return os.fstat(self._descriptor).st_size

    def write(self, line: bytes) -> None:
        """Append a line: one ``os.write``, and further ones only if the system wrote less."""
        rest = memoryview(line)
        try:
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
        except OSError as error:
            raise refusal(self.path, "cannot append", error) from None

    def truncate(self, length: int) -> None:
        """Cut the file back to a length that it had."""
        try:
            os.ftruncate(self._descriptor, length)
        except OSError as error:
            raise refusal(self.path, "cannot take back a torn line", error) from None

    def close(self) -> None:
        """Make the file durable and let go of it; a late refusal of the disk is raised."""
        try:
            os.fsync(self._descriptor)
        except OSError as error:
            raise refusal(self.path, "cannot be made durable", error) from None
        finally:
            os.close(self._descriptor)
