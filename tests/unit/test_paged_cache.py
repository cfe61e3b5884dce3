"""The paged cache's verbs by hand: fak's block counts, spans that name nothing, and refusals.

Each docstring names the bug that its test would catch.
"""

from __future__ import annotations

import numpy as np
import pytest
from differential.paged_rows import equal, rows_of
from realrows import NOBODY, TINY, Pair, refused, shape, state
from spliced import DENSE, ROPES

from kvsim.errors import (
    CeilingExceeded,
    ExactnessRefused,
    LedgerError,
    RotationError,
    VictimError,
)
from kvsim.layout.families import dense, glm_dsa
from kvsim.paging import Receipt
from kvsim.tensors.rope import Rope, rotate, tables

IN_PLACE = {"compaction": "forward", "positions": "renumber"}
REBUILD = {"compaction": "rebuild", "positions": "renumber"}
KEEP = {"compaction": "none", "positions": "keep"}
# Tokens, slots in a page, span; held pages before; and by algorithm, alone and with one fork:
# (held after, copied on write, freed, newly held, most extra pages inside).
FAK = [
    (7, 4, (2, 3), 2, "rebuild", (1, 0, 2, 1, 1), (3, 0, 0, 1, 1)),
    (7, 4, (2, 3), 2, "in place", (1, 0, 1, 0, 0), (3, 1, 0, 1, 1)),
    (7, 4, (2, 3), 2, "keep", (2, 0, 0, 0, 0), (2, 0, 0, 0, 0)),
    (1024, 16, (512, 16), 64, "rebuild", (63, 0, 64, 63, 62), (127, 0, 0, 63, 63)),
    (1024, 16, (512, 16), 64, "in place", (63, 0, 1, 0, 0), (95, 31, 0, 31, 31)),
    (1024, 16, (512, 16), 64, "keep", (63, 0, 1, 0, 0), (64, 0, 0, 0, 0)),
    (1024, 16, (505, 15), 64, "rebuild", (64, 0, 64, 64, 64), (128, 0, 0, 64, 64)),
    (1024, 16, (505, 15), 64, "in place", (64, 0, 0, 0, 0), (97, 33, 0, 33, 33)),
    (1024, 16, (505, 15), 64, "keep", (64, 0, 0, 0, 0), (64, 0, 0, 0, 0)),
    (1024, 16, (1000, 24), 64, "rebuild", (63, 0, 64, 63, 62), (127, 0, 0, 63, 63)),
    (1024, 16, (1000, 24), 64, "in place", (63, 0, 1, 0, 0), (64, 0, 0, 0, 0)),
    (1024, 16, (1000, 24), 64, "keep", (63, 0, 1, 0, 0), (64, 0, 0, 0, 0)),
]
ORDERINGS = {"rebuild": REBUILD, "in place": IN_PLACE, "keep": KEEP}
NOTHING = [(-1, 3), (0, 0), (2, -1), (7, 1), (8, 3), (2**63 - 1, 1), (-(2**63), 5), (2, -(2**63))]


@pytest.mark.parametrize("forked", [False, True], ids=["alone", "one fork"])
@pytest.mark.parametrize(
    "case", FAK, ids=lambda case: f"{case[0]}-{case[1]}-{case[2][0]}-{case[4]}"
)
def test_block_counts_of_fak(case, forked):
    """A page copied that is not written, freed while it is shared, or not counted at its peak.

    The figures with rebuild are a replica of fak's accounting, the others follow from what each
    algorithm writes: semantics.md, section 5, item 1.
    """
    tokens, page_tokens, (first, count), before, how, *after = case
    held, cow, freed, new, peak = after[forked]
    pair = Pair(tokens, TINY, page_tokens, **ORDERINGS[how])
    victim = pair.fork(pair.first) if forked else pair.first
    assert pair.ledger.held_pages == before
    receipt = pair.cache.evict_span(victim, first, count)
    assert pair.ledger.held_pages == held
    assert (receipt.cow_pages, receipt.freed_pages, receipt.newly_held_pages) == (cow, freed, new)
    assert receipt.extra_pages_peak == peak
    assert (receipt.first, receipt.last, receipt.evicted_tokens) == (first, first + count, count)
    moved = tokens - first - count
    assert receipt.survivors_rotated_rows == (0 if how == "keep" else moved)
    assert (receipt.exact, receipt.refused) == (True, "")
    pair.cache.check()


