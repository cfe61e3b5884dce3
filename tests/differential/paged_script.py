"""A fixed script of random verbs for the paged cache, the same in every process.

Run as a program, it prints one hash over every array, every plane and every swap file of all the
caches that it drove.
"""

from __future__ import annotations

import hashlib
import random
import sys
from collections import Counter
from itertools import product

import numpy as np

from differential.cases import victims_of
from differential.paged_cases import (
    CUTS,
    FAMILIES,
    KEYS,
    NOTHING,
    PAGE_TOKENS,
    PLANES,
    SPANS,
    Case,
    span_of,
    step_of,
)
from differential.rowstore import digest

MOST_OPEN = 4
ORDERINGS = tuple(
    product(("none", "rebuild", "forward", "hole_fill"), ("slot", "row"), ("keep", "renumber"))
)
VERBS = {
    "open": 1,
    "append": 6,
    "fork": 3,
    "clone": 1,
    "reserve": 1,
    "span": 5,
    "scatter": 4,
    "nothing": 1,
    "flush": 1,
    "compact": 1,
    "swap out": 1,
    "swap in": 1,
    "damaged": 1,
    "free": 1,
    "misuse": 1,
    "logits": 1,
}


def do(step, verb, sequence, a, b, which):
    """Do one verb, if it can be done now: the one reading of numbers that all choosers share.

    Parameters
    ----------
    step : PagedLockstep
    verb : str
        A key of VERBS.
    sequence : int
        Which of the open sequences.
    a, b : int
        0 to 255.
    which : int
        0 to 63.
    """
    now = step.sequences()
    room = len(now) < MOST_OPEN
    if verb == "swap in" and step.swapped and room:
        step.swap_in(which)
        return
    if verb == "damaged" and step.swapped:
        step.swap_in_damaged(which, a, b if which % 3 else 0)
        return
    if not now or verb == "open":
        if room:
            new = step.open()
            step.append(new, which % 16)
        return
    chosen = now[sequence % len(now)]
    if verb in ("fork", "clone") and room:
        child = getattr(step, verb)(chosen)
        # Shared pages are what copying on write is for: one of the two often writes at once.
        writer = chosen if which % 2 or child is None else child
        if which % 5 < 2:
            step.append(writer, 1 + which % 7)
        elif which % 5 < 4:
            first, count = span_of("span", step.length(writer), step.page_tokens, a, b)
            step.evict_span(writer, first, count)
    elif verb == "append":
        step.append(chosen, 1 + which % 9)
        if which == 0:
            step.append(chosen, 0)
    elif verb == "reserve":
        step.reserve(chosen, which % 24)
    elif verb == "span":
        # All of them but seldom: an empty sequence is soon tested.
        shape = "all" if which == 0 else SPANS[which % len(SPANS)].replace("all", "span")
        first, count = span_of(shape, step.length(chosen), step.page_tokens, a, b)
        step.evict_span(chosen, first, count, shape)
    elif verb == "nothing":
        step.evict_span(chosen, *NOTHING[which % len(NOTHING)], "nothing")
    elif verb == "scatter":
        lists = []
        for one in range(step.sets):
            there = step.positions(chosen, one).tolist()
            stride = 77 * one * (which % 3 > 0)
            shape = ("random", "random", "aligned", "tail", "head")[which % 5]
            numbers = (a + stride) % 256, 60 + (b + stride) % 128
            lists.append(np.array(victims_of(there, shape, *numbers, step.page_tokens), np.int64))
        step.evict(chosen, lists)
    elif verb in ("compact", "flush"):
        getattr(step, verb)(chosen)
    elif verb == "swap out":
        step.swap_out(chosen)
    elif verb == "free" and len(now) > 1:
        step.free(chosen)
    elif verb == "misuse":
        step.misuse(chosen, which)
    elif verb == "logits" and step.decoder is not None:
        step.logits(chosen, which)


def case_of(number, draw):
    """Draw a case; the ordering goes round with its number."""
    compaction, unit, positions = ORDERINGS[number % len(ORDERINGS)]
    finer = unit == "row" and draw.random() < 0.7
    return Case(
        compaction,
        unit,
        positions,
        family=draw.choice(FAMILIES),
        planes=draw.choice((PLANES[0], *PLANES)),
        cut=("sequence", draw.choice(("layer", "head"))) if finer else draw.choice(CUTS),
        page_tokens=draw.choice(PAGE_TOKENS),
        spare=draw.choice((None, 1, 2, 4, 8)),
        tokens=draw.choice((9, 14, 23, 33)),
        append=draw.choice(("tail", "reuse_holes")),
        order=draw.choice(("fifo", "lifo")),
        layout=draw.choice(("page_major", "layer_major")),
        portable=draw.random() < 0.3,
        mapped=draw.random() < 0.2,
        keys=draw.choice(KEYS),
        number=number // len(ORDERINGS) + draw.randrange(64),
    )


def play(step, verbs, draw):
    """Drive a lockstep through random verbs."""
    for _ in range(verbs):
        (verb,) = draw.choices(list(VERBS), list(VERBS.values()))
        numbers = draw.randrange(64), draw.randrange(256), draw.randrange(256)
        do(step, verb, *numbers, draw.randrange(64))


def play_all(cases, verbs, seed, note=None):
    """Play some cases; return one hash over all that they leave behind."""
    total = hashlib.sha256()
    for number in range(cases):
        draw = random.Random(1000 * seed + number)
        step = step_of(case_of(number, draw), note)
        play(step, verbs, draw)
        total.update(digest(step.ledger).encode())
        for planes in step.cache.store.planes:
            # Of mapped planes, what is not held is not there to be read.
            for plane in planes.values() if step.memory is None else ():
                total.update(plane.tobytes())
        for data, *_ in step.swapped:
            total.update(data)
    return total.hexdigest()


def reach(cases, verbs, seed):
    """Play some cases; return (hash, how often each path was reached)."""
    reached = Counter()
    return play_all(cases, verbs, seed, lambda path: reached.update([path])), reached


if __name__ == "__main__":
    print(play_all(*map(int, sys.argv[1:])))
