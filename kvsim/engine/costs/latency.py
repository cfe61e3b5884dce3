"""What users see of a run: time to first token, time per token, end to end, and goodput."""

from __future__ import annotations

from typing import Any

import numpy as np

PERCENTILES = (50, 90, 99)
MS = 1e6  # nanoseconds


def percentiles(name: str, values_ns: np.ndarray) -> dict[str, float | None]:
    """Return percentiles in milliseconds, by linear interpolation; null where there is nothing."""
    if not values_ns.size:
        return {f"{name}_p{rank}_ms": None for rank in PERCENTILES}
    found = np.percentile(values_ns, PERCENTILES)
    return {
        f"{name}_p{rank}_ms": float(value) / MS
        for rank, value in zip(PERCENTILES, found, strict=True)
    }


def latencies(
    arrival_ns: np.ndarray,
    first_ns: np.ndarray,
    last_ns: np.ndarray,
    output_tokens: np.ndarray,
    *,
    slo_ttft_ms: float,
    slo_tpot_ms: float,
    span_ns: int,
) -> dict[str, Any]:
    """Return the latencies of finished requests, and what of them met the objectives.

    Parameters
    ----------
    arrival_ns, first_ns, last_ns, output_tokens : int64 [finished requests]
        When each arrived, had its first token and had its last one. Requests without an output
        have no token, and count only as finished.
    slo_ttft_ms, slo_tpot_ms : float
        A request is good if both its time to first token and its time per further token are at
        most these.
    span_ns : int
        What rates refer to: from time 0 to the end of the run.
    """
    some = output_tokens > 0
    arrival, first, last = arrival_ns[some], first_ns[some], last_ns[some]
    tokens = output_tokens[some]
    ttft = first - arrival
    several = tokens > 1
    tpot = (last - first)[several] / (tokens[several] - 1)
    slow = np.zeros(tokens.size, np.bool_)
    slow[several] = tpot > slo_tpot_ms * MS
    good = (ttft <= slo_ttft_ms * MS) & ~slow
    span_s = span_ns / 1e9
    return {
        **percentiles("ttft", ttft),
        **percentiles("tpot", tpot),
        **percentiles("e2e", last - arrival),
        "goodput_requests_per_s": float(good.sum()) / span_s if span_s else None,
        "goodput_tokens_per_s": float(tokens[good].sum()) / span_s if span_s else None,
        "good_fraction": float(good.mean()) if good.size else None,
    }
