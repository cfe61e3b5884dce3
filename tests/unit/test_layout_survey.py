"""Layouts against the survey of models: every figure, every fact."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from layout_entries import NOT_COUNTED, UNKNOWN, write

from kvsim.layout import catalogue_names, describe, load_layout
from kvsim.layout.catalogue import CATALOGUE

SURVEY = Path(__file__).parents[2].parent / "shared" / "models.json"
ENTRIES = json.loads(SURVEY.read_text(encoding="utf-8")) if SURVEY.is_file() else []
needs_survey = pytest.mark.skipif(not ENTRIES, reason=f"{SURVEY} is absent")

SIZES = {
    "bytes_128K": 131_072,
    "bytes_256K": 262_144,
    "bytes_512K": 524_288,
    "bytes_1M": 1_048_576,
}
CONSTANTS = {
    "bytes_per_token_below_window": "bytes_per_token_below_window",
    "bytes_per_token_marginal": "marginal_bytes_per_token",
    "bounded_bytes": "bounded_bytes",
}
FIGURES = [
    pytest.param(entry, figure, id=f"{entry['name']}-{figure}")
    for entry in ENTRIES
    if entry["name"] not in NOT_COUNTED and entry["name"] != UNKNOWN
    for figure in (*SIZES, *CONSTANTS)
]


@needs_survey
@pytest.mark.parametrize(("entry", "figure"), FIGURES)
def test_figure_equals_the_survey(entry: dict, figure: str) -> None:
    expected = entry["kv_fp16"][figure]
    if figure in SIZES:
        shown = describe(entry["name"], SIZES[figure])
        assert shown["dense_bytes"] == expected
        assert sum(shown["by_kind"].values()) == expected
    else:
        assert describe(entry["name"], 0)[CONSTANTS[figure]] == expected


@needs_survey
@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry["name"])
def test_catalogue_keeps_every_fact_of_the_survey(entry: dict) -> None:
    ours = next(
        e for e in json.loads(CATALOGUE.read_text(encoding="utf-8")) if e["name"] == entry["name"]
    )
    assert "kv_fp16" not in ours
    for key, value in entry.items():
        if key == "inferred":
            assert ours[key][: len(value)] == value
        elif key == "layers":
            assert len(ours[key]) == len(value)
            for mine, theirs in zip(ours[key], value, strict=True):
                known = {k: v for k, v in theirs.items() if v is not None}
                indices = mine.pop("indices", None)
                assert {k: v for k, v in mine.items() if v is not None} == known
                assert indices is None or len(indices) == mine["count"]
        elif key == "rope":
            assert _within(value, ours[key])
        elif key != "kv_fp16":
            assert ours[key] == value


def _within(stated: object, ours: object) -> bool:
    """Tell whether ours says all that is stated; it may know more, such as a scaling's factors."""
    if isinstance(stated, dict) and isinstance(ours, dict):
        return all(key in ours and _within(value, ours[key]) for key, value in stated.items())
    return stated == ours


@needs_survey
def test_the_survey_is_covered_in_its_order() -> None:
    assert catalogue_names() == tuple(entry["name"] for entry in ENTRIES)
    assert len(FIGURES) == (36 - 5) * 7


@needs_survey
def test_a_survey_entry_is_accepted_as_a_file(tmp_path: Path) -> None:
    entry = next(e for e in ENTRIES if e["name"] == "MiniMax-M3")
    layout = load_layout(write(tmp_path, entry))
    assert layout.dense_bytes(131_072) == entry["kv_fp16"]["bytes_128K"]
