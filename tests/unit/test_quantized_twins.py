"""Pages of quantized keys: whatever the verbs, codes are encode(rotate(k_raw, position)).

A dumber twin stands beside the cache: a float32 cache with the same pages, whose keys are encoded
only here. Everything is compared as integers.
"""

from __future__ import annotations

import random
from itertools import product

import numpy as np
import pytest
from quantized_caches import FAMILIES, KINDS, drawn, make, same

from kvsim.errors import CeilingExceeded, LedgerError
from kvsim.paging import fields as f
from kvsim.seeds import stream
from kvsim.tensors.quantized import encode
from kvsim.tensors.quantized_store import QuantizedStore
from kvsim.tensors.shape import key_parts

CUTS = (("sequence", "shared"), ("layer", "shared"), ("head", "head"), ("sequence", "head"))
ORDERINGS = tuple(
    product(("none", "rebuild", "forward", "hole_fill"), ("slot", "row"), ("keep", "renumber"))
)


def codes_of(keys, row, kind):
    """Return (codes, scales or None) of one unit's rotated keys, part by part."""
    codes, scales = [], []
    first = 0
    for width in key_parts(row):
        part = encode(kind, np.ascontiguousarray(keys[:, first : first + width], np.float32))
        codes.append(part.codes)
        scales.append(part.scale)
        first += width
    stacked = None if scales[0] is None else np.stack(scales, axis=1)
    return np.concatenate(codes, axis=1), stacked


def agree(ours, stored, row, kind):
    """Tell whether a unit's rows are what a float32 cache stores, its keys encoded."""
    if not np.array_equal(ours["positions"], stored["positions"]):
        return False
    for plane in ("k_raw", "V"):
        if (plane in ours) != (plane in stored):
            return False
        if plane in ours and not same(ours[plane], stored[plane]):
            return False
    if "K" not in stored:
        return "K" not in ours
    codes, scales = codes_of(stored["K"], row, kind)
    if (scales is None) != ("K_scale" not in ours):
        return False
    return same(ours["K"], codes) and (scales is None or same(ours["K_scale"], scales))


def caches_agree(ours, twin, kind):
    for sequence in twin.ledger.sequences():
        for unit, (_, row) in enumerate(twin.shape.units):
            stored = twin.unit_rows(sequence, unit)
            if not agree(ours.unit_rows(sequence, unit), stored, row, kind):
                return False
    return True


class Pair:
    """A quantized cache and its float32 twin, given the same verbs."""

    def __init__(self, kind, family, planes, page_tokens, **options):
        self.kind = kind
        self.ours = make(kind, family, planes, page_tokens, **options)
        self.twin = make("float32", family, planes, page_tokens, **options)

    def do(self, verb, *arguments):
        """Do a verb on both; a refusal must be the same on both."""
        results = []
        for cache in (self.ours, self.twin):
            try:
                results.append(getattr(cache, verb)(*arguments))
            except LedgerError as refused:
                results.append(type(refused))
        if not isinstance(results[0], bytes | np.ndarray):
            receipts = [getattr(one, "evicted_tokens", one) for one in results]
            assert receipts[0] == receipts[1]
        self.ours.check()
        assert caches_agree(self.ours, self.twin, self.kind)
        return results

    def back(self, ours, theirs):
        """Swap in on both, each its own bytes."""
        results = []
        for cache, data in ((self.ours, ours), (self.twin, theirs)):
            try:
                results.append(cache.swap_in(data))
            except CeilingExceeded:
                results.append(None)
        assert results[0] == results[1]
        assert caches_agree(self.ours, self.twin, self.kind)


