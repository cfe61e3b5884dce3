"""What every format has in common: the protocol that readers use, and the two kinds of file.

Knows no format by name; those are one module each.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from kvsim.workload.traces.request import BadRecord, Problem, Request, check_hashes, check_lengths
from kvsim.workload.traces.values import digits, id_list, nanoseconds, tokens

MILLISECOND_NS = 1_000_000
SECOND_NS = 1_000_000_000


class Fault(NamedTuple):
    """One request inside a line that cannot be used: which, and why. The others can."""

    where: str
    what: str


class Format(Protocol):
    """A format, made anew for each reading of a file: it remembers ids it has seen.

    Attributes
    ----------
    name : str
    clock : {"trace", "conversation", "none"}
        What arrival times count from, and so what they must ascend within.
    block_tokens : int
        Tokens of a block that has an id; 0 where there are no ids, or no one size.
    has_ids : bool
    found_at_once : list of Problem
        What was wrong with files that belong to the trace, read before its first line.
    """

    name: str
    clock: str
    block_tokens: int
    has_ids: bool
    found_at_once: list[Problem]

    def read(self, text: str) -> Iterator[Request | Fault]:
        """Yield the requests of a line.

        Raises
        ------
        BadRecord
            If the whole line cannot be used.
        """
        ...


class JsonFormat(Format, Protocol):
    """A format that is recognised by the keys of one JSON object."""

    def __init__(self, first: Mapping[str, Any], path: Path) -> None:
        """Begin a reading of the file whose first record this is."""
        ...

    @staticmethod
    def recognises(record: Mapping[str, Any]) -> bool:
        """Whether this object is a record of the format."""
        ...


def hashed(record: Mapping[str, Any], arrival_ns: int, block_tokens: int, rounding: str) -> Request:
    """Return the request behind `input_length`, `output_length` and a list `hash_ids`."""
    input_tokens = tokens(record, "input_length", 1)
    output_tokens = tokens(record, "output_length", 0)
    check_lengths(input_tokens, output_tokens)
    ids = id_list(record, "hash_ids")
    check_hashes(ids.size, input_tokens, block_tokens, rounding)
    # Where a format lets a request decide, a prompt of whole blocks says nothing: round down.
    up = rounding == "up" or ids.size > input_tokens // block_tokens
    return Request(arrival_ns, input_tokens, output_tokens, ids, rounds_up=up)


def time_of(record: Mapping[str, Any], key: str, unit_ns: int) -> int:
    """Return a time of a JSON record in nanoseconds."""
    if key not in record:
        raise BadRecord(f"it has no {key!r}")
    return nanoseconds(record[key], key, unit_ns)


class Numbers:
    """Numbers of names, from 0, in the order in which they first come up."""

    def __init__(self) -> None:
        self._numbers: dict[Any, int] = {}

    def __call__(self, name: Any) -> int:
        return self._numbers.setdefault(name, len(self._numbers))


class CsvRows:
    """The rows of a CSV file below its header, one line each.

    Parameters
    ----------
    header : list of str
        The names of the columns, in the file's order.
    """

    def __init__(self, header: list[str]) -> None:
        self._header = header

    def row(self, text: str) -> dict[str, str]:
        """Return the fields of a line by column.

        Raises
        ------
        BadRecord
            If a quote stays open, or fields are missing or too many.
        """
        fields = split(text)
        if len(fields) != len(self._header):
            raise BadRecord(f"{len(self._header)} fields needed, not {len(fields)}")
        return dict(zip(self._header, fields, strict=True))


def split(text: str) -> list[str]:
    """Return the fields of one line of CSV."""
    try:
        return next(csv.reader([text], strict=True))
    except csv.Error as error:
        raise BadRecord(f"no CSV: {error}") from None


def counted(row: Mapping[str, str], key: str, least: int) -> int:
    """Return a number of tokens out of a CSV row."""
    return tokens({key: digits(row[key], key)}, key, least)


def lengths(row: Mapping[str, str], prompt: str, decode: str, total: str | None) -> Request:
    """Return the request behind columns of token counts, whose total must be their sum."""
    input_tokens, output_tokens = counted(row, prompt, 1), counted(row, decode, 0)
    check_lengths(input_tokens, output_tokens)
    if total is not None:
        stated = digits(row[total], total)
        if stated != input_tokens + output_tokens:
            raise BadRecord(f"{total} is {stated}, not {input_tokens} + {output_tokens}")
    return Request(0, input_tokens, output_tokens)
