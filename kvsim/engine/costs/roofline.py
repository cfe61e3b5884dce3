"""The roofline: bytes over bandwidth or operations over rate, whichever takes longer.

docs/costs.md has the formulas and what they leave out. Knows no scheduler: it is handed counts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from kvsim.jit import kernel

# Places of the coefficients that the kernel reads, all float64.
WEIGHTS_BYTES = 0
ROW_BYTES = 1
BYTES_PER_NS = 2
TOKEN_FLOPS = 3
PAIR_FLOPS = 4
FLOPS_PER_NS = 5
HOST_BYTES_PER_NS = 6
OVERHEAD_NS = 7
COEFFICIENTS = 8


@kernel
def step_ns(
    coefficients,
    decode_tokens,
    decode_reads,
    prefill_tokens,
    prefill_reads,
    prefill_pairs,
    moved_bytes,
    host_bytes,
):
    """Return how long a step takes, in whole nanoseconds and at least 1.

    Parameters
    ----------
    coefficients : float64 [COEFFICIENTS]
    decode_tokens, prefill_tokens : int
        Tokens that decoding and prefilling members compute; each writes a row.
    decode_reads, prefill_reads : int
        Slots that their attention reads, those written in this step included.
    prefill_pairs : int
        (query, key) pairs of the prefilled chunks.
    moved_bytes : int
        Read and written by copies on write, compaction and re-rotation.
    host_bytes : int
        Over the link to host memory.
    """
    tokens = float(decode_tokens + prefill_tokens)
    rows = float(decode_reads + prefill_reads + decode_tokens + prefill_tokens)
    moved = coefficients[WEIGHTS_BYTES] + coefficients[ROW_BYTES] * rows + float(moved_bytes)
    memory = moved / coefficients[BYTES_PER_NS]
    pairs = float(decode_reads + prefill_pairs)
    operations = coefficients[TOKEN_FLOPS] * tokens + coefficients[PAIR_FLOPS] * pairs
    compute = operations / coefficients[FLOPS_PER_NS]
    host = float(host_bytes) / coefficients[HOST_BYTES_PER_NS]
    return np.int64(max(1.0, math.ceil(max(memory, compute) + host + coefficients[OVERHEAD_NS])))


@dataclass(frozen=True)
class CostModel:
    """A model on a device.

    Attributes
    ----------
    weights_bytes : int
        Read once a step.
    parameters : int
        Parameters that take part in a token's forward pass: the active ones of a mixture.
    row_bytes : int
        KV bytes of one token over all layers.
    pair_flops : int
        Operations of attention for one (query, key) pair over all layers: 2 for each element of a
        query head's dot product, and 2 for each of its weighted sum.
    bandwidth_bytes_per_s, flops_per_s, host_bytes_per_s : float
        The device's, as published.
    memory_efficiency, compute_efficiency : float
        Shares of them that are reached; 1 unless something was fitted.
    step_overhead_ns : int
        Added to each step.
    """

    weights_bytes: int
    parameters: int
    row_bytes: int
    pair_flops: int
    bandwidth_bytes_per_s: float
    flops_per_s: float
    host_bytes_per_s: float
    memory_efficiency: float = 1.0
    compute_efficiency: float = 1.0
    step_overhead_ns: int = 0

    def coefficients(self) -> np.ndarray:
        """Return what the kernel reads, float64 [COEFFICIENTS]."""
        found = np.zeros(COEFFICIENTS)
        found[WEIGHTS_BYTES] = self.weights_bytes
        found[ROW_BYTES] = self.row_bytes
        found[BYTES_PER_NS] = self.bandwidth_bytes_per_s * self.memory_efficiency / 1e9
        found[TOKEN_FLOPS] = 2 * self.parameters
        found[PAIR_FLOPS] = self.pair_flops
        found[FLOPS_PER_NS] = self.flops_per_s * self.compute_efficiency / 1e9
        found[HOST_BYTES_PER_NS] = self.host_bytes_per_s / 1e9
        found[OVERHEAD_NS] = self.step_overhead_ns
        return found
