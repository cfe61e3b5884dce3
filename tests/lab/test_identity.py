"""The key of a run: every setting and every byte of its files counts, and no path does."""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from recordings import arrays, scenario, tiny

from kvsim.errors import KvsimError
from kvsim.lab import identity
from kvsim.lab.identity import run_id
from kvsim.lab.scenario import PolicyChoice, Scenario, Workload
from kvsim.lab.studies.study import TABLES

FLAT = Scenario().flat()
POLICY = """
from dataclasses import dataclass
from kvsim.policies import Policy


@dataclass(frozen=True)
class Mine(Policy):
    def score(self, view):
        return -view.positions
"""


def changed(key: str) -> Scenario:
    """The default scenario with another value of one key, accepted by a reader or not."""
    section, _, leaf = key.rpartition(".")
    part = getattr(Scenario(), section) if section else Scenario()
    old = getattr(part, leaf)
    # Files must exist, so these two have another real value.
    real = {"layout": "Llama-3.2-1B", "policy.name": "tova"}
    if isinstance(old, bool):
        other = not old
    elif isinstance(old, int):
        other = old + 1
    else:
        other = old + "x" if isinstance(old, str) else old / 2 or 0.25
    part = dataclasses.replace(part, **{leaf: real.get(key, other)})
    return dataclasses.replace(Scenario(), **{section: part}) if section else part


def test_the_key_depends_on_every_key_of_the_scenario():
    """Each change gives an id that no other change gives."""
    others = ("process", *TABLES)
    keys = [key for key in FLAT if key != "workload.path" and key.partition(".")[0] not in others]
    ids = {key: run_id(changed(key)) for key in keys} | {"none": run_id(Scenario())}
    assert len(set(ids.values())) == len(ids) >= 32


def test_what_only_a_serving_engine_reads_counts_where_it_runs():
    """Each such key gives an id of its own there, and changes nothing of a token loop."""
    serving = Workload(kind="poisson")
    keys = [key for key in FLAT if key.partition(".")[0] in {*TABLES} - {"extents", "quarantine"}]
    ids = {key: run_id(dataclasses.replace(changed(key), workload=serving)) for key in keys}
    ids["none"] = run_id(Scenario(workload=serving))
    assert len(set(ids.values())) == len(ids) >= 30
    assert {run_id(changed(key)) for key in keys} == {run_id(Scenario())}


def test_the_process_counts_where_it_runs_and_the_path_where_it_is_read():
    """A recording leaves nothing for the process to say, and the process reads no file."""
    synthetic = Workload(kind="synthetic")
    keys = [key for key in FLAT if key.startswith("process.")]
    ids = {key: run_id(dataclasses.replace(changed(key), workload=synthetic)) for key in keys}
    ids["none"] = run_id(Scenario(workload=synthetic))
    assert len(set(ids.values())) == len(ids) >= 20
    assert {run_id(changed(key)) for key in keys} == {run_id(Scenario())}
    elsewhere = dataclasses.replace(synthetic, path="gone.npz")
    assert run_id(Scenario(workload=elsewhere)) == ids["none"]


def test_the_key_depends_on_names_and_values_of_the_policys_parameters():
    choices = [("h2o", ()), ("snapkv", ()), ("snapkv", (("kernel", 3),))]
    choices += [("streaming_llm", (("n_sink", count),)) for count in (0, 1)]
    made = [Scenario(policy=PolicyChoice(*choice)) for choice in choices]
    assert len({run_id(each) for each in made}) == len(choices)


def test_a_default_said_or_left_out_is_the_same_run():
    said = Scenario(policy=PolicyChoice("snapkv", (("kernel", 5),)))
    assert run_id(said) == run_id(Scenario(policy=PolicyChoice("snapkv")))


def test_the_key_depends_on_the_ledgers_model_version(monkeypatch):
    before = run_id(Scenario())
    monkeypatch.setattr(identity, "MODEL_VERSION", identity.MODEL_VERSION + 1)
    assert run_id(Scenario()) != before


def test_the_key_is_16_hex_digits():
    assert re.fullmatch("[0-9a-f]{16}", run_id(Scenario()))


def files(folder: Path) -> dict[str, str]:
    """A recording, its layout and a policy, by the key that names each."""
    folder.mkdir(parents=True, exist_ok=True)
    keys = tiny(folder, arrays(1, 2, 32))
    policy = folder / "mine.py"
    policy.write_text(POLICY)
    return {**keys, "policy.name": str(policy)}


@pytest.mark.parametrize("key", ["workload.path", "layout", "policy.name"])
def test_a_copy_of_a_file_gives_the_same_key_and_one_changed_byte_another(tmp_path, key):
    keys = files(tmp_path)
    first = Path(keys[key])
    before = run_id(scenario(keys))
    copy = tmp_path / "elsewhere" / f"renamed{first.suffix}"
    copy.parent.mkdir()
    shutil.copyfile(first, copy)
    assert run_id(scenario(keys | {key: str(copy)})) == before
    content = bytearray(copy.read_bytes())
    if key == "policy.name":
        content += b"\n"  # It must still be a policy.
    else:
        content[len(content) // 2] ^= 1
    copy.write_bytes(content)
    assert run_id(scenario(keys | {key: str(copy)})) != before
    assert run_id(scenario(keys)) == before


def test_a_relative_path_and_a_link_give_the_key_of_the_file(tmp_path, monkeypatch):
    keys = files(tmp_path)
    before = run_id(scenario(keys))
    os.symlink(keys["workload.path"], tmp_path / "link.npz")
    monkeypatch.chdir(tmp_path)
    for path in ("recording.npz", "./recording.npz", "link.npz"):
        assert run_id(scenario(keys | {"workload.path": path})) == before


def test_a_file_that_changes_within_one_process_is_read_again(tmp_path):
    """The digest is remembered, and must not outlive the content."""
    keys = files(tmp_path)
    before = run_id(scenario(keys))
    np.savez(keys["workload.path"], **arrays(1, 2, 33))
    assert run_id(scenario(keys)) != before


def test_the_same_bytes_are_another_run_under_another_key(tmp_path):
    """A hash that forgot which key named a file would let two files change places."""
    keys = files(tmp_path)
    other = scenario(keys | {"policy.name": "h2o"})
    assert run_id(scenario(keys)) != run_id(other)
    one, two = tmp_path / "one.json", tmp_path / "two.npz"
    one.write_text("1")
    two.write_text("2")
    first = run_id(scenario(keys | {"layout": str(one), "workload.path": str(two)}))
    one.write_text("2")
    two.write_text("1")
    # The digest of an unchanged file is remembered by its time, which a fast disk may repeat.
    os.utime(one, ns=(1, 1))
    os.utime(two, ns=(2, 2))
    assert run_id(scenario(keys | {"layout": str(one), "workload.path": str(two)})) != first


@pytest.mark.parametrize(
    ("key", "path"),
    [("workload.path", "gone.npz"), ("layout", "gone.json"), ("policy.name", "gone.py")],
)
def test_a_missing_file_is_named(tmp_path, key, path):
    missing = str(tmp_path / path)
    with pytest.raises(KvsimError) as caught:
        run_id(scenario({key: missing}))
    assert key in str(caught.value)
    assert missing in str(caught.value)
