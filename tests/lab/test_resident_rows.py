"""Runs with a physical model: its columns, what is measured beside them, and what is refused."""

from __future__ import annotations

import dataclasses
import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import resident_tables
from recordings import arrays, row_of, scenario, tiny
from watching import synthetic

from kvsim.errors import LedgerError, MemoryRefused, ScenarioError
from kvsim.lab import physical, setup, sweep
from kvsim.lab.execute import execute
from kvsim.lab.identity import run_id
from kvsim.lab.run import check, run
from kvsim.lab.scenario import Scenario
from kvsim.paging.physical import Extents
from kvsim.tensors.buffers import OS_PAGE_BYTES
from kvsim.tensors.mapped import MappedMemory

ROOT = Path(__file__).parents[2]
EXPERIMENT = ROOT / "experiments" / "03-resident"
COLUMNS = ("mapped_extents", "mapped_bytes", "returned_extents_total", "empty_mapped_bytes")
MAPPED = {"store.kind": "array", "store.memory": "mapped", "store.element_bytes": 4}
linux = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux's madvise and mincore")


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    # Pages of 256 tokens: 8 KiB of float32 a layer and plane, whole pages of memory.
    folder = tmp_path_factory.mktemp("resident")
    more = {"workload.tokens": 3000, "workload.decode_tokens": 0, "pages.tokens": 256}
    return {**synthetic(folder), **more, "budget.fraction": 0.25, "selection.granularity": "page"}


# Counting and mapping give one row


@linux
@pytest.mark.parametrize("plane_layout", ["page_major", "layer_major"])
@pytest.mark.parametrize("extent_bytes", [OS_PAGE_BYTES, 16 * OS_PAGE_BYTES])
@pytest.mark.parametrize("compaction", ["none", "forward", "hole_fill", "rebuild"])
@pytest.mark.parametrize(
    "more",
    [
        {"selection__granularity": "token"},
        {"selection__granularity": "window", "workload__forks": 2},
        {"workload__sequences": 2, "pool__order": "lifo"},
        {"workload__decode_tokens": 4, "budget__when": "step", "policy__name": "streaming_llm"},
    ],
    ids=["token", "window, forks", "page, lifo", "step by step"],
)
def test_counting_knows_what_the_machine_sees(keys, more, compaction, extent_bytes, plane_layout):
    given = {
        **more,
        "compaction__algorithm": compaction,
        "store__plane_layout": plane_layout,
        "store__extent_bytes": extent_bytes,
        "store__element_bytes": 4,
    }
    measured = {}
    counted = row_of(keys, **given)
    mapped = run(scenario({**keys, **MAPPED}, **given), None, measured)
    differing = {name for name in mapped if mapped[name] != counted[name]}
    assert differing == {"run_id", "store", "memory"}
    assert measured["resident_bytes"] == mapped["mapped_bytes"] == counted["mapped_bytes"] > 0
    assert mapped["mapped_bytes"] == mapped["mapped_extents"] * extent_bytes
    assert mapped["mapped_bytes"] - mapped["empty_mapped_bytes"] == mapped["held_bytes"]


@linux
def test_what_is_returned_is_what_the_process_no_longer_has(keys):
    given = {"store__plane_layout": "layer_major", "store__extent_bytes": OS_PAGE_BYTES}
    row = row_of({**keys, **MAPPED}, **given)
    # Of 12 pages 8 are evicted; each has two pages of memory in each of 4 buffers.
    assert row["freed_pages_total"] == 8
    assert row["returned_extents_total"] == 8 * 8192 // OS_PAGE_BYTES * 4
    assert row["mapped_bytes"] == row["held_bytes"]
    assert row["empty_mapped_bytes"] == 0


