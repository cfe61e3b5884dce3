"""The matrix: the axes of a proof's cases, which of their values may meet, and every case's number.

Axes that constrain one another stand in one group, so that the product of the groups is exactly
what is allowed, and a case is a number below its size. Knows names, and nothing about caches.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import NamedTuple

import numpy as np


class Case(NamedTuple):
    """One cell of the matrix.

    Attributes
    ----------
    family : str
        Kind of rows: `dense`, `wide` (head_dim 64, so that rows are whole cache lines), `hybrid`
        (one sliding layer), `uneven` (layers of other widths), `mla`, `glm_dsa`.
    rotation : str
        `plain` (theta 1e4 in the family's own pairing), `interleaved`, `partial`, `none`,
        `alibi`, `per_layer_theta`, or a scaling.
    planes, keys, positions, compaction, unit, append : str
        As in `PagedCache`.
    tables : str
        What a block table covers, and which rows are evicted together: `shared` (one table, one
        set), `sets` (one table, a set per head), `layer` or `head` (a table and a set each).
    span : str
        What an eviction takes: a span that is `aligned` to pages, `unaligned`, from the `start`,
        the `tail`, `everything`, `one` token; `scattered` tokens; or `per_set`: scattered ones,
        others in each set.
    forks : int
        Forks of the parent, at different depths.
    evicts : str
        Who evicts: `parent`, `child`, `both`.
    page_tokens : int
    rounds : int
        Evictions, with appends between them.
    ceiling : str
        `none`; or `tight`: once the prompts are written, every verb that takes pages is tried
        under ceilings that leave too few, and done under the lowest that leaves enough.
    aside : str
        What else befalls the parent: `nothing`; a `swap` out and in after the first eviction; a
        `clone` then, which goes on beside it; pages in `reserve` from before it.
    layout : str
    kernel : str
        `streaming`, only beside float32 rows that are whole cache lines and turn as a whole or
        not at all (on a machine without it the plain kernel runs); or `portable`.
    pages : str
        Whether the pool was `churned` before, so that tables are not ascending, or is `straight`.
    reuse : str
        Whether another sequence takes freed pages while the first lives.
    values : str
        `normal` numbers, or `odd` ones among them: NaN with payloads, infinities, subnormals, -0.
        Quantized keys have no code for those, so beside them V alone is odd.
    """

    family: str
    rotation: str
    planes: str
    keys: str
    positions: str
    compaction: str
    unit: str
    append: str
    tables: str
    span: str
    forks: int
    evicts: str
    page_tokens: int
    rounds: int
    ceiling: str
    aside: str
    layout: str
    kernel: str
    pages: str
    reuse: str
    values: str

    def describe(self) -> str:
        """Return every axis with its value, in one line."""
        return " ".join(f"{name}={value}" for name, value in self._asdict().items())


AXES: dict[str, tuple[str | int, ...]] = {
    "family": ("dense", "wide", "hybrid", "uneven", "mla", "glm_dsa"),
    "rotation": (
        *("plain", "interleaved", "partial", "none", "alibi", "per_layer_theta"),
        *("linear", "llama3", "yarn", "proportional", "longrope"),
    ),
    "planes": ("kv_raw", "raw_only", "kv"),
    "keys": ("float32", "int8", "e4m3", "e4m3_scaled"),
    "positions": ("renumber", "keep"),
    "compaction": ("none", "rebuild", "forward", "hole_fill"),
    "unit": ("slot", "row"),
    "append": ("tail", "reuse_holes"),
    "tables": ("shared", "sets", "layer", "head"),
    "span": (
        *("aligned", "unaligned", "start", "tail", "everything", "one"),
        *("scattered", "per_set"),
    ),
    "forks": (0, 1, 2, 3, 4),
    "evicts": ("parent", "child", "both"),
    "page_tokens": (1, 2, 4, 8, 16, 32, 64, 128),
    "rounds": (1, 3),
    "ceiling": ("none", "tight"),
    "aside": ("nothing", "swap", "clone", "reserve"),
    "layout": ("page_major", "layer_major"),
    "kernel": ("streaming", "portable"),
    "pages": ("straight", "churned"),
    "reuse": ("no", "yes"),
    "values": ("normal", "odd"),
}


#: Every (axis, value), numbered.
VALUES = [(axis, value) for axis, values in AXES.items() for value in values]
NUMBERS = {pair: number for number, pair in enumerate(VALUES)}


def _rows_meet(family: str, rotation: str) -> bool:
    """Tell whether a family's rows can rotate so."""
    if family == "glm_dsa":
        # Its pairing and its rotated part are the family's own.
        return rotation not in ("interleaved", "partial", "none", "alibi")
    if family == "mla":
        return rotation not in ("partial", "none", "alibi")
    # Without attention over its rows, ALiBi is no rotation under another name.
    return not (family == "uneven" and rotation == "alibi")


def _orders_meet(
    planes: str,
    keys: str,
    positions: str,
    compaction: str,
    unit: str,
    append: str,
    tables: str,
    span: str,
) -> bool:
    """Tell whether a cache can be ordered so, and its sets evict such a span."""
    if keys != "float32" and planes == "raw_only":
        return False  # No rotated key is kept that could be a code.
    if unit == "row" and (compaction == "none" or tables != "sets"):
        return False  # Rows move on their own only where a slot has rows of several sets.
    if append == "reuse_holes" and compaction != "none":
        return False  # A compaction leaves no holes.
    if span != "per_set":
        return True
    if tables == "shared":
        return False
    # Sets of one table have ranks of their own only if their rows move on their own.
    return positions == "keep" or tables != "sets" or unit == "row"


def _forks_meet(forks: int, evicts: str) -> bool:
    return forks > 0 or evicts == "parent"


class Group(NamedTuple):
    """Axes that constrain one another, and all combinations that are allowed.

    Attributes
    ----------
    axes : tuple of str
    combinations : int64 [combination, axis]
        Numbers of values, as in NUMBERS.
    """

    axes: tuple[str, ...]
    combinations: np.ndarray


@lru_cache(maxsize=1)
def groups() -> tuple[Group, ...]:
    """Return the groups; axes that nothing constrains are groups of their own."""
    rows = _group(("family", "rotation"), _rows_meet)
    order = _group(
        ("planes", "keys", "positions", "compaction", "unit", "append", "tables", "span"),
        _orders_meet,
    )
    found = [_with_kernel(_joined(rows, order)), _group(("forks", "evicts"), _forks_meet)]
    grouped = {axis for group in found for axis in group.axes}
    found += [_group((axis,), lambda value: True) for axis in AXES if axis not in grouped]
    return tuple(found)


def _group(axes: tuple[str, ...], meet: Callable[..., bool]) -> Group:
    every = itertools.product(*(AXES[axis] for axis in axes))
    numbers = [
        [NUMBERS[pair] for pair in zip(axes, values, strict=True)]
        for values in every
        if meet(*values)
    ]
    return Group(axes, np.array(numbers, np.int64))


def _joined(rows: Group, order: Group) -> Group:
    """Join the groups of rows and of orders, which meet in the sets of glm_dsa alone."""
    left, right = len(rows.combinations), len(order.combinations)
    every = np.hstack(
        [np.repeat(rows.combinations, right, axis=0), np.tile(order.combinations, (left, 1))]
    )
    # Its index has fewer sets than its keys, and tables must have equally many.
    is_glm = (every == NUMBERS["family", "glm_dsa"]).any(axis=1)
    in_sets = (every == NUMBERS["tables", "sets"]).any(axis=1)
    return Group(rows.axes + order.axes, every[~(is_glm & in_sets)])


def streams(family: str, keys: str, rotation: str) -> bool:
    """Tell whether rows are such that the streaming kernel moves them, planes on the heap."""
    return family == "wide" and keys == "float32" and rotation not in ("interleaved", "partial")


def _with_kernel(rows: Group) -> Group:
    """Join the kernel: the plain one meets everything, the streaming one what it can move."""
    at = [rows.axes.index(axis) for axis in ("family", "keys", "rotation")]
    wanted = np.array(
        [streams(*(str(VALUES[value][1]) for value in row)) for row in rows.combinations[:, at]]
    )
    parts = [
        np.insert(found, found.shape[1], NUMBERS["kernel", kernel], axis=1)
        for kernel, found in (
            ("streaming", rows.combinations[wanted]),
            ("portable", rows.combinations),
        )
    ]
    return Group((*rows.axes, "kernel"), np.concatenate(parts))


def size() -> int:
    """Return how many cases the matrix has."""
    return math.prod(len(group.combinations) for group in groups())


def case_of(number: int) -> Case:
    """Return the case with this number, 0 <= number < size()."""
    chosen: list[int] = []
    for group in groups():
        number, at = divmod(number, len(group.combinations))
        chosen += group.combinations[at].tolist()
    return of_values(chosen)


def of_values(numbers: Iterable[int]) -> Case:
    """Return the case with these values, one of each axis in any order."""
    return Case(**dict(VALUES[number] for number in numbers))  # type: ignore[arg-type]


def number_of(case: Case) -> int:
    """Return the number of a case.

    Raises
    ------
    ValueError
        If the matrix does not allow it.
    """
    number = 0
    for group in reversed(groups()):
        found = np.arange(len(group.combinations))
        for column, axis in enumerate(group.axes):
            wanted = NUMBERS[axis, getattr(case, axis)]
            found = found[group.combinations[found, column] == wanted]
        if not found.size:
            raise ValueError(f"the matrix does not allow {case.describe()}")
        number = number * len(group.combinations) + int(found[0])
    return number
