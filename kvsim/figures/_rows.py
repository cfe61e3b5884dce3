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
    ("layers_counted", None),
    ("workload", "recorded"),
    ("page_tokens", 16),
    ("compaction", "none"),
    ("compaction_unit", "slot"),
    ("positions", "keep"),
    ("append", "tail"),
    ("when", "prefill_end"),
    ("chunk_tokens", 0),
    ("budget_tokens", 0),
    ("window_tokens", 16),
    ("protect_recent", 64),
    ("protect_sinks", 0),
    ("ceiling_pages", 0),
    ("ceiling_bytes", 0),
    ("order", "fifo"),
    ("sequences", 1),
    ("forks", 0),
    ("forks_evict", True),
    ("decode_tokens", 0),
    ("store", "counting"),
    ("planes", "kv"),
    ("element_bytes", 2),
    ("memory", "heap"),
    ("plane_layout", None),
    ("extent_bytes", None),
    ("tokens", None),
)
"""Settings that have one value in a figure, with the value that is preferred where it occurs.

Each is fixed among the rows that the ones before it leave: `tokens`, which follows from the
workload, its forks and its decoding, comes last.
"""

SAID = (
    "positions",
    "append",
    "when",
    "chunk_tokens",
    "budget_tokens",
    "window_tokens",
    "protect_recent",
    "protect_sinks",
    "ceiling_pages",
    "ceiling_bytes",
    "order",
    "sequences",
    "forks",
    "forks_evict",
    "decode_tokens",
    "store",
    "planes",
    "element_bytes",
    "memory",
    "plane_layout",
    "extent_bytes",
)
"""Settings that a caption says where they are not the usual ones."""

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
"""Columns that say what a row is; every figure of runs has a CSV that begins with them."""

COMPACTIONS = ("none", "rebuild", "forward", "hole_fill")
UNITS = ("slot", "row")
GRANULARITIES = ("token", "window", "page", "page_completion")
FINENESS = {"shared": 0, "sequence": 0, "group": 1, "layer": 2, "head": 3}


def finer(sets: str, scope: str) -> bool:
    """Whether the sets are finer than what one block table covers.

    Then a page is held while any set needs it, and equal budgets do not mean equal held bytes.
    """
    return FINENESS.get(sets, 0) > FINENESS.get(scope, 0)


def select(
    name: str,
    rows: Sequence[AnyRow],
    numbers: Sequence[str],
    *,
    free: Sequence[str] = (),
    prefer: Sequence[tuple[str, Any]] = (),
) -> list[AnyRow]:
    """Rows that a figure can show, at one value of each of :data:`FIXED`, in a stated order.

    Parameters
    ----------
    name : str
        The figure, for the text of an error.
    rows : sequence of mapping
        Any rows, in any order.
    numbers : sequence of str
        Columns that the figure draws. A completed row in which one is null is left out.
    free : sequence of str
        Columns of :data:`FIXED` that the figure tells apart, and so does not fix.
    prefer : sequence of (str, value)
        Columns that this figure fixes besides, before the others, as in :data:`FIXED`.

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
    for column, preferred in (*prefer, *FIXED):
        # Requests of other lengths arrive under every seed: their tokens are no setting.
        if column not in free and (column, usable[0].get("workload")) != ("tokens", "requests"):
            usable = fix(usable, column, preferred)
    usable.sort(key=order)
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


def points(data: Sequence[AnyRow], x: str, y: str, by: str = "budget_fraction") -> list[Point]:
    """One point per budget, in the order of the budgets, over the seeds of each.

    ``data`` are rows of one series: only budget (or what ``by`` names) and seed vary.
    """
    found = []
    for value in sorted({row[by] for row in data}):
        rows = [row for row in data if row[by] == value]
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
    return sorted({row["granularity"] for row in data}, key=lambda n: _place(GRANULARITIES, n))


def pairs(data: Sequence[AnyRow]) -> list[tuple[str, str]]:
    """Pairs (sets, scope) that occur; those with sets finer than the scope come last."""
    return sorted(
        {(row["sets"], row["scope"]) for row in data}, key=lambda pair: _pair_order(*pair)
    )


def settings(
    data: Sequence[AnyRow], omit: Sequence[str] = (), seeds: str = "mean and range of {} seeds"
) -> str:
    """Settings that hold for all of ``data``, for a caption; usual ones are left unsaid.

    Parameters
    ----------
    data : sequence of mapping
        What a figure's ``select`` returned.
    omit : sequence of str
        Columns that the figure tells apart.
    seeds : str
        How several seeds are shown; ``{}`` is their number.
    """
    row = data[0]
    said = [str(row["layout"])] if row["layout"] is not None else []
    counted = str(row["layers_counted"] or "1/1").split("/")
    if said and counted[0] != counted[-1]:
        # A reduced recording: the figure is not about the whole model.
        said[0] += f", {counted[0]} of its {counted[-1]} layers"
    if row["workload"] not in (None, "recorded"):
        said += [f"workload {row['workload']}"]
    if row["tokens"] is not None and "tokens" not in omit:
        said += [_span([row["tokens"] for row in data]) + " tokens"]
    said += [f"{row['page_tokens']}-token pages"]
    if "compaction" not in omit:
        said += [compaction(row)]
    usual = dict(FIXED)
    for column in SAID:
        if column not in omit and row[column] not in (None, usual[column]):
            said += [f"{column} = {row[column]}"]
    different = len({row["seed"] for row in data})
    if different > 1:
        said += [seeds.format(different)]
    return ", ".join(said)


def compaction(row: AnyRow) -> str:
    """Algorithm and unit of a row's compaction, in words."""
    if row["compaction"] in (None, "none"):
        return "no compaction"
    return f"compaction {row['compaction']} by {row['compaction_unit']}"


