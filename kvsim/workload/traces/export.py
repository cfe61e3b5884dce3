"""Requests of a serving run, written as block-hash JSON lines that give the same run again.

Blocks are the pages of the run, and ids are its page keys. A page of a prompt without a given
key gets an id that no other request has, which is what the engine would do.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kvsim.workload.requests import Requests
from kvsim.workload.traces.request import check_lengths
from kvsim.workload.traces.writing import milliseconds, written


def export(requests: Requests, out: str | Path, time_scale: float = 1.0) -> dict[str, Any]:
    """Write requests, in order of arrival, with times to the nanosecond.

    Parameters
    ----------
    requests : Requests
    out : str or Path
        Compressed if the name ends in .gz.
    time_scale : float
        What recorded times were multiplied with to give these; written into the file, so that
        a scenario with the same `serving.time_scale` does not multiply again.

    Returns
    -------
    dict
        `requests, page_tokens, pages, output_pages, time_scale, out`.

    Raises
    ------
    WorkloadError
        If OUT exists, or a request is longer than any trace's may be.
    """
    size, out = requests.page_tokens, Path(out)
    own = requests.given_keys
    pages = output_pages = 0
    starts = requests.key_start.tolist()
    columns = zip(
        requests.arrival_ns.tolist(),
        requests.input_tokens.tolist(),
        requests.output_tokens.tolist(),
        requests.priority.tolist(),
        requests.samples.tolist(),
        strict=True,
    )
    with written(out) as file:
        for number, (arrival_ns, inputs, outputs, priority, samples) in enumerate(columns):
            check_lengths(inputs, outputs)
            given = requests.keys[starts[number] : starts[number + 1]].tolist()
            full = inputs // size
            prompt, decode = given[:full], given[full:]
            missing = full - len(prompt)
            prompt += range(own, own + missing)
            own += missing
            fields = [
                f'"timestamp": {milliseconds(arrival_ns)}',
                f'"input_length": {inputs}',
                f'"output_length": {outputs}',
                f'"block_size": {size}',
                '"hash_rounding": "down"',
            ]
            if time_scale != 1.0:
                fields.append(f'"time_scale": {time_scale!r}')
            fields += [
                f'"priority": {priority}',
                f'"samples": {samples}',
                f'"hash_ids": {prompt}',
            ]
            if decode:
                fields.append(f'"output_hash_ids": {decode}')
            file.write("{" + ", ".join(fields) + "}\n")
            pages += len(prompt)
            output_pages += len(decode)
    return {
        "requests": len(requests),
        "page_tokens": size,
        "pages": pages,
        "output_pages": output_pages,
        "time_scale": time_scale,
        "out": str(out),
    }
