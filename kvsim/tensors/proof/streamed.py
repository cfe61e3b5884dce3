"""Cases of the matrix whose rows are whole cache lines, turned by the streaming kernel.

A pairwise cover meets each value beside that kernel once; what the kernel has to get right needs
more to meet: sets that move on their own, tables of several layers, NaN that a rotation makes, and
evictions that copy shared pages. Where the machine does not stream, the plain kernel runs them.
"""

from __future__ import annotations

from kvsim.tensors import streaming
from kvsim.tensors.proof.matrix import Case
from kvsim.tensors.proof.script import run_case
from kvsim.tensors.proof.tally import Tally

#: What differs between the cases, by axis; `theta` is a theta of each layer's own.
COLUMNS = (
    *("rotation", "compaction", "unit", "tables", "span", "forks", "evicts", "page_tokens"),
    *("rounds", "ceiling", "aside", "layout", "pages", "reuse", "values"),
)
ROWS = """
plain none      slot shared unaligned 1 child  4  1 tight nothing page_major  straight no  odd
theta none      slot layer  per_set   2 both   16 1 none  swap    layer_major churned  yes normal
theta none      slot head   per_set   3 both   4  3 none  clone   page_major  straight no  odd
plain none      slot sets   scattered 4 child  1  1 tight reserve layer_major straight yes normal
theta rebuild   slot shared start     2 parent 16 1 tight clone   layer_major straight no  odd
theta rebuild   row  sets   per_set   1 child  4  3 none  swap    page_major  churned  no  normal
plain rebuild   row  sets   scattered 3 both   1  1 tight nothing layer_major straight yes odd
theta rebuild   slot layer  scattered 4 both   4  1 none  clone   page_major  straight no  normal
theta forward   slot shared one       1 both   1  3 tight swap    page_major  churned  no  normal
theta forward   row  sets   per_set   2 both   16 1 tight clone   layer_major straight no  odd
plain forward   slot head   per_set   3 child  4  1 none  nothing layer_major straight yes odd
theta forward   row  sets   unaligned 4 parent 4  3 none  swap    page_major  straight no  normal
theta hole_fill slot shared scattered 4 child  4  1 tight swap    layer_major churned  no  odd
theta hole_fill row  sets   per_set   3 both   16 1 none  clone   page_major  straight yes odd
plain hole_fill slot layer  per_set   2 parent 1  3 tight nothing layer_major straight no  normal
theta hole_fill row  sets   scattered 1 both   4  3 tight swap    layer_major straight no  normal
"""
NAME = "whole cache lines, " + ("streamed" if streaming.STREAMS else "moved plainly")


def streamed_cases() -> list[Case]:
    """Return the cases; always the same ones."""
    found = []
    for row in ROWS.strip().splitlines():
        words: list[str | int] = [int(w) if w.isdigit() else w for w in row.split()]
        if words[0] == "theta":
            words[0] = "per_layer_theta"
        found.append(
            Case(
                family="wide",
                planes="kv_raw",
                keys="float32",
                positions="renumber",
                append="tail",
                kernel="streaming",
                **dict(zip(COLUMNS, words, strict=True)),  # type: ignore[arg-type]
            )
        )
    return found


def run_streamed(case: Case, seed: int) -> Tally:
    """Run a case; it has failed, too, if the machine streams and no rotation was streamed."""
    tally = run_case(case, seed)
    tally.fact(
        bool(tally.streamed_rotations) or not streaming.STREAMS,
        "no rotation was done by the streaming kernel",
    )
    return tally
