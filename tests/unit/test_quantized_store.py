"""Pages of quantized keys: whatever the verbs, codes are encode(rotate(k_raw, position)).

Two dumber twins stand beside the cache: a float32 cache with the same pages, whose keys are
encoded only here, and contiguous ones. Everything is compared as integers.
"""

from __future__ import annotations

import random
from itertools import product

import numpy as np
import pytest

from kvsim.errors import (
    CeilingExceeded,
    ExactnessRefused,
    LayoutError,
    LedgerError,
    RotationError,
    SwapError,
)
from kvsim.layout.families import dense, glm_dsa, mla
from kvsim.paging import fields as f
from kvsim.seeds import stream
from kvsim.tensors.contiguous import ContiguousCache
from kvsim.tensors.paged_cache import PagedCache
from kvsim.tensors.quantized import decode, encode
from kvsim.tensors.quantized_keys import QuantizedKeys
from kvsim.tensors.quantized_store import QuantizedStore, independent_runs
from kvsim.tensors.rope import Rope
from kvsim.tensors.shape import CacheShape, key_parts

KINDS = ("int8", "e4m3", "e4m3_scaled")
SCALED = ("int8", "e4m3_scaled")
TWO = (Rope(8, 1e4), Rope(8, 1e6))
YARN = Rope(8, 1e4, "yarn", 8.0, 32)
FAMILIES = {
    "dense": (dense([2, 2], 8, 6), TWO),
    "partial": (dense([2, 1], 12, 6, 8), TWO),
    "interleaved": (dense([2, 2], 8, 8, pairing="interleaved"), (YARN,)),
    "nope": (dense([2, 2], 8, 8, [8, 0]), (Rope(8), Rope(0))),
    "mla": (mla(2, 16, 8), TWO),
    "glm": (glm_dsa(2, 2, 6, 8, 10, 12, [1]), (Rope(8),)),
}
CUTS = (("sequence", "shared"), ("layer", "shared"), ("head", "head"), ("sequence", "head"))
ORDERINGS = tuple(
    product(("none", "rebuild", "forward", "hole_fill"), ("slot", "row"), ("keep", "renumber"))
)


def shape_of(family, planes="kv_raw", positions=256):
    rows, ropes = FAMILIES[family]
    return CacheShape(rows, ropes, planes, positions)


def drawn(shape, tokens, rng):
    """Return rows for an append, as every family of a shape takes them."""
    rows = []
    for family in shape.families:
        widths = {
            "k": sum(row.carried + row.raw for row in family.rows),
            "v": sum(row.value for row in family.rows),
        }
        rows.append(
            {
                name: rng.standard_normal((tokens, width), dtype=np.float32).astype(family.dtype)
                for name, width in widths.items()
                if width
            }
        )
    return rows


