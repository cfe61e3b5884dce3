"""`kvsim bench replay` with peers, with stand-ins for them, and without any."""

from __future__ import annotations

import json
import sys
import tomllib
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
from cli.command import quick
from oracles import caches, prefixes

from kvsim.bench import replay
from kvsim.bench.ratios import Pair
from kvsim.bench.replay_traces import conversations, write_zipf
from kvsim.cli.render import print_bench
from kvsim.errors import KvsimError
from kvsim.workload.replay.oracle_general import RECORD

KVCACHE = ("kvcache_sim", *(f"kvcache_sim.{p}" for p in ("trace", "plan", "policies")))
MODULES = ("libcachesim", *KVCACHE, "kvcache_sim.cpp_backend")
ROOT = Path(__file__).parents[2]


def take_away():
    """Make the peers impossible to import."""
    for name in MODULES:
        sys.modules[name] = None


@pytest.fixture
def nobody(monkeypatch):
    for name in MODULES:
        monkeypatch.setitem(sys.modules, name, None)


@pytest.fixture
def brief(monkeypatch):
    monkeypatch.setattr(replay, "REPETITIONS", 2)
    monkeypatch.setattr(replay, "EXTRA", 2)


@pytest.fixture
def standins(monkeypatch, brief):
    """Put readable caches where the peers would be; `wrong` is added to what they find."""
    given = SimpleNamespace(wrong=0, mode="fixed_window", compiler=True)
    monkeypatch.setattr("importlib.metadata.version", lambda name: "0")

    class Cache:
        def __init__(self, pages, hashpower=24):
            self.pages = pages

        def process_trace(self, path):
            ids = np.fromfile(path, RECORD)["id"].tolist()
            hits = caches.lru(ids, self.pages) + given.wrong
            return 1 - hits / len(ids), 1.0

    def simulate(trace, policy, pages, first=None):
        bounds = list(zip(trace.request_starts, trace.request_starts[1:], strict=False))
        first = len(bounds) // 2 if first is None else first
        hits = prefixes.lru([trace.ids[a:b] for a, b in bounds], pages)
        counted = list(zip(bounds, hits, strict=True))[first:]
        return SimpleNamespace(
            measurementMode=given.mode,
            hitTokens=sum(sum(trace.tokens[a : a + hit]) for (a, _), hit in counted) + given.wrong,
            totalTokens=sum(sum(trace.tokens[a:b]) for (a, b), _ in counted),
        )

    def compiled():
        if not given.compiler:
            raise RuntimeError("there is no c++")

    def sweep(trace, capacities, policies, warmup_requests):
        found = {("lru", n): simulate(trace, "lru", n, warmup_requests) for n in capacities}
        return SimpleNamespace(results=found)

    def module(name, **attributes):
        made = ModuleType(name)
        made.__dict__.update(attributes)
        monkeypatch.setitem(sys.modules, name, made)

    module(
        "libcachesim",
        LRU=Cache,
        TraceReader=lambda path, kind: path,
        TraceType=SimpleNamespace(ORACLE_GENERAL_TRACE=0),
    )
    module("kvcache_sim")
    module("kvcache_sim.trace", TraceData=SimpleNamespace)
    module("kvcache_sim.plan", build_execution_plan=lambda trace: trace)
    module("kvcache_sim.policies", simulate_policy=simulate)
    module("kvcache_sim.cpp_backend", ensure_cpp_simulator=compiled, run_cpp_sweep=sweep)
    return given


SMALL = {
    "lru": lambda: replay.against_libcachesim(3000, 400, 30),
    "python": lambda: replay.against_python(1500, 80, False),
    "python, whole": lambda: replay.against_python(1500, 80, True),
    "c++": lambda: replay.against_cpp(1500, 80),
}


def test_without_the_peers_every_row_says_so(nobody):
    rows = [one() for one in replay.measurements()]
    assert [row["target"] for row in rows] == [">= 8", ">= 8", ">= 15", ">= 15", ">= 1.2"]
    for row in rows:
        assert row["met"] is row["ratio"] is row["ratio_min"] is row["ratio_max"] is None
        assert "install it: uv sync --group peers" in row["detail"]
        assert row.keys() == Pair((1.0,), (1.0,)).entry("", "", at_least=1).keys()
    assert "libcachesim is not there" in rows[0]["detail"]
    assert "kvcache-simulator is not there" in rows[4]["detail"]


