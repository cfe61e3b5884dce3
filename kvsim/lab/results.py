"""A results folder: rows.jsonl, measured.jsonl, manifest.json and a lock for its one writer.

Knows nothing about scenarios. What it promises: a writer killed at any moment loses no finished
row and repeats none, and a refusal leaves earlier results as they were.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from kvsim.errors import ResultsError
from kvsim.lab import manifest
from kvsim.lab.tables import (
    TEMPORARY_SUFFIX,
    Appender,
    Table,
    canonical_line,
    read_table,
    refusal,
    replace_file,
)

__all__ = ["ResultsFolder", "canonical_line", "read_rows"]

ROWS = "rows.jsonl"
MEASURED = "measured.jsonl"
LOCK = ".lock"
TEMPORARY = tuple(name + TEMPORARY_SUFFIX for name in (ROWS, MEASURED, manifest.NAME))
OURS = frozenset((ROWS, MEASURED, manifest.NAME, LOCK, *TEMPORARY))

# (process, device, inode) of the folders that this process writes. POSIX locks do not exclude
# their own process, and its closing a second descriptor of the lock file would drop the first's.
_HELD: set[tuple[int, int, int]] = set()


class _Contents(NamedTuple):
    manifest: dict[str, Any] | None
    rows: Table
    measured: Table


class ResultsFolder:
    """One folder of results, with one writer at a time.

    The lock is on a file of its own, never on a table: closing any descriptor of a file drops
    the POSIX locks of its process, so a reader of rows.jsonl would unlock it. Not for threads.

    Parameters
    ----------
    path : str or Path
        The folder. It becomes writable through :meth:`open` alone.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.known: set[str] = set()
        """Run ids that need not run again."""
        self.cut_bytes = 0
        """Bytes of torn last lines that opening cut, both tables together."""
        self.dropped_rows = 0
        """Failed rows that opening dropped, so that they run again."""
        self._lock: int | None = None
        self._holder = (0, 0, 0)
        self._rows: Appender | None = None
        self._measured: Appender | None = None
        self._torn = False

    @classmethod
    def open(cls, path: str | Path, *, model_version: int, command: list[str]) -> ResultsFolder:
        """Take a folder for writing, as a context manager; mend it or refuse it unchanged.

        Parameters
        ----------
        path : str or Path
            The folder; created if missing.
        model_version : int
            Version of the ledger's model; rows of two versions never share a folder.
        command : list of str
            The command line, added to the manifest without the machine's paths.

        Returns
        -------
        ResultsFolder

        Raises
        ------
        ResultsError
            Another writer holds the folder, or it is incompatible, damaged, foreign or unwritable.
        """
        folder = cls(path)
        folder._create()
        # What a refusal leaves behind must be nothing, and taking the lock may create its file.
        if not os.path.exists(folder.path / LOCK):
            folder._inspect(model_version)
        folder._take_lock()
        try:
            folder._mend(folder._inspect(model_version), model_version, command)
            folder._measured = Appender(folder.path / MEASURED)
            folder._rows = Appender(folder.path / ROWS)
        except BaseException:
            folder.close()
            raise
        return folder

    def append(self, row: dict[str, Any], measured: dict[str, Any] | None) -> None:
        """Write one run, or nothing.

        The measured line goes first. A kill between the two leaves a measured line without row,
        which the next opening drops before the run is repeated; the other order would leave a
        row that counts as done and whose measurements are lost.

        Parameters
        ----------
        row : dict
            The computed columns, with a ``run_id`` that is not known yet.
        measured : dict or None
            What was measured; its ``run_id`` is added if it has none.

        Raises
        ------
        ResultsError
            The row cannot be written. Both files are as before.
        """
        if self._rows is None or self._measured is None or self._holder[0] != os.getpid():
            # A forked worker inherits the descriptors and not the lock.
            raise ResultsError(f"{self.path}: this process has not opened the folder for writing")
        if self._torn:
            raise ResultsError(f"{self.path}: an earlier line is torn; open the folder again")
        run_id = row.get("run_id")
        if not isinstance(run_id, str):
            raise ResultsError(f"{self.path}: a row needs a run_id")
        if run_id in self.known:
            raise ResultsError(f"{self.path}: run_id {run_id!r} is already there")
        row_line = canonical_line(row).encode()
        measured_line = b""
        if measured is not None:
            if measured.get("run_id", run_id) != run_id:
                raise ResultsError(f"{self.path}: measurements of another run than {run_id!r}")
            measured_line = canonical_line({"run_id": run_id} | measured).encode()
        rows_length, measured_length = self._rows.length(), self._measured.length()
        self._torn = True
        try:
            self._measured.write(measured_line)
            self._rows.write(row_line)
            self.known.add(run_id)
        except BaseException:
            # Also for an interrupt: the row goes first, as no row may stay without its line.
            self.known.discard(run_id)
            self._rows.truncate(rows_length)
            self._measured.truncate(measured_length)
            self._torn = False
            raise
        self._torn = False

    def write_file(self, name: str, content: bytes) -> None:
        """Write a file that a row names, atomically, below the folder.

        Raises
        ------
        ResultsError
            If it cannot be written.
        """
        path = self.path / name
        try:
            path.parent.mkdir(exist_ok=True)
        except OSError as error:
            raise refusal(path.parent, "cannot be made", error) from None
        replace_file(path, content)

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows in file order."""
        return read_rows(self.path)

    def close(self) -> None:
        """Make the tables durable and let the lock go; a second call does nothing."""
        tables, self._rows, self._measured = (self._rows, self._measured), None, None
        refused = None
        for table in tables:
            try:
                if table is not None:
                    table.close()
            except ResultsError as error:
                refused = error
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
            _HELD.discard(self._holder)
        if refused is not None:
            raise refused

    def __enter__(self) -> ResultsFolder:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.close()
        except ResultsError:
            # The first refusal says more than what followed from it.
            if error is None:
                raise

    def _create(self) -> None:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except FileExistsError:
            raise ResultsError(f"{self.path}: is a file and not a folder") from None
        except OSError as error:
            raise refusal(self.path, "cannot be created", error) from None

    def _take_lock(self) -> None:
        held = f"{self.path}: another writer holds this results folder"
        try:
            folder = os.stat(self.path)
            self._holder = (os.getpid(), folder.st_dev, folder.st_ino)
            if self._holder in _HELD:
                raise ResultsError(held)
            lock = os.open(self.path / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise refusal(self.path, "cannot be written", error) from None
        try:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            os.close(lock)
            raise ResultsError(held) from None
        except OSError as error:
            os.close(lock)
            raise refusal(self.path, "cannot be locked", error) from None
        self._lock = lock
        _HELD.add(self._holder)

    def _inspect(self, model_version: int) -> _Contents:
        """Read everything and change nothing; whatever is to be refused is refused here."""
        known = manifest.read(self.path / manifest.NAME, model_version)
        try:
            names = sorted(os.listdir(self.path))
        except OSError as error:
            raise refusal(self.path, "cannot be read", error) from None
        strangers = [name for name in names if name not in OURS]
        if known is None and strangers:
            raise ResultsError(
                f"{self.path}: holds {strangers[0]!r} and no {manifest.NAME}, so it is not a "
                "results folder; name another one with --out"
            )
        tables = [
            read_table(self.path / name) if name in names else Table(self.path / name, [], 0, 0)
            for name in (ROWS, MEASURED)
        ]
        return _Contents(known, tables[0], tables[1])

    def _mend(self, contents: _Contents, model_version: int, command: list[str]) -> None:
        """Cut torn lines, drop failed rows and measured lines without row, write the manifest.

        A kill in here leaves a folder that the next opening mends to the same end.
        """
        for name in TEMPORARY:
            try:
                (self.path / name).unlink(missing_ok=True)
            except OSError as error:
                raise refusal(self.path / name, "cannot be removed", error) from None
        rows, measured = contents.rows, contents.measured
        done = [line for line in rows.lines if line.row.get("outcome") != "failed"]
        self.known = {line.row["run_id"] for line in done}
        self.cut_bytes = rows.torn_bytes + measured.torn_bytes
        self.dropped_rows = len(rows.lines) - len(done)
        rows.rewrite(done)
        measured.rewrite([line for line in measured.lines if line.row["run_id"] in self.known])
        content = manifest.updated(contents.manifest, model_version, command)
        replace_file(self.path / manifest.NAME, content)


def read_rows(path: str | Path) -> list[dict[str, Any]]:
    """Read rows without a lock, beside a writer if need be.

    Parameters
    ----------
    path : str or Path
        A results folder, or its rows.jsonl.

    Returns
    -------
    list of dict
        In file order. A torn last line is left out.

    Raises
    ------
    ResultsError
        There is no such file, or a line of it is damaged or repeated.
    """
    path = Path(path)
    table = read_table(path / ROWS if os.path.isdir(path) else path)
    return [line.row for line in table.lines]