@pytest.mark.parametrize("positions", ["renumber", "keep"])
@pytest.mark.parametrize("compaction", ["none", "rebuild", "forward", "hole_fill"])
@pytest.mark.parametrize("span", NOTHING)
def test_spans_that_name_nothing_change_nothing(span, compaction, positions):
    """An end that overflows, a first below 0 that counts from the back, a rebuild for nothing."""
    pair = Pair(compaction=compaction, positions=positions)
    before = state(pair.cache)
    assert pair.cache.evict_span(pair.first, *span) == Receipt(span[0], span[0])
    assert state(pair.cache) == before


@pytest.mark.parametrize("count", [2, 3, 100, 2**63 - 1])
def test_the_end_of_a_span_is_clamped(count):
    """An end that wraps, or a receipt that tells of tokens that are not there."""
    pair = Pair(**IN_PLACE)
    receipt = pair.evict(pair.first, 5, count)
    assert (receipt.first, receipt.last, receipt.evicted_tokens) == (5, 7, 2)
    assert pair.cache.next_position(pair.first) == 5


@pytest.mark.parametrize(
    "span", [(2**63, 1), (0, 2**63), (-(2**63) - 1, 1), (True, 1), (0, 1.0), (None, 1), ("0", 1)]
)
def test_spans_that_are_no_int64_are_refused(span):
    """A span cut to 64 bits, a flag or a fraction taken for a number."""
    pair = Pair(**IN_PLACE)
    refused(LedgerError, pair.cache, pair.cache.evict_span, pair.first, *span, match="span's")


def test_numpy_integers_are_integers():
    """A check of the type that only Python's own integers pass."""
    pair = Pair(**IN_PLACE)
    pair.evict(pair.first, np.int32(2), np.uint8(3))


@pytest.mark.parametrize("compaction", ["none", "forward"])
def test_planes_without_a_raw_key_cannot_be_renumbered(compaction):
    """A key turned by the difference, and a refusal whose receipt names no remedy."""
    pair = Pair(of=shape("kv"), compaction=compaction, positions="renumber")
    error = refused(ExactnessRefused, pair.cache, pair.cache.evict_span, pair.first, 2, 3)
    assert error.receipt == Receipt(2, 5, exact=False, refused=str(error))
    for remedy in ("kv_raw", "raw_only", "positions keep"):
        assert remedy in error.receipt.refused
    victims = [np.array([2, 5])]
    error = refused(ExactnessRefused, pair.cache, pair.cache.evict, pair.first, victims)
    assert (error.receipt.exact, error.receipt.refused) == (False, str(error))
    # Nobody moves up where the last tokens go.
    assert pair.evict(pair.first, 5, 2).exact
    keeps = Pair(of=shape("kv"), compaction=compaction)
    assert keeps.evict(keeps.first, 2, 3).exact


@pytest.mark.parametrize("span", [(2, 2), (5, 2), (9, 1)])
def test_recurrent_layers_cannot_forget(span):
    """A span taken from the rows while a state that read it stays."""
    pair = Pair(recurrent_layers=(1,))
    error = refused(ExactnessRefused, pair.cache, pair.cache.evict_span, pair.first, *span)
    assert "recurrent state cannot forget a span: layers [1]" in error.receipt.refused
    error = refused(ExactnessRefused, pair.cache, pair.cache.evict, pair.first, [np.array([6])])
    assert "recurrent" in error.receipt.refused


def test_a_refusal_by_the_ceiling_says_why_in_its_receipt():
    """Bytes changed by half a verb, or a refusal that looks like an eviction."""
    pair = Pair(8, ceiling_pages=3, **IN_PLACE)
    pair.fork(pair.first)
    error = refused(CeilingExceeded, pair.cache, pair.cache.evict_span, pair.first, 1, 2)
    assert (error.needed_pages, error.free_pages) == (2, 1)
    assert error.receipt == Receipt(1, 3, exact=False, refused=str(error))
    pair.check()
    # The same with a page more.
    roomy = Pair(8, ceiling_pages=4, **IN_PLACE)
    child = roomy.fork(roomy.first)
    assert roomy.evict(child, 1, 2).cow_pages == 2


