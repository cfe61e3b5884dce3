"""A case of the proof's matrix for tests of the proof, and a small lockstep with a fork."""

from __future__ import annotations

from kvsim.seeds import stream
from kvsim.tensors.proof import matrix
from kvsim.tensors.proof.lockstep import Lockstep
from kvsim.tensors.proof.shapes import rows_of

SEED = 7
#: A case of the matrix that forks, copies on write, renumbers, compacts and runs into ceilings.
ONE = matrix.Case(
    family="dense",
    rotation="per_layer_theta",
    planes="kv_raw",
    keys="float32",
    positions="renumber",
    compaction="forward",
    unit="slot",
    append="tail",
    tables="shared",
    span="unaligned",
    forks=2,
    evicts="both",
    page_tokens=4,
    rounds=3,
    ceiling="tight",
    aside="swap",
    layout="page_major",
    kernel="portable",
    pages="churned",
    reuse="yes",
    values="normal",
)


def started(tally, family="dense"):
    rows = rows_of(family, "per_layer_theta", "kv_raw")
    both = Lockstep(rows, 4, tally, stream(SEED, "test"), compaction="forward")
    parent = both.open()
    both.append(parent, 14)
    return both, parent, both.fork(parent)
