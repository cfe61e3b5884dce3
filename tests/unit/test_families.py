"""Families of rows through the paged cache: latents, sparse attention, layers that do not turn.

Each docstring names the bug that its test would catch. Rows must equal a contiguous cache's.
"""

from __future__ import annotations

import numpy as np
import pytest
from differential.paged_rows import equal
from realrows import Pair, shape

from kvsim.errors import LedgerError
from kvsim.layout.families import ROW_TYPES, RowFamily, RowSpec, dense, glm_dsa, mla
from kvsim.paging import fields as f
from kvsim.tensors.paged_cache import PagedCache
from kvsim.tensors.rope import Rope, rotate, tables

TWO = (Rope(4, 1e4), Rope(4, 1e6))
FAMILIES = {
    "latent": (mla(2, 6, 4), TWO),
    "latent, half split": (mla(2, 6, 4, "half_split"), TWO),
    "sparse": (glm_dsa(2, 2, 4, 4, 6, 8, [1]), TWO),
    "sparse, index everywhere": (glm_dsa(2, 1, 4, 4, 6, 8, [0, 1]), TWO),
    "partial and none": (dense([2, 1], [8, 6], [6, 8], [4, 0]), (Rope(4), Rope(0))),
    "interleaved": (dense([1, 2], 4, 4, pairing="interleaved"), TWO),
    "no values": ((RowFamily("index", (RowSpec(0, 0, 0, 8, 0, 4, 0),), "float64"),), (Rope(4),)),
}
ORDERINGS = {
    "none": {"positions": "renumber"},
    "keep": {"positions": "keep"},
    "rebuild": {"positions": "renumber", "compaction": "rebuild"},
    "forward": {"positions": "renumber", "compaction": "forward"},
    "hole_fill": {"positions": "renumber", "compaction": "hole_fill"},
}


def of(kind, planes="kv_raw"):
    """Return the shape of a kind."""
    families, ropes = FAMILIES[kind]
    return shape(planes, families, ropes)


@pytest.mark.parametrize("ordering", ORDERINGS)
@pytest.mark.parametrize("planes", ["kv_raw", "raw_only"])
@pytest.mark.parametrize("kind", FAMILIES)
def test_forks_of_every_family_evict_apart(kind, planes, ordering):
    """fak's families have no refcounts and cannot fork. A page of one family copied for another,
    a carried part that rotates or is lost, a pairing written as it is read."""
    pair = Pair(11, of(kind, planes), 3, hard=True, **ORDERINGS[ordering])
    child = pair.fork(pair.first)
    grandchild = pair.fork(child)
    pair.evict(child, 2, 4)
    pair.append(grandchild, 3)
    pair.evict(pair.first, 0, 3)
    pair.evict(grandchild, 3, 3)
    pair.append(child, 4)
    pair.evict(child, 1, 1)
    pair.check()


@pytest.mark.parametrize("kind", FAMILIES)
def test_planes_kv_keep_every_family_where_positions_do(kind):
    """A raw plane made or read where there is none."""
    pair = Pair(11, of(kind, "kv"), 3, hard=True, compaction="forward", positions="keep")
    pair.evict(pair.fork(pair.first), 2, 4)
    assert "k_raw" not in pair.cache.rows(pair.first)


def test_a_latent_is_carried_and_only_its_rope_part_is_kept_raw():
    """A latent that rotates, or is kept twice: 10 + 4 elements and not 10 + 10."""
    pair = Pair(9, of("latent"), positions="renumber")
    pair.evict(pair.first, 2, 4)
    kept = [0, 1, 6, 7, 8]
    given = pair.given[0]["k"][kept].reshape(5, 2, 10)
    found = pair.cache.rows(pair.first)
    keys = found["K"].reshape(5, 2, 10)
    assert equal(keys[..., :6], given[..., :6])
    for layer, rope in enumerate(TWO):
        cos, sin = tables(rope, 5)
        turned = rotate(np.ascontiguousarray(given[:, layer, 6:]), cos, sin, "interleaved_to_half")
        assert equal(keys[:, layer, 6:], turned)
    assert found["k_raw"].shape == (5, 8)
    assert "V" not in found
    # Two layers of 14 float32 for each of the 12 slots that are held.
    assert pair.ledger.held_bytes == 12 * 2 * 14 * 4
    assert of("latent").families[0].token_bytes("kv_raw") == 2 * 14 * 4
    assert of("latent").families[0].token_bytes("raw_only") == 2 * 10 * 4