@linux
def test_measurements_stand_beside_the_rows(keys, tmp_path):
    given = [scenario({**keys, **MAPPED}), scenario(keys)]
    execute(given, tmp_path, jobs=1, command=["test"])
    rows, measured = (
        [json.loads(line) for line in (tmp_path / name).read_text().splitlines()]
        for name in ("rows.jsonl", "measured.jsonl")
    )
    assert [set(entry) for entry in measured] == [
        {
            "run_id",
            "seconds",
            "resident_bytes",
            "process_rss_bytes",
            "process_rss_before_bytes",
        },
        {"run_id", "seconds"},
    ]
    assert measured[0]["resident_bytes"] == rows[0]["mapped_bytes"]
    assert measured[0]["process_rss_bytes"] > measured[0]["resident_bytes"]
    # Of the default extents, 2 MiB, these planes fill no more than one each.
    assert (rows[0]["extent_bytes"], rows[0]["mapped_extents"]) == (2 << 20, 2)


@linux
def test_mapped_rows_are_the_same_for_any_number_of_jobs(keys, tmp_path):
    given = [scenario({**keys, **MAPPED}, seed=seed) for seed in range(4)]
    files = []
    for jobs in (1, 2):
        execute(given, tmp_path / str(jobs), jobs=jobs, command=["test"])
        files.append((tmp_path / str(jobs) / "rows.jsonl").read_bytes())
    assert files[0] == files[1]


# Controls: a run in which the machine and the ledger disagree fails.


@linux
def test_a_run_whose_memory_is_not_given_back_fails(keys, monkeypatch):
    monkeypatch.setattr(MappedMemory, "give_back", lambda memory, orders: None)
    with pytest.raises(LedgerError, match="bytes are in memory and not 0"):
        row_of({**keys, **MAPPED}, store__extent_bytes=OS_PAGE_BYTES)


@linux
def test_a_run_that_reads_where_nothing_is_mapped_fails(keys, monkeypatch):
    real = setup.make_memory

    def read(given, parts):
        memory = real(given, parts)
        # The pool's last page, which nothing needs: what is read there stays in memory.
        memory._buffers[0].array(np.uint8)[-1:].sum()
        return memory

    monkeypatch.setattr(setup, "make_memory", read)
    with pytest.raises(LedgerError, match=r"buffer kv\.K: of its unmapped extents"):
        row_of(
            {**keys, **MAPPED},
            store__extent_bytes=OS_PAGE_BYTES,
            pool__ceiling_pages=0,
            compaction__algorithm="rebuild",
        )


@linux
@pytest.mark.parametrize("ceiling", [0, 5])
def test_memory_is_let_go_however_a_run_ends(keys, monkeypatch, ceiling):
    made = []
    real = setup.make_memory

    def kept(given, parts):
        made.append((memory := real(given, parts), list(memory._buffers)))
        return memory

    monkeypatch.setattr(setup, "make_memory", kept)
    row = row_of({**keys, **MAPPED}, pool__ceiling_pages=ceiling)
    assert row["outcome"] == ("infeasible" if ceiling else "completed")
    ((memory, buffers),) = made
    assert memory._buffers == []
    for buffer in buffers:
        with pytest.raises(LedgerError, match="closed"):
            buffer.resident_bytes()


# Columns


def test_without_a_physical_model_its_columns_are_null(keys):
    for more in ({}, {"store.plane_layout": "layer_major"}, {"store.kind": "array"}):
        row = row_of({**keys, **more})
        assert {row[name] for name in (*COLUMNS, "plane_layout", "extent_bytes")} == {None}
        assert row["memory"] == "heap"


def test_the_layout_of_planes_in_numpys_memory_changes_no_number(keys):
    rows = [
        row_of(
            keys,
            store__kind="array",
            store__plane_layout=layout,
            store__planes="kv_raw",
            compaction__algorithm="forward",
            compaction__positions="renumber",
        )
        for layout in ("page_major", "layer_major")
    ]
    assert {name for name in rows[0] if rows[0][name] != rows[1][name]} == {"run_id"}


