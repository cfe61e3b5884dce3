"""`kvsim prove`, as a user or a program calls it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli.command import Answer, kvsim, quick
from kvsim.tensors.proof import matrix, pairwise

HERE = Path(__file__).parent
#: A case that renumbers and moves rows.
NUMBER = next(
    matrix.number_of(case)
    for case in pairwise.cover()
    if (case.planes, case.positions, case.compaction) == ("kv_raw", "renumber", "forward")
)


@pytest.fixture(scope="module")
def default() -> Answer:
    """The default proof, run once."""
    return kvsim("prove", "--json", "--seed", 3, cwd=HERE)


def test_the_default_proof_holds_and_prints_the_contracts_keys(default):
    assert (default.code, default.err) == (0, "")
    assert default.out.count("\n") == 1
    report = json.loads(default.out)
    for key in ("cases", "words_compared", "words_differing"):
        assert type(report[key]) is int
    assert type(report["seconds"]) is float
    assert report["words_differing"] == report["failures_total"] == 0
    assert report["failures"] == []
    assert report["words_compared"] > 10**7
    assert report["cases"] == sum(section["cases"] for section in report["sections"]) > 150
    assert report["holds"] is True
    assert report["seed"] == 3


def test_every_control_is_noticed_or_cannot_be(default):
    report = json.loads(default.out)
    names = {control["name"]: control["detected"] for control in report["controls"]}
    assert len(names) == 9
    assert all(found in (True, "undetectable") for found in names.values())
    # These need no FMA, so nothing excuses them.
    for name in (
        "two rotations composed",
        "a skipped copy-on-write",
        "a stale destination after copy-on-write",
        "gathering in another order",
        "a span evicted after it was read",
        "a store that drops the sign of zero",
        "a store that drops a NaN's payload",
    ):
        assert names[name] is True


def test_the_share_covered_is_said(default):
    report = json.loads(default.out)
    coverage = report["coverage"]
    assert coverage["pairs"] > 2000
    # Where nothing streams, pairs with that kernel are not met, and not said to be.
    streams = report["kernel"] == "streaming"
    assert (coverage["pairs_met"] == coverage["pairs"]) == streams
    assert (coverage["streamed_rotations"] > 1000) == streams
    assert report["sections"][3]["name"].startswith("whole cache lines, ")
    assert report["sections"][3]["cases"] == 16
    assert coverage["product"] == matrix.size()
    assert coverage["product_share"] == coverage["product_run"] / coverage["product"]


def test_one_case_is_run_again_by_its_number():
    words = ("prove", "--case", NUMBER, "--json")
    one, two = (json.loads(quick(*words, cwd=HERE).out) for _ in range(2))
    assert one | {"seconds": 0} == two | {"seconds": 0}
    assert (one["cases"], one["holds"], one["controls"]) == (1, True, [])
    table = quick("prove", "--case", NUMBER, cwd=HERE)
    assert (table.code, table.err) == (0, "")
    assert f"case {NUMBER}" in table.out
    assert "Holds, with seed 7" in table.out


def break_the_store() -> None:
    """Let the store move every row of a plan but the last."""
    from kvsim.tensors.array_store import ArrayStore
    from kvsim.tensors.quantized_store import QuantizedStore

    for store in (ArrayStore, QuantizedStore):
        real = store.apply
        store.apply = lambda self, plan, real=real: real(self, plan[:, :-1])  # type: ignore


def test_a_difference_exits_with_1_and_names_the_case():
    answer = quick("prove", "--case", NUMBER, "--json", cwd=HERE, before=break_the_store)
    report = json.loads(answer.out)
    assert (answer.code, answer.err) == (1, "")
    assert report["holds"] is False
    assert report["words_differing"] > 0
    assert report["failures"][0]["case"].startswith(f"case {NUMBER}: family=")
    table = quick("prove", "--case", NUMBER, cwd=HERE, before=break_the_store)
    assert table.code == 1
    assert f"FAILED case {NUMBER}: family=" in table.out
    assert "DOES NOT HOLD" in table.out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--seconds", "0"), "--seconds must be at least 1, not 0.0"),
        (("--seconds", "nan"), "--seconds must be at least 1, not nan"),
        (("--seconds", "inf"), "--seconds must be at least 1, not inf"),
        (("--seed", "-1"), "--seed must be at least 0, not -1"),
        (("--case", "5", "--seconds", "9"), "--case runs one case alone"),
        (("--case", "-1"), "the matrix has cases 0 to"),
        (("--case", str(10**30)), "the matrix has cases 0 to"),
    ],
)
def test_what_cannot_be_asked_is_refused_in_one_line(words, said):
    answer = quick("prove", *words, cwd=HERE)
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.startswith("kvsim: ")
    assert said in answer.err
    assert answer.err.count("\n") == 1


def test_the_tables_of_a_whole_report(default, capsys):
    from kvsim.cli.proof import PRODUCT, print_proof

    report = json.loads(default.out)
    print_proof(report)
    shown = capsys.readouterr().out
    for text in ("fak's cases", "quarantine invariant", "pairwise cover", "all", "FMA gate"):
        assert text in shown
    assert f"{report['words_compared']:,}" in shown
    assert "Holds, with seed 3" in shown
    assert "0 of its cases ran" not in shown
    empty = {"cases": 0, "words_compared": 0, "words_differing": 0, "failures": 0}
    report["sections"].append({"name": PRODUCT, **empty})
    report["gate"] = report["gate"] | {"status": "failed", "reason": "two FMA"}
    report["controls"][0]["detected"] = False
    report["holds"] = False
    report["failures"] = [{"case": f"case {n}", "what": "differs"} for n in range(12)]
    report["failures_total"] = 30
    print_proof(report)
    shown = capsys.readouterr().out
    for text in ("FMA gate FAILED: two FMA.", "NO", "DOES NOT HOLD", "FAILED case 9: differs"):
        assert text in shown
    for text in (PRODUCT, "0 of its cases ran"):
        assert text in shown
    assert "FAILED case 10" not in shown
    assert "and 20 further failures" in shown
