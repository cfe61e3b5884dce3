"""`kvsim bench engine` on small workloads: it times only what did the same."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import pytest

from kvsim.bench import engine, engine_leap, engine_work
from kvsim.errors import KvsimError
from kvsim.seeds import stream

WORK = [
    (engine.PROCESS, engine_work.plain, engine_work.plain_terms),
    (engine.NUMPY, engine_work.plain, engine_work.plain_terms),
    (engine.PROCESS, engine_work.shared, engine_work.pressed_terms),
    (engine.NUMPY, engine_work.long_prompts, engine_work.scattered_terms),
    (engine.PROCESS, engine_work.long_prompts, engine_work.scattered_terms),
]


@pytest.mark.parametrize(("baseline", "work", "terms"), WORK)
def test_a_ratio_of_the_same_run(monkeypatch, baseline, work, terms):
    monkeypatch.setattr(engine, "REPETITIONS", 1)
    requests = work(stream(3, "workload"), 12)
    found = engine.against("small", baseline, requests, terms(), 1e9)
    assert found["ratio"] > 0
    assert found["met"] is False


def test_what_differs_is_not_timed(monkeypatch):
    def other(requests, terms, step_ns):
        report = engine_leap.serve(requests, terms, engine_work.COST)
        return replace(report, allocated_pages_total=report.allocated_pages_total + 1)

    monkeypatch.setitem(engine.SERVERS, engine.PROCESS, other)
    requests = engine_work.plain(stream(3, "workload"), 5)
    with pytest.raises(KvsimError, match="allocated_pages_total"):
        engine.against("small", engine.PROCESS, requests, engine_work.plain_terms(), 1)


def test_the_workload_under_pressure_has_what_its_name_says():
    requests = engine_work.shared(stream(7, "workload"), 600)
    terms = replace(engine_work.pressed_terms(), ceiling_pages=2500)
    report = engine_leap.serve(requests, terms, engine_work.COST)
    assert report.preemptions_total > 0
    assert report.hit_tokens_total > 0
    assert report.cow_pages_total > 0
    assert report.outcome == "completed"


def test_many_requests_in_a_process_of_their_own():
    command = [sys.executable, "-m", "kvsim.bench.engine_million", "2000"]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    found = json.loads(done.stdout)
    assert found["finished"] == 2000
    assert found["peak_bytes"] > 0
