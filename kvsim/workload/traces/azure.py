"""Azure's LLM inference traces: CSV of times of day and lengths, no block ids.

Format: AzureLLMInferenceDataset2023.md in github.com/Azure/AzurePublicDataset (paper: Patel et
al., Splitwise, ISCA 2024). Times have seven digits below the second; the clock of the trace
begins at its first request.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

from kvsim.workload.traces.formats import SECOND_NS, CsvRows, Fault, lengths
from kvsim.workload.traces.request import BadRecord, Problem, Request
from kvsim.workload.traces.values import decimal, nanoseconds, shown

COLUMNS = ["TIMESTAMP", "ContextTokens", "GeneratedTokens"]
_SECONDS_END = len("2023-11-16 18:15:46")


def moment(text: str) -> tuple[datetime, int]:
    """Return the second of a time of day, and the nanoseconds below it.

    Not `datetime.fromisoformat` alone: it drops the seventh digit.
    """
    head, tail = text[:_SECONDS_END], text[_SECONDS_END:]
    zone = max(tail.find("+"), tail.find("-"))
    fraction, offset = (tail, "") if zone < 0 else (tail[:zone], tail[zone:])
    try:
        second = datetime.fromisoformat(head + offset)
    except ValueError:
        raise BadRecord(f"TIMESTAMP {shown(text)} is no time") from None
    if not fraction:
        return second, 0
    if not fraction.startswith("."):
        raise BadRecord(f"TIMESTAMP {shown(text)} is no time")
    return second, nanoseconds(decimal("0" + fraction, "TIMESTAMP"), "TIMESTAMP", SECOND_NS)


class Azure:
    """A reading of an Azure trace."""

    name = "azure"
    clock = "trace"
    block_tokens = 0
    has_ids = False

    def __init__(self, header: list[str]) -> None:
        self.found_at_once: list[Problem] = []
        self._rows = CsvRows(header)
        self._start: tuple[datetime, int] | None = None

    @staticmethod
    def recognises(header: list[str]) -> bool:
        """Whether these are the three columns."""
        return header == COLUMNS

    def read(self, text: str) -> Iterator[Request | Fault]:
        """Yield the request of a line."""
        row = self._rows.row(text)
        request = lengths(row, "ContextTokens", "GeneratedTokens", None)
        second, below_ns = moment(row["TIMESTAMP"])
        if self._start is None:
            self._start = (second, below_ns)
        start, start_below_ns = self._start
        try:
            seconds = (second - start) // timedelta(seconds=1)
        except TypeError:
            raise BadRecord("TIMESTAMP has a time zone, or the first one has") from None
        arrival_ns = seconds * SECOND_NS + below_ns - start_below_ns
        yield request._replace(arrival_ns=arrival_ns)
