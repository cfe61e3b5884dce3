"""The study of quarantines: small cases by hand, rows that are the right ones, what is refused.

The hand-worked context has pages of 4 slots: a prefix in slots 0 to 5, a span in 6 to 12 and a
suffix in 13 to 17, so page 2 lies in the span and pages 1 and 3 are its edges. Two layers of one KV
head with 4 elements of 2 bytes: 32 bytes a token, 48 with the pre-RoPE key, 8 a key.
"""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import pytest
import quarantine_tables
from recordings import row_of, scenario, write_layout
from typer.testing import CliRunner

from kvsim.cli import app
from kvsim.engine.costs.roofline import CostModel
from kvsim.errors import ScenarioError
from kvsim.lab import reading, sweep
from kvsim.lab.execute import execute
from kvsim.lab.identity import run_id
from kvsim.lab.run import check, run
from kvsim.lab.scenario import Scenario, Workload
from kvsim.lab.studies.quarantine_keys import REWRITES, Quarantine
from kvsim.lab.studies.quarantine_time import moving_ns, prefill

ROOT = Path(__file__).parents[2]
EXPERIMENT = ROOT / "experiments" / "06-quarantine"
METHODS = ("renumber", "compact", "keep", "keep_aligned", "reprefill_suffix", "reset")
SPAN = {
    "quarantine.prefix_tokens": 6,
    "quarantine.span_tokens": 7,
    "quarantine.suffix_tokens": 5,
    "quarantine.fan_out": 3,
}


@pytest.fixture
def keys(tmp_path):
    """The hand-worked context, on a device of one byte and one operation a nanosecond."""
    return {
        **SPAN,
        "workload.kind": "quarantine",
        "layout": write_layout(tmp_path, 2, 1),
        "pages.tokens": 4,
        "cost.parameters": 10,
        "cost.query_heads": 1,
        "cost.bandwidth_bytes_per_s": 1e9,
        "cost.flops_per_s": 1e9,
    }


def by(keys, method, sharing="each", **more):
    """Return the row of a method, with the planes that it needs."""
    planes = "kv_raw" if method in REWRITES else "kv"
    given = {**keys, "quarantine.method": method, "quarantine.sharing": sharing}
    return row_of({**given, "store.planes": planes}, **more)


def shown(row, *names):
    return tuple(row[name] for name in names)


PAGES = ("dense_pages", "held_pages", "net_freed_pages", "extra_pages_peak", "cow_pages_total")
PRICES = ("copied_rows_total", "copied_bytes_total", "rotated_rows_total", "rotated_bytes_total")
LEFT = ("readable_span_tokens", "dead_slots", "residual_bytes", "conditioned_tokens")


# By hand


def test_keep_frees_the_page_inside_and_masks_the_edges(keys):
    row = by(keys, "keep")
    assert shown(row, *PAGES) == (5, 4, 1, 0, 0)
    assert shown(row, *PRICES, "time_ns") == (0, 0, 0, 0, 0)
    # Slots 6, 7 and 12 are masked.
    assert shown(row, *LEFT) == (0, 3, 3 * 32, 5)
    assert shown(row, "decode_read_bytes_before", "decode_read_bytes") == (54 * 32, 42 * 32)


def test_whole_pages_leave_the_edges_readable(keys):
    row = by(keys, "keep_aligned")
    assert shown(row, *PAGES) == (5, 4, 1, 0, 0)
    assert shown(row, *LEFT) == (3, 0, 3 * 32, 5)
    assert row["evicted_tokens_total"] == 3 * 4
    # A span inside one page loses nothing at all.
    short = by(keys, "keep_aligned", quarantine__span_tokens=1)
    assert shown(short, *PAGES[1:3], *LEFT[:2], "evicted_tokens_total") == (3, 0, 1, 0, 0.0)
    assert short["reclaim_efficiency"] is None
    # The control: an aligned span leaves nothing.
    aligned = by(keys, "keep_aligned", quarantine__prefix_tokens=8, quarantine__span_tokens=8)
    assert shown(aligned, "aligned", "net_freed_pages", *LEFT[:3]) == (True, 2, 0, 0, 0)
    assert row["aligned"] is False


