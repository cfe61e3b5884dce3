"""Which rows a figure shows: checks, the settings that it holds fixed, order and seeds.

Knows the contract's column names, and nothing about drawing.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from kvsim.errors import FigureError

Row = dict[str, Any]
AnyRow = Mapping[str, Any]

FIXED: tuple[tuple[str, Any], ...] = (
    ("layout", None),
    ("tokens", None),
    ("page_tokens", 16),
    ("compaction", "none"),
    ("compaction_unit", "slot"),
    ("positions", "keep"),
    ("append", "tail"),
    ("when", "prefill_end"),
    ("ceiling_pages", 0),
)
"""Settings that have one value in a figure, with the value that is preferred where it occurs."""

IDENTITY = (
    "policy",
    "granularity",
    "sets",
    "scope",
    *(column for column, _ in FIXED),
    "budget_fraction",
    "seed",
    "run_id",
)
"""Columns that say what a row is; every figure's CSV begins with them."""

GRANULARITIES = ("token", "window", "page", "page_completion")
FINENESS = {"shared": 0, "sequence": 0, "group": 1, "layer": 2, "head": 3}


def finer(sets: str, scope: str) -> bool:
    """Whether the sets are finer than what one block table covers.

    Then a page is held while any set needs it, and equal budgets do not mean equal held bytes.
    """
    return FINENESS.get(sets, 0) > FINENESS.get(scope, 0)


def select(name: str, rows: Sequence[AnyRow], numbers: Sequence[str]) -> list[AnyRow]:
    """Rows that a figure can show, at one value of each of :data:`FIXED`, in a stated order.

    Parameters
    ----------
    name : str
        The figure, for the text of an error.
    rows : sequence of mapping
        Any rows, in any order.
    numbers : sequence of str
        Columns that the figure draws. A completed row in which one is null is left out.

    Returns
    -------
    list of mapping
        Whole rows, sorted, so that the order of ``rows`` does not matter.

    Raises
    ------
    FigureError
        Nothing is left (the text says what is missing), or two rows that are not the same differ
        in nothing that the figure tells apart.
    """
    if not rows:
        raise FigureError(f"{name} needs completed rows, and there are no rows at all")
    completed = [row for row in rows if row.get("outcome") == "completed"]
    if not completed:
        seen = Counter(str(row.get("outcome")) for row in rows)
        outcomes = ", ".join(f"{count} {outcome}" for outcome, count in sorted(seen.items()))
        raise FigureError(f"{name} needs completed rows, and the rows are: {outcomes}")
    needed = ("policy", "granularity", "sets", "scope", "page_tokens", "budget_fraction", *numbers)
    usable = [row for row in completed if all(row.get(column) is not None for column in needed)]
    if not usable:
        absent = [c for c in needed if all(row.get(c) is None for row in completed)]
        # Where each column has a value somewhere, no single row has them all.
        which = f"has {', '.join(absent)}" if absent else f"has all of {', '.join(needed)}"
        raise FigureError(f"{name}: none of the {len(completed)} completed rows {which}")
    for row in usable:
        for column in ("page_tokens", "budget_fraction", *numbers):
            _check_number(name, row, column)
    for column, preferred in FIXED:
        value = _fixed([row.get(column) for row in usable], preferred)
        usable = [row for row in usable if row.get(column) == value]
    usable.sort(key=_order)
    return _distinct(name, usable)


def flat(
    rows: Sequence[AnyRow], columns: Sequence[str], **derived: Callable[[AnyRow], Any]
) -> list[Row]:
    """Identity of each row, then ``columns`` as they are, then what ``derived`` computes."""
    return [
        {
            **{column: row.get(column) for column in (*IDENTITY, *columns)},
            **{column: compute(row) for column, compute in derived.items()},
        }
        for row in rows
    ]


def share(row: AnyRow, part: float, whole: float) -> float:
    """Return ``part / whole``, or say which row has nothing to share."""
    if whole <= 0:
        raise FigureError(f"row {row.get('run_id')}: a share of {whole} has no meaning")
    return part / whole


class Point(NamedTuple):
    """Rows that share all but their seed: the mean, and the least and greatest value."""

    x: float
    x_low: float
    x_high: float
    y: float
    y_low: float
    y_high: float