def test_the_command_shows_rows_without_ratios(tmp_path):
    answer = quick("bench", "replay", "--json", cwd=tmp_path, before=take_away)
    assert answer.code == 0
    assert {row["ratio"] for row in json.loads(answer.out)} == {None}
    answer = quick("bench", "replay", cwd=tmp_path, before=take_away)
    assert answer.code == 0
    assert answer.out.count("not measured") == 5
    assert answer.out.count("uv sync --group peers") == 5


def test_a_missing_ratio_is_a_dash_beside_others(capsys):
    row = Pair((1.0,), (3.0,)).entry("measured", "b", at_least=2)
    print_bench([row, {**row, "ratio": None, "ratio_min": None, "ratio_max": None, "met": None}])
    lines = [line.split("│") for line in capsys.readouterr().out.splitlines() if "measured" in line]
    assert [cell.strip() for cell in lines[0][3:8]] == ["3", "3", "3", ">= 2", "yes"]
    assert [cell.strip() for cell in lines[1][3:8]] == ["-", "-", "-", ">= 2", "not measured"]


@pytest.mark.parametrize("name", SMALL)
def test_equal_hits_give_a_ratio(standins, name):
    row = SMALL[name]()
    assert 0 < row["ratio_min"] <= row["ratio"] <= row["ratio_max"] or name == "c++"
    assert row["met"] in (True, False)
    assert "equal" in row["detail"]


@pytest.mark.parametrize("wrong", [-1, 1])
@pytest.mark.parametrize("name", SMALL)
def test_unequal_hits_are_refused(standins, name, wrong):
    standins.wrong = wrong
    with pytest.raises(KvsimError, match="unequal work is not timed"):
        SMALL[name]()


@pytest.mark.parametrize("name", ["python", "python, whole", "c++"])
def test_a_cache_that_is_not_full_is_refused(standins, name):
    standins.mode = "underfilled_at_window"
    with pytest.raises(KvsimError, match="are not full"):
        SMALL[name]()


def test_without_a_compiler_the_row_says_so(standins):
    standins.compiler = False
    row = SMALL["c++"]()
    assert row["ratio"] is row["met"] is None
    assert "there is no c++" in row["detail"]
    assert SMALL["python"]()["ratio"] > 0


@pytest.mark.parametrize("name", SMALL)
def test_hits_equal_those_of_the_real_peers(brief, name):
    pytest.importorskip(
        "libcachesim" if name == "lru" else "kvcache_sim",
        reason="the peers are not installed: uv sync --group peers",
    )
    row = SMALL[name]()
    if row["ratio"] is None:
        pytest.skip(row["detail"])
    assert "equal" in row["detail"]


def test_traces_are_those_of_their_seed(tmp_path):
    for name, seed in (("a", 7), ("b", 7), ("c", 8)):
        write_zipf(tmp_path / name, 5000, 300, seed)
    files = [(tmp_path / name).read_bytes() for name in "abc"]
    assert files[0] == files[1] != files[2]
    ids, uses = np.unique(np.fromfile(tmp_path / "a", RECORD)["id"], return_counts=True)
    # Hashes of 63 bits, which are no small numbers, and a stream with favourites.
    assert ids.max() > 1 << 60
    assert uses.max() > 5000 / 300 * 10
    (requests, sizes), (again, _), (other, _) = (conversations(20_000, s) for s in (7, 7, 8))
    assert all(map(np.array_equal, requests, again))
    assert not all(map(np.array_equal, requests, other))
    assert sum(one.size for one in requests) == sizes.size >= 20_000
    assert sizes.min() >= 1
    assert sizes.max() == 512


def test_peers_are_pinned_and_left_out_by_default():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    groups, uv = project["dependency-groups"], project["tool"]["uv"]
    names = [one.split(">=")[0] for one in groups["peers"]]
    assert sorted(names) == ["kvcache-simulator", "libcachesim"]
    assert "default-groups" not in uv
    others = [*project["project"]["dependencies"], *groups["dev"]]
    for name in names:
        assert sum(one.startswith(f"{name}==") for one in uv["constraint-dependencies"]) == 1
        assert not any(name in one for one in others)