def test_renumbering_copies_for_all_but_the_last(keys):
    row = by(keys, "renumber")
    # Pages 3 and 4 are copied twice: 3 and 2 live rows. Before the third frees page 2, 9 are held.
    assert shown(row, *PAGES) == (5, 8, -3, 4, 4)
    assert shown(row, *PRICES) == (10 * 2, 10 * 48, 15 * 2, 15 * 2 * 8)
    assert shown(row, "moved_bytes_total", "time_ns") == (2 * (480 + 240), 1440)
    # Slots 6 and 7 are shared; slot 12 is dead in three pages.
    assert shown(row, *LEFT) == (0, 5, 5 * 48, 5)


def test_renumbering_once_copies_nothing(keys):
    row = by(keys, "renumber", "once")
    assert shown(row, *PAGES) == (5, 4, 1, 0, 0)
    assert shown(row, *PRICES) == (0, 0, 5 * 2, 5 * 2 * 8)
    assert shown(row, *LEFT, "time_ns") == (0, 3, 3 * 48, 5, 160)


def test_raw_keys_are_not_written(keys):
    row = row_of({**keys, "quarantine.method": "renumber", "store.planes": "raw_only"})
    assert shown(row, *PAGES, *PRICES, "time_ns") == (5, 4, 1, 0, 0, 0, 0, 0, 0, 0)
    assert row["row_bytes"] == 32


def test_compacting_moves_up_what_is_behind(keys):
    row = by(keys, "compact")
    # Slots 4 to 10 are in two pages, which two sequences copy: 2 rows stay and 5 move.
    assert shown(row, *PAGES) == (5, 7, -2, 4, 4)
    assert shown(row, *PRICES) == (19 * 2, 19 * 48, 15 * 2, 15 * 2 * 8)
    assert shown(row, *LEFT) == (0, 0, 0, 5)
    once = by(keys, "compact", "once")
    assert shown(once, *PAGES) == (5, 3, 2, 0, 0)
    assert shown(once, *PRICES) == (5 * 2, 5 * 48, 5 * 2, 5 * 2 * 8)


def test_tails_are_carried_over_to_the_rewritten_context(keys):
    row = by(keys, "renumber", "once", quarantine__fan_out=2, quarantine__tail_tokens=3)
    # Held: four shared pages, and of each sequence the one of slots 16 to 19 and one of slot 20.
    # At most: the fork's copies of pages 3 and 4, and a copied last page with one more.
    assert shown(row, *PAGES) == (8, 7, 1, 4, 3)
    # Copied: 5 rows of the suffix, 2 of the shared last page, and 3 of each tail.
    assert shown(row, *PRICES) == (13 * 2, 13 * 48, 11 * 2, 11 * 2 * 8)
    assert shown(row, "moved_tail_tokens", "conditioned_tokens") == (6, 11)


def test_computing_the_suffix_again_leaves_no_conditioned_row(keys):
    row = by(keys, "reprefill_suffix")
    assert shown(row, *PAGES) == (5, 3, 2, 0, 0)
    assert shown(row, *LEFT) == (0, 0, 0, 0)
    # 5 tokens behind 6: weights of 20 bytes, 11 rows read, 5 written; 45 pairs of 32 operations.
    assert shown(row, "prefilled_tokens_total", "prefill_steps") == (5, 1)
    assert row["prefill_bytes_total"] == 20 + 32 * 16
    assert row["prefill_flops_total"] == 2 * 10 * 5 + 32 * (6 * 5 + 15)
    assert row["time_ns"] == row["prefill_time_ns"] == 1540


