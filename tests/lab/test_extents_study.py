"""The study of extents: published figures from rows, columns that add up, and what is refused."""

from __future__ import annotations

import csv
import dataclasses
import json
import random
import re
from pathlib import Path

import extents_tables
import idle_footprint
import pytest
from recordings import row_of, scenario, write_layout
from typer.testing import CliRunner

from kvsim.cli import app
from kvsim.errors import KvsimError, ScenarioError
from kvsim.lab import sweep
from kvsim.lab.execute import execute
from kvsim.lab.identity import run_id
from kvsim.lab.run import check, run
from kvsim.lab.scenario import Scenario, Workload
from kvsim.lab.studies import extents, extents_published, extents_recipes
from kvsim.lab.studies.extents_idle import Server, traffic
from kvsim.lab.studies.extents_keys import ExtentStudy
from kvsim.paging.physical.kvcached_victims import broken

ROOT = Path(__file__).parents[2]
EXPERIMENT = ROOT / "experiments" / "05-extents"
STRIDE = {
    "workload.kind": "extents",
    "layout": str(EXPERIMENT / "bench-evict.json"),
    "extents.recipe": "stride",
}
RANDOM = {
    "workload.kind": "extents",
    "layout": "Qwen3-8B",
    "extents.recipe": "random",
    "extents.pool_pages": 14000,
    "extents.cached_pages": 1000,
    "extents.evict_pages": 128,
    "extents.spread_extents": 73,
}
IDLE = {
    "workload.kind": "extents",
    "layout": "Qwen3-8B",
    "extents.recipe": "idle",
    "extents.pool_pages": 4000,
    "extents.cached_pages": 300,
    "extents.requests": 200,
    "extents.running": 24,
}
RULES = ("lru", "page_aligned", "chain_aware")
EACH = pytest.mark.parametrize(
    "keys",
    [STRIDE | {"extents.stride": 4}, RANDOM | {"extents.pinned_pages": 100}, IDLE],
    ids=["stride", "random", "idle"],
)


# What kvcached published


@pytest.mark.parametrize(("stride", "freed"), [(1, 27), (2, 24), (4, 16), (8, 1)])
def test_bench_evict(stride, freed):
    for victims, wanted in (("lru", freed), ("page_aligned", 28), ("chain_aware", 28)):
        row = row_of(STRIDE, extents__stride=stride, extents__victims=victims)
        assert (row["emptied_extents_total"], row["used_extents_peak"]) == (wanted, 33)
        said = None if victims == "chain_aware" else wanted
        assert row["published_emptied_extents"] == said
        assert row["emptied_bytes_total"] == wanted * 32 * 2**20


@pytest.mark.parametrize(("stride", "freed"), [(1, 27), (2, 23), (4, 15), (8, 0)])
def test_the_other_parity(stride, freed):
    row = row_of(STRIDE, extents__stride=stride, extents__touch="last")
    assert row["emptied_extents_total"] == freed
    assert row["published_emptied_extents"] is None


@pytest.mark.parametrize(
    ("pinned", "eligible", "used", "freed"),
    [(0, 86, 87, (3, 6, 14, 21)), (200, 8, 89, (1, 2, 5, 8)), (1000, 0, 89, (0, 0, 0, 0))],
)
def test_sim_eviction(pinned, eligible, used, freed):
    for count, wanted in zip((4, 16, 64, 128), freed, strict=True):
        keys = {"extents.pinned_pages": pinned, "extents.evict_pages": count}
        row = row_of({**RANDOM, **keys}, extents__victims="page_aligned")
        assert row["emptied_extents_total"] == row["published_emptied_extents"] == wanted
        assert row["eligible_extents"] == row["published_eligible_extents"] == eligible
        assert row["used_extents_peak"] == row["published_used_extents_peak"] == used
        assert row["published_source"].endswith("sim_eviction")


def test_every_published_figure_is_of_a_run_in_the_sweep():
    rows = [
        {"seed": each.seed, **extents.STUDY.settings(each)}
        for each in sweep.read(EXPERIMENT).scenarios
    ]
    found = {tuple(row[name] for name in extents_published.COLUMNS) for row in rows}
    for entry in extents_published.entries():
        wanted = [entry.get(name) for name in extents_published.COLUMNS[:-1]]
        assert (*wanted, entry["source"]) in found