@pytest.mark.parametrize("positions", ["renumber", "keep"])
def test_positions_end_with_the_tables(positions):
    """A row rotated by what lies behind the last angle, or the last position refused."""
    pair = Pair(of=shape(max_positions=16), positions=positions, hard=False)
    rows = rows_of(pair.shape, 10, pair.rng)
    refused(RotationError, pair.cache, pair.cache.append, pair.first, rows, match="position 16")
    pair.append(pair.first, 9)
    pair.append(pair.first, 0)
    one = rows_of(pair.shape, 1, pair.rng)
    refused(RotationError, pair.cache, pair.cache.append, pair.first, one)
    pair.evict(pair.first, 3, 4)
    if positions == "renumber":
        pair.append(pair.first, 4)
    pair.check()


LONG = Rope(
    8, scaling="longrope", factor=4.0, original_context=10,
    short_factors=(1.0,) * 4, long_factors=(1.0, 2.0, 3.0, 4.0),
)  # fmt: skip


def test_longrope_is_not_renumbered_past_its_original_context():
    """Rows of two regimes under one rank, where the first set happens to be short."""
    of = shape(ropes=(LONG, LONG))
    pair = Pair(9, of, scope="layer", sets="layer", positions="renumber")
    pair.cache.evict(pair.first, [np.arange(7), NOBODY])
    rows = rows_of(of, 2, pair.rng)
    refused(RotationError, pair.cache, pair.cache.append, pair.first, rows, match="longrope")
    pair.cache.append(pair.first, rows_of(of, 1, pair.rng))
    keeps = Pair(9, of)
    keeps.append(keeps.first, 4)
    keeps.evict(keeps.first, 2, 5)


def test_each_layer_turns_by_its_own_table():
    """One theta for all layers: the control swaps them and must differ."""
    pair = Pair(**IN_PLACE)
    pair.evict(pair.first, 2, 2)
    rows = pair.cache.rows(pair.first)
    for layer, rope in enumerate(ROPES):
        for at in (16 * layer, 16 * layer + 8):
            raw = rows["k_raw"][:, at : at + 8]
            for other in ROPES:
                cos, sin = tables(other, 5)
                turned = rotate(np.ascontiguousarray(raw), cos, sin, "half_split")
                assert equal(rows["K"][:, at : at + 8], turned) == (other is rope)


@pytest.mark.parametrize("positions", ["renumber", "keep"])
@pytest.mark.parametrize("planes", ["kv_raw", "raw_only"])
def test_evictions_one_after_another(planes, positions):
    """A key rotated from a key: only a second eviction shows it."""
    pair = Pair(14, shape(planes), positions=positions, compaction="forward", hard=True)
    child = pair.fork(pair.first)
    for first, count in ((1, 2), (0, 1), (3, 2), (2, 1)):
        pair.evict(child, first, count)
        pair.append(child, 3)
        pair.check()
    pair.evict(pair.first, 4, 5)


def test_reading_raw_keys_is_counted():
    """The price of planes raw_only, which nothing else shows."""
    pair = Pair(of=shape("raw_only"))
    pair.cache.rows(pair.first)
    pair.cache.unit_rows(pair.first, 0)
    # Seven tokens in two layers of two heads.
    assert pair.cache.read_rotated_rows_total == 28
    other = Pair()
    other.cache.rows(other.first)
    assert other.cache.read_rotated_rows_total == 0


