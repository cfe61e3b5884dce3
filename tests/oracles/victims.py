"""The victims oracle: which tokens go, read off the design's definition of granularity.

Plain lists and exact fractions, so that no order of summation decides a tie.
"""

from __future__ import annotations

import math
from fractions import Fraction


class TooManyProtected(Exception):
    """A set must keep more tokens than its budget."""


def whole_runs(rows, protected, cursor, run, count):
    """Return the columns of the `count` worst runs of a set.

    Parameters
    ----------
    rows : dict
        Column to (slot, score), of the columns that the set retains.
    protected : set of columns
    cursor : int
        Slots below it were appended: a run that ends above it is not complete.
    run : int
        Slots of a run.
    count : int
    """
    members = {}
    for column, (slot, _) in rows.items():
        members.setdefault(slot // run, []).append(column)
    candidates = []
    for name, columns in members.items():
        if (name + 1) * run > cursor or any(column in protected for column in columns):
            continue
        total = sum((Fraction(rows[column][1]) for column in columns), Fraction(0))
        candidates.append((total / len(columns), name))
    candidates.sort()
    return {column for _, name in candidates[:count] for column in members[name]}


def complete_pages(sets, gone, protected, table, dense, fraction, page_tokens):
    """Add to `gone`, in place, what page_completion drops beyond its token victims."""
    for number in sorted(set(table)):
        pages = {}
        for which, rows in enumerate(sets):
            if table[which] == number:
                for column, (slot, _) in rows.items():
                    if column not in gone[which]:
                        pages.setdefault(slot // page_tokens, []).append((which, column))
        while len(pages) > math.ceil(fraction * dense[number]):
            candidates = [
                (len(rows), page)
                for page, rows in pages.items()
                if not any(column in protected for _, column in rows)
            ]
            if not candidates:
                break
            for which, column in pages.pop(min(candidates)[1]):
                gone[which].add(column)


def victims(
    sets,
    protected,
    *,
    table,
    cursor,
    dense,
    kept,
    fraction,
    granularity,
    window_tokens,
    page_tokens,
):
    """Return the columns that each set drops, as a list of sets.

    Parameters
    ----------
    sets : list of dict
        For each set, column to (slot, score), of the columns that it retains.
    protected : set of columns
    table : list of int
        The table of each set.
    cursor, dense : dict
        Of each table: slots appended, and pages had nothing been evicted.
    """
    if any(len(protected & set(rows)) > kept for rows in sets):
        raise TooManyProtected
    gone = []
    for which, rows in enumerate(sets):
        excess = max(0, len(rows) - kept)
        if granularity in ("token", "page_completion"):
            free = [(score, column) for column, (_, score) in rows.items()]
            free = sorted(pair for pair in free if pair[1] not in protected)
            gone.append({column for _, column in free[:excess]})
        else:
            run = window_tokens if granularity == "window" else page_tokens
            gone.append(whole_runs(rows, protected, cursor[table[which]], run, excess // run))
    if granularity == "page_completion":
        complete_pages(sets, gone, protected, table, dense, fraction, page_tokens)
    return gone