def same(ours, theirs):
    """Compare two arrays bit for bit."""
    return (
        ours.dtype == theirs.dtype
        and ours.shape == theirs.shape
        and np.ascontiguousarray(ours).tobytes() == np.ascontiguousarray(theirs).tobytes()
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


def table_of(cache):
    """Everything that a refused verb must leave as it was."""
    arrays = [array.tobytes() for array in cache.ledger.copy_of_arrays()]
    planes = [plane.tobytes() for block in cache.store.planes for plane in block.values()]
    return arrays + planes


def make(kind, family="dense", planes="kv_raw", page_tokens=4, **options):
    return PagedCache(shape_of(family, planes), page_tokens, keys=kind, **options)


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


@pytest.mark.parametrize("compaction", ["none", "rebuild", "forward", "hole_fill"])
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kind", KINDS)
def test_pages_equal_the_contiguous_cache_encoded(kind, family, compaction):
    shape = shape_of(family)
    rng = stream(5, "test")
    cache = make(kind, family, compaction=compaction, positions="renumber")
    oracles = {cache.open(): ContiguousCache(shape)}
    rows = drawn(shape, 23, rng)
    cache.append(0, rows)
    oracles[0].append(rows)
    oracles[cache.fork(0)] = oracles[0].fork()
    for sequence, first, count in ((1, 5, 6), (0, 0, 3), (1, 2, 1), (0, 8, 4), (1, 9, 10**9)):
        receipt = cache.evict_span(sequence, first, count)
        assert receipt.exact
        assert receipt.evicted_tokens == oracles[sequence].evict_span(first, count)
        more = drawn(shape, 2, rng)
        cache.append(sequence, more)
        oracles[sequence].append(more)
        for number, oracle in oracles.items():
            for at in range(len(shape.families)):
                theirs, ours = oracle.rows(at), cache.rows(number, at)
                assert set(ours) == set(theirs)
                for name in set(theirs) - {"K"}:
                    assert same(ours[name], theirs[name])
                if "K" in theirs:
                    assert same(ours["K"], through_codes(theirs["K"], shape.families[at], kind))


def through_codes(keys, family, kind):
    """Return keys as their codes let them be read."""
    out = np.empty_like(keys)
    first = 0
    for row in family.rows:
        for width in key_parts(row):
            part = slice(first, first + width)
            first += width
            out[:, part] = decode(kind, *encode(kind, keys[:, part].astype(np.float32)))
    return out


@pytest.mark.parametrize("kind", KINDS)
def test_pages_equal_the_contiguous_quantized_keys(kind):
    rope = Rope(16, 1e4)
    shape = CacheShape(dense([1], 16, 4), (rope,), "kv_raw", 128)
    cache = PagedCache(shape, 4, keys=kind, positions="renumber", compaction="forward")
    keys = QuantizedKeys(kind, "shadow", rope, (16,), 128)
    rows = drawn(shape, 60, stream(3, "test"))
    cache.append(cache.open(), rows)
    keys.append(rows[0]["k"])
    for first, count in ((7, 16), (0, 5), (11, 3)):
        cache.evict_span(0, first, count)
        keys.evict_span(first, count)
        ours = cache.unit_rows(0, 0)
        assert same(ours["K"], keys.codes.codes)
        if kind in SCALED:
            assert same(ours["K_scale"][:, 0], keys.codes.scale)
    # The control: composing rotations gives other codes from the same rows.
    lossy = QuantizedKeys(kind, "lossy", rope, (16,), 128)
    lossy.append(rows[0]["k"])
    lossy.evict_span(7, 16)
    keys = QuantizedKeys(kind, "shadow", rope, (16,), 128)
    keys.append(rows[0]["k"])
    keys.evict_span(7, 16)
    assert not same(lossy.codes.codes, keys.codes.codes)


@pytest.mark.parametrize("compaction", ["none", "forward"])
@pytest.mark.parametrize("kind", KINDS)
def test_without_a_shadow_a_span_is_refused_and_the_remedies_named(kind, compaction):
    cache = make(kind, planes="kv", positions="renumber", compaction=compaction)
    sequence = cache.open()
    cache.append(sequence, drawn(cache.shape, 23, stream(1, "test")))
    child = cache.fork(sequence)
    assert not cache.supports_exact_span
    before = table_of(cache)
    for refused in (
        lambda: cache.evict_span(child, 5, 3),
        lambda: cache.evict(child, [np.array([5, 6])]),
    ):
        with pytest.raises(ExactnessRefused, match=r"float32 k_raw shadow.*flush") as refusal:
            refused()
        assert not refusal.value.receipt.exact
        assert refusal.value.receipt.refused == str(refusal.value)
        assert refusal.value.receipt.evicted_tokens == 0
        assert table_of(cache) == before
    # The tail moves nobody; then the prefix goes.
    assert cache.evict_span(child, 20, 99).evicted_tokens == 3
    flushed = cache.flush(child)
    assert (flushed.prefill_tokens, flushed.evicted_tokens) == (20, 20)
    assert flushed.exact
    assert (flushed.first, flushed.last) == (0, 20)
    # Every page was the parent's too.
    assert flushed.freed_pages == 0
    assert cache.length(child) == cache.next_position(child) == 0
    held = cache.ledger.held_pages
    flushed = cache.flush(sequence)
    assert flushed.prefill_tokens == 23
    assert flushed.freed_pages == held == 6
    assert cache.ledger.held_pages == 0
    assert cache.flush(sequence).prefill_tokens == 0
    cache.check()
    # Prefilled again, without what had to go.
    rows = drawn(cache.shape, 9, stream(2, "test"))
    cache.append(sequence, rows)
    oracle = ContiguousCache(cache.shape)
    oracle.append(rows)
    assert same(
        cache.rows(sequence)["K"],
        through_codes(oracle.rows()["K"], cache.shape.families[0], kind),
    )


@pytest.mark.parametrize("positions", ["keep", "renumber"])
@pytest.mark.parametrize("compaction", ["none", "rebuild", "forward", "hole_fill"])
def test_a_flush_empties_whatever_sets_retain(compaction, positions):
    cache = make("int8", sets="head", compaction=compaction, positions=positions)
    sequence = cache.open()
    cache.append(sequence, drawn(cache.shape, 11, stream(1, "test")))
    cache.reserve(sequence, 9)
    cache.evict(sequence, [np.arange(which) for which in range(4)])
    reserved = cache.ledger.reserved_pages(sequence)
    flushed = cache.flush(sequence)
    assert flushed.prefill_tokens == 11
    assert cache.next_position(sequence) == 0
    assert cache.ledger.held_pages == cache.ledger.reserved_pages(sequence) == reserved > 0
    cache.check()
    assert flushed.as_dict()["prefill_tokens"] == 11


def test_planes_without_rotated_keys_have_none_to_quantize():
    with pytest.raises(LayoutError, match="raw_only keep no rotated keys"):
        make("int8", planes="raw_only")
    with pytest.raises(LayoutError, match="kept as one of float32, int8"):
        make("int4")
    for kind, planes in (("float32", "kv_raw"), ("int8", "raw_only")):
        shape = shape_of("dense", planes)
        with pytest.raises(LayoutError, match="hold no codes"):
            QuantizedStore(shape, shape.geometry(), 4, kind)


@pytest.mark.parametrize("layout", ["page_major", "layer_major"])
@pytest.mark.parametrize("planes", ["kv", "kv_raw"])
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kind", KINDS)
def test_bytes_of_a_page_are_those_of_its_planes(kind, family, planes, layout):
    cache = make(kind, family, planes, layout=layout)
    for block in cache.store.planes:
        assert all(plane.shape[0] == 64 * 4 for plane in block.values())
    stored = sum(plane.nbytes for block in cache.store.planes for plane in block.values())
    assert stored == 64 * 4 * int(cache.ledger.geometry.page_row_bytes().sum())


def test_the_price_of_a_shadow():
    # Llama-3.2-1B: 16 layers, 8 heads of 64. By hand, per token, layer and head.
    rows, rope = dense([8] * 16, 64, 64), (Rope(64, 5e5),)
    heads = 16 * 8
    for planes, kind, row_bytes in (
        ("kv", "float32", 512),
        ("kv_raw", "float32", 768),
        ("kv", "int8", 64 + 4 + 256),
        ("kv_raw", "int8", 64 + 4 + 256 + 256),
        ("kv", "e4m3", 64 + 256),
        ("kv_raw", "e4m3", 64 + 256 + 256),
        ("kv_raw", "e4m3_scaled", 64 + 4 + 256 + 256),
    ):
        geometry = CacheShape(rows, rope, planes).geometry(keys=kind)
        assert geometry.page_row_bytes().tolist() == [heads * row_bytes]
    # An MLA latent and its rope part have a scale each; a family without keys has none.
    latent = CacheShape(*FAMILIES["mla"], "kv_raw").geometry(keys="int8")
    assert latent.unit_row_bytes == (16 + 4 + 8 + 4 + 8 * 4,) * 2
    glm = CacheShape(*FAMILIES["glm"], "kv").geometry(keys="e4m3")
    assert glm.unit_row_bytes == (14,) * 4 + (40,) * 4 + (12,)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_without_a_code_change_nothing(kind):
    cache = make(kind, positions="renumber")
    sequence = cache.open()
    cache.append(sequence, drawn(cache.shape, 5, stream(1, "test")))
    before = table_of(cache)
    for bad in (np.nan, np.inf, -np.inf, 3e38):
        rows = drawn(cache.shape, 2, stream(2, "test"))
        rows[0]["k"][1, 9] = bad
        if kind in SCALED:
            with pytest.raises(ExactnessRefused):
                cache.append(sequence, rows)
            assert table_of(cache) == before
        else:
            cache.append(sequence, rows)
            cache.evict_span(sequence, cache.length(sequence) - 2, 2)
    # V has no code, and may hold anything.
    rows = drawn(cache.shape, 2, stream(2, "test"))
    rows[0]["v"][:] = np.nan
    cache.append(sequence, rows)
    assert np.isnan(cache.rows(sequence)["V"][5:]).all()


def test_keys_near_the_limit_can_be_turned_anywhere():
    cache = make("int8", "interleaved", positions="renumber")
    largest = np.float32(cache.store._largest_raw)
    rows = drawn(cache.shape, 40, stream(1, "test"))
    rows[0]["k"][:] = largest * np.sign(rows[0]["k"])
    cache.append(cache.open(), rows)
    for _ in range(20):
        cache.evict_span(0, 0, 1)
    assert np.isfinite(cache.rows(0)["K"]).all()


@pytest.mark.parametrize("kind", KINDS)
def test_swap_files_carry_codes_and_only_to_caches_of_their_kind(kind):
    cache = make(kind, compaction="forward", positions="renumber")
    cache.append(cache.open(), drawn(cache.shape, 13, stream(1, "test")))
    cache.evict_span(0, 3, 4)
    rows = [cache.unit_rows(0, unit) for unit in range(4)]
    data = cache.swap_out(0)
    for other in {"float32", *KINDS} - {kind}:
        with pytest.raises(SwapError, match="other keys"):
            make(other, compaction="forward", positions="renumber").swap_in(data)
    sequence = cache.swap_in(data)
    for unit, before in enumerate(rows):
        after = cache.unit_rows(sequence, unit)
        assert set(after) == set(before) >= {"K", "k_raw", "V"}
        assert all(same(after[plane], before[plane]) for plane in before)


def test_a_ceiling_refuses_before_any_code_changes():
    cache = make("int8", positions="renumber", compaction="forward", ceiling_pages=6)
    cache.append(cache.open(), drawn(cache.shape, 20, stream(1, "test")))
    child = cache.fork(0)
    before = table_of(cache)
    with pytest.raises(CeilingExceeded) as refused:
        cache.evict_span(child, 2, 5)
    assert refused.value.receipt.refused
    assert table_of(cache) == before


def test_a_store_refuses_a_rotation_that_it_cannot_do():
    plan = np.array([[0], [1], [3], [0], [-1]], np.int64)
    with pytest.raises(ExactnessRefused):
        make("int8", planes="kv").store.apply(plan)
    plan[f.POSITION] = 256
    with pytest.raises(RotationError):
        make("int8").store.apply(plan)


def test_runs_end_where_a_move_needs_an_earlier_one():
    def cut(*moves):
        plan = np.array([(s, t, -1, scope, which) for s, t, scope, which in moves], np.int64).T
        return [run.shape[1] for run in independent_runs(plan)]

    assert cut((5, 0, 0, -1), (6, 1, 0, -1), (7, 2, 0, -1)) == [3]
    # 0 was written, so it must not be read, nor written again, in the same run.
    assert cut((5, 0, 0, -1), (0, 9, 0, -1), (9, 8, 0, -1)) == [1, 1, 1]
    assert cut((5, 0, 0, -1), (6, 0, 0, -1)) == [1, 1]
    # Reading what a later move writes is what reading first is for.
    assert cut((5, 0, 0, -1), (6, 5, 0, -1)) == [2]
    assert cut((3, 3, 0, -1), (4, 4, 0, -1)) == [2]
    assert cut((5, 0, 0, 0), (6, 1, 0, 1), (7, 2, 1, 1)) == [1, 1, 1]
    assert list(independent_runs(np.empty((5, 0), np.int64))) == []
