"""A sweep file becomes scenarios: zipped inside an axis, crossed between axes, each once."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvsim.errors import ScenarioError
from kvsim.lab import reading
from kvsim.lab.sweep import Sweep, read

EXPERIMENTS = Path(__file__).parents[2] / "experiments"


def sweep(folder: Path, text: str, *pairs: str, policy: str | None = None) -> Sweep:
    path = folder / "sweep.toml"
    path.write_text(text, encoding="utf-8")
    return read(path, reading.overrides(pairs, policy))


def points(made: Sweep, *keys: str) -> list[tuple]:
    """The values of some keys, scenario by scenario."""
    return [tuple(scenario.flat().get(key) for key in keys) for scenario in made.scenarios]


def refused(folder: Path, text: str, *pairs: str) -> str:
    with pytest.raises(ScenarioError) as caught:
        sweep(folder, text, *pairs)
    assert "\n" not in str(caught.value)
    return str(caught.value)


ZIPPED = "[[axes]]\npages.tokens = [16, 32]\npages.scope = ['sequence', 'head']\n"
SEEDS = "[[axes]]\nseed = [1, 2, 3]\n"


def test_without_axes_a_sweep_is_one_scenario(tmp_path):
    assert sweep(tmp_path, "seed = 3").scenarios == (reading.build({"seed": 3}, "test"),)


def test_lists_of_one_axis_are_zipped(tmp_path):
    made = sweep(tmp_path, ZIPPED)
    assert points(made, "pages.tokens", "pages.scope") == [(16, "sequence"), (32, "head")]


def test_axes_are_crossed_and_the_last_turns_fastest(tmp_path):
    made = sweep(tmp_path, ZIPPED + SEEDS)
    assert points(made, "pages.tokens", "seed") == [(p, s) for p in (16, 32) for s in (1, 2, 3)]


def test_an_axis_wins_over_the_scenarios_own_key(tmp_path):
    assert points(sweep(tmp_path, "seed = 9\n" + SEEDS), "seed") == [(1,), (2,), (3,)]


def test_grids_come_one_after_the_other_with_the_common_axes_outside(tmp_path):
    text = SEEDS.replace("3", "2").replace(", 2]", "]") + (
        "[[grid]]\npages.tokens = 8\n[[grid.axes]]\nbudget.tokens = [5, 6]\n"
        "[[grid]]\npages.scope = 'head'\n"
    )
    made = sweep(tmp_path, text)
    assert points(made, "seed", "pages.tokens", "pages.scope", "budget.tokens") == [
        (1, 8, "sequence", 5),
        (1, 8, "sequence", 6),
        (2, 8, "sequence", 5),
        (2, 8, "sequence", 6),
        (1, 16, "head", 0),
        (2, 16, "head", 0),
    ]


def test_a_scenario_that_comes_twice_is_run_once_at_its_first_place(tmp_path):
    text = "[[axes]]\nseed = [2, 1, 2]\n[[grid]]\n[[grid]]\npages.tokens = 16\n"
    assert points(sweep(tmp_path, text), "seed") == [(2,), (1,)]


def test_an_overridden_key_leaves_its_axis_and_the_rest_of_the_axis_stays(tmp_path):
    made = sweep(tmp_path, ZIPPED + SEEDS, "seed=9", "pages.scope=layer")
    assert points(made, "pages.tokens", "pages.scope", "seed") == [
        (16, "layer", 9),
        (32, "layer", 9),
    ]


def test_an_override_also_leaves_the_axes_of_grids(tmp_path):
    text = "[[grid]]\nseed = 1\n[[grid.axes]]\nbudget.tokens = [5, 6]\n"
    made = sweep(tmp_path, text, "budget.tokens=7", "seed=2")
    assert points(made, "seed", "budget.tokens") == [(2, 7)]


def test_another_policy_takes_the_first_ones_parameters_out_of_the_axes_too(tmp_path):
    text = "[policy]\nname = 'snapkv'\n[[axes]]\npolicy.kernel = [1, 3]\n" + SEEDS
    keys = ("policy.name", "policy.kernel", "seed")
    assert len(points(sweep(tmp_path, text), *keys)) == 6
    made = sweep(tmp_path, text, policy="h2o")
    assert points(made, *keys) == [("h2o", None, seed) for seed in (1, 2, 3)]


def test_a_policys_path_in_an_axis_is_relative_to_the_file(tmp_path):
    made = sweep(tmp_path, "[[axes]]\npolicy.name = ['mine.py', 'tova']\n")
    assert points(made, "policy.name") == [(str(tmp_path / "mine.py"),), ("tova",)]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[[axes]]\nseed = [1, 2]\npages.tokens = [1]\n", "equally long: seed has 2, pages.tokens"),
        ("[[axes]]\nsead = [1]\n", "unknown key sead; the nearest valid key is seed"),
        ("[[axes]]\nseed = []\n", "axis seed must be a list with at least one value"),
        ("[[axes]]\nseed = 3\n", "axis seed must be a list"),
        ("[[axes]]\n", "an axis must be a table of lists"),
        ("[axes]\nseed = [1]\n", "axes are written [[axes]]"),
        ("axes = [3]\n", "an axis must be a table of lists"),
        ("[grid]\nseed = 1\n", "grids are written [[grid]]"),
        ("[[grid]]\nsead = 1\n", "unknown key sead"),
        ("[[grid]]\n[[grid.axes]]\nseed = [1, 'x']\n", "seed must be int, not str"),
        ("[[axes]]\nseed = [1, -1]\n", "seed must be at least 0, not -1"),
        ("[[axes]]\nbudget.fraction = [0.5, nan]\n", "budget.fraction must be above 0"),
        ("table = 3\n", "[table] must be a table"),
        ("[table]\nseed = 1\n", "table key seed must be a list"),
        ("[table]\nsead = [1]\n", "unknown key sead"),
        ("[table]\npolicy.kernel = [1]\n", "[table] cannot choose by policy.kernel"),
        ("[table]\nworkload.path = ['x']\n", "[table] cannot choose by workload.path"),
    ],
)
def test_a_mistake_in_a_sweep_is_named_with_its_file(tmp_path, text, says):
    said = refused(tmp_path, text)
    assert said.startswith(f"{tmp_path / 'sweep.toml'}: ")
    assert says in said


def test_the_table_keeps_the_values_that_the_file_lists(tmp_path):
    made = sweep(tmp_path, "[table]\npages.tokens = [16]\n'policy.name' = ['h2o', 'tova']\n")
    assert made.table == {"pages.tokens": [16], "policy.name": ["h2o", "tova"]}


def test_the_results_folder_is_named_by_folder_and_stem(tmp_path, monkeypatch):
    folder = tmp_path / "07-why"
    folder.mkdir()
    for name in ("sweep", "more"):
        (folder / f"{name}.toml").write_text("seed = 1\n")
    assert read(folder).name == "07-why-sweep"
    assert read(folder / "more.toml").name == "07-why-more"
    # The folder has a name even where the path that was given says only "here".
    monkeypatch.chdir(folder)
    assert read(Path()).name == "07-why-sweep"
    assert read(Path("more.toml")).name == "07-why-more"


def test_an_experiment_that_is_not_there_is_named(tmp_path):
    for path, says in (
        (tmp_path, "the folder has no sweep.toml"),
        (tmp_path / "x", "no such experiment"),
    ):
        with pytest.raises(ScenarioError, match=says) as caught:
            read(path)
        assert str(path) in str(caught.value)


def test_the_first_experiment_is_the_one_that_was_asked_for():
    made = read(EXPERIMENTS / "01-memory-ceilings")
    # 7 policies x 4 granularities x 5 pairs x 5 compactions, and 3 policies x 5 sizes x 2 x 2,
    # at 5 budgets.
    assert len(made.scenarios) == 5 * (7 * 4 * 5 * 5 + 3 * 5 * 2 * 2)
    assert made.name == "01-memory-ceilings-sweep"
    pairs = {(s.selection.sets, s.pages.scope) for s in made.scenarios if s.pages.tokens == 16}
    assert pairs == {
        ("shared", "sequence"),
        ("layer", "layer"),
        ("head", "head"),
        ("layer", "sequence"),
        ("head", "sequence"),
    }
    assert {s.pool.ceiling_pages + s.pool.ceiling_bytes for s in made.scenarios} == {0}
