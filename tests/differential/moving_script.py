"""A fixed script of random verbs for ledgers that move rows, the same in every process.

Run as a program, it prints one hash over all arrays of every ledger and store that it drove.
"""

from __future__ import annotations

import hashlib
import random
import sys
from collections import Counter
from itertools import product

from differential.cases import CASES, victims_of
from differential.moving import ALGORITHMS, Moving
from differential.rowstore import digest

SHAPES = ("random",) * 9 + ("span", "head", "tail", "aligned", "all", "nothing")
ORDERINGS = tuple(product(("none", *ALGORITHMS), ("slot", "row"), ("keep", "renumber")))


def evict(step, sequence, draw):
    """Evict from each set a share of its own, or the same from all."""
    shape, a, b = draw.choice(SHAPES), draw.randrange(256), draw.randrange(80, 180)
    stride = draw.choice((0, 0, 77))
    victims = []
    for which in range(step.sets):
        at, size = (a + stride * which) % 256, (b + stride * which) % 256
        retained = [] if shape == "nothing" else step.retained(sequence, which)
        victims.append(victims_of(retained, shape, at, size, step.page_tokens))
    step.evict(sequence, victims, shape)


def compact(step, sequence, draw):
    """Compact by the ordering's own algorithm, or now and then by another that it allows."""
    allowed = step.algorithms()
    if allowed:
        own = step.ordering["compaction"]
        step.compact(sequence, draw.choice((own, own, *allowed)))


def play(step, verbs, draw):
    """Drive a Moving through random verbs."""
    for _ in range(verbs):
        open_now = step.sequences()
        if not open_now:
            step.append(step.open(), draw.randrange(12, 36))
            continue
        sequence = draw.choice(open_now)
        verb = draw.choices(
            ("open", "append", "fork", "evict", "compact", "free", "end"),
            (1 if len(open_now) < 4 else 0, 5, 3 if len(open_now) < 4 else 0, 6, 3, 1, 1),
        )[0]
        if verb == "open":
            step.append(step.open(), draw.randrange(10))
        elif verb == "append":
            step.append(sequence, draw.randrange(10))
        elif verb == "fork":
            step.fork(sequence)
        elif verb == "evict":
            evict(step, sequence, draw)
            if draw.random() < 0.5:
                compact(step, sequence, draw)
        elif verb == "compact":
            compact(step, sequence, draw)
        elif verb == "free":
            step.free(sequence)
        else:
            step.end_step()


def play_all(verbs, seed):
    """Play one script per ordering and kind of append; return (hash, paths reached)."""
    total, reached = hashlib.sha256(), Counter()
    for number, (ordering, append) in enumerate(product(ORDERINGS, ("tail", "reuse_holes"))):
        compaction, unit, positions = ordering
        draw = random.Random(seed + number)
        scope, sets = draw.choice(CASES)
        step = Moving(
            ("sequence", "head") if unit == "row" else (scope, sets),
            (4, 3, 2, 4, 1, 3, 16)[number % 7],
            {
                "append": append,
                "compaction": compaction,
                "unit": unit,
                "positions": positions,
                "renumber_writes": draw.random() < 0.7,
            },
            ceiling=(0, 40, 24)[number % 3],
            order=("fifo", "lifo")[number // 2 % 2],
            note=lambda path: reached.update([path]),
        )
        play(step, verbs, draw)
        total.update(digest(step.ledger).encode())
        total.update(step.store_digest().encode())
    return total.hexdigest(), reached


if __name__ == "__main__":
    print(play_all(int(sys.argv[1]), int(sys.argv[2]))[0])
