"""The FMA gate: compile the kernels that move rows, afresh, and read their machine code.

A fused multiply-add rounds once where the reference rounds twice. The gate runs in a process of
its own with an empty cache folder, because a kernel that comes from numba's cache has no text.
"""

from __future__ import annotations

import importlib
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from kvsim.paging import fields as f
from kvsim.tensors import lanes as n
from kvsim.tensors import moving, streaming

#: x86: vfmadd231ps, vfnmsub213ss, vfmaddsub; AArch64: fmadd, fnmsub, fmla, fmls, fmad, fnmsb;
#: POWER: xsmaddasp, xvnmsubmsp, fmadds; RISC-V: fmadd.s, vfmacc, vfnmsac.
FUSED = re.compile(
    r"^\s*(v?fn?m(add|sub)|fn?ml[as]|fn?m(ad|sb)\b|vfn?ms?acc?\b|vfn?msac|xs?v?s?n?m(add|sub)[am])"
)
#: A product of float32: mulss, vmulps; fmul; xsmulsp; vfmul.
PRODUCT = re.compile(r"^\s*(v?mul[sp]s|v?fmul|x[sv]mul)")
TIMEOUT_SECONDS = 300


class Gate(NamedTuple):
    """What the gate found.

    Attributes
    ----------
    status : {"passed", "failed", "skipped"}
    kernels : tuple of str
        What was read: name and type of the rows.
    fused : int
        FMA instructions in them.
    control : int
        FMA instructions in a rotation that was compiled with fastmath.
    fuses : bool
        Whether this processor has FMA at all.
    reason : str
        Why it did not pass.
    """

    status: str
    kernels: tuple[str, ...] = ()
    fused: int = 0
    control: int = 0
    fuses: bool = False
    reason: str = ""


def compiled() -> bool:
    """Tell whether kernels are compiled in this process."""
    return hasattr(moving.move_plainly, "inspect_asm")


def _host_features() -> dict[str, bool]:
    binding: Any = importlib.import_module("llvmlite.binding")
    return dict(binding.get_host_cpu_features())


def processor_fuses() -> bool:
    """Tell whether this processor has FMA instructions for float32."""
    if platform.machine() in streaming.X86:
        features = _host_features()
        return bool(features.get("fma") or features.get("fma4"))
    # Every AArch64, POWER and RISC-V core with floating point that numba supports has them.
    return True


def fastmath_twin() -> Any:
    """Return the product's own rotation compiled with fastmath, or None with JIT off.

    It is compiled from the same Python function and kept in no cache: two builds of one function
    with other flags would share an entry.
    """
    if not compiled():
        return None
    numba: Any = importlib.import_module("numba")
    return numba.njit(fastmath=True, error_model="numpy")(moving.rotate_part.py_func)


def lane_of(dim: int) -> np.ndarray:
    """Return the lane of one head that turns as a whole, int64 [LANE_FIELDS]."""
    lane = np.zeros(n.LANE_FIELDS, np.int64)
    lane[[n.RAW, n.KEY, n.ROPE_DIM, n.VALUE]] = dim
    return lane


