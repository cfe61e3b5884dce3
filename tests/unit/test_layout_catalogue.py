"""The catalogue of layouts: its refusals by name, and its lists."""

from __future__ import annotations

import json

import pytest
from layout_entries import NOT_COUNTED, UNKNOWN, refusal

from kvsim.layout import catalogue_names, describe, describe_all, load_layout


@pytest.mark.parametrize(("name", "kind"), NOT_COUNTED.items())
def test_kinds_not_counted_are_refused_by_name(name: str, kind: str) -> None:
    text = refusal(name)
    assert text.startswith(f"layout {name!r}: kind {kind!r} is not counted yet")


def test_unknown_facts_are_named() -> None:
    assert refusal(UNKNOWN) == (
        f"layout {UNKNOWN!r}: cannot be counted, unknown facts: layers[0].count,"
        " layers[0].kv_heads, layers[1].count, layers[1].kv_heads, layers[1].window"
    )


@pytest.mark.parametrize(
    ("given", "nearest"),
    [
        ("SmolLM2-135", "SmolLM2-135M"),
        ("smollm2-135m", "SmolLM2-135M"),
        ("gpt-oss-20B", "gpt-oss-20b"),
        ("llama-3.1-70b", "Llama-3.1-70B"),
    ],
)
def test_an_unknown_name_gets_the_nearest(given: str, nearest: str) -> None:
    assert f"unknown layout {given!r}; the nearest is {nearest!r}" in refusal(given)


@pytest.mark.parametrize("given", ["", "\0", "x" * 5000, "/nowhere/else", "."])
def test_odd_names_are_refused(given: str) -> None:
    assert "unknown layout" in refusal(given)


def test_describe() -> None:
    assert describe("gpt-oss-20b", 100) == {
        "name": "gpt-oss-20b",
        "tokens": 100,
        # 24 layers of 8 heads of 2 * 64 elements of 2 bytes; 12 of them keep 128 tokens.
        "dense_bytes": 4_915_200,
        "bounded_bytes": 3_145_728,
        "marginal_bytes_per_token": 24_576,
        "bytes_per_token_below_window": 49_152,
        "verified": True,
        "context": 131_072,
        "by_kind": {"full": 2_457_600, "sliding": 2_457_600},
        "sources": list(load_layout("gpt-oss-20b").sources),
        "notes": "Attention sinks are learned per-head logits, not cached tokens. No dtype field in"
        " the copy (MXFP4 weights).",
        "inferred": [],
    }
    assert describe("gpt-oss-20b", 100, 1)["dense_bytes"] == 2_457_600
    assert describe("Granite-4.1-8B", 1)["verified"] is False
    json.dumps(describe("Gemma-4-31B", 10))


def test_describe_all() -> None:
    rows = {row["name"]: row for row in describe_all()}
    assert tuple(rows) == catalogue_names()
    assert len(rows) == 36
    assert {name for name, row in rows.items() if not row["supported"]} == {*NOT_COUNTED, UNKNOWN}
    for row in rows.values():
        assert (row["reason"] is None) == row["supported"]
        assert (row["bounded_bytes"] is None) != row["supported"]
    assert rows["DeepSeek-V4-Flash"]["kinds"] == ["sliding", "csa", "hca"]
    assert rows["Mistral-7B-v0.1"]["marginal_bytes_per_token"] == 0
    assert rows["Mistral-7B-v0.1"]["bounded_bytes"] == 536_870_912
    assert rows["Gemma-4-E4B"]["kinds"] == ["full", "sliding", "shared"]
    assert rows[UNKNOWN]["num_layers"] is None
    json.dumps(list(rows.values()))
