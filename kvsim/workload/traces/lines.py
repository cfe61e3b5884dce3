"""The numbered lines of a text file, plain or gzip, read as a stream.

Whether a file is compressed is told by its first bytes, not by its name. At most one line is in
memory, and a line has a largest length, so that a file of one endless line is refused too.
"""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from kvsim.errors import WorkloadError

GZIP = b"\x1f\x8b"
MOST_LINE_BYTES = 64 << 20
BYTE_ORDER_MARK = "\ufeff"


class Line(NamedTuple):
    """A line without its end: its number from 1, and its text; None where it is not UTF-8."""

    number: int
    text: str | None


def _raw_lines(stream: io.BufferedIOBase, name: str) -> Iterator[tuple[int, bytes]]:
    number = 0
    while True:
        try:
            raw = stream.readline(MOST_LINE_BYTES + 1)
        except EOFError:
            raise WorkloadError(f"{name}:{number + 1}: the gzip stream ends too early") from None
        except (gzip.BadGzipFile, zlib.error) as error:
            raise WorkloadError(f"{name}:{number + 1}: damaged gzip: {error}") from None
        if not raw:
            return
        number += 1
        if len(raw) > MOST_LINE_BYTES:
            raise WorkloadError(f"{name}:{number}: longer than {MOST_LINE_BYTES >> 20} MiB")
        yield number, raw


def read_lines(path: Path) -> Iterator[Line]:
    """Yield the lines of a file.

    Raises
    ------
    WorkloadError
        If the file is missing, is a truncated or damaged gzip, or has a line over 64 MiB. Lines
        before the fault have been yielded.
    """
    if not path.is_file():
        raise WorkloadError(f"there is no file {path}")
    with path.open("rb") as file:
        packed = file.read(len(GZIP)) == GZIP
        file.seek(0)
        stream: io.BufferedIOBase = gzip.GzipFile(fileobj=file) if packed else file
        for number, raw in _raw_lines(stream, path.name):
            try:
                text = raw.decode("utf-8").rstrip("\r\n")
            except UnicodeDecodeError:
                yield Line(number, None)
                continue
            yield Line(number, text.removeprefix(BYTE_ORDER_MARK) if number == 1 else text)
