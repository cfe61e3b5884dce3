"""`kvsim allocators`, as a user calls it."""

from __future__ import annotations

import json

from cli.command import quick


def test_allocators_as_json(tmp_path):
    said = quick("allocators", "--json", cwd=tmp_path)
    assert (said.code, said.err) == (0, "")
    found = {entry["name"]: entry for entry in json.loads(said.out)}
    assert {"fixed_pool", "token_pool", "extents", "slab"} <= set(found)
    assert {"caching_allocator", "async_pool", "contiguous", "kvcached"} <= set(found)
    parameters = {each["name"]: each for each in found["kvcached"]["parameters"]}
    assert parameters["extent_bytes"]["default"] == 2 * 2**20
    assert (parameters["reserve_min"]["default"], parameters["reserve_max"]["default"]) == (5, 10)
    assert parameters["layers"] == {
        "name": "layers",
        "required": True,
        "default": None,
        "doc": "Layers.",
        "source": "",
    }


def test_allocators_for_a_person(tmp_path):
    said = quick("allocators", cwd=tmp_path)
    assert (said.code, said.err) == (0, "")
    assert "fixed_pool: everything is mapped at the start, and nothing goes back\n" in said.out
    assert "    reserve_max              10 " in said.out
    assert "    pages                    (required)" in said.out
