"""`kvsim trace`: its commands as a user calls them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import trace_files as files

from cli.command import quick


@pytest.fixture
def trace(tmp_path):
    return files.write(tmp_path, files.TEXTS["mooncake"])


def test_stats(trace, tmp_path):
    said = quick("trace", "stats", trace, "--json", cwd=tmp_path)
    assert (said.code, said.err) == (0, "")
    found = json.loads(said.out)
    assert (found["requests"], found["input_tokens"], found["output_tokens"]) == (3, 3254, 11)
    assert (found["duration_s"], found["page_tokens"], found["sharing"]) == (0.027, 512, 0.375)
    said = quick("trace", "stats", trace, "--page-tokens", 256, cwd=tmp_path)
    assert "requests                     3\n" in said.out
    assert "cannot be recovered" in said.err
    said = quick("trace", "stats", trace, "--page-tokens", 100, cwd=tmp_path)
    assert (said.code, said.out) == (2, "")
    assert said.err.count("\n") == 1
    assert "neither divides the other" in said.err


def test_check(trace, tmp_path):
    said = quick("trace", "check", trace, cwd=tmp_path)
    assert (said.code, said.out, said.err) == (0, "trace.txt: mooncake, nothing wrong\n", "")
    files.write(tmp_path, files.TEXTS["mooncake"] + '\n{"timestamp": "\u2603\\n"\n')
    said = quick("trace", "check", trace, cwd=tmp_path)
    assert said.code == 2
    assert [text.partition(": ")[0] for text in said.out.splitlines()] == [
        "trace.txt:4",
        "trace.txt:5",
    ]
    said = quick("trace", "check", trace, "--json", cwd=tmp_path)
    assert said.code == 2
    found = json.loads(said.out)
    assert found["format"] == "mooncake"
    assert [one["kind"] for one in found["problems"]] == ["blank", "record"]
    said = quick("trace", "check", "absent", cwd=tmp_path)
    assert (said.code, said.out) == (2, "absent: there is no file absent\n")


def test_convert(trace, tmp_path):
    out = tmp_path / "pages.jsonl"
    said = quick("trace", "convert", trace, out, "--page-tokens", 1024, "--json", cwd=tmp_path)
    assert said.code == 0
    assert json.loads(said.out)["pages"] == 5
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert [(line["block_size"], len(line["hash_ids"])) for line in lines] == [
        (1024, 2),
        (1024, 1),
        (1024, 2),
    ]
    said = quick("trace", "convert", trace, out, "--page-tokens", 1024, cwd=tmp_path)
    assert said.code == 2
    assert "nothing is overwritten" in said.err


def test_export(tmp_path):
    scenario = Path(__file__).parents[2] / "scenarios" / "serving-pressure.toml"
    words = ("trace", "export", scenario, "--set", "workload.requests=5", "--out")
    said = quick(*words, "run.jsonl", "--json", cwd=tmp_path)
    assert (said.code, said.err) == (0, "")
    found = json.loads(said.out)
    # 512 tokens are 32 pages of 16, and the 4 shared ones are written each time.
    assert (found["requests"], found["pages"], found["page_tokens"]) == (5, 160, 16)
    records = [json.loads(line) for line in (tmp_path / "run.jsonl").read_text().splitlines()]
    assert [record["hash_ids"][:5] for record in records[:2]] == [[0, 1, 2, 3, 4], [0, 1, 2, 3, 32]]
    said = quick("trace", "check", "run.jsonl", cwd=tmp_path)
    assert said.out == "run.jsonl: block-hash, nothing wrong\n"
    said = quick(*words, "run.jsonl", cwd=tmp_path)
    assert (said.code, said.out) == (2, "")
    assert said.err == "kvsim: run.jsonl: it exists, and nothing is overwritten\n"
    recorded = scenario.with_name("recorded.toml")
    said = quick("trace", "export", recorded, "--out", "other.jsonl", cwd=tmp_path)
    assert (said.code, said.out) == (2, "")
    assert said.err.startswith("kvsim: workload.kind: only the requests of kind trace or poisson")


def test_hits(trace, tmp_path):
    said = quick("trace", "hits", trace, "--policy", "LRU", "--pages", 8, "--json", cwd=tmp_path)
    assert (said.code, said.err) == (0, "")
    found = json.loads(said.out)
    assert list(found)[:4] == ["policy", "pages", "hits", "accesses"]
    assert list(found.values())[:4] == ["lru", 8, 3, 8]
    words = ("--policy", "trie-lru", "--pages", 8, "--count-from", 0.5, "--json")
    found = json.loads(quick("trace", "hits", trace, *words, cwd=tmp_path).out)
    assert (found["hits"], found["accesses"], found["counted_from"]) == (3, 5, 1)
    assert (found["hit_tokens"], found["total_tokens"]) == (1536, 2054)
    assert found["filled_before"] is False


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--policy", "arc", "--pages", 8), "no replay policy 'arc'"),
        (("--policy", "lru", "--pages", 0), "--pages must be at least 1"),
        (("--policy", "lru", "--pages", 2**31), "from 1 to 1073741824 pages"),
        (("--policy", "lru", "--pages", 8, "--page-tokens", 0), "--page-tokens must be at least 1"),
        (("--policy", "lru", "--pages", 8, "--count-from", 1), "--count-from must be from 0"),
        (("--policy", "lru", "--pages", 8, "--count-from", "nan"), "--count-from must be from 0"),
    ],
)
def test_hits_refusals(trace, tmp_path, words, says):
    said = quick("trace", "hits", trace, *words, cwd=tmp_path)
    assert (said.code, said.out) == (2, "")
    assert said.err.count("\n") == 1
    assert says in said.err


def test_a_run_refuses_or_skips_and_says_so(trace, tmp_path):
    files.write(tmp_path, files.TEXTS["mooncake"] + "oops\n")
    words = ("trace", "hits", trace, "--policy", "lru", "--pages", 8, "--json")
    said = quick(*words, cwd=tmp_path)
    assert (said.code, said.out) == (2, "")
    assert said.err.startswith("kvsim: trace.txt:4: no JSON")
    said = quick(*words, "--skip-bad", cwd=tmp_path)
    assert (said.code, json.loads(said.out)["skipped"]) == (0, 1)
    assert said.err == "kvsim: skipped 1 lines or requests\n"


def test_sorting_is_asked_for(trace, tmp_path):
    files.write(tmp_path, files.json_lines([files.MOONCAKE[1], files.MOONCAKE[0]]))
    words = ("trace", "hits", trace, "--policy", "lru", "--pages", 8, "--json")
    said = quick(*words, cwd=tmp_path)
    assert said.code == 2
    assert "trace.txt:2: arrives at 0 s" in said.err
    assert json.loads(quick(*words, "--sort", cwd=tmp_path).out)["requests"] == 2
