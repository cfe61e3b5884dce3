"""The READMEs say what the code does: their tables are recomputed, their commands exist."""

from __future__ import annotations

import re

import pytest
import readme


@pytest.mark.parametrize("name", readme.READMES)
def test_tables_are_what_the_experiments_give(name):
    found = readme.blocks(name)
    assert found, f"{name} has no table"
    for experiment, where, text in found:
        assert readme.table(experiment, where) == text


def test_a_changed_number_would_be_noticed():
    # The control: the comparison above must not pass whatever stands in the README.
    experiment, where, text = readme.blocks("README.md")[0]
    changed = re.sub(r"(\d+) of (\d+)", lambda m: f"{int(m[1]) + 1} of {m[2]}", text, count=1)
    assert changed != text
    assert readme.table(experiment, where) != changed


@pytest.mark.parametrize("name", readme.READMES)
def test_linked_files_exist(name):
    folder = (readme.ROOT / name).parent
    text = (readme.ROOT / name).read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#:]+)\)", text):
        assert (folder / target).exists(), target