def test_a_reset_computes_the_rest_of_a_page_for_everyone(keys):
    row = by(keys, "reset")
    # Two sequences hit pages 0 and 1, and have a third page of their own.
    assert shown(row, *PAGES) == (5, 5, 0, 0, 0)
    assert shown(row, "prefilled_tokens_total", "prefill_steps") == (11 + 3 + 3, 1)
    assert row["prefill_bytes_total"] == 20 + 32 * (33 + 17)
    assert row["time_ns"] == 2 * 10 * 17 + 32 * (66 + 30 + 30)
    assert row["conditioned_tokens"] == 0
    # Eleven tokens and one more are three full pages: the last token's page is computed again.
    full = by(keys, "reset", quarantine__suffix_tokens=6)
    assert full["prefilled_tokens_total"] == 12 + 4 + 4
    tails = by(keys, "reset", quarantine__suffix_tokens=6, quarantine__tail_tokens=1)
    assert tails["prefilled_tokens_total"] == 12 + 1 + 1 + 1


def test_steps_are_packed_and_split():
    model = CostModel(1000, 1, 1, 1, 1e9, 1e9, 1e9)
    found = prefill(model, [(0, 11), (8, 3), (8, 3)], 8)
    # 8; 3 behind 8, 3 and 2 behind 8; 1 behind 10.
    reads = (8, 11 + 11 + 10, 11)
    assert found.steps == 3
    assert found.read_bytes == 3000 + sum(reads) + 17
    assert found.flops == 2 * 17 + (36 + (24 + 6) * 2 + (16 + 3) + 11)
    assert found.time_ns == 3000 + sum(reads) + 17
    assert prefill(model, [], 8) == (0, 0, 0, 0, 0)
    # Rows are moved without weights.
    assert (moving_ns(model, 0), moving_ns(model, 7)) == (0, 7)


# Columns that add up


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("tail", [0, 9])
@pytest.mark.parametrize("page_tokens", [1, 4, 5, 64])
def test_the_columns_add_up(keys, method, tail, page_tokens):
    more = {"quarantine__tail_tokens": tail, "pages__tokens": page_tokens}
    for sharing in ("each", "once") if method in REWRITES else ("each",):
        row = by(keys, method, sharing, **more)
        assert row["outcome"] == "completed"
        assert row["held_bytes"] == row["held_pages"] * row["page_bytes"]
        assert row["net_freed_pages"] == row["dense_pages"] - row["held_pages"]
        assert row["held_pages"] * page_tokens == sum(
            row[name] for name in ("live_slots", "dead_slots", "tail_slots")
        )
        assert row["held_pages_peak"] == row["dense_pages"] + row["extra_pages_peak"]
        assert row["held_pages_peak"] >= max(row["held_pages"], row["dense_pages"])
        assert row["held_pages"] >= row["packed_floor_slot_pages"]
        assert row["retained_tokens"] == row["tokens"] - row["evicted_tokens_total"]
        moved = row["copied_bytes_total"] + row["rotated_bytes_total"]
        assert row["moved_bytes_total"] == 2 * moved
        assert row["time_ns"] == row["moving_time_ns"] + row["prefill_time_ns"]
        json.dumps(row, allow_nan=False)
        assert by(keys, method, sharing, **more) == row


def test_alone_both_ways_of_sharing_are_one(keys):
    for method in REWRITES:
        each, once = (by(keys, method, s, quarantine__fan_out=1) for s in ("each", "once"))
        differ = {name for name in each if each[name] != once[name]}
        # The empty fork lets its pages go with the sequence that it came from.
        assert differ <= {"run_id", "sharing"}


# Identity, resuming, refusals


def test_every_key_of_the_table_is_part_of_a_run_and_of_no_other_kind():
    kinds = {kind: Scenario(workload=Workload(kind=kind)) for kind in ("quarantine", "extents")}
    ids = {run_id(kinds["quarantine"])}
    fields = dataclasses.fields(Quarantine)
    for field in fields:
        other = field.metadata.get("choices", (None, None))[1]
        changed = Quarantine(**{field.name: field.default + 1 if other is None else other})
        ids.add(run_id(dataclasses.replace(kinds["quarantine"], quarantine=changed)))
        extents = dataclasses.replace(kinds["extents"], quarantine=changed)
        assert run_id(extents) == run_id(kinds["extents"])
    assert len(ids) == len(fields) + 1
    # Nothing is drawn, so a seed is no part of it.
    assert run_id(dataclasses.replace(kinds["quarantine"], seed=8)) in ids


