"""Vidur's processed traces: CSV of prompt and decode lengths, without times and block ids.

Format: data/processed_traces of github.com/microsoft/vidur (paper: Agrawal et al., MLSys 2024).
"""

from __future__ import annotations

from collections.abc import Iterator

from kvsim.workload.traces.formats import CsvRows, Fault, lengths
from kvsim.workload.traces.request import Problem, Request

NEEDED = {"num_prefill_tokens", "num_decode_tokens"}
TOTAL = "num_total_tokens"
LEFT_ALONE = {TOTAL, "pd_ratio"}


class Vidur:
    """A reading of lengths in Vidur's columns."""

    name = "vidur"
    clock = "none"
    block_tokens = 0
    has_ids = False

    def __init__(self, header: list[str]) -> None:
        self.found_at_once: list[Problem] = []
        self._rows = CsvRows(header)
        self._total = TOTAL if TOTAL in header else None

    @staticmethod
    def recognises(header: list[str]) -> bool:
        """Whether both lengths are there, and no column that is not Vidur's."""
        names = set(header)
        return len(names) == len(header) and NEEDED <= names <= NEEDED | LEFT_ALONE

    def read(self, text: str) -> Iterator[Request | Fault]:
        """Yield the request of a line."""
        row = self._rows.row(text)
        yield lengths(row, "num_prefill_tokens", "num_decode_tokens", self._total)