@pytest.mark.parametrize(
    ("planes", "price", "rotated"), [("kv", 1.0, 0), ("kv_raw", 1.5, 0), ("raw_only", 1.0, 1)]
)
def test_the_price_of_exactness(keys, planes, price, rotated):
    row = row_of(keys, store__planes=planes, workload__forks=1)
    assert row["plane_price"] == price
    assert row["page_bytes"] == 256 * 4 * 2 * 4 * 2 * price
    # Reading rotates a row for each token and unit, and a shared one in each sequence.
    assert row["read_rotated_rows"] == rotated * row["retained_tokens"] * 4
    assert row["retained_tokens"] > 0


def test_the_price_is_of_the_layout(keys, tmp_path):
    layout = json.loads(Path(keys["layout"]).read_text())
    layout["layers"] = [{**layout["layers"][0], "k_head_dim": 4, "v_head_dim": 12}]
    (tmp_path / "wide.json").write_text(json.dumps(layout))
    row = row_of({**keys, "layout": str(tmp_path / "wide.json")}, store__planes="kv_raw")
    assert row["plane_price"] == (4 + 12 + 4) / (4 + 12)


def test_a_recording_can_have_a_physical_model(tmp_path):
    given = tiny(tmp_path, arrays(2, 2, 40))
    row = row_of(given, pages__tokens=4, store__extent_bytes=64, selection__protect_recent=4)
    # 2 bytes an element: 4 tokens of 16 elements are 128 bytes of each plane, two extents.
    assert row["mapped_extents"] == 2 * 2 * row["held_pages"]
    assert (row["plane_layout"], row["extent_bytes"]) == ("page_major", 64)


def test_steps_that_the_kernel_takes_at_once_return_what_single_steps_do(keys):
    more = {
        "policy__name": "streaming_llm",
        "budget__when": "step",
        "budget__tokens": 600,
        "workload__tokens": 1000,
        "workload__decode_tokens": 700,
        "selection__granularity": "token",
        "store__extent_bytes": OS_PAGE_BYTES,
        "store__plane_layout": "layer_major",
    }
    plain, watched = (row_of(keys, **more, record__page_map=on) for on in (False, True))
    assert [plain[name] for name in COLUMNS] == [watched[name] for name in COLUMNS]
    assert plain["returned_extents_total"] == 2 * 2 * plain["freed_pages_total"] > 0


# The pool's size


@pytest.mark.parametrize("compaction", ["none", "forward", "hole_fill", "rebuild"])
@pytest.mark.parametrize("positions", ["keep", "renumber"])
@pytest.mark.parametrize("when", ["prefill_end", "chunk", "step"])
def test_a_pool_under_a_physical_model_never_grows(keys, compaction, positions, when):
    given = scenario(
        keys,
        pages__tokens=4,
        workload__tokens=60,
        workload__decode_tokens=9,
        workload__sequences=2,
        workload__forks=2,
        selection__granularity="token",
        selection__sets="head",
        compaction__algorithm=compaction,
        compaction__positions=positions,
        compaction__unit="row",
        budget__when=when,
        budget__tokens=20,
        budget__chunk_tokens=13,
        store__planes="kv_raw",
        store__extent_bytes=4096,
    )
    parts = setup.understand(given)
    loop = setup.make_loop(given, parts)
    pages = loop.ledger.room_pages
    setup.make_engine(given, parts, loop, lambda: None).run()
    assert loop.ledger.room_pages == pages == (6 * 18 + 18 * (compaction == "rebuild"))


@pytest.mark.parametrize(("ceiling", "size"), [(9, 9), (900, 12), (0, 12)])
def test_a_ceiling_is_the_size_of_the_pool_if_it_is_lower(keys, ceiling, size):
    given = scenario(keys, pool__ceiling_pages=ceiling, store__extent_bytes=4096)
    assert setup.make_loop(given, setup.understand(given)).ledger.room_pages == size


# Refusals


