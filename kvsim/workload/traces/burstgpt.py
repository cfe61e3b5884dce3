"""BurstGPT's trace: CSV of seconds, models and lengths, no block ids.

Format: the README of github.com/HPMLL/BurstGPT (paper: Wang et al., arXiv 2401.17644). Requests
that failed have 0 response tokens; later files add `Session ID` and `Elapsed time`.
"""

from __future__ import annotations

from collections.abc import Iterator

from kvsim.workload.traces.formats import SECOND_NS, CsvRows, Fault, Numbers, lengths
from kvsim.workload.traces.request import Problem, Request
from kvsim.workload.traces.values import decimal, nanoseconds

COLUMNS = {
    "Timestamp",
    "Model",
    "Request tokens",
    "Response tokens",
    "Total tokens",
    "Log Type",
}
LATER = {"Session ID", "Elapsed time"}


class BurstGPT:
    """A reading of BurstGPT's trace."""

    name = "burstgpt"
    clock = "trace"
    block_tokens = 0
    has_ids = False

    def __init__(self, header: list[str]) -> None:
        self.found_at_once: list[Problem] = []
        self._rows = CsvRows(header)
        self._sessions = Numbers()

    @staticmethod
    def recognises(header: list[str]) -> bool:
        """Whether the six columns are there, in any order, and no unknown one."""
        names = set(header)
        return len(names) == len(header) and COLUMNS <= names <= COLUMNS | LATER

    def read(self, text: str) -> Iterator[Request | Fault]:
        """Yield the request of a line."""
        row = self._rows.row(text)
        request = lengths(row, "Request tokens", "Response tokens", "Total tokens")
        arrival_ns = nanoseconds(decimal(row["Timestamp"], "Timestamp"), "Timestamp", SECOND_NS)
        session = row.get("Session ID", "")
        yield request._replace(
            arrival_ns=arrival_ns, conversation=self._sessions(session) if session else -1
        )
