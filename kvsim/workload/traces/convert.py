"""Any trace with block ids, written as block-hash JSON lines at a page size of choice.

Its times are exact; its ids are numbers of this trace and mean nothing in another.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from kvsim.errors import WorkloadError
from kvsim.workload.traces.reading import Tally, Trace
from kvsim.workload.traces.reblock import Reblocker, with_output
from kvsim.workload.traces.request import Request
from kvsim.workload.traces.writing import milliseconds, written


def _listed(ids: np.ndarray) -> str:
    return f"[{', '.join(map(str, ids.tolist()))}]"


def _line(request: Request, pages: np.ndarray, page_tokens: int, trace: Trace) -> str:
    clock = trace.clock
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
    if trace.time_scale != 1.0:
        fields.append(f'"time_scale": {trace.time_scale!r}')
    if request.priority:
        fields.append(f'"priority": {request.priority}')
    if request.samples:
        fields.append(f'"samples": {request.samples}')
    if not request.output_ids.size:
        return "{" + ", ".join([*fields, f'"hash_ids": {_listed(pages)}']) + "}\n"
    full = request.input_tokens // page_tokens
    fields.append(f'"hash_ids": {_listed(pages[:full])}')
    fields.append(f'"output_hash_ids": {_listed(pages[full:])}')
    return "{" + ", ".join(fields) + "}\n"


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
    reblock = Reblocker(trace.block_tokens, page_tokens)
    size, tally, pages = reblock.page_tokens or 0, Tally(), 0
    with written(out) as file:
        for request in trace.requests(skip_bad=skip_bad, order=order, tally=tally):
            ids = reblock(with_output(request, trace.block_tokens))
            pages += ids.size
            file.write(_line(request, ids, size, trace))
    return {
        "format": trace.format,
        "requests": tally.requests,
        "page_tokens": size,
        "pages": pages,
        "skipped": tally.skipped,
        "caveat": reblock.caveat,
        "out": str(out),
    }
