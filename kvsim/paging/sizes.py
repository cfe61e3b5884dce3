"""Whole numbers that this room is given: taken as they are meant, or refused by name."""

from __future__ import annotations

import operator
from typing import Any

from kvsim.errors import LedgerError

#: No byte figure reaches this, so that none leaves an int64.
SIZES_LIMIT = 2**62


def whole(name: str, value: Any, lowest: int = 0, limit: int = SIZES_LIMIT) -> int:
    """Return `value` as an int in [lowest, limit).

    Raises
    ------
    LedgerError
        If it is no whole number (a boolean is none), or out of range.
    """
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool) or number < lowest:
        raise LedgerError(f"{name} must be an integer of at least {lowest}, not {value!r:.60}")
    if number >= limit:
        raise LedgerError(f"{name} must be below {limit}, not {value!r:.60}")
    return number