def test_jobs_and_a_second_call_change_nothing(tmp_path):
    chosen = [s for s in sweep.read(EXPERIMENT).scenarios if s.quarantine.fan_out < 16][::97]
    written = []
    for jobs in (1, 2):
        folder = tmp_path / str(jobs)
        summary, _ = execute(chosen[:3], folder, jobs=jobs, command=["test"])
        assert (summary.run, summary.skipped) == (3, 0)
        summary, _ = execute(chosen, folder, jobs=jobs, command=["test"])
        assert (summary.run, summary.skipped, summary.failed) == (len(chosen) - 3, 3, 0)
        written.append((folder / "rows.jsonl").read_bytes())
    assert written[0] == written[1]


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"store.planes": "kv"}, "store.planes: renumber needs the pre-RoPE key"),
        (
            {"quarantine.method": "keep", "quarantine.sharing": "once"},
            "quarantine.sharing: the method keep does not read it",
        ),
        ({"pages.scope": "head"}, "pages.scope: a span leaves all layers alike"),
        ({"pages.append": "reuse_holes"}, "pages.append: a quarantine fills no holes"),
        ({"layout": "Gemma-4-E2B"}, "layout: a quarantine needs layers of full attention"),
        ({"quarantine.fan_out": 2**26}, "quarantine.fan_out: 67108864 tables of"),
        ({"quarantine.fan_out": 0}, "quarantine.fan_out must be at least 1"),
        ({"quarantine.span_tokens": 0}, "quarantine.span_tokens must be at least 1"),
        ({"quarantine.method": "evict"}, "quarantine.method must be one of"),
        ({"quarantine.sufix_tokens": 3}, "the nearest valid key is quarantine.suffix_tokens"),
        ({"cost.device": "H1000"}, "cost.device: there is no device 'H1000'"),
    ],
    ids=str,
)
def test_contradictions_are_refused(keys, more, says):
    with pytest.raises(ScenarioError, match=re.escape(says)):
        check(scenario({**keys, "store.planes": "kv_raw", **more}))


def test_a_refusal_is_one_line():
    path = str(ROOT / "scenarios" / "quarantine.toml")
    result = CliRunner().invoke(app, ["run", path, "--set", "store.planes=kv"])
    assert result.exit_code == 2
    assert len(result.stderr.strip().splitlines()) == 1
    assert "store.planes" in result.stderr


# What is committed


def test_the_scenario_shows_what_its_comment_says():
    path = ROOT / "scenarios" / "quarantine.toml"
    said = path.read_text(encoding="utf-8")
    names = ("net_freed_pages", "cow_pages_total", "moved_bytes_total", "conditioned_tokens")
    for sharing in ("each", "once"):
        row = run(reading.load(path, {"quarantine.sharing": sharing}))
        assert f"# {sharing}: {', '.join(str(row[name]) for name in names)}\n" in said


def test_the_committed_rows_are_what_the_sweep_gives():
    committed = {line["run_id"]: line for line in quarantine_tables.rows()}
    scenarios = {run_id(each): each for each in sweep.read(EXPERIMENT).scenarios}
    assert committed.keys() <= scenarios.keys()
    quick = [k for k in committed if scenarios[k].quarantine.fan_out <= 16]
    assert len(quick) > 100
    for key in quick[::17]:
        row = run(scenarios[key])
        line = committed[key]
        for name in line.keys() & row.keys():
            assert line[name] == ("" if row[name] is None else str(row[name])), name


def test_the_tables_of_the_readme_are_those_of_the_csv():
    found = quarantine_tables.blocks()
    assert {name for name, _ in found} == set(quarantine_tables.TABLES)
    for name, text in found:
        assert quarantine_tables.TABLES[name]() == text
    said = quarantine_tables.README.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#:]+)\)", said):
        assert (EXPERIMENT / target).exists(), target
