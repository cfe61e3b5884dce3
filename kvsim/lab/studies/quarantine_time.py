"""What a removal costs under the roofline: steps of prefill, and rows that are moved."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import NamedTuple

from kvsim.engine.costs.roofline import CostModel, step_ns


class Prefill(NamedTuple):
    """What a prefill takes.

    Attributes
    ----------
    tokens, steps : int
    read_bytes : int
        Weights and rows read, and rows written.
    flops : int
    time_ns : int
    """

    tokens: int = 0
    steps: int = 0
    read_bytes: int = 0
    flops: int = 0
    time_ns: int = 0


def prefill(
    model: CostModel, stretches: Iterable[tuple[int, int]], most_step_tokens: int
) -> Prefill:
    """Return what it takes to compute stretches of tokens, packed into steps in their order.

    Parameters
    ----------
    model : CostModel
    stretches : iterable of (int, int)
        Tokens before each, and its own.
    most_step_tokens : int
        Tokens that a step has room for; a stretch goes on in the next one.
    """
    coefficients = model.coefficients()
    steps: list[list[tuple[int, int]]] = []
    room = 0
    for context, tokens in stretches:
        while tokens:
            if not room:
                steps.append([])
                room = most_step_tokens
            chunk = min(room, tokens)
            steps[-1].append((context, chunk))
            context, tokens, room = context + chunk, tokens - chunk, room - chunk
    found = Prefill(steps=len(steps))
    for step in steps:
        count = sum(tokens for _, tokens in step)
        reads = sum(context + tokens for context, tokens in step)
        pairs = sum(c * n + n * (n + 1) // 2 for c, n in step)
        moved = model.weights_bytes + model.row_bytes * (reads + count)
        found = found._replace(
            tokens=found.tokens + count,
            read_bytes=found.read_bytes + moved,
            flops=found.flops + 2 * model.parameters * count + model.pair_flops * pairs,
            time_ns=found.time_ns + int(step_ns(coefficients, 0, 0, count, reads, pairs, 0, 0)),
        )
    return found


def moving_ns(model: CostModel, moved_bytes: int) -> int:
    """Return how long it takes to read and write these bytes; 0 if there are none.

    No weights are read for it, and no step's overhead is added.
    """
    if not moved_bytes:
        return 0
    bare = dataclasses.replace(model, weights_bytes=0, step_overhead_ns=0)
    return int(step_ns(bare.coefficients(), 0, 0, 0, 0, 0, moved_bytes, 0))