REFUSED = {
    "rows nowhere": ({"store.memory": "mapped"}, r"store\.memory: .* set store\.kind to array"),
    "bytes that are not": (
        {**MAPPED, "store.element_bytes": 2},
        r"store\.memory: mapped planes are float32; set store\.element_bytes to 4, not 2",
    ),
    "half a page": (
        {**MAPPED, "store.extent_bytes": OS_PAGE_BYTES // 2},
        r"store\.extent_bytes: \d+ is no multiple of this machine's page",
    ),
    "buffers of some heads": (
        {
            "store.plane_layout": "layer_major",
            "store.extent_bytes": 4096,
            "pages.scope": "head",
        },
        r"store\.plane_layout: buffer kv\.K\.0 would hold pages of 2 of 4 scope units",
    ),
}


@pytest.mark.parametrize(("more", "says"), REFUSED.values(), ids=REFUSED)
def test_contradictions_are_refused_by_name(keys, more, says):
    with pytest.raises(ScenarioError, match=says):
        check(scenario({**keys, **more}))


@linux
def test_a_pool_larger_than_the_memory_is_refused_with_the_remedy(keys):
    more = {"workload__kind": "requests", "workload__requests": 5000}
    lengths = Path(keys["layout"]).with_name("lengths.csv")
    lengths.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        + "".join(f"2023-11-16 18:{m:02}:00.0000000,2000,10\n" for m in range(9))
    )
    given = scenario(
        {**keys, **MAPPED, "workload.path": str(lengths), "layout": "Llama-3.2-1B"},
        **more,
        pages__tokens=16,
    )
    with pytest.raises(MemoryRefused, match=r"pool\.ceiling_pages makes the pool smaller"):
        run(given)


@pytest.mark.parametrize("key", ["memory", "plane_layout", "extent_bytes"])
def test_the_keys_are_part_of_the_runs_identity(key):
    other = {"memory": "mapped", "plane_layout": "layer_major", "extent_bytes": 4096}[key]
    changed = dataclasses.replace(Scenario().store, **{key: other})
    assert run_id(dataclasses.replace(Scenario(), store=changed)) != run_id(Scenario())


def test_extents_of_the_lab_are_those_of_the_layout():
    given = scenario(
        {"layout": "Llama-3.2-1B", "workload.kind": "synthetic"},
        store__extent_bytes=2 << 20,
        store__element_bytes=4,
        store__plane_layout="layer_major",
    )
    parts = setup.understand(given)
    extents = setup.make_loop(given, parts).ledger.physical_model
    assert isinstance(extents, Extents)
    assert len(extents.buffers) == 32
    assert {spec.page_bytes for spec in extents.buffers} == {32 << 10}
    assert physical.extent_bytes(Scenario()) == 0


# What is committed of experiments/03-resident


def test_in_every_committed_run_the_machine_agrees():
    shown = resident_tables.rows()
    assert len(shown) == len(sweep.read(EXPERIMENT).scenarios)
    for line in shown:
        assert line["resident_bytes"] == line["mapped_bytes"]
        assert int(line["dense_bytes"]) == 1 << 30
        share = int(line["resident_bytes"]) / int(line["dense_bytes"])
        assert float(line["resident_share"]) == float(line["mapped_share"]) == share


def test_the_committed_accounting_is_what_counting_gives():
    names = ("budget_fraction", "granularity", "compaction", "plane_layout", "extent_bytes")
    committed = {tuple(line[name] for name in names): line for line in resident_tables.rows()}
    given = {"store.kind": "counting", "store.memory": "heap"}
    # Every grid, layout, granularity and compaction in some; all of them would take minutes.
    for chosen in sweep.read(EXPERIMENT, given).scenarios[::19]:
        row = run(chosen)
        line = committed[tuple(str(row[name]) for name in names)]
        for name in (*COLUMNS[1:], "held_bytes", "dense_bytes", "copied_bytes_total"):
            assert line[name] == str(row[name]), name


def test_the_tables_of_the_readme_are_those_of_the_csv():
    found = resident_tables.blocks()
    assert len(found) == 3
    for plane_layout, extent_bytes, text in found:
        assert resident_tables.table(plane_layout, extent_bytes) == text
    said = resident_tables.README.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#:]+)\)", said):
        assert (EXPERIMENT / target).exists(), target
