"""Typed values out of a JSON object or a CSV row: whole numbers, tokens, nanoseconds, ids.

Numbers with a fraction arrive as `Decimal`, so that a time of a trace becomes the nanosecond
that its digits say. Nothing is converted that would have to be guessed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from decimal import ROUND_HALF_EVEN, Decimal
from typing import Any, NoReturn

import numpy as np

from kvsim.workload.traces.request import MOST_NANOSECONDS, MOST_TOKENS, BadRecord

_SHOWN = 40
_INT64 = np.iinfo(np.int64)
_MISSING = object()


def shown(value: Any) -> str:
    """Return a value as an error message shows it."""
    text = str(value) if isinstance(value, Decimal) else repr(value)
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."


def _refuse_constant(text: str) -> NoReturn:
    raise BadRecord(f"the number {text} is not finite")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise BadRecord(f"the key {shown(twice)} stands twice in one object")
    return found


_DECODER = json.JSONDecoder(
    parse_float=Decimal, parse_constant=_refuse_constant, object_pairs_hook=_unique
)


def parse_object(text: str) -> dict[str, Any]:
    """Return the JSON object of a line.

    Raises
    ------
    BadRecord
        If it is no JSON, truncated, no object, or has a number that is not finite.
    """
    try:
        value = _DECODER.decode(text)
    except json.JSONDecodeError as error:
        raise BadRecord(f"no JSON: {error.msg} at column {error.colno}") from None
    except (ValueError, RecursionError) as error:
        raise BadRecord(f"no JSON: {error}") from None
    if not isinstance(value, dict):
        raise BadRecord("no JSON object")
    return value


def _needed(record: Mapping[str, Any], key: str) -> Any:
    value = record.get(key, _MISSING)
    if value is _MISSING:
        raise BadRecord(f"it has no {key!r}")
    return value


def whole(record: Mapping[str, Any], key: str, least: int = 0, most: int = int(_INT64.max)) -> int:
    """Return a whole number between two bounds. A float or a string is none, even `3.0`."""
    value = _needed(record, key)
    if type(value) is not int:
        raise BadRecord(f"{key} must be a whole number, not {shown(value)}")
    if not least <= value <= most:
        raise BadRecord(f"{key} must be from {least} to {most}, not {shown(value)}")
    return value


def tokens(record: Mapping[str, Any], key: str, least: int) -> int:
    """Return a number of tokens, below 10^7."""
    value = _needed(record, key)
    if type(value) is int and value >= MOST_TOKENS:
        raise BadRecord(f"{key} {shown(value)}: no request has {MOST_TOKENS:,} tokens or more")
    return whole(record, key, least, MOST_TOKENS)


def digits(text: str, key: str) -> int:
    """Return the whole number that a text spells in ASCII digits, at most 18 of them."""
    # Not int() alone: it takes "1_000", " 7" and digits of other scripts.
    plain = text.removeprefix("-")
    if not (plain.isascii() and plain.isdigit() and len(plain) <= 18):
        raise BadRecord(f"{key} must be a whole number, not {shown(text)}")
    return int(text)


def decimal(text: str, key: str) -> int | Decimal:
    """Return the number that a text spells in plain decimal digits, with or without a point."""
    whole_part, point, fraction = text.removeprefix("-").partition(".")
    plain = whole_part + fraction
    if not (plain.isascii() and plain.isdigit() and len(plain) <= 60 and (fraction or not point)):
        raise BadRecord(f"{key} must be a number, not {shown(text)}")
    return Decimal(text)


def nanoseconds(value: Any, key: str, unit_ns: int) -> int:
    """Return a time in nanoseconds, rounded to the nearest (ties to even).

    Parameters
    ----------
    value : int or Decimal
        In units of `unit_ns`.

    Raises
    ------
    BadRecord
        If it is no number, not finite, negative, or centuries away.
    """
    if type(value) is not int and not isinstance(value, Decimal):
        raise BadRecord(f"{key} must be a number, not {shown(value)}")
    if isinstance(value, Decimal) and not value.is_finite():
        raise BadRecord(f"{key} {shown(value)} is not finite")
    if value < 0:
        raise BadRecord(f"{key} {shown(value)} is negative")
    if value * unit_ns >= MOST_NANOSECONDS:
        raise BadRecord(f"{key} {shown(value)} is centuries away")
    if isinstance(value, int):
        return value * unit_ns
    return int((value * unit_ns).to_integral_value(ROUND_HALF_EVEN))


def id_list(record: Mapping[str, Any], key: str, distinct: bool = True) -> np.ndarray:
    """Return a list of ids, int64; refuse bools, floats, strings and what int64 cannot hold.

    Parameters
    ----------
    distinct : bool
        Refuse an id that stands twice: an id of a chained hash names its whole prefix, so it
        has one place in a request.
    """
    value = _needed(record, key)
    if type(value) is not list:
        raise BadRecord(f"{key} must be a list, not {shown(value)}")
    # Asked first, because NumPy would turn True into 1 and 2.5 into 2.
    if not set(map(type, value)) <= {int}:
        odd = next(one for one in value if type(one) is not int)
        raise BadRecord(f"{key} must list whole numbers, not {shown(odd)}")
    try:
        found = np.array(value, dtype=np.int64)
    except OverflowError:
        raise BadRecord(f"{key} has an id outside 64 bits") from None
    if distinct:
        seen: set[int] = set()
        for one in value:
            if one in seen:
                raise BadRecord(f"{key} has the id {one} twice in one request")
            seen.add(one)
    return found