def points(data: Sequence[AnyRow], x: str, y: str) -> list[Point]:
    """One point per budget, in the order of the budgets, over the seeds of each.

    ``data`` are rows of one series: only budget and seed vary.
    """
    found = []
    for budget in sorted({row["budget_fraction"] for row in data}):
        rows = [row for row in data if row["budget_fraction"] == budget]
        xs, ys = [row[x] for row in rows], [row[y] for row in rows]
        # fsum, so that the mean of equal values is that value and not its neighbour.
        mean_x, mean_y = math.fsum(xs) / len(xs), math.fsum(ys) / len(ys)
        found.append(Point(mean_x, min(xs), max(xs), mean_y, min(ys), max(ys)))
    return found


def where(data: Sequence[AnyRow], **values: Any) -> list[AnyRow]:
    """Rows that have these values."""
    return [row for row in data if all(row[c] == value for c, value in values.items())]


def granularities(data: Sequence[AnyRow]) -> list[str]:
    """Granularities that occur, in the order in which every figure shows them."""
    return sorted({row["granularity"] for row in data}, key=_granularity_order)


def pairs(data: Sequence[AnyRow]) -> list[tuple[str, str]]:
    """Pairs (sets, scope) that occur; those with sets finer than the scope come last."""
    return sorted(
        {(row["sets"], row["scope"]) for row in data}, key=lambda pair: _pair_order(*pair)
    )


def settings(data: Sequence[AnyRow]) -> str:
    """Settings that hold for all of ``data``, for a caption; usual ones are left unsaid."""
    row = data[0]
    said = [str(row["layout"])] if row["layout"] is not None else []
    said += [f"{row['tokens']:,} tokens"] if row["tokens"] is not None else []
    said += [f"{row['page_tokens']}-token pages"]
    if row["compaction"] in (None, "none"):
        said += ["no compaction"]
    else:
        said += [f"compaction {row['compaction']} by {row['compaction_unit']}"]
    for column in ("positions", "append", "when", "ceiling_pages"):
        if row[column] not in (None, dict(FIXED)[column]):
            said += [f"{column} = {row[column]}"]
    seeds = len({row["seed"] for row in data})
    if seeds > 1:
        said += [f"mean and range of {seeds} seeds"]
    return ", ".join(said)


def _check_number(name: str, row: AnyRow, column: str) -> None:
    value = row[column]
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not math.isfinite(value):
        raise FigureError(f"{name}: row {row.get('run_id')}: {column} is no number: {value!r}")


def _fixed(values: list[Any], preferred: Any) -> Any:
    """Value to hold fixed: the preferred one, else the most frequent, else the least text."""
    if preferred is not None and preferred in values:
        return preferred
    counts = Counter(values)
    return min(counts, key=lambda value: (-counts[value], str(value)))


def _distinct(name: str, rows: list[AnyRow]) -> list[AnyRow]:
    """Drop a row that is given twice; refuse two that only an unknown setting tells apart."""
    found: dict[tuple[Any, ...], AnyRow] = {}
    for row in rows:
        key = tuple(row.get(column) for column in IDENTITY if column != "run_id")
        first = found.setdefault(key, row)
        if first != row:
            differ = sorted(c for c in {*first, *row} if first.get(c) != row.get(c))
            raise FigureError(
                f"{name} would mix rows {first.get('run_id')} and {row.get('run_id')}, which differ"
                f" in {', '.join(differ)}: give it the rows of one setting"
            )
    return list(found.values())


def _granularity_order(name: str) -> tuple[int, str]:
    known = GRANULARITIES.index(name) if name in GRANULARITIES else len(GRANULARITIES)
    return known, name


def _pair_order(sets: str, scope: str) -> tuple[Any, ...]:
    return finer(sets, scope), FINENESS.get(sets, 9), FINENESS.get(scope, 9), sets, scope


def _order(row: AnyRow) -> tuple[Any, ...]:
    return (
        _granularity_order(row["granularity"]),
        _pair_order(row["sets"], row["scope"]),
        row["policy"],
        -row["budget_fraction"],
        str(row.get("seed")).rjust(20),
        str(row.get("run_id")),
    )