def play(pair, draw, rng, verbs, spans=True):
    """Drive both caches through random verbs."""
    shape = pair.ours.shape
    for _ in range(verbs):
        held = pair.twin.ledger.sequences()
        if not held:
            pair.do("append", pair.do("open")[0], drawn(shape, draw.randrange(8, 24), rng))
            continue
        sequence = draw.choice(held)
        verb = draw.choices(
            ("append", "fork", "clone", "span", "victims", "swap", "compact", "free", "flush"),
            (5, 3, 1, 6, 3 if spans else 0, 1, 2, 1, 0.5),
        )[0]
        if verb == "append":
            pair.do("append", sequence, drawn(shape, draw.randrange(9), rng))
        elif verb in ("fork", "clone") and len(held) < 4:
            pair.do(verb, sequence)
        elif verb == "span":
            length = pair.twin.next_position(sequence)
            first = draw.randrange(length + 1)
            pair.do("evict_span", sequence, first, draw.randrange(12) if spans else length)
        elif verb == "victims":
            victims = []
            for which in range(pair.twin.ledger.geometry.sets):
                slots = np.flatnonzero(pair.twin.ledger.retained(sequence, which))
                victims.append(slots[rng.random(slots.size) < draw.choice((0.1, 0.5))])
            pair.do("evict", sequence, victims)
        elif verb == "swap":
            ours, theirs = pair.do("swap_out", sequence)
            # What was shared comes back unshared, which a ceiling may refuse on both.
            pair.back(ours, theirs)
        elif verb == "compact" and pair.twin.ledger.ordering.compaction != "none":
            pair.do("compact", sequence)
        elif verb in ("free", "flush"):
            pair.do(verb, sequence)


def orderings(number, draw):
    """Return an ordering, a cut and a family, so that numbers walk through all of them."""
    compaction, unit, positions = ORDERINGS[number % len(ORDERINGS)]
    family = list(FAMILIES)[number % len(FAMILIES)]
    scope, sets = ("sequence", "shared") if family == "glm" else draw.choice(CUTS)
    return family, {
        "scope": scope,
        "sets": sets,
        "compaction": compaction,
        "unit": unit,
        "positions": positions,
        "append": draw.choice(("tail", "reuse_holes")),
        "layout": draw.choice(("page_major", "layer_major")),
        "ceiling_pages": draw.choice((0, 40)),
        "pages": 8,
    }


@pytest.mark.parametrize("number", range(48))
def test_with_a_shadow_codes_are_the_float32_twins_encoded(number):
    draw, rng = random.Random(number), stream(number, "test")
    family, options = orderings(number, draw)
    pair = Pair(draw.choice(KINDS), family, "kv_raw", draw.choice((1, 2, 4, 16)), **options)
    assert isinstance(pair.ours.store, QuantizedStore)
    assert pair.ours.supports_exact_span
    play(pair, draw, rng, 30)
    turned = pair.ours.ledger.total(f.ROTATED_ROWS_TOTAL)
    assert turned == pair.twin.ledger.total(f.ROTATED_ROWS_TOTAL)
    # Under a ceiling it may be that every eviction that turns a key was refused.
    if not options["ceiling_pages"]:
        assert (turned > 0) == (options["positions"] == "renumber")


@pytest.mark.parametrize("number", range(16))
def test_without_a_shadow_moves_carry_codes_and_scales_bit_for_bit(number):
    draw, rng = random.Random(100 + number), stream(number, "test")
    family, options = orderings(number, draw)
    renumbers = options["positions"] == "renumber"
    pair = Pair(draw.choice(KINDS), family, "kv", 4, **options)
    assert pair.ours.supports_exact_span == (not renumbers)
    play(pair, draw, rng, 30, spans=not renumbers)


class Carrying(QuantizedStore):
    """A control: it forgets to encode anew, and moves every code as it is."""

    def apply(self, plan):
        plan = plan.copy()
        plan[f.POSITION] = -1
        super().apply(plan)


class Backwards(QuantizedStore):
    """A control: it carries moves out in the wrong order."""

    def apply(self, plan):
        for at in range(plan.shape[1])[::-1]:
            super().apply(plan[:, at : at + 1])


@pytest.mark.parametrize("control", [Carrying, Backwards])
def test_a_wrong_store_is_noticed(control):
    pair = Pair("int8", "dense", "kv_raw", 4, compaction="forward", positions="renumber")
    pair.ours.store.__class__ = control
    rows = drawn(pair.ours.shape, 23, stream(1, "test"))
    pair.do("append", pair.do("open")[0], rows)
    with pytest.raises(AssertionError):
        pair.do("evict_span", 0, 5, 3)
