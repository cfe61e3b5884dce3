"""A file of JSON lines that is written beside its place and moved there when it is complete."""

from __future__ import annotations

import gzip
import io
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TextIO

from kvsim.errors import WorkloadError
from kvsim.workload.traces.formats import MILLISECOND_NS


def milliseconds(time_ns: int) -> str:
    """Return nanoseconds as milliseconds in decimal digits, exactly."""
    whole, rest = divmod(time_ns, MILLISECOND_NS)
    return f"{whole}.{rest:06d}".rstrip("0") if rest else str(whole)


def _create(path: Path, stack: ExitStack) -> TextIO:
    binary: Any = stack.enter_context(path.open("wb"))
    if path.name.endswith(".gz.part"):
        # Without a name and a time inside, equal traces give equal files.
        binary = stack.enter_context(gzip.GzipFile("", "wb", 6, binary, mtime=0))
    return stack.enter_context(io.TextIOWrapper(binary, encoding="ascii", newline="\n"))


@contextmanager
def written(out: Path) -> Iterator[TextIO]:
    """Yield a new file to write lines to, compressed if its name ends in .gz.

    Raises
    ------
    WorkloadError
        If it exists.
    """
    if out.exists():
        raise WorkloadError(f"{out}: it exists, and nothing is overwritten")
    part = out.with_name(out.name + ".part")
    try:
        with ExitStack() as stack:
            yield _create(part, stack)
        os.replace(part, out)
    finally:
        part.unlink(missing_ok=True)
