"""The proof that the paged cache equals the contiguous one bit for bit, and that it can fail."""

from kvsim.tensors.proof.controls import UNDETECTABLE, Control
from kvsim.tensors.proof.proving import Report, prove, prove_case
from kvsim.tensors.proof.tally import Tally

__all__ = ["UNDETECTABLE", "Control", "Report", "Tally", "prove", "prove_case"]
