"""The proof's controls, and controls of the controls."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import pytest
from proof_case import SEED, started

from kvsim.seeds import stream
from kvsim.tensors import moving
from kvsim.tensors.proof import controls, faults
from kvsim.tensors.proof.shapes import rows_of
from kvsim.tensors.proof.tally import Tally
from kvsim.tensors.rope import rotate, tables


@pytest.mark.parametrize("run", [run for run in controls.controls(SEED)])
def test_every_control_is_noticed(run):
    control = run()
    assert control.detected, control
    assert control.detail


@pytest.mark.parametrize("fault", ["none", "between", "cow", "stale"])
def test_a_sibling_is_corrupted_by_the_fault_alone(fault):
    tally = Tally()
    both, _, child = started(tally)
    if fault == "between":
        faults.Between(both.paged)
    if fault == "stale":
        faults.Stale(both.paged, child)
    believing = faults.no_page_looks_shared(both.paged) if fault == "cow" else nullcontext()
    with believing:
        both.paged.evict_span(child, 2, 3)
    both.twins[child][0].evict_span(2, 3)
    parent = min(both.twins)
    tally.planes("sibling", both.paged.rows(parent), both.twins[parent][0].rows())
    assert tally.holds == (fault in ("none", "between"))


def test_one_rotation_is_not_two():
    """The control of the composition: with the real store the same comparison holds."""
    tally = Tally()
    both, _, child = started(tally)
    both.evict_span(child, 2, 3)
    both.verify("evicted")
    assert tally.holds


def test_rows_gathered_in_order_give_the_same_logits():
    tally = Tally()
    both, parent, _ = started(tally)
    view = both.paged.view(parent)
    same = controls._Reordered(view, np.arange(14))
    decoder = both.rows.decoder
    tally.words("logits", decoder.next_logits(same, 3), decoder.next_logits(view, 3))
    assert tally.holds


def test_fastmath_differs_from_two_products_and_a_sum():
    """Unless this processor has no FMA, and then the control says that it cannot tell."""
    control = controls.fastmath(stream(SEED, "test"))
    assert control.detected in (True, "undetectable")
    if control.detected == "undetectable":
        assert "FMA" in control.detail or "NUMBA_DISABLE_JIT" in control.detail
    # The same kernel without fastmath has the bits of the reference.
    raw = stream(SEED, "test").standard_normal((4, 128), dtype=np.float32)
    shape = rows_of("wide", "plain", "kv_raw").shape
    cos, sin = tables(shape.ropes[0], 4)
    wide = raw.reshape(4, 2, 64)
    plain = rotate(wide, cos[:, None], sin[:, None], "half_split").reshape(4, 128)
    out = np.empty_like(raw)
    lane = controls.assembly.lane_of(64)
    for row in range(4):
        moving.rotate_part(out, raw, row, row, lane, cos.ravel(), sin.ravel(), row * 32)
    assert np.array_equal(out[:, :64].view(np.uint32), plain[:, :64].copy().view(np.uint32))