def fix(rows: Sequence[AnyRow], column: str, preferred: Any = None) -> list[AnyRow]:
    """Rows at one value: the preferred one, else the most frequent, else the least text."""
    counts = Counter(row.get(column) for row in rows)
    value = preferred
    if preferred is None or preferred not in counts:
        value = min(counts, key=lambda value: (-counts[value], str(value)))
    return [row for row in rows if row.get(column) == value]


def _span(numbers: Sequence[float]) -> str:
    low, high = min(numbers), max(numbers)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _check_number(name: str, row: AnyRow, column: str) -> None:
    value = row[column]
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not math.isfinite(value):
        raise FigureError(f"{name}: row {row.get('run_id')}: {column} is no number: {value!r}")


def _distinct(name: str, rows: list[AnyRow]) -> list[AnyRow]:
    """Drop a row that is given twice; refuse two that only an unknown setting tells apart."""
    found: dict[tuple[Any, ...], AnyRow] = {}
    for row in rows:
        key = tuple(row.get(column) for column in IDENTITY if column != "run_id")
        first = found.setdefault(key, row)
        differ = sorted(c for c in {*first, *row} if first.get(c) != row.get(c))
        # A run that also recorded its page map is the same run under another id.
        if differ and differ != ["page_map", "run_id"]:
            raise FigureError(
                f"{name} would mix rows {first.get('run_id')} and {row.get('run_id')}, which differ"
                f" in {', '.join(differ)}: give it the rows of one setting"
            )
    return list(found.values())


def order(row: AnyRow) -> tuple[Any, ...]:
    """Key by which every figure sorts its rows."""
    return (
        _place(GRANULARITIES, row["granularity"]),
        _pair_order(row["sets"], row["scope"]),
        row["policy"],
        -row["budget_fraction"],
        compaction_order(row),
        str(row.get("positions")),
        row.get("forks") or 0,
        str(row.get("seed")).rjust(20),
        str(row.get("run_id")),
    )


def compaction_order(row: AnyRow) -> tuple[Any, ...]:
    """Key that sorts by algorithm, then by unit."""
    algorithm, unit = row.get("compaction"), row.get("compaction_unit")
    return _place(COMPACTIONS, str(algorithm)), _place(UNITS, str(unit))


def _place(known: Sequence[str], name: str) -> tuple[int, str]:
    return known.index(name) if name in known else len(known), name


def _pair_order(sets: str, scope: str) -> tuple[Any, ...]:
    return finer(sets, scope), FINENESS.get(sets, 9), FINENESS.get(scope, 9), sets, scope
