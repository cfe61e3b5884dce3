"""A fixed script of random verbs: the same verbs in every process, whatever compiles them.

Run as a program, it prints one hash over every array of every ledger that it drove.
"""

from __future__ import annotations

import hashlib
import random
import sys
from collections import Counter

from differential.cases import CASES, PAGE_TOKENS, SHAPES, victims_of
from differential.lockstep import Lockstep
from differential.rowstore import digest


def play(step, verbs, seed):
    """Drive a Lockstep through random verbs."""
    draw = random.Random(seed)
    for _ in range(verbs):
        open_now = step.sequences()
        if not open_now:
            step.open()
            continue
        sequence = draw.choice(open_now)
        verb = draw.choices(
            ("open", "append", "advance", "fork", "evict", "badly", "free", "end"),
            (1 if len(open_now) < 8 else 0, 6, 2, 2 if len(open_now) < 8 else 0, 6, 1, 1, 1),
        )[0]
        if verb == "open":
            step.open()
        elif verb == "append":
            step.append(sequence, draw.randrange(10))
        elif verb == "advance":
            batch = draw.sample(open_now, draw.randint(1, len(open_now)))
            step.advance(batch, draw.randint(1, 5))
        elif verb == "fork":
            step.fork(sequence)
        elif verb == "evict":
            shape, a, b = draw.choice(SHAPES), draw.randrange(256), draw.randrange(256)
            stride = draw.choice((0, 0, 77))
            victims = [
                victims_of(
                    step.retained(sequence, which),
                    shape,
                    (a + stride * which) % 256,
                    (b + stride * which) % 256,
                    step.page_tokens,
                )
                for which in range(step.sets)
            ]
            step.evict(sequence, victims, shape)
        elif verb == "badly":
            # Good victims in every list, and in the last one its first victim twice, or none.
            victims = [step.retained(sequence, which)[:3] for which in range(step.sets)]
            victims[-1] = [*victims[-1], *(victims[-1][:1] or [-1])]
            step.evict_badly(sequence, victims)
        elif verb == "free":
            step.free(sequence)
        else:
            step.end_step()


def play_all(verbs, seed, rows=True):
    """Play one script per case; return (hash over all their ledgers, paths reached)."""
    total, reached = hashlib.sha256(), Counter()
    for number, case in enumerate(CASES):
        step = Lockstep(
            case,
            PAGE_TOKENS[number % len(PAGE_TOKENS)],
            ceiling=(0, 40, 90)[number % 3],
            order=("fifo", "lifo")[number % 2],
            note=lambda path: reached.update([path]),
            rows=rows,
        )
        play(step, verbs, seed + number)
        total.update(digest(step.ledger).encode())
    return total.hexdigest(), reached


if __name__ == "__main__":
    print(play_all(int(sys.argv[1]), int(sys.argv[2]))[0])
