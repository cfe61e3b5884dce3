"""`kvsim devices`, as a user calls it."""

from __future__ import annotations

import json
from importlib import resources

from cli.command import quick


def test_devices_as_json(tmp_path):
    said = quick("devices", "--json", cwd=tmp_path)
    assert (said.code, said.err) == (0, "")
    found = {entry["name"]: entry for entry in json.loads(said.out)}
    # Read here with no code of kvsim: nothing may be dropped or scaled on the way.
    text = resources.files("kvsim.engine.costs").joinpath("devices.json").read_text("utf-8")
    stored = {entry["name"]: entry for entry in json.loads(text)}
    assert found.keys() == stored.keys()
    for name, entry in stored.items():
        rate = entry.pop("flops_per_s")
        assert found[name].pop("flops_per_s") == {"float16": rate, "bfloat16": rate}
        assert found[name] == entry
    assert found["H200"]["bandwidth_bytes_per_s"] == 4.8e12


def test_devices_for_a_person(tmp_path):
    said = quick("devices", cwd=tmp_path)
    assert (said.code, said.err) == (0, "")
    h100 = said.out.split("H100-SXM\n")[1].split("\n\n")[0].splitlines()
    assert [" ".join(line.split()) for line in h100[:5]] == [
        "memory 80 GiB",
        "bandwidth 3,350 GB/s",
        "float16 989.4 TFLOPS",
        "bfloat16 989.4 TFLOPS",
        "host link 64 GB/s one way",
    ]
    assert "H100 datasheet" in h100[5]
    # A derived figure is not shown as a published one.
    assert "B200 (not all of it stands in the source)\n" in said.out


def test_devices_in_help(tmp_path):
    said = quick("devices", "--help", cwd=tmp_path)
    assert said.code == 0
    assert "Example: kvsim devices --json" in said.out
