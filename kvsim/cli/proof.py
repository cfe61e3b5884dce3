"""What `kvsim prove` prints: what was compared, the controls, the kernels, the share covered."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.table import Table

from kvsim.cli import render

SHOWN_FAILURES = 10
#: The section that `--seconds` adds.
PRODUCT = "product of the matrix"


def print_proof(report: Mapping[str, Any]) -> None:
    """Print a report of the proof, as `Report.as_dict` gives it."""
    console = render._console()
    table = Table(header_style="bold")
    table.add_column("what")
    for heading in ("cases", "words compared", "words differing"):
        table.add_column(heading, justify="right")
    for section in report["sections"]:
        _row(table, section["name"], section)
    if len(report["sections"]) > 1:
        table.add_section()
        _row(table, "all", report)
    console.print(table)
    if report["controls"]:
        table = Table(header_style="bold")
        for heading in ("control: must be noticed", "noticed", "how"):
            table.add_column(heading)
        for control in report["controls"]:
            noticed = {True: "yes", False: "NO"}.get(control["detected"], control["detected"])
            table.add_row(control["name"], str(noticed), control["detail"])
        console.print(table)
    for line in _lines(report):
        console.print(line, highlight=False, soft_wrap=True)


def _row(table: Table, name: str, counts: Mapping[str, Any]) -> None:
    numbers = (counts[key] for key in ("cases", "words_compared", "words_differing"))
    table.add_row(name, *[f"{number:,}" for number in numbers])


def _lines(report: Mapping[str, Any]) -> list[str]:
    gate, coverage = report["gate"], report["coverage"]
    lines = [f"Kernel for whole cache lines: {report['kernel']}."]
    if coverage["streamed_moves"]:
        lines = [
            f"Kernel for whole cache lines: {report['kernel']}; it moved "
            f"{coverage['streamed_moves']:,} rows in {coverage['streamed_cases']:,} cases and "
            f"turned {coverage['streamed_rotations']:,} of them."
        ]
    if gate["status"] == "skipped":
        lines.append(f"FMA gate skipped: {gate['reason']}.")
    elif gate["status"] == "passed":
        read = ", ".join(gate["kernels"])
        lines.append(f"FMA gate passed: {gate['fused']} FMA instructions in {read}.")
    else:
        lines.append(f"FMA gate FAILED: {gate['reason']}.")
    if coverage["pairs"]:
        lines.append(
            f"Matrix: {coverage['pairs_met']:,} of {coverage['pairs']:,} allowed pairs of values "
            f"covered; {coverage['product_run']:,} of {coverage['product']:,} cases run "
            f"({100 * coverage['product_share']:.2g}%)."
        )
    if any(s["name"] == PRODUCT and not s["cases"] for s in report["sections"]):
        lines.append(
            "The time was over before the product of the matrix began: 0 of its cases ran."
        )
    for failure in report["failures"][:SHOWN_FAILURES]:
        lines.append(f"FAILED {failure['case']}: {failure['what']}")
    if report["failures_total"] > SHOWN_FAILURES:
        lines.append(f"... and {report['failures_total'] - SHOWN_FAILURES} further failures.")
    verdict = "Holds" if report["holds"] else "DOES NOT HOLD"
    lines.append(f"{verdict}, with seed {report['seed']}, in {report['seconds']:.1f} s.")
    return lines
