"""Reading scenarios: every key is settable, and a mistake is named before anything runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from recordings import arrays, row_of, scenario, tiny

from kvsim.errors import PolicyError, ScenarioError
from kvsim.lab import reading
from kvsim.lab.run import check, run
from kvsim.lab.scenario import Scenario

# The contract, as it is written in the design: key, default, and another value that is accepted
# now. Where only one value exists so far, it is given again, to show that the key is known.
CONTRACT: dict[str, tuple[Any, Any]] = {
    "seed": (7, 11),
    "layout": ("SmolLM2-135M", "Llama-3.2-1B"),
    "pages.tokens": (16, 3),
    "pages.scope": ("sequence", "head"),
    "pages.append": ("tail", "tail"),
    "pool.ceiling_pages": (0, 5),
    "pool.ceiling_bytes": (0, 10**9),
    "policy.name": ("h2o", "snapkv"),
    "selection.granularity": ("token", "page_completion"),
    "selection.sets": ("shared", "layer"),
    "selection.window_tokens": (16, 8),
    "selection.protect_recent": (64, 0),
    "selection.protect_sinks": (0, 4),
    "budget.fraction": (0.5, 0.25),
    "budget.tokens": (0, 100),
    "budget.when": ("prefill_end", "prefill_end"),
    "compaction.algorithm": ("none", "none"),
    "compaction.unit": ("slot", "slot"),
    "compaction.positions": ("keep", "keep"),
    "workload.kind": ("recorded", "recorded"),
    "workload.path": ("package:smollm2-135m-4096-reduced", "package:other"),
    "workload.sequences": (1, 2),
    "workload.forks": (0, 3),
    "workload.decode_tokens": (0, 5),
    "store.kind": ("counting", "counting"),
    "store.planes": ("kv", "kv_raw"),
}
COUNTS = [key for key, (default, _) in CONTRACT.items() if type(default) is int]
SIZES = ["pages.tokens", "selection.window_tokens", "workload.sequences", "store.element_bytes"]


def toml(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value)


def write(folder: Path, text: str, name: str = "scenario.toml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def load(folder: Path, text: str = "", *pairs: str, policy: str | None = None) -> Scenario:
    return reading.load(write(folder, text), reading.overrides(pairs, policy))


def refused(folder: Path, text: str, *pairs: str, policy: str | None = None) -> str:
    """The text of a refusal, which must be one line."""
    with pytest.raises(ScenarioError) as caught:
        load(folder, text, *pairs, policy=policy)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_an_empty_file_is_the_contracts_defaults(tmp_path):
    flat = load(tmp_path).flat()
    assert {key: flat[key] for key in CONTRACT} == {k: d for k, (d, _) in CONTRACT.items()}


@pytest.mark.parametrize("key", CONTRACT)
def test_every_key_of_the_contract_is_settable_in_the_file_and_on_the_command_line(tmp_path, key):
    value = CONTRACT[key][1]
    wanted = load(tmp_path).flat() | {key: value}
    assert load(tmp_path, f"{key} = {toml(value)}").flat() == wanted
    section, _, leaf = key.rpartition(".")
    if section:
        assert load(tmp_path, f"[{section}]\n{leaf} = {toml(value)}").flat() == wanted
    assert load(tmp_path, "", f"{key}={toml(value)}").flat() == wanted
    # A shell takes the quotes away, so a bare word must do.
    assert load(tmp_path, "", f"{key}={value}").flat() == wanted


def test_a_value_on_the_command_line_wins_over_the_file_and_the_last_over_the_first(tmp_path):
    pairs = ("pages.tokens=8", " pages.tokens = 4 ")
    assert load(tmp_path, "pages.tokens = 2", *pairs).pages.tokens == 4


def test_an_integer_will_do_where_a_float_is_wanted_and_a_float_not_for_an_integer(tmp_path):
    flat = load(tmp_path, "budget.fraction = 1").flat()
    assert type(flat["budget.fraction"]) is float
    assert "pages.tokens must be int, not float" in refused(tmp_path, "pages.tokens = 16.0")


@pytest.mark.parametrize(
    ("text", "key", "nearest"),
    [
        ("sead = 3", "sead", "seed"),
        ("[pages]\ntoken = 3", "pages.token", "pages.tokens"),
        ("[page]\ntokens = 3", "page.tokens", "pages.tokens"),
        ("[slection]\nsets = 'head'", "slection.sets", "selection.sets"),
        ("[budget]\nfractoin = 0.5", "budget.fractoin", "budget.fraction"),
        ("policy = 'h2o'", "policy", "policy.name"),
        ("ceiling_pages = 3", "ceiling_pages", "pool.ceiling_pages"),
        ("[pages.tokens]\nx = 3", "pages.tokens.x", "pages.tokens"),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest_valid_name(tmp_path, text, key, nearest):
    said = refused(tmp_path, text)
    assert f"unknown key {key}; the nearest valid key is {nearest}" in said
    assert "scenario.toml" in said


@pytest.mark.parametrize("text", ["[polcy]", "[pages.extra]", "[[pages]]\ntokens = 3", "seed = {}"])
def test_a_table_without_a_key_does_not_hide_its_name(tmp_path, text):
    """An empty table flattens to nothing, so a misspelt one passed unnoticed."""
    assert "scenario.toml" in refused(tmp_path, text)


def test_an_empty_table_of_a_known_section_is_no_mistake(tmp_path):
    assert load(tmp_path, "[pages]\n[policy]\n[workload]") == load(tmp_path)


def test_an_unknown_override_is_refused_with_the_override_in_the_text(tmp_path):
    said = refused(tmp_path, "", "pages.tokns=3")
    assert said == (
        "--set pages.tokns=3: unknown key pages.tokns; the nearest valid key is pages.tokens"
    )


@pytest.mark.parametrize("pair", ["pages.tokens", "=3", "pages.tokens=[1, 2]", "seed=2020-01-01"])
def test_an_override_that_is_no_key_and_value_is_refused(tmp_path, pair):
    assert f"--set {pair}" in refused(tmp_path, "", pair)


def test_a_sweep_given_as_a_scenario_is_told_where_it_belongs(tmp_path):
    said = refused(tmp_path, "seed = 1\n[[axes]]\nseed = [1]\n")
    assert said.endswith("unknown key axes; it belongs to a sweep, which kvsim sweep runs")


def test_a_value_of_thousands_of_digits_or_brackets_is_refused_in_a_short_line(tmp_path):
    for value in ("9" * 5000, "[" * 5000 + "]" * 5000, "x" * 5000):
        with pytest.raises(ScenarioError) as caught:
            load(tmp_path, "", f"seed={value}")
        assert len(str(caught.value)) < 200


def test_an_override_cannot_smuggle_in_a_second_key(tmp_path):
    """The value is read as TOML, where a line break begins another key."""
    with pytest.raises(ScenarioError):
        load(tmp_path, "", "seed=1\nx=3")


@pytest.mark.parametrize("key", CONTRACT)
def test_a_value_of_another_type_is_refused_with_its_key(tmp_path, key):
    wanted = type(CONTRACT[key][0])
    fits = {"'1'": (str,), "1": (int, float), "1.5": (float,)}
    for value in ("true", "[1]", "{}", "1979-05-27", "'1'", "1", "1.5"):
        if wanted not in fits.get(value, ()):
            said = refused(tmp_path, f"{key} = {value}")
            assert f"scenario.toml: {key} must be {wanted.__name__}, not " in said


@pytest.mark.parametrize("key", [*COUNTS, "store.element_bytes"])
def test_a_negative_size_is_refused(tmp_path, key):
    assert f"{key} must be at least" in refused(tmp_path, f"{key} = -1")


@pytest.mark.parametrize("key", SIZES)
def test_zero_is_refused_where_nothing_can_have_that_size(tmp_path, key):
    assert f"{key} must be at least 1, not 0" in refused(tmp_path, f"{key} = 0")


@pytest.mark.parametrize("key", COUNTS)
def test_an_integer_that_json_readers_would_round_is_refused(tmp_path, key):
    for value in (2**53, 10**30):
        assert f"{key} is too large" in refused(tmp_path, f"{key} = {value}")


@pytest.mark.parametrize("value", ["0", "0.0", "-0.5", "1.0000001", "2", "nan", "inf", "-inf"])
def test_a_fraction_out_of_range_is_refused(tmp_path, value):
    for said in (
        refused(tmp_path, f"budget.fraction = {value}"),
        refused(tmp_path, "", f"budget.fraction={value}"),
    ):
        assert "budget.fraction must be above 0 and at most 1" in said


@pytest.mark.parametrize("value", ["1.0", "1e-9"])
def test_a_fraction_at_the_edge_of_its_range_is_accepted(tmp_path, value):
    assert load(tmp_path, f"budget.fraction = {value}").budget.fraction == float(value)


@pytest.mark.parametrize(
    ("key", "value", "near"),
    [
        ("pages.scope", "heads", "head"),
        ("selection.granularity", "tokens", "token"),
        ("selection.sets", "Shared", "shared"),
        ("store.planes", "kv_row", "kv_raw"),
        ("compaction.algorithm", "defrag", None),
    ],
)
def test_a_word_that_is_no_choice_is_refused_with_the_choices(tmp_path, key, value, near):
    said = refused(tmp_path, f'{key} = "{value}"')
    assert f"{key} must be one of " in said
    assert f"not {value!r}" in said
    assert (f"did you mean {near!r}?" in said) == (near is not None)


@pytest.mark.parametrize(
    ("text", "line"),
    [("seed = 7\npages.tokens = = 3\n", 2), ("seed = 7\nseed = 8\n", 2), ("\n\n[pages\n", 3)],
)
def test_a_syntax_error_is_named_with_file_and_line(tmp_path, text, line):
    said = refused(tmp_path, text)
    assert said.startswith(f"{tmp_path / 'scenario.toml'}: ")
    assert f"line {line}" in said


@pytest.mark.parametrize(
    "text",
    [
        '"pages.tokens" = 2\n[pages]\ntokens = 3',
        '[pages]\ntokens = 3\n[policy]\nname = "h2o"\n["policy.name"]\n',
        '[budget]\nfraction = 0.5\n\n["budget"."fraction"]\n',
    ],
)
def test_a_key_given_twice_is_refused_however_it_is_written(tmp_path, text):
    """TOML calls `"pages.tokens"` in quotes another key than tokens in [pages]; a scenario not."""
    refused(tmp_path, text)


def test_a_file_that_is_not_utf8_missing_or_a_folder_is_refused(tmp_path):
    path = tmp_path / "latin.toml"
    path.write_bytes(b'layout = "caf\xe9"')
    for file, says in (
        (path, "not UTF-8 at byte 13"),
        (tmp_path / "none.toml", "No such file"),
        (tmp_path, "directory"),
    ):
        with pytest.raises(ScenarioError, match=says) as caught:
            reading.load(file)
        assert str(file) in str(caught.value)


def test_a_byte_order_mark_or_windows_line_ends_change_nothing_or_are_named(tmp_path):
    path = tmp_path / "windows.toml"
    path.write_bytes(b"seed = 9\r\n[pages]\r\ntokens = 3\r\n")
    assert reading.load(path).pages.tokens == 3
    path.write_bytes(b"\xef\xbb\xbfseed = 9\n")
    with pytest.raises(ScenarioError, match="line 1"):
        reading.load(path)


@pytest.mark.parametrize(
    ("key", "value"),
    [("workload.path", "a/r.npz"), ("policy.name", "a/p.py"), ("layout", "a/l.json")],
)
def test_a_path_is_relative_to_the_file_or_else_to_the_working_directory(tmp_path, key, value):
    folder = tmp_path / "deep"
    folder.mkdir()
    assert load(folder, f'{key} = "{value}"').flat()[key] == str(folder / value)
    assert load(folder, "", f"{key}={value}").flat()[key] == value
    assert load(folder, f'{key} = "/abs/{value}"').flat()[key] == f"/abs/{value}"
    # A name is no path, wherever it stands.
    name = CONTRACT[key][1]
    assert load(folder, f'{key} = "{name}"').flat()[key] == name


def test_a_file_beside_the_scenario_is_found_from_any_working_directory(tmp_path, monkeypatch):
    folder = tmp_path / "deep"
    folder.mkdir()
    tiny(folder, arrays(1, 1, 32))
    text = 'layout = "layout-1x1-full.json"\n[workload]\npath = "recording.npz"\n'
    monkeypatch.chdir(tmp_path)
    free = "selection.protect_recent=0"
    assert run(load(folder, text, free))["tokens"] == 32
    pairs = (free, "workload.path=deep/recording.npz", "layout=deep/layout-1x1-full.json")
    assert run(load(folder, "", *pairs))["tokens"] == 32


def test_the_policy_option_is_the_policys_name(tmp_path):
    for name in ("tova", "./mine.py"):
        assert load(tmp_path, "", policy=name) == load(tmp_path, "", f"policy.name={name}")


def test_another_policy_drops_the_parameters_of_the_first(tmp_path):
    text = '[policy]\nname = "snapkv"\nkernel = 3\n'
    assert load(tmp_path, text).policy.parameters == (("kernel", 3),)
    assert load(tmp_path, text, policy="h2o").policy.parameters == ()
    assert load(tmp_path, text, "policy.name=snapkv").policy.parameters == (("kernel", 3),)
    given = load(tmp_path, text, "policy.n_sink=2", "policy.name=streaming_llm")
    assert given.policy.parameters == (("n_sink", 2),)


@pytest.mark.parametrize(
    ("name", "key", "value", "says"),
    [
        ("snapkv", "kernal", 3, "snapkv has no such parameter .*did you mean policy.kernel"),
        ("h2o", "kernel", 3, "h2o has no such parameter"),
        ("snapkv", "kernel", 3.0, "policy.kernel: must be int, not float"),
        ("snapkv", "kernel", True, "policy.kernel: must be int, not bool"),
        ("snapkv", "kernel", "3", "policy.kernel: must be int, not str"),
        ("snapkv", "kernel", 4, "kernel must be odd"),
        ("h3o", "x", 1, "unknown policy 'h3o'; did you mean 'h2o'"),
    ],
)
def test_a_policys_parameters_are_checked(tmp_path, name, key, value, says):
    keys = tiny(tmp_path, arrays(1, 1, 32))
    given = scenario(keys, policy__name=name, **{f"policy__{key}": value})
    for refuse in (check, run):
        with pytest.raises(PolicyError, match=says):
            refuse(given)


def test_a_policys_parameter_takes_no_list(tmp_path):
    assert "policy.kernel must be a number" in refused(tmp_path, "policy.kernel = [1, 3]")


def test_a_ceiling_below_one_page_is_refused_and_one_of_a_page_is_not(tmp_path):
    """A row has 1 layer x 2 heads x (4 + 4) elements of 2 bytes; a page 4 of them."""
    keys = tiny(tmp_path, arrays(1, 2, 32)) | {"pages.tokens": 4}
    for refuse in (check, run):
        with pytest.raises(ScenarioError, match=r"ceiling_bytes: 127 is below one page of 128"):
            refuse(scenario(keys, pool__ceiling_bytes=127))
    assert row_of(keys, pool__ceiling_bytes=128)["outcome"] == "infeasible"


def test_zero_in_the_pool_means_unlimited_and_the_tighter_ceiling_holds(tmp_path):
    keys = tiny(tmp_path, arrays(1, 2, 32)) | {
        "pages.tokens": 4,
        "selection.protect_recent": 0,
    }
    for pages, held_bytes, outcome in (
        (0, 0, "completed"),
        (8, 0, "completed"),
        (7, 0, "infeasible"),
        (0, 8 * 128, "completed"),
        (0, 8 * 128 - 1, "infeasible"),
        (7, 8 * 128, "infeasible"),
        (8, 7 * 128, "infeasible"),
    ):
        row = row_of(keys, pool__ceiling_pages=pages, pool__ceiling_bytes=held_bytes)
        assert (pages, held_bytes, row["outcome"]) == (pages, held_bytes, outcome)
