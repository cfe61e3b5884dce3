"""The proof: fak's cases, the quarantine invariant, a pairwise cover of the matrix, streamed
rotations, the controls.

It runs on the user's own machine, kernels and BLAS, and says what was compared there. Given time,
it goes on through the whole product of the matrix in an order drawn from the seed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kvsim.errors import LedgerError
from kvsim.seeds import stream
from kvsim.tensors import streaming
from kvsim.tensors.proof import controls, fak, matrix, pairwise, quarantine, streamed
from kvsim.tensors.proof.assembly import Gate, Reading
from kvsim.tensors.proof.controls import UNDETECTABLE, Control
from kvsim.tensors.proof.script import run_case
from kvsim.tensors.proof.tally import Tally

#: Failures that a report lists in full; all are counted.
SHOWN_FAILURES = 100
GATE_CONTROL = "the FMA gate on a fastmath kernel"

NOT_READ = Gate("skipped", reason="nothing was read")

Case = Callable[[], Tally]
Progress = Callable[[int, int], None]


@dataclass
class Report:
    """What a proof did and found.

    Attributes
    ----------
    seed : int
    sections : dict of str to Tally
        By what was run, in order.
    controls : list of Control
    gate : Gate
        What the kernels' machine code says.
    kernel : {"streaming", "portable"}
        What moves rows of whole cache lines in this process.
    pairs, pairs_met : int
        Pairs of axis values that the matrix allows, and those that met in a case; with a streaming
        kernel only where that kernel really moved something.
    product, product_run : int
        Cases of the whole matrix, and how many of them ran.
    seconds : float
    """

    seed: int
    sections: dict[str, Tally] = field(default_factory=dict)
    controls: list[Control] = field(default_factory=list)
    gate: Gate = NOT_READ
    kernel: str = "portable"
    pairs: int = 0
    pairs_met: int = 0
    product: int = 0
    product_run: int = 0
    seconds: float = 0.0

    @property
    def total(self) -> Tally:
        """All sections together."""
        every = Tally()
        for tally in self.sections.values():
            every.add(tally)
        return every

    @property
    def holds(self) -> bool:
        """Whether nothing differs, every control was noticed and no kernel has an FMA."""
        noticed = all(control.detected for control in self.controls)
        return self.total.holds and noticed and self.gate.status != "failed"

    def as_dict(self) -> dict[str, Any]:
        """Return the report for a program to read.

        All but `seconds` follows from the seed, unless the proof was given time: how far the
        product comes in it is the machine's doing.
        """
        total = self.total
        return {
            "cases": total.cases,
            "words_compared": total.words_compared,
            "words_differing": total.words_differing,
            "controls": [control._asdict() for control in self.controls],
            "seconds": self.seconds,
            "holds": self.holds,
            "seed": self.seed,
            "kernel": self.kernel,
            "sections": [
                {
                    "name": name,
                    "cases": tally.cases,
                    "words_compared": tally.words_compared,
                    "words_differing": tally.words_differing,
                    "failures": len(tally.failures),
                }
                for name, tally in self.sections.items()
            ],
            "failures_total": len(total.failures),
            "failures": [
                {"case": case, "what": what} for case, what in total.failures[:SHOWN_FAILURES]
            ],
            "coverage": {
                "pairs": self.pairs,
                "pairs_met": self.pairs_met,
                "streamed_cases": total.streamed_cases,
                "streamed_moves": total.streamed_moves,
                "streamed_rotations": total.streamed_rotations,
                "product": self.product,
                "product_run": self.product_run,
                "product_share": self.product_run / self.product if self.product else 0.0,
            },
            "gate": self.gate._asdict(),
        }


def prove(seed: int = 7, seconds: float | None = None, progress: Progress | None = None) -> Report:
    """Run the proof.

    Parameters
    ----------
    seed : int
        Draws rows, victims and the order of the product.
    seconds : float, optional
        Go on through the product until so long after the start; by default only the fixed part.
    progress : function of (done, total), optional
        Called after each case; total counts cases, then seconds while the product runs.
    """
    begun = time.perf_counter()
    report = Report(seed, kernel="streaming" if streaming.STREAMS else "portable")
    cover = pairwise.cover()
    allowed = pairwise.allowed_pairs()
    report.product = matrix.size()
    report.pairs = int(allowed.sum()) // 2
    whole_lines = streamed.streamed_cases()
    idle: set[matrix.Case] = set()
    plan: list[tuple[str, list[tuple[str, Case]]]] = [
        ("fak's cases", list(fak.cases(seed))),
        ("quarantine invariant", list(quarantine.cases(seed))),
        ("pairwise cover of the matrix", _cells(run_case, cover, seed, idle)),
        (streamed.NAME, _cells(streamed.run_streamed, whole_lines, seed, idle)),
    ]
    broken = list(controls.controls(seed))
    whole = sum(len(cases) for _, cases in plan) + len(broken) + 1
    done = 0

    def step() -> None:
        nonlocal done
        done += 1
        if progress is not None:
            progress(done, whole)

    # The gate compiles in a process of its own meanwhile.
    reading = Reading()
    try:
        for name, cases in plan:
            report.sections[name] = _run(cases, step)
        for control in broken:
            report.controls.append(control())
            step()
        report.gate = reading.gate()
        report.controls.append(_gate_control(report.gate))
        step()
    finally:
        reading.stop()
    ran = {*cover, *whole_lines}
    report.pairs_met = int((allowed & pairwise.pairs_met(ran, idle)).sum()) // 2
    report.product_run = len(ran)
    if seconds is not None:
        known = {matrix.number_of(case) for case in ran}
        rest = _until(begun + seconds, _shuffled(seed, known, report), begun, progress)
        report.sections["product of the matrix"] = _run(rest, lambda: None)
    report.seconds = round(time.perf_counter() - begun, 3)
    return report


def prove_case(number: int, seed: int = 7) -> Report:
    """Run one case of the matrix again, by the number that a failure names.

    Raises
    ------
    LedgerError
        If the matrix has no such case.
    """
    if not 0 <= number < matrix.size():
        raise LedgerError(f"the matrix has cases 0 to {matrix.size() - 1}, not {number}")
    begun = time.perf_counter()
    report = Report(seed, kernel="streaming" if streaming.STREAMS else "portable")
    report.product, report.product_run = matrix.size(), 1
    report.gate = Gate("skipped", reason="one case alone was asked for")
    report.sections[f"case {number}"] = run_case(matrix.case_of(number), seed)
    report.seconds = round(time.perf_counter() - begun, 3)
    return report


def _cell(case: matrix.Case, seed: int) -> Case:
    return lambda: run_case(case, seed)


def _cells(
    run: Callable[[matrix.Case, int], Tally],
    cases: Iterable[matrix.Case],
    seed: int,
    idle: set[matrix.Case],
) -> list[tuple[str, Case]]:
    """Return what runs these cases, and notes those in which the streaming kernel was idle."""

    def noting(case: matrix.Case) -> Case:
        def noted() -> Tally:
            tally = run(case, seed)
            if case.kernel == "streaming" and not tally.streamed_moves:
                idle.add(case)
            return tally

        return noted

    return [(case.describe(), noting(case)) for case in cases]


def _run(cases: Iterable[tuple[str, Case]], step: Callable[[], None]) -> Tally:
    """Run cases one by one; one that crashes has failed, and the others still run."""
    total = Tally()
    for name, case in cases:
        try:
            total.add(case())
        except MemoryError:
            raise
        except Exception as crash:
            total.add(Tally(cases=1, failures=[(name, f"{type(crash).__name__}: {crash}")]))
        step()
    return total


def _shuffled(seed: int, known: set[int], report: Report) -> Iterator[tuple[str, Case]]:
    """Yield cases of the product in an order drawn from the seed, none of them twice."""
    rng = stream(seed, "test", 4)
    while len(known) < report.product:
        number = int(rng.integers(report.product, dtype=np.int64))
        if number not in known:
            known.add(number)
            report.product_run += 1
            case = matrix.case_of(number)
            yield case.describe(), _cell(case, seed)


def _until(
    end: float, cases: Iterator[tuple[str, Case]], begun: float, progress: Progress | None
) -> Iterator[tuple[str, Case]]:
    """Yield cases until the time is up."""
    while time.perf_counter() < end:
        try:
            yield next(cases)
        except StopIteration:
            return
        if progress is not None:
            progress(int(time.perf_counter() - begun), int(end - begun))


def _gate_control(gate: Gate) -> Control:
    """Return whether the gate sees an FMA where there must be one."""
    if gate.status == "skipped":
        return Control(GATE_CONTROL, UNDETECTABLE, gate.reason)
    if not gate.control and not gate.fuses:
        return Control(GATE_CONTROL, UNDETECTABLE, "this processor has no FMA")
    return Control(GATE_CONTROL, gate.control > 0, f"{gate.control} FMA instructions")