@pytest.mark.parametrize("row", idle_footprint.ROWS)
def test_the_idle_loop_is_that_of_the_golden_test(row):
    """Two loops that were written apart, and one number of everything."""
    allocation, page_aligned = idle_footprint.ROWS[row]
    keys = {**IDLE, "extents.pool_pages": 14000, "extents.cached_pages": 1000}
    given = scenario(
        {**keys, "extents.requests": 400, "extents.running": 96},
        seed=1234,
        extents__allocation=allocation,
        extents__victims="page_aligned" if page_aligned else "lru",
    )
    mine = run(given)
    other = idle_footprint.idle(row, count=400)
    assert mine["used_extents"] == other.model.used_extents
    assert mine["used_extents_peak"] == other.largest
    assert mine["hit_pages_total"] == other.hit_pages
    assert mine["held_pages"] == len(other.evictable)
    assert mine["reused_extents_total"] == other.model.counters()["reused_extents_total"]


# Columns that add up


@EACH
@pytest.mark.parametrize("victims", RULES)
def test_the_columns_add_up(keys, victims):
    row = row_of(keys, extents__victims=victims)
    assert row["outcome"] == "completed"
    assert row["mapped_extents"] == row["used_extents"] + row["parked_extents"]
    assert row["mapped_bytes"] == row["mapped_extents"] * row["whole_extent_bytes"]
    assert row["mapped_bytes"] == row["held_bytes"] + row["empty_bytes"] + row["parked_bytes"]
    assert row["mapped_bytes"] + row["returned_bytes"] == row["mapped_bytes_peak"]
    assert row["parked_bytes"] == row["parked_extents"] * row["whole_extent_bytes"]
    assert row["held_bytes"] == row["held_pages"] * row["page_bytes"]
    assert row["evicted_bytes_total"] == row["freed_pages_total"] * row["page_bytes"]
    assert row["used_extents"] >= row["packed_floor_extents"]
    assert row["orphan_pages"] <= row["unreachable_pages"] <= row["held_pages"]
    assert 0 <= row["stranded_pages_total"] <= row["freed_pages_total"]
    emptied = row["emptied_extents_total"] - row["reused_extents_total"]
    assert emptied == row["returned_extents_total"] + row["parked_extents"]
    json.dumps(row, allow_nan=False)
    assert run(scenario(keys, extents__victims=victims)) == row


@pytest.mark.parametrize("keys", [STRIDE | {"extents.stride": 4}, RANDOM], ids=["stride", "random"])
def test_without_a_top_up_every_victim_empties_an_extent(keys):
    for victims in RULES[1:]:
        row = row_of(keys, extents__victims=victims)
        bare = row_of(keys, extents__victims=victims, extents__top_up=False)
        assert bare["stranded_pages_total"] == 0
        assert bare["freed_pages_total"] + row["stranded_pages_total"] == row["freed_pages_total"]
        assert bare["emptied_extents_total"] == row["emptied_extents_total"]
        assert bare["extent_reclaim_efficiency"] >= row["extent_reclaim_efficiency"]
        assert row["budget_met"] is True
        assert bare["budget_met"] is (row["stranded_pages_total"] == 0)


def test_chains_decide_what_is_lost():
    lost = {}
    for victims in RULES:
        row = row_of(STRIDE, extents__stride=2, extents__victims=victims)
        lost[victims] = (row["orphan_pages"], row["unreachable_pages"])
    assert lost["chain_aware"] == (0, 0)
    assert 0 < lost["page_aligned"][0] < lost["lru"][0]
    # The control: pages of no chain orphan nothing.
    for victims in RULES:
        row = row_of(STRIDE, extents__stride=2, extents__victims=victims, extents__chain_pages=1)
        assert (row["orphan_pages"], row["unreachable_pages"]) == (0, 0)


def test_a_reserve_keeps_what_an_eviction_empties():
    found = {}
    for reserve in (0, 10, 100):
        row = row_of(STRIDE, extents__victims="page_aligned", extents__reserve_extents=reserve)
        found[reserve] = (row["parked_extents"], row["returned_extents_total"])
        # Nothing was mapped but what was used, whatever the reserve.
        assert row["used_extents_peak"] * row["whole_extent_bytes"] == row["mapped_bytes_peak"]
    assert found == {0: (0, 28), 10: (10, 18), 100: (28, 0)}


def test_pages_that_straddle_extents_are_never_cached():
    given = scenario(
        RANDOM, pages__tokens=12, extents__pinned_pages=50, extents__victims="chain_aware"
    )
    row = run(given)
    # 24 KiB: 85 of them and a third.
    assert row["pages_per_extent"] == 85
    assert row["outcome"] == "completed"
    layout = extents.load_layout(given.layout)
    model = extents.build(given, layout)
    cached = extents_recipes.scatter(given.extents, model, random.Random(given.seed))
    assert all(model.extent_of(page) is not None for page in cached.order)


