"""Requests that arrive by chance, with prompt and decode lengths from a public trace.

Reads the CSV of Azure's LLM inference dataset, columns TIMESTAMP, ContextTokens and
GeneratedTokens. Only the lengths are used: when requests arrive is drawn anew.
"""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

import numpy as np

from kvsim.errors import WorkloadError

COLUMNS = ["TIMESTAMP", "ContextTokens", "GeneratedTokens"]
MOST_TOKENS = 1 << 31
MOST_NANOSECONDS = 1 << 62
ORDERS = ("sampled", "recorded")


class Arrival(NamedTuple):
    """One request: when it arrives, and how many tokens it brings and generates."""

    arrival_ns: int
    prompt: int
    decode: int


@dataclass(frozen=True)
class Lengths:
    """Lengths of a trace's requests, in its order.

    Attributes
    ----------
    prompt : tuple of int
        At least 1 each.
    decode : tuple of int
        At least 0 each.
    """

    prompt: tuple[int, ...]
    decode: tuple[int, ...]

    def __post_init__(self) -> None:
        """Refuse lengths that do not pair up."""
        if not self.prompt or len(self.prompt) != len(self.decode):
            raise WorkloadError(
                f"lengths: {len(self.prompt)} prompts and {len(self.decode)} decodes"
            )


def _tokens(text: str, least: int, column: str, place: str) -> int:
    # Not int() alone: it takes "1_000", " 7" and digits of other scripts.
    if not (text.isascii() and text.isdigit() and len(text) <= 10):
        raise WorkloadError(f"{place}: {column} must be a whole number, not {text[:40]!r}")
    value = int(text)
    if not least <= value < MOST_TOKENS:
        raise WorkloadError(f"{place}: {column} must be from {least} to {MOST_TOKENS - 1}")
    return value


def read_lengths(path: str | Path) -> Lengths:
    """Read the lengths of a trace in Azure's format.

    Raises
    ------
    WorkloadError
        Naming the file and the line at fault.
    """
    file = Path(path)
    if not file.is_file():
        raise WorkloadError(f"there is no file {path}")
    prompt: list[int] = []
    decode: list[int] = []
    line = 0
    try:
        with file.open(encoding="utf-8-sig", newline="") as stream:
            rows = csv.reader(stream, strict=True)
            for row in rows:
                line, place = rows.line_num, f"{file.name}:{rows.line_num}"
                if not prompt and line == 1:
                    if row != COLUMNS:
                        raise WorkloadError(f"{place}: the header must be {','.join(COLUMNS)}")
                    continue
                if len(row) != len(COLUMNS):
                    raise WorkloadError(f"{place}: {len(COLUMNS)} fields needed, not {len(row)}")
                try:
                    datetime.fromisoformat(row[0])
                except ValueError:
                    raise WorkloadError(f"{place}: TIMESTAMP {row[0][:40]!r} is no time") from None
                prompt.append(_tokens(row[1], 1, COLUMNS[1], place))
                decode.append(_tokens(row[2], 0, COLUMNS[2], place))
    except csv.Error as error:
        raise WorkloadError(f"{file.name}:{line + 1}: {error}") from None
    except UnicodeDecodeError:
        raise WorkloadError(f"{file.name}:{line + 1}: not text in UTF-8 from here on") from None
    except OSError as error:
        raise WorkloadError(f"{file.name}: {error.strerror}") from None
    if not prompt:
        raise WorkloadError(f"{file.name}:{line + 1}: no requests")
    return Lengths(tuple(prompt), tuple(decode))


def poisson(
    rate_per_s: float,
    lengths: Lengths,
    requests: int,
    rng: np.random.Generator,
    order: str = "sampled",
) -> list[Arrival]:
    """Return requests whose gaps are exponential, the first of them after one gap.

    A longer list begins with the shorter one of the same stream.

    Parameters
    ----------
    rate_per_s : float
        Requests per second, on average.
    lengths : Lengths
    requests : int
    rng : numpy.random.Generator
        The stream `arrivals`.
    order : {"sampled", "recorded"}
        Lengths are drawn with replacement, or taken in order, from the start again at the end.

    Raises
    ------
    WorkloadError
        If an argument cannot be used.
    """
    if not (math.isfinite(rate_per_s) and rate_per_s > 0):
        raise WorkloadError(f"arrivals need a rate above 0 per second, not {rate_per_s}")
    if requests < 0:
        raise WorkloadError(f"{requests} requests cannot arrive")
    if order not in ORDERS:
        raise WorkloadError(f"the order of lengths is {' or '.join(ORDERS)}, not {order!r}")
    # Two numbers a request, whatever the order of lengths: both see the same arrivals.
    drawn = rng.random((requests, 2))
    with np.errstate(over="ignore"):
        gaps = np.floor(-np.log1p(-drawn[:, 0]) * 1e9 / rate_per_s)
    if requests and gaps.sum() >= MOST_NANOSECONDS:
        raise WorkloadError(f"at {rate_per_s} requests per second the last arrives in centuries")
    arrival = np.cumsum(gaps.astype(np.int64))
    count = len(lengths.prompt)
    if order == "sampled":
        picked = (drawn[:, 1] * count).astype(np.int64)
    else:
        picked = np.arange(requests) % count
    return [
        Arrival(when, lengths.prompt[which], lengths.decode[which])
        for when, which in zip(arrival.tolist(), picked.tolist(), strict=True)
    ]