def test_families_of_sparse_attention_have_tables_of_their_own():
    """A page that two families share, or bytes of one family's width for all."""
    pair = Pair(9, of("sparse"), positions="renumber")
    cache, ledger = pair.cache, pair.ledger
    assert ledger.geometry.scope_units == 3
    named = [ledger.pages_of(pair.first, scope).tolist() for scope in range(3)]
    assert len({page for pages in named for page in pages}) == 9
    # key: 4 rows of 8, twice; value: 4 rows of 6; index: one row of 8 float64, twice.
    widths = [4 * 8 * 2 * 4, 4 * 6 * 4, 8 * 2 * 8]
    assert ledger.geometry.page_row_bytes().tolist() == widths
    assert ledger.held_bytes == 12 * sum(widths)
    assert [sorted(cache.rows(pair.first, family)) for family in range(3)] == [
        ["K", "k_raw", "positions"],
        ["V", "positions"],
        ["K", "k_raw", "positions"],
    ]
    assert cache.rows(pair.first, 2)["K"].dtype == np.float64


def test_a_sparse_key_is_read_interleaved_and_written_half_split():
    """Pairs written as they are read, or the part that never turns turned."""
    pair = Pair(6, of("sparse"), 3, positions="renumber")
    pair.evict(pair.first, 2, 2)
    kept = [0, 1, 4, 5]
    given = pair.given[0]["k"][kept].reshape(4, 2, 2, 8)
    keys = pair.cache.rows(pair.first)["K"].reshape(4, 2, 2, 8)
    assert equal(keys[..., :4], given[..., :4])
    for layer, rope in enumerate(TWO):
        cos, sin = tables(rope, 4)
        for head in range(2):
            raw = np.ascontiguousarray(given[:, layer, head, 4:])
            mine = keys[:, layer, head, 4:]
            assert equal(mine, rotate(raw, cos, sin, "interleaved_to_half"))
            assert not equal(mine, rotate(raw, cos, sin, "interleaved"))
    index = pair.cache.rows(pair.first, 2)
    raw = pair.given[2]["k"][kept]
    cos, sin = tables(TWO[1], 4)
    narrow = rotate(raw[:, :4].astype(np.float32), cos, sin, "half_split")
    assert equal(index["K"][:, :4], narrow.astype(np.float64))
    assert equal(index["K"][:, 4:], raw[:, 4:])


def test_a_family_that_copies_on_write_copies_its_own_pages():
    """Refcounts of one family dropped for another's copies."""
    pair = Pair(9, of("sparse"), positions="renumber", compaction="forward")
    child = pair.fork(pair.first)
    # Three tables, three pages each, of which the last two are written; 6 survivors fit two.
    receipt = pair.evict(child, 5, 3)
    assert (receipt.cow_pages, receipt.newly_held_pages) == (3, 3)
    counts = pair.ledger.refcounts()
    for scope in range(3):
        mine, theirs = (pair.ledger.pages_of(s, scope).tolist() for s in (child, pair.first))
        assert mine[0] == theirs[0]
        assert mine[1] != theirs[1]
        assert counts[[mine[0], mine[1], theirs[1], theirs[2]]].tolist() == [2, 1, 1, 1]
        assert pair.ledger.table(child, scope, f.NAMED) == 2


@pytest.mark.parametrize("kind", FAMILIES)
@pytest.mark.parametrize("scope", ["sequence", "layer", "head"])
def test_units_are_cut_by_scope(kind, scope):
    """A row read from another unit's elements."""
    pair = Pair(9, of(kind), scope=scope, hard=True, layout="layer_major", positions="renumber")
    pair.evict(pair.first, 3, 2)
    cut = pair.shape.offsets
    number = 0
    for family, rows in enumerate(pair.shape.families):
        whole = pair.cache.rows(pair.first, family)
        for row in range(len(rows.rows)):
            stored = pair.cache.unit_rows(pair.first, number)
            for plane, offsets in cut[family].items():
                if offsets[row] < offsets[row + 1]:
                    mine = whole[plane][:, offsets[row] : offsets[row + 1]]
                    assert equal(stored[plane], np.ascontiguousarray(mine))
            number += 1
    widths = [
        ROW_TYPES[family.dtype] * sum(sum(row.widths("kv_raw").values()) for row in family.rows)
        for family in pair.shape.families
    ]
    assert pair.ledger.geometry.page_row_bytes().sum() == sum(widths)


def test_sets_that_differ_from_table_to_table_are_refused():
    """An index on some layers alone, evicted by layer inside tables of whole families."""
    with pytest.raises(LedgerError, match="same number of sets"):
        PagedCache(of("sparse"), 4, sets="layer")
    pair = Pair(9, of("sparse"), scope="layer", sets="layer", positions="renumber")
    pair.cache.evict(pair.first, [np.array([1, 2]), np.array([5])])
    pair.cache.check()
    assert pair.cache.unit_rows(pair.first, 0)["positions"].size == 7
    assert pair.cache.unit_rows(pair.first, 8)["positions"].size == 8