def test_the_queue_decides_which_end_of_a_chain_goes_first():
    lost = {
        queue: row_of(RANDOM, extents__queue=queue)["unreachable_pages"]
        for queue in ("head_first", "tail_first")
    }
    assert lost["head_first"] > lost["tail_first"] == 0


def test_orphans_of_the_idle_loop_are_those_of_keys():
    """Counted from keys alone: a page is found if every place before it has a page somewhere."""
    given = scenario(IDLE, extents__victims="page_aligned", extents__allocation="newest")
    layout = extents.load_layout(given.layout)
    server = Server(given.extents, extents.build(given, layout), given.pages.tokens)
    requests = traffic(given.extents, random.Random(given.seed))
    server.serve(requests)
    there = set(server._key.values())
    hot = {request.number: request.hot for request in requests}

    def before(key):
        number, place = key
        if place == 0:
            return None
        shared = number >= 0 and hot[number] >= 0 and place * 16 <= 128
        return (-1 - hot[number], place - 1) if shared else (number, place - 1)

    def lost(key):
        above = before(key)
        return above is not None and (above not in there or lost(above))

    keys = [server._key[page] for page in server.cached]
    orphans = sum(before(key) is not None and before(key) not in there for key in keys)
    unreachable = sum(map(lost, keys))
    assert broken(server.cached, server.parents()) == (orphans, unreachable)
    assert unreachable > orphans > 0


# Seeds, identity, resuming


def test_a_seed_decides_what_is_drawn_and_nothing_else():
    first, again, other = (row_of(RANDOM, seed=seed) for seed in (3, 3, 4))
    assert first == again
    assert first["eligible_extents"] > 0
    names = ("freed_pages_total", "held_bytes", "dense_pages")
    assert [first[n] for n in names] == [other[n] for n in names]
    ids = {run_id(scenario(RANDOM, seed=3, extents__victims=rule)) for rule in RULES}
    assert len(ids) == 3
    # What the study does not read is no part of a run.
    assert run_id(scenario(RANDOM, serving__max_running=3)) == run_id(scenario(RANDOM))


def test_every_key_of_the_table_is_part_of_a_run_and_of_no_other_kind():
    kinds = {kind: Scenario(workload=Workload(kind=kind)) for kind in ("extents", "poisson")}
    ids = {run_id(kinds["extents"])}
    fields = dataclasses.fields(ExtentStudy)
    for field in fields:
        other = field.metadata.get("choices", (None, None))[1]
        if other is None:
            other = not field.default if isinstance(field.default, bool) else field.default + 1
        changed = ExtentStudy(**{field.name: other})
        ids.add(run_id(dataclasses.replace(kinds["extents"], extents=changed)))
        poisson = dataclasses.replace(kinds["poisson"], extents=changed)
        assert run_id(poisson) == run_id(kinds["poisson"])
    assert len(ids) == len(fields) + 1


def test_jobs_and_a_second_call_change_nothing(tmp_path):
    chosen = [each for each in sweep.read(EXPERIMENT).scenarios if each.extents.recipe != "idle"]
    chosen = chosen[::97]
    assert len(chosen) > 10
    written = []
    for jobs in (1, 2):
        folder = tmp_path / str(jobs)
        summary, _ = execute(chosen[:5], folder, jobs=jobs, command=["test"])
        assert (summary.run, summary.skipped) == (5, 0)
        summary, _ = execute(chosen, folder, jobs=jobs, command=["test"])
        assert (summary.run, summary.skipped, summary.failed) == (len(chosen) - 5, 5, 0)
        written.append((folder / "rows.jsonl").read_bytes())
    assert written[0] == written[1]


# What is refused