def test_sets_that_have_one_position_in_different_slots():
    """Rows of all sets read at the slots of one of them: other tokens' bytes."""
    of = shape(families=dense([1, 1], 8, 8), ropes=ROPES)
    options = {"sets": "layer", "compaction": "hole_fill", "unit": "row", "positions": "keep"}
    pair = Pair(8, of, **options)
    given = pair.given[0]

    def drop(*positions):
        slots = []
        for which, gone in enumerate(positions):
            found, there = pair.ledger.rows(pair.first, which)
            slots.append(found[np.isin(there, gone)])
        pair.cache.evict(pair.first, slots)

    drop([1], [5])
    with pytest.raises(LedgerError, match="unit_rows"):
        pair.cache.rows(pair.first)
    drop([5], [1])
    slots = [pair.ledger.rows(pair.first, which)[0].tolist() for which in (0, 1)]
    assert slots[0] != slots[1]
    rows = pair.cache.rows(pair.first)
    kept = [0, 2, 3, 4, 6, 7]
    assert rows["positions"].tolist() == kept
    assert equal(rows["V"], given["v"][kept])
    assert equal(rows["k_raw"], given["k"][kept])
    for layer in (0, 1):
        alone = pair.cache.unit_rows(pair.first, layer)
        assert equal(alone["V"], given["v"][kept][:, 8 * layer : 8 * layer + 8])


@pytest.mark.parametrize(
    ("name", "array", "match"),
    [
        ("k", np.zeros((2, 31), np.float32), r"'kv', plane 'k': float32 \[tokens, 32\]"),
        ("v", np.zeros((3, 32), np.float32), r"same tokens, not \[2, 3\]"),
        ("v", np.zeros((2, 4, 8), np.float32), r"\(2, 4, 8\)"),
        ("k", np.zeros((2, 32)), "float64"),
        ("k", np.zeros((2, 32), ">f4"), ">f4"),
        ("k", [[0.0] * 32] * 2, "list"),
        ("k_raw", np.zeros((2, 32), np.float32), "k_raw"),
    ],
)
def test_rows_that_do_not_fit_are_refused(name, array, match):
    """Rows that are cut, cast or broadcast, and planes that are longer than others."""
    pair = Pair()
    (rows,) = rows_of(pair.shape, 2, pair.rng)
    rows[name] = array
    refused(LedgerError, pair.cache, pair.cache.append, pair.first, [rows], match=match)


def test_families_that_are_missing_are_refused():
    """An append that only some of the families take part in."""
    of = shape(families=glm_dsa(1, 1, 4, 4, 6, 8, [0]), ropes=(Rope(4),))
    pair = Pair(of=of)
    rows = rows_of(of, 1, pair.rng)
    refused(LedgerError, pair.cache, pair.cache.append, pair.first, rows[:2], match="3 families")
    broken = [rows[0], {}, rows[2]]
    refused(LedgerError, pair.cache, pair.cache.append, pair.first, broken, match="'value'")


def test_verbs_on_what_is_not_open_are_refused():
    """A closed sequence whose pages another one has by now."""
    pair = Pair()
    cache, gone = pair.cache, pair.open()
    del pair.truths[gone]
    cache.free(gone)
    rows = rows_of(pair.shape, 1, pair.rng)
    for verb, *arguments in (
        ("append", rows), ("fork",), ("clone",), ("reserve", 1), ("free",), ("compact",),
        ("evict_span", 0, 1), ("evict", [NOBODY]), ("swap_out",), ("rows",),
    ):  # fmt: skip
        refused(LedgerError, cache, getattr(cache, verb), gone, *arguments, match="not open")
    refused(VictimError, cache, cache.evict, pair.first, [np.array([1, 1])], match="slot 1")
    refused(VictimError, cache, cache.evict, pair.first, [np.array([7])])
    refused(VictimError, cache, cache.evict, pair.first, [np.array([0.5])])
    refused(LedgerError, cache, cache.compact, pair.first, match="no compaction")
    assert equal(cache.rows(pair.first)["V"], pair.given[0]["v"])


def test_one_flipped_bit_is_seen():
    """Control: an agreement that compares numbers would take -0 for 0 and never fail for NaN."""
    pair = Pair(of=shape(families=DENSE), hard=True)
    pair.check()
    for planes in pair.cache.store.planes:
        for plane in planes.values():
            plane.view(np.uint32)[5, 3] ^= 0x80000000
            with pytest.raises(AssertionError):
                pair.check()
            plane.view(np.uint32)[5, 3] ^= 0x80000000
    pair.check()
