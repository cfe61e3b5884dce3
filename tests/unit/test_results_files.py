"""What stands in the files of a results folder: the text of a row, and the manifest."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.errors import ResultsError
from kvsim.lab.results import ResultsFolder, canonical_line


def test_canonical_line_keeps_the_rows_order_and_its_text():
    row = {"b": 1, "a": [0.1, None, True], "c": "é\u2028\n"}
    assert canonical_line(row) == '{"b":1,"a":[0.1,null,true],"c":"é\u2028\\n"}\n'


@pytest.mark.parametrize(
    "value",
    [float("nan"), float("inf"), [1.0, [-float("inf")]], {"a": 1}, (1,), b"x", "\udcff", object()],
)
def test_a_value_without_a_line_is_refused_and_the_column_named(tmp_path, value):
    with pytest.raises(ResultsError, match="'mass'"):
        canonical_line({"run_id": "a", "mass": value})
    with ResultsFolder.open(tmp_path, model_version=1, command=[]) as folder:
        with pytest.raises(ResultsError, match="'mass'"):
            folder.append({"run_id": "a"}, {"mass": value})
        assert (tmp_path / "rows.jsonl").read_bytes() == b""
        assert (tmp_path / "measured.jsonl").read_bytes() == b""


texts = st.text(st.characters(exclude_categories=["Cs"]))
floats = st.floats(allow_nan=False, allow_infinity=False)


@given(st.dictionaries(texts, st.none() | st.booleans() | st.integers() | floats | texts))
def test_a_line_reads_back_as_its_row_and_is_one_line(row):
    line = canonical_line(row)
    assert json.loads(line) == row
    assert line.encode().count(b"\n") == 1


def test_the_manifest_says_who_made_the_rows_and_names_no_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    home = "/home/someone"
    words = [f"{home}/bin/kvsim", f"{tmp_path}/exp", f"--out={home}/a=/b", f'w.path="{home}/f"']
    for _ in range(2):
        ResultsFolder.open("out", model_version=3, command=[*words, "seed=1", "a/b"]).close()
    text = (tmp_path / "out/manifest.json").read_text()
    content = json.loads(text)
    command = ["kvsim", "exp", "--out=.../b", 'w.path=".../f"', "seed=1", "a/b"]
    assert content["commands"] == [command, command]
    assert content["model_version"] == 3
    assert " ".join(content["machine"]) == "platform machine processor cpu_count python"
    assert content["created"].endswith("+00:00")
    assert {"numpy", "simpy"} <= set(content["packages"])
    assert home not in text
    assert str(tmp_path) not in text
