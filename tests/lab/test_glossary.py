"""Every column of every kind of row is said in the glossary, in the table of its kind."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from recordings import row_of

from kvsim.lab import reading
from kvsim.lab.run import run
from kvsim.paging.physical import models

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
# What the parameters that a model cannot do without may be.
SMALL = {
    "pages": 2048,
    "page_bytes": 2048,
    "slots": 64,
    "token_bytes": 64,
    "layers": 2,
    "buffers": 2,
    "max_tokens": 16,
}


def _said(*headings: str) -> set[str]:
    """Names in the first cells of the tables below these headings, up to the next of its level."""
    found: set[str] = set()
    for heading in headings:
        rest = TEXT.split(f"\n## {heading}\n")[1].split("\n## ")[0]
        for line in rest.splitlines():
            if line.startswith("| `"):
                found.update(re.findall(r"`([a-z0-9_]+)`", line.split(" | ")[0]))
    return found


def _missing(row: dict[str, Any], *headings: str) -> set[str]:
    return set(row) - _said(*headings)


def _serving(**changes: Any) -> dict[str, Any]:
    extra = {key.replace("__", "."): value for key, value in changes.items()}
    path = ROOT / "scenarios" / "serving-pressure.toml"
    return run(reading.load(path, {"workload.requests": 5, **extra}))


def test_a_token_loop() -> None:
    assert _missing(row_of({"policy.name": "knorm"}), "Columns") == set()


@pytest.mark.parametrize("ceiling", [600, 8], ids=["completed", "infeasible"])
def test_the_serving_simulator(ceiling: int) -> None:
    row = _serving(pool__ceiling_pages=ceiling)
    assert _missing(row, "Columns", "Columns of the serving simulator") == set()


@pytest.mark.parametrize("name", models.MODELS)
def test_the_allocators_under_it(name: str) -> None:
    (entry,) = (each for each in models.describe() if each["name"] == name)
    needed = [each["name"] for each in entry["parameters"] if each["required"]]
    model: Any = models.build(name, **{each: SMALL[each] for each in needed})
    counters = {f"memory_{each}" for each in model.counters()}
    assert counters <= _said("Columns of the serving simulator")
    assert name in (ROOT / "docs" / "allocators.md").read_text(encoding="utf-8")


def test_a_run_with_an_allocator() -> None:
    row = _serving(memory__model="kvcached")
    assert any(name.startswith("memory_") and name != "memory_model" for name in row)
    assert _missing(row, "Columns", "Columns of the serving simulator") == set()


@pytest.mark.parametrize("recipe", ["stride", "random", "idle"])
def test_the_study_of_extents(recipe: str) -> None:
    small: dict[str, Any] = {"extents.recipe": recipe, "layout": "Qwen3-8B"}
    if recipe == "idle":
        small |= {"extents.cached_pages": 64, "extents.requests": 20, "extents.running": 4}
    else:
        small |= {"extents.cached_pages": 512, "extents.evict_pages": 100}
    row = run(reading.build({"workload.kind": "extents", **small}, "test"))
    said = ("Columns", "Columns of the serving simulator", "Columns of the extents study")
    assert _missing(row, *said) == set()


def test_the_study_of_quarantine() -> None:
    row = run(reading.load(ROOT / "scenarios" / "quarantine.toml", {}))
    said = ("Columns", "Columns of the serving simulator", "Columns of the quarantine study")
    assert _missing(row, *said) == set()


def test_the_glossary_has_no_column_that_no_row_has() -> None:
    rows = [row_of({"policy.name": "knorm"}), _serving()]
    rows.append(run(reading.build({"workload.kind": "extents", "layout": "Qwen3-8B"}, "test")))
    rows.append(run(reading.load(ROOT / "scenarios" / "quarantine.toml", {})))
    known = {name for row in rows for name in row}
    studies = ("serving simulator", "extents study", "quarantine study")
    said = _said("Columns", *(f"Columns of the {study}" for study in studies))
    assert {name for name in said if not name.startswith("memory_")} - known == set()
