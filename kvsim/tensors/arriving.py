"""Rows as they arrive at a cache: checked against its shape before any verb acts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from kvsim.errors import LedgerError
from kvsim.tensors.shape import CacheShape


def check_rows(shape: CacheShape, rows: Sequence[Mapping[str, np.ndarray]]) -> int:
    """Return how many tokens the rows are of.

    Parameters
    ----------
    shape : CacheShape
    rows : one dict per family
        As `PagedCache.append` takes them.

    Raises
    ------
    LedgerError
        If a family or plane is missing or unknown, of another shape or dtype, or, where float32
        numbers are kept as float64, holds a number that is none.
    """
    families = shape.families
    if not isinstance(rows, Sequence) or not all(isinstance(given, Mapping) for given in rows):
        raise LedgerError("rows come as a list with a dict of planes for each family")
    if len(rows) != len(families):
        raise LedgerError(f"rows of {len(families)} families are needed, not {len(rows)}")
    counts = set()
    for family, given in zip(families, rows, strict=True):
        key = sum(row.carried + row.raw for row in family.rows)
        value = sum(row.value for row in family.rows)
        wanted = {name: width for name, width in (("k", key), ("v", value)) if width}
        if set(given) != set(wanted):
            raise LedgerError(
                f"family {family.name!r} has planes {sorted(wanted)}, not {sorted(given)}"
            )
        for name, width in wanted.items():
            array = given[name]
            if (
                not isinstance(array, np.ndarray)
                or array.ndim != 2
                or array.shape[1] != width
                or array.dtype != family.dtype
            ):
                shown = getattr(array, "shape", None), getattr(array, "dtype", type(array))
                raise LedgerError(
                    f"family {family.name!r}, plane {name!r}: {family.dtype} [tokens, {width}]"
                    f" is needed, not {shown[1]} {shown[0]}"
                )
            if family.dtype == "float64" and not _float32_numbers(array):
                raise LedgerError(
                    f"family {family.name!r}, plane {name!r} keeps float32 numbers as float64,"
                    " and some of these are none"
                )
            counts.add(array.shape[0])
    if len(counts) != 1:
        raise LedgerError(f"all planes must have rows of the same tokens, not {sorted(counts)}")
    return counts.pop()


def _float32_numbers(array: np.ndarray) -> bool:
    """Tell whether every float64 is a float32 number widened, or a NaN."""
    with np.errstate(over="ignore", invalid="ignore"):
        widened = array.astype(np.float32).astype(np.float64)
    same = widened.view(np.uint64) == np.ascontiguousarray(array).view(np.uint64)
    return bool((same | np.isnan(array)).all())
