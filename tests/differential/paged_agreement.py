"""What must be equal after every verb on a paged cache: rows, positions, counts of bytes."""

from __future__ import annotations

import numpy as np

from differential.paged_rows import bits
from kvsim.errors import LedgerError
from kvsim.tensors.proof.codes import stored_keys
from kvsim.tensors.quantized import decode
from kvsim.tensors.quantized_store import SCALES
from kvsim.tensors.shape import key_parts


def agree(step):
    """Assert that every sequence of a PagedLockstep holds what it must, and the recount agrees."""
    step.cache.check()
    assert step.ledger.sequences() == sorted(step.truths)
    assert step.ledger.held_bytes == step.receipts.held_bytes()
    for sequence, truth in step.truths.items():
        assert step.cache.next_position(sequence) == truth.length()
        assert step.cache.length(sequence) == truth.positions(0).size
        for family in range(len(step.shape.families)):
            agree_family(step, sequence, truth, family)


def agree_family(step, sequence, truth, family):
    """Assert that a family's planes hold the rows that they must, bit by bit."""
    geometry = step.ledger.geometry
    numbers = [n for n, (where, _) in enumerate(step.shape.units) if where == family]
    sets = dict.fromkeys(geometry.unit_set[number] for number in numbers)
    wanted = {which: truth.family_rows(family, which) for which in sets}
    first, *others = [rows["positions"] for rows in wanted.values()]
    alike = all(np.array_equal(first, other) for other in others)
    try:
        found = step.cache.rows(sequence, family)
    except LedgerError:
        assert not alike, "rows of one list of positions could not be read together"
    else:
        assert alike, "rows of different positions were read together"
        columns = key_columns(step.shape, family)
        whole = {"positions": first}
        for plane, offsets in columns.items():
            parts = [
                wanted[geometry.unit_set[number]][plane][:, offsets[row] : offsets[row + 1]]
                for row, number in enumerate(numbers)
            ]
            if plane == "K" and step.cache.keys != "float32":
                specs = step.shape.families[family].rows
                parts = [read_keys(step.cache.keys, *one) for one in zip(specs, parts, strict=True)]
            whole[plane] = np.hstack(parts)
        same(found, whole)
    # One unit after the other by itself; all of them where they cannot be read together.
    for row in range(len(numbers)) if not alike else (first.size % len(numbers),):
        stored = step.cache.unit_rows(sequence, numbers[row])
        rows = wanted[geometry.unit_set[numbers[row]]]
        mine = {"positions": rows["positions"]}
        for plane, offsets in step.shape.offsets[family].items():
            if offsets[row] < offsets[row + 1]:
                span = slice(offsets[row], offsets[row + 1])
                mine[plane] = np.ascontiguousarray(rows[plane][:, span])
        if "K" in mine:
            spec = step.shape.families[family].rows[row]
            mine |= stored_keys(step.cache.keys, spec, mine["K"])
        same(stored, mine)


def read_keys(keys, row, floats):
    """Return float32 keys [n, elements] of one row as they are read through their codes."""
    stored, found, first = stored_keys(keys, row, floats), np.empty_like(floats), 0
    for number, width in enumerate(key_parts(row)):
        part = slice(first, first + width)
        scale = stored[SCALES][:, number] if SCALES in stored else None
        found[:, part] = decode(keys, stored["K"][:, part], scale)
        first += width
    return found


def key_columns(shape, family):
    """Return where each row begins in each plane of a family, as it is read: K is always there."""
    columns = dict(shape.offsets[family])
    widths = [row.carried + row.raw for row in shape.families[family].rows]
    if sum(widths):
        columns["K"] = np.cumsum([0, *widths])
    return columns


def same(found, wanted):
    """Assert that rows have the same planes, types and bits, in C order but for scales."""
    assert found.keys() == wanted.keys()
    for plane, array in found.items():
        assert array.dtype == wanted[plane].dtype
        assert array.flags.c_contiguous
        assert np.array_equal(bits(array), bits(wanted[plane])), plane