def exercise(dtype: type[np.floating[Any]] = np.float32) -> list[tuple[str, Any]]:
    """Run every kernel that moves rows once, so that it is compiled; return them by name."""
    dim, moves = 2 * streaming.LANES, 1
    rows = [_aligned(2, dim, dtype) for _ in range(3)]
    plan = np.zeros((f.PLAN_FIELDS, moves), np.int64)
    plan[f.SOURCE], plan[f.TARGET], plan[f.POSITION], plan[f.SET_OF] = 1, 0, 1, -1
    lanes, starts = lane_of(dim)[None], np.array([0, 1], np.int64)
    turns = (
        np.ones(dim, np.float32),
        np.ones(dim, np.float32),
        np.zeros(1, np.int64),
        np.full(1, dim // 2, np.int64),
    )
    arguments = (*rows, plan, moves, lanes, starts, 1, *turns)
    moving.move_plainly(*arguments)
    found = [("move_plainly", moving.move_plainly)]
    if dtype is np.float32 and streaming.STREAMS:
        moving.move_streaming(*arguments)
        found.append(("move_streaming", moving.move_streaming))
    return found


def _aligned(slots: int, elements: int, dtype: type[np.floating[Any]]) -> np.ndarray:
    size = slots * elements * np.dtype(dtype).itemsize
    room = np.zeros(size + streaming.LINE_BYTES, np.uint8)
    first = -room.ctypes.data % streaming.LINE_BYTES
    return room[first : first + size].view(dtype).reshape(slots, elements)


def read() -> dict[str, Any]:
    """Compile, and return what the machine code of each kernel says.

    For a process that has compiled nothing yet, with an empty cache folder.
    """
    kernels = {}
    for dtype in (np.float64, np.float32):
        for name, dispatcher in exercise(dtype):
            signature = dispatcher.signatures[-1]
            text = dispatcher.inspect_asm(signature)
            kernels[f"{name} {np.dtype(dtype).name}"] = {
                "fused": len(_lines(text, FUSED)),
                "products": len(_lines(text, PRODUCT)),
                "symbol": name in text,
                "from_cache": bool(dispatcher.stats.cache_hits),
            }
    twin = fastmath_twin()
    raw = np.ones((1, 32), np.float32)
    turns = np.ones(16, np.float32)
    twin(raw.copy(), raw, 0, 0, lane_of(32), turns, turns, 0)
    control = len(_lines(twin.inspect_asm(twin.signatures[-1]), FUSED))
    return {"kernels": kernels, "control": control, "fuses": processor_fuses()}


def _lines(text: str, pattern: re.Pattern[str]) -> list[str]:
    return [line for line in text.splitlines() if pattern.match(line)]


class Reading:
    """The gate's process, which compiles while the proof goes on.

    Parameters
    ----------
    cache : Path, optional
        The folder of compiled kernels; by default an empty one, as it has to be.
    """

    def __init__(self, cache: Path | None = None) -> None:
        self._process: subprocess.Popen[str] | None = None
        if not compiled():
            return
        self._folder = None if cache else tempfile.TemporaryDirectory(prefix="kvsim-gate-")
        where = str(cache or Path(self._folder.name if self._folder else ""))
        self._process = subprocess.Popen(
            [sys.executable, "-m", "kvsim.tensors.proof.gate_process"],
            env=os.environ | {"NUMBA_CACHE_DIR": where},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def gate(self) -> Gate:
        """Wait for the process and judge what it read."""
        if self._process is None:
            return Gate("skipped", reason="kernels are not compiled: NUMBA_DISABLE_JIT")
        try:
            out, err = self._process.communicate(timeout=TIMEOUT_SECONDS)
        finally:
            self.stop()
        if self._process.returncode:
            last = err.strip().splitlines()[-1:] or [f"exit code {self._process.returncode}"]
            return Gate("failed", reason=f"the kernels could not be read: {last[0]}")
        return judge(json.loads(out))

    def stop(self) -> None:
        """End the process, if it has not ended, and remove its folder."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.communicate()
        if self._process is not None and self._folder is not None:
            self._folder.cleanup()


def judge(found: dict[str, Any]) -> Gate:
    """Return the gate's answer for what was read.

    It fails for an FMA, and also where nothing was seen: a kernel that came from the cache, whose
    symbol is missing, or that has no product.
    """
    kernels: dict[str, Any] = found["kernels"]
    reasons = []
    for name, read_ in kernels.items():
        if read_["fused"]:
            reasons.append(f"{name} has {read_['fused']} FMA instructions")
        if read_["from_cache"]:
            reasons.append(f"{name} came from the cache, which keeps no text")
        elif not read_["symbol"] or not read_["products"]:
            reasons.append(f"the text of {name} is not there")
    return Gate(
        "failed" if reasons or not kernels else "passed",
        tuple(sorted(kernels)),
        sum(read_["fused"] for read_ in kernels.values()),
        found["control"],
        found["fuses"],
        "; ".join(reasons),
    )
