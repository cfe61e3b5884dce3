"""The FMA gate: no kernel that moves rows has a fused multiply-add, and the gate could see one."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from kvsim.tensors import streaming
from kvsim.tensors.proof import assembly
from kvsim.tensors.proof.assembly import FUSED, PRODUCT, Reading, judge

needs_jit = pytest.mark.skipif(not assembly.compiled(), reason="kernels are not compiled")
GOOD = {"fused": 0, "products": 4, "symbol": True, "from_cache": False}


@needs_jit
def test_no_kernel_that_moves_rows_has_an_fma():
    gate = Reading().gate()
    assert (gate.status, gate.fused, gate.reason) == ("passed", 0, "")
    expected = {"move_plainly float32", "move_plainly float64"}
    if streaming.STREAMS:
        expected.add("move_streaming float32")
    assert set(gate.kernels) == expected
    # The control: the same rotation with fastmath has FMA where the processor has it.
    assert gate.fuses == assembly.processor_fuses()
    assert gate.control > 0 or not gate.fuses


@needs_jit
def test_a_kernel_from_the_cache_is_not_taken_for_one_that_was_read(tmp_path):
    """A gate that reads the empty text of a cached kernel and finds no FMA in it."""
    assert Reading(tmp_path).gate().status == "passed"
    gate = Reading(tmp_path).gate()
    assert gate.status == "failed"
    assert "move_plainly float32 came from the cache" in gate.reason


def test_the_gate_judges_what_was_read():
    found = {"kernels": {"one": GOOD, "two": GOOD}, "control": 3, "fuses": True}
    assert judge(found) == ("passed", ("one", "two"), 0, 3, True, "")
    for wrong, reason in (
        ({"fused": 2}, "one has 2 FMA instructions"),
        ({"symbol": False}, "the text of one is not there"),
        ({"products": 0}, "the text of one is not there"),
        ({"from_cache": True}, "one came from the cache, which keeps no text"),
    ):
        gate = judge(found | {"kernels": {"one": GOOD | wrong, "two": GOOD}})
        assert (gate.status, gate.reason) == ("failed", reason)
    assert judge(found | {"kernels": {}}).status == "failed"


@pytest.mark.parametrize(
    "line",
    [
        "\tvfmadd231ps\t(%rax,%rcx,4), %ymm1, %ymm0",
        "\tvfnmadd213ss\t%xmm2, %xmm1, %xmm0",
        "\tvfmsub132ps\t%zmm2, %zmm1, %zmm0",
        "\tvfmaddsub231ps\t%ymm2, %ymm1, %ymm0",
        "\tvfmaddss\t%xmm3, %xmm2, %xmm1, %xmm0",
        "\tfmadd\ts0, s1, s2, s3",
        "\tfnmsub\ts0, s1, s2, s3",
        "\tfmla\tv0.4s, v1.4s, v2.4s",
        "\tfmls\tv0.4s, v1.4s, v2.s[0]",
        "\tfmad\tz0.s, p0/m, z1.s, z2.s",
        "\tfnmsb\tz0.s, p0/m, z1.s, z2.s",
        "\tfmadd.s\tfa0, fa1, fa2, fa3",
        "\tvfmacc.vv\tv8, v9, v10",
        "\txsmaddasp\t1, 2, 3",
        "\txvnmsubmsp\t1, 2, 3",
        "\tfmadds\t1, 2, 3, 4",
    ],
)
def test_an_fma_of_any_processor_is_seen(line):
    assert FUSED.match(line)
    assert not PRODUCT.match(line)


@pytest.mark.parametrize(
    "line",
    [
        "\tvmulps\t%ymm2, %ymm1, %ymm0",
        "\tmulss\t%xmm1, %xmm0",
        "\tfmul\tv0.4s, v1.4s, v2.4s",
        "\tfmul\ts0, s1, s2",
        "\tfmul.s\tfa0, fa1, fa2",
        "\tvfmul.vv\tv8, v9, v10",
        "\txvmulsp\t1, 2, 3",
    ],
)
def test_a_product_is_no_fma(line):
    assert PRODUCT.match(line)
    assert not FUSED.match(line)


@pytest.mark.parametrize(
    "line",
    [
        "\tvaddps\t%ymm2, %ymm1, %ymm0",
        "\timulq\t%rax, %rcx",
        "\tmulq\t%rcx",
        "\tvmovntps\t%ymm0, (%rax)",
        "\tmadd\tx0, x1, x2, x3",
        "\tmla\tv0.4s, v1.4s, v2.4s",
        "\tvpmaddwd\t%ymm2, %ymm1, %ymm0",
        "# vfmadd231ps in a comment",
        "_vfmadd231ps:",
    ],
)
def test_other_instructions_are_neither(line):
    assert not FUSED.match(line)
    assert not PRODUCT.match(line)


def test_without_compilation_the_gate_is_skipped_and_says_so():
    code = (
        "from kvsim.tensors.proof.assembly import Reading, fastmath_twin\n"
        "print(Reading().gate(), fastmath_twin())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"NUMBA_DISABLE_JIT": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "status='skipped'" in done.stdout
    assert "NUMBA_DISABLE_JIT" in done.stdout
    assert done.stdout.strip().endswith("None")


@needs_jit
def test_a_process_that_dies_fails_the_gate(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    gate = Reading().gate()
    assert (gate.status, gate.kernels) == ("failed", ())
    assert "exit code 1" in gate.reason


@needs_jit
def test_a_gate_that_is_given_up_leaves_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    reading = Reading()
    reading.stop()
    assert list(tmp_path.iterdir()) == []
    reading.stop()


def test_every_kernel_that_moves_rows_is_exercised():
    """A kernel that is read without ever having moved a row would be compiled for nothing."""
    for dtype in (np.float32, np.float64):
        names = [name for name, _ in assembly.exercise(dtype)]
        assert names[0] == "move_plainly"
        assert ("move_streaming" in names) == (dtype is np.float32 and streaming.STREAMS)
