"""Whole runs on synthetic attention, watched from step to step."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from recordings import scenario, write_layout

from kvsim.lab import row, setup


class Sample(NamedTuple):
    """What a ledger holds at the end of a step."""

    held: int
    dense: int
    kept: list[list[int]]
    appended: list[int]
    cursors: list[int]
    refused: int


def synthetic(folder: Path, layers: int = 2, heads: int = 2, **more: Any) -> dict[str, Any]:
    """Return the keys of a small synthetic run: 24 tokens and 30 more, pages of 4."""
    return {
        "layout": write_layout(folder, layers, heads),
        "workload.kind": "synthetic",
        "workload.tokens": 24,
        "workload.decode_tokens": 30,
        "pages.tokens": 4,
        "selection.protect_recent": 4,
        **{key.replace("__", "."): value for key, value in more.items()},
    }


class Watch:
    """Runs a scenario and keeps a sample of each step; every step is recounted.

    Attributes
    ----------
    samples : list of Sample
    row : dict
        What the run measures.
    positions : list of list of int
        For each sequence left at the end, the positions that its first set retains.
    queries : list of float32 [layers, kv_heads, tokens]
        For each sequence left at the end, the attention of its next query.
    words : int
        Words of retained rows that were compared, if the store has rows.
    """

    def __init__(self, keys: dict[str, Any], **more: Any) -> None:
        given = scenario(keys, **more)
        parts = setup.understand(given)
        setup.applicable(given, parts.policy)
        self.loop = loop = setup.make_loop(given, parts)
        self.samples: list[Sample] = []
        self.row: dict[str, Any] = {}
        self.positions: list[list[int]] = []
        self.queries: list[np.ndarray] = []
        self.words = 0
        end_step, check = loop.end_step, loop.ledger.check

        def sample() -> None:
            end_step()
            check()
            states = loop.tracked.items()
            self.samples.append(
                Sample(
                    loop.ledger.held_pages,
                    loop.dense.held_pages,
                    [[len(tokens) for tokens in state.tokens] for _, state in states],
                    [state.appended for _, state in states],
                    [loop.ledger.cursor(number) for number, _ in states],
                    loop.refused_verbs_total,
                )
            )

        def finish() -> None:
            self.row.update(row.measure(loop, given, engine.steps))
            self.positions += [
                loop.ledger.rows(number, 0)[1].tolist() for number in loop.ledger.sequences()
            ]
            self.queries += [
                state.signals.next_query(state.appended) for state in loop.tracked.values()
            ]
            if loop.row_source is not None:
                tokens = {number: state.tokens for number, state in loop.tracked.items()}
                self.words = loop.row_source.verify(loop.ledger, tokens)

        loop.end_step = sample
        engine = setup.make_engine(given, parts, loop, finish)
        engine.run()
