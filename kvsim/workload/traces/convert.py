"""Any trace with block ids, written as block-hash JSON lines at a page size of choice.

The file is written beside its place and moved there when it is complete. Its times are exact;
its ids are numbers of this trace and mean nothing in another.
"""

from __future__ import annotations

import gzip
import io
import os
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TextIO

from kvsim.errors import WorkloadError
from kvsim.workload.traces.formats import MILLISECOND_NS
from kvsim.workload.traces.reading import Tally, Trace
from kvsim.workload.traces.reblock import Reblocker
from kvsim.workload.traces.request import Request


def milliseconds(time_ns: int) -> str:
    """Return nanoseconds as milliseconds in decimal digits, exactly."""
    whole, rest = divmod(time_ns, MILLISECOND_NS)
    return f"{whole}.{rest:06d}".rstrip("0") if rest else str(whole)


def _line(request: Request, pages: str, page_tokens: int, clock: str) -> str:
    fields = []
    if clock != "none":
        fields.append(f'"timestamp": {milliseconds(request.arrival_ns)}')
    fields += [
        f'"input_length": {request.input_tokens}',
        f'"output_length": {request.output_tokens}',
        f'"block_size": {page_tokens}',
        f'"hash_rounding": "{"up" if request.rounds_up else "down"}"',
    ]
    if clock == "conversation":
        fields.append('"clock": "conversation"')
    if request.request_id >= 0:
        fields.append(f'"request_id": {request.request_id}')
    if request.conversation >= 0:
        fields.append(f'"conversation": {request.conversation}')
    if request.parent >= 0:
        fields.append(f'"parent": {request.parent}')
    if request.agent:
        fields.append(f'"agent": {request.agent}')
    return "{" + ", ".join([*fields, f'"hash_ids": [{pages}]']) + "}\n"


def _create(path: Path, stack: ExitStack) -> TextIO:
    binary: Any = stack.enter_context(path.open("wb"))
    if path.name.endswith(".gz.part"):
        # Without a name and a time inside, equal traces give equal files.
        binary = stack.enter_context(gzip.GzipFile("", "wb", 6, binary, mtime=0))
    return stack.enter_context(io.TextIOWrapper(binary, encoding="ascii", newline="\n"))


def convert(
    path: str | Path,
    out: str | Path,
    page_tokens: int | None = None,
    *,
    skip_bad: bool = False,
    order: str = "refuse",
) -> dict[str, Any]:
    """Write a trace as block-hash lines, compressed if the name ends in .gz.

    Returns
    -------
    dict
        `format, requests, page_tokens, pages, skipped, caveat, out`.

    Raises
    ------
    WorkloadError
        If the trace has no ids, a line is wrong, the page size cannot be made, or OUT exists.
    """
    trace, out = Trace(path), Path(out)
    if not trace.has_ids:
        raise WorkloadError(f"{trace.path.name}: {trace.format} has no block ids to convert")
    if not trace.block_tokens and page_tokens is None:
        raise WorkloadError(
            f"{trace.path.name}: {trace.format} has chunks of many sizes; say --page-tokens"
        )
    if out.exists():
        raise WorkloadError(f"{out}: it exists, and nothing is overwritten")
    reblock = Reblocker(trace.block_tokens, page_tokens)
    size, tally, pages = reblock.page_tokens or 0, Tally(), 0
    part = out.with_name(out.name + ".part")
    try:
        with ExitStack() as stack:
            file = _create(part, stack)
            for request in trace.requests(skip_bad=skip_bad, order=order, tally=tally):
                ids = reblock(request)
                pages += ids.size
                text = ", ".join(map(str, ids.tolist()))
                file.write(_line(request, text, size, trace.clock))
        os.replace(part, out)
    finally:
        part.unlink(missing_ok=True)
    return {
        "format": trace.format,
        "requests": tally.requests,
        "page_tokens": size,
        "pages": pages,
        "skipped": tally.skipped,
        "caveat": reblock.caveat,
        "out": str(out),
    }