@pytest.mark.parametrize(
    ("keys", "more", "says"),
    [
        (STRIDE, {"extents.pinned_pages": 5}, "extents.pinned_pages: the recipe stride does not"),
        (STRIDE, {"extents.allocation": "newest"}, "extents.allocation: the recipe stride"),
        (RANDOM, {"extents.stride": 2}, "extents.stride: the recipe random does not read it"),
        (RANDOM, {"extents.chain_pages": 2}, "extents.chain_pages: the recipe random"),
        (IDLE, {"extents.evict_pages": 2}, "extents.evict_pages: the recipe idle"),
        (IDLE, {"extents.queue": "tail_first"}, "extents.queue: the recipe idle"),
        (STRIDE, {"extents.top_up": False}, "extents.top_up: lru takes single pages alone"),
        (STRIDE, {"extents.evict_pages": 5000}, "extents.evict_pages: 5000 of 4096"),
        (STRIDE, {"extents.pool_pages": 4096}, "extents.pool_pages: 4096 pages are to be"),
        (RANDOM, {"extents.pinned_pages": 13000}, "extents.pool_pages: 14000 pages are to be"),
        (RANDOM, {"extents.pinned_pages": 5000}, "extents.spread_extents: 5000 pages are drawn"),
        (RANDOM, {"extents.request_pages_least": 65}, "extents.request_pages_least: it is above"),
        (IDLE, {"extents.decode_tokens_most": 3}, "extents.decode_tokens_least: it is above"),
        (STRIDE, {"pages.tokens": 4096}, "pages.tokens: a page of 4194304 bytes a layer"),
        (STRIDE, {"store.extent_bytes": 4096}, "store.extent_bytes: 4096 is no multiple"),
        (STRIDE, {"pages.scope": "head"}, "pages.scope: cached pages hold all layers"),
        (STRIDE, {"layout": "Gemma-4-E2B"}, "layout: kvcached maps all layers and buffers alike"),
        (STRIDE, {"extents.victims": "page"}, "extents.victims must be one of"),
        (STRIDE, {"extents.stride": 0}, "extents.stride must be at least 1"),
        (STRIDE, {"extents.strid": 2}, "the nearest valid key is extents.stride"),
    ],
    ids=str,
)
def test_contradictions_are_refused(keys, more, says):
    with pytest.raises(ScenarioError, match=re.escape(says)):
        check(scenario({**keys, **more}))


def test_a_refusal_is_one_line():
    result = CliRunner().invoke(
        app, ["run", str(ROOT / "scenarios" / "extents.toml"), "--set", "extents.evict_pages=99999"]
    )
    assert result.exit_code == 2
    assert len(result.stderr.strip().splitlines()) == 1
    assert "extents.evict_pages" in result.stderr


def test_a_pool_that_a_server_outgrows_is_infeasible():
    row = row_of(IDLE, extents__pool_pages=700)
    assert row["outcome"] == "infeasible"
    assert "allocate needs" in row["outcome_reason"]


def test_layouts_of_one_buffer_width_are_taken(tmp_path):
    layout = write_layout(tmp_path, 3, 2)
    row = row_of({**STRIDE, "layout": layout}, store__planes="kv_raw")
    # Three planes of 2 heads with 4 elements of 2 bytes, 16 tokens, 3 layers.
    assert row["page_bytes"] == 3 * 3 * 2 * 4 * 2 * 16
    with pytest.raises(KvsimError):
        row_of({**STRIDE, "layout": "no such layout"})


# What is committed


def test_the_scenario_shows_what_its_comment_says():
    from kvsim.lab import reading

    path = ROOT / "scenarios" / "extents.toml"
    said = path.read_text(encoding="utf-8")
    for victims in RULES:
        row = run(reading.load(path, {"extents.victims": victims}))
        numbers = [
            str(row[name])
            for name in ("emptied_extents_total", "returned_extents_total", "unreachable_pages")
        ]
        assert f"{victims}: {', '.join(numbers)}" in said


def test_the_committed_rows_are_what_the_sweep_gives():
    committed = {line["run_id"]: line for line in extents_tables.rows()}
    scenarios = {run_id(each): each for each in sweep.read(EXPERIMENT).scenarios}
    assert committed.keys() <= scenarios.keys()
    fast = [key for key in committed if scenarios[key].extents.recipe != "idle"]
    slow = [key for key in committed if scenarios[key].extents.recipe == "idle"]
    for key in [*fast[::23], slow[0]]:
        row = run(scenarios[key])
        line = committed[key]
        for name, value in line.items():
            assert value == ("" if row[name] is None else str(row[name])), name


def test_the_tables_of_the_readme_are_those_of_the_csv():
    found = extents_tables.blocks()
    assert {name for name, _ in found} == set(extents_tables.TABLES)
    for name, text in found:
        assert extents_tables.TABLES[name]() == text
    said = extents_tables.README.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#:]+)\)", said):
        assert (EXPERIMENT / target).exists(), target


def test_the_csvs_name_their_columns():
    for name in extents_tables.CSVS:
        with (ROOT / "figures" / "05-extents" / f"{name}.csv").open(newline="") as file:
            assert next(csv.reader(file))[:2] == ["run_id", "seed"]
