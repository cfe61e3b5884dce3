"""Bad input: one line on stderr that names the fault, exit code 2, earlier results untouched."""

from __future__ import annotations

import os
import re
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from recordings import arrays, write_recording

from cli.command import Answer, contents, kvsim, policy, quick, start, sweep_of, tiny

FULL = arrays(2, 2, 64)
NAN = FULL["cum"].copy()
NAN[1, 1, 5] = np.nan
RECORDINGS: dict[str, tuple[dict, tuple[str, ...]]] = {
    "unequal": ({**FULL, "last": FULL["last"][..., :60]}, ("unequal shapes", "last (2, 2, 60)")),
    "flat": ({**FULL, "snap": FULL["snap"][0]}, ("'snap'", "[layers, kv_heads, tokens]")),
    "nan": ({**FULL, "cum": NAN}, ("'cum'", "not finite")),
    "inf": ({**FULL, "knorm": FULL["knorm"] + np.float32(np.inf)}, ("'knorm'", "not finite")),
    "pickled": ({**FULL, "cum": np.array([{}], object)}, ("'cum'", "pickled")),
    "integers": ({**FULL, "cum": np.ones((2, 2, 64), int)}, ("'cum'", "floats", "int64")),
    "missing": ({k: v for k, v in FULL.items() if k != "snap"}, ("no array 'snap'",)),
    "heads": (arrays(2, 3, 64), ("2 layers x 3 KV heads", "tiny-2x2")),
    "layers": (arrays(1, 2, 64), ("1 layers x 2 KV heads", "tiny-2x2")),
    "listed": ({**FULL, "layers": np.array([0, 5])}, ("layer 5", "2 layers")),
}
# What a policy file's `score` does wrong, and what the refusal must say.
SCORES = {
    "raises": ("return 1 / 0", ("score raised ZeroDivisionError",)),
    "nan": ("return view.positions * float('nan')", ("not finite",)),
    "inf": ("return view.positions - float('inf')", ("not finite",)),
    "exits": ("raise SystemExit(3)", ("it ends the program (3)",)),
    "short": ("return view.positions[1:]", ("shape (63,)", "(2, 2, 64)")),
    "deep": ("return view.attention.last[None]", ("shape (1, 2, 2, 64)",)),
    "none": ("return None", ("must be numbers",)),
    "words": ("return ['a'] * view.tokens", ("must be numbers",)),
    "writes-positions": ("view.positions[0] = 9", ("score raised ValueError", "read-only")),
    "writes-ages": ("view.ages[:] = 9", ("score raised ValueError", "read-only")),
    "writes-sets": ("view.retained[:] = False", ("score raised ValueError", "read-only")),
    "writes-signal": ("view.attention.last[:] = 0", ("score raised ValueError", "read-only")),
    "writes-norms": ("view.key_norms[:] = 0", ("score raised ValueError", "read-only")),
}
# Whole policy files that cannot be loaded.
FILES = {
    "syntax": ("x = 1\n\ndef score(:\n", ("bad.py:3: invalid syntax",)),
    "raising": ("raise OSError('no\\nway')", ("bad.py: OSError: no way",)),
    "exiting": ("raise SystemExit", ("policy bad: it ends the program (None)",)),
    "empty": ("", ("bad.py: one policy class is needed, 0 are defined",)),
    "import": ("import nothing_of_that_name", ("bad.py: ModuleNotFoundError",)),
    "plain": (
        "from kvsim.policies import Policy\nclass Bare(Policy):\n    pass\n",
        ("bad.py: Bare must be a frozen dataclass",),
    ),
}


def refused(answer: Answer, *says: str) -> None:
    """Exit code 2, one line on stderr, nothing on stdout."""
    assert (answer.code, answer.out, answer.err.count("\n")) == (2, "", 1), answer
    assert answer.err.startswith("kvsim: ")
    assert "\x1b" not in answer.err
    for part in says:
        assert part in answer.err


@pytest.fixture(scope="module")
def done(tmp_path_factory) -> Path:
    """A folder with a tiny sweep and its results in `out`."""
    folder = tmp_path_factory.mktemp("done")
    sweep_of(folder, "seed = [1, 2]")
    words = ("sweep", "sweep.toml", "--out", "out", "--jobs", 1, "--no-figures", "--json")
    assert quick(*words, cwd=folder).code == 0
    assert len(contents(folder / "out")) == 3
    return folder


def both(done: Path, *words: object, says: tuple[str, ...], names: tuple[str, ...] = ()) -> None:
    """`run` and `sweep` refuse alike; named files of the results, or all, stay as they were."""
    before = contents(done / "out", *names)
    assert before
    refused(quick("run", "scenario.toml", *words, "--json", cwd=done), *says)
    sweep = ("sweep", "sweep.toml", "--out", "out", "--no-figures", "--jobs")
    refused(quick(*sweep, 1, *words, cwd=done), *says)
    refused(quick(*sweep, 2, *words, "--json", cwd=done), *says)
    assert contents(done / "out", *names) == before


@pytest.mark.parametrize(
    ("pair", "says"),
    [
        ("pages.tokns=3", ("pages.tokns", "nearest valid key is pages.tokens")),
        ("pages.tokens=big", ("pages.tokens must be int",)),
        ("pages.tokens=0", ("pages.tokens must be at least 1",)),
        ("pool.ceiling_pages=-1", ("pool.ceiling_pages must be at least 0",)),
        ("pool.ceiling_bytes=255", ("pool.ceiling_bytes: 255 is below one page of 256 bytes",)),
        ("workload.decode_tokens=1", ("workload.decode_tokens", "no decode steps")),
        ("policy.name=h3o", ("policy.name: unknown policy 'h3o'", "'h2o'")),
        ("policy.name=gone.py", ("policy.name: there is no file gone.py",)),
        ("policy.kernel=3", ("policy.kernel: h2o has no such parameter",)),
        ("layout=SmolLM2-135B", ("unknown layout 'SmolLM2-135B'", "'SmolLM2-135M'")),
        ("layout=gone.json", ("gone.json", "No such file")),
        ("layout=Llama-3.2-1B", ("Llama-3.2-1B has 16 layers",)),
        ("workload.path=gone.npz", ("workload.path: there is no file gone.npz",)),
        ("workload.path=scenario.toml", ("scenario.toml: not an .npz archive",)),
        ("workload.path=package:none", ("workload.path: kvsim ships no recording 'none'",)),
        ("workload.path=package:../x", ("workload.path: kvsim ships no recording",)),
    ],
)
def test_a_bad_setting_is_refused_before_the_results_are_touched(done, pair, says):
    both(done, "--set", pair, says=says)


@pytest.mark.parametrize("name", RECORDINGS)
def test_a_bad_recording_is_refused_before_the_results_are_touched(done, name):
    made, says = RECORDINGS[name]
    path = write_recording(done, made, f"bad-{name}")
    both(done, "--set", f"workload.path={path}", says=(f"bad-{name}.npz", *says))


def test_a_damaged_or_foreign_recording_is_refused(done):
    whole = (done / "recording.npz").read_bytes()
    for name, content in (("half", whole[: len(whole) // 2]), ("none", b""), ("text", b"PK\x03")):
        (done / f"{name}.npz").write_bytes(content)
        both(done, "--set", f"workload.path={name}.npz", says=(f"{name}.npz: ",))
    # A changed byte inside the first array's numbers is found by the archive's check sum.
    hurt = bytearray(whole)
    hurt[600] ^= 1
    (done / "hurt.npz").write_bytes(hurt)
    both(done, "--set", "workload.path=hurt.npz", says=("hurt.npz: ", "'cum'"))
    np.save(done / "one.npy", FULL["cum"])
    both(done, "--set", "workload.path=one.npy", says=("one.npy: one array is not a recording",))


@pytest.mark.parametrize("name", SCORES)
def test_a_policy_with_bad_scores_is_refused_and_rows_stay(done, name):
    """Its fault shows only when it scores, so the folder is open: the manifest has the command."""
    body, says = SCORES[name]
    path = policy(done, body, f"bad-{name}")
    says = (f"policy bad-{name}: ", *says)
    both(done, "--policy", path, says=says, names=("rows.jsonl", "measured.jsonl"))


@pytest.mark.parametrize("name", FILES)
def test_a_policy_file_that_cannot_be_loaded_is_refused_and_named(done, name):
    text, says = FILES[name]
    (done / "bad.py").write_text(text)
    both(done, "--policy", "bad.py", says=says)


def test_a_bad_file_is_named_with_its_key_or_line(done):
    for text, says in (
        ("[page]\ntokens = 3\n", ("bad.toml", "unknown key page.tokens", "pages.tokens")),
        ("seed = 'x'\n", ("bad.toml", "seed must be int, not str")),
        ("seed = 1\npages.tokens = \n", ("bad.toml", "line 2")),
        ("seed = 1\nseed = 2\n", ("bad.toml", "line 2")),
        ("seed = " + "9" * 5000, ("bad.toml", "digits")),
        ("seed = " + "[" * 5000 + "]" * 5000, ("bad.toml", "recursion")),
    ):
        (done / "bad.toml").write_text(text)
        before = contents(done / "out")
        refused(quick("run", "bad.toml", cwd=done), *says)
        refused(quick("sweep", "bad.toml", "--out", "out", "--no-figures", cwd=done), *says)
        assert contents(done / "out") == before
    refused(quick("run", "gone.toml", cwd=done), "gone.toml")
    refused(quick("run", ".", cwd=done), ".: ")
    refused(quick("sweep", "gone", cwd=done), "gone: there is no such experiment")
    refused(quick("layouts", "SmolLM2-135B", cwd=done), "unknown layout", "SmolLM2-135M")
    refused(quick("layouts", "SmolLM2-135M", "--dtype", "real", cwd=done), "--dtype", "float32")
    refused(quick("bench", "nothing", cwd=done), "unknown benchmark 'nothing'")


def test_a_fault_in_the_last_run_of_a_sweep_is_found_before_the_first(done, tmp_path):
    path = sweep_of(tmp_path, "pool.ceiling_bytes = [0, 256, 255]")
    answer = quick("sweep", path, "--out", "out", "--jobs", 1, "--no-figures", cwd=tmp_path)
    refused(answer, "255 is below one page")
    assert not (tmp_path / "out").exists()


def test_a_real_process_refuses_as_a_fork_of_this_one_does(done):
    answer = kvsim("run", "scenario.toml", "--set", "pages.tokens=0", cwd=done)
    refused(answer, "--set: pages.tokens must be at least 1, not 0")


def test_a_folder_that_another_process_holds_is_refused_until_it_ends(done):
    program = (
        "import sys\nfrom kvsim.lab.results import ResultsFolder\nfrom kvsim.paging import "
        "MODEL_VERSION as v\nwith ResultsFolder.open('out', model_version=v, command=['x']):\n"
        "    print('held', flush=True)\n    sys.stdin.read()\n"
    )
    pipe = subprocess.PIPE
    words = [sys.executable, "-c", program]
    holder = subprocess.Popen(words, cwd=done, stdin=pipe, stdout=pipe, text=True)
    assert holder.stdout.readline() == "held\n"
    before = contents(done / "out")
    sweep = ("sweep", "sweep.toml", "--out", "out", "--no-figures", "--jobs", 1)
    refused(quick(*sweep, cwd=done), "out: another writer holds this results folder")
    assert contents(done / "out") == before
    holder.communicate(timeout=30)
    assert quick(*sweep, cwd=done).code == 0


def test_a_folder_of_another_model_version_is_refused(tmp_path):
    path = sweep_of(tmp_path, "seed = [1, 2]")
    sweep = ("sweep", path, "--out", "out", "--no-figures", "--jobs", 1)
    assert quick(*sweep, cwd=tmp_path).code == 0
    manifest = tmp_path / "out" / "manifest.json"
    text = manifest.read_text()
    for new, says in (('"model_version": 99', "model version 99"), ("[", "not valid JSON")):
        manifest.write_text(new if new == "[" else re.sub('"model_version": [0-9]+', new, text))
        before = contents(tmp_path / "out")
        refused(quick(*sweep, cwd=tmp_path), "manifest.json", says)
        assert contents(tmp_path / "out") == before


def test_a_folder_that_cannot_be_written_or_is_a_strangers_is_refused(done):
    sweep = ("sweep", "sweep.toml", "--no-figures", "--jobs", 1, "--out")
    # A path below a file, because a root user can write wherever there is a folder.
    refused(quick(*sweep, "scenario.toml/out", cwd=done), "scenario.toml/out: ")
    refused(quick(*sweep, "scenario.toml", cwd=done), "scenario.toml: ")
    refused(quick(*sweep, ".", cwd=done), "not a results folder")
    refused(quick(*sweep, "/proc/none", cwd=done), "/proc/none: ")


@pytest.mark.parametrize("share", [0.4, 0.99])
def test_a_full_disk_takes_whole_rows_or_none_and_the_sweep_goes_on_later(tmp_path, share):
    path = sweep_of(tmp_path, "seed = [1, 2, 3, 4, 5, 6, 7, 8]")
    sweep = ("sweep", path, "--no-figures", "--jobs", 1, "--json", "--out")
    assert quick(*sweep, "whole", cwd=tmp_path).code == 0
    whole = (tmp_path / "whole" / "rows.jsonl").read_bytes()
    most = int(share * len(whole))

    def fill() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))

    answer = quick(*sweep, "out", cwd=tmp_path, before=fill)
    refused(answer, "rows.jsonl: cannot append: File too large")
    got = (tmp_path / "out" / "rows.jsonl").read_bytes()
    assert 0 < len(got) <= most
    assert whole.startswith(got)
    assert got.endswith(b"\n")
    assert quick(*sweep, "out", cwd=tmp_path).code == 0
    assert (tmp_path / "out" / "rows.jsonl").read_bytes() == whole


def test_a_disk_that_is_full_for_the_answer_is_said_in_one_line(tmp_path):
    """stdout can be a file on a full disk; /dev/full is one."""
    tiny(tmp_path)
    words = [sys.executable, "-m", "kvsim", "policies", "--json"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (2, "kvsim: No space left on device\n")


def test_a_reader_that_leaves_is_told_nothing():
    child = start("policies", "--json", cwd=Path())
    child.stdout.close()
    assert child.stderr.read() == ""
    assert child.wait(60) == 1


def test_a_size_beyond_memory_is_said_in_one_line(tmp_path):
    tiny(tmp_path)
    answer = quick("run", "scenario.toml", "--set", f"pages.tokens={2**52}", cwd=tmp_path)
    refused(answer, "not enough memory")


def test_a_run_beyond_memory_is_a_failed_row_and_the_sweep_goes_on(tmp_path):
    path = sweep_of(tmp_path, f"pages.tokens = [{2**52}, 4]")
    for jobs in (1, 2):
        words = ("sweep", path, "--out", f"out{jobs}", "--jobs", jobs, "--no-figures", "--json")
        answer = quick(*words, cwd=tmp_path)
        assert (answer.code, answer.err) == (0, "")
        assert '"rows": 2, "run": 2, "skipped": 0, "failed": 1' in answer.out
    rows = [(tmp_path / f"out{jobs}" / "rows.jsonl").read_bytes() for jobs in (1, 2)]
    assert rows[0] == rows[1]
    assert b"MemoryError" in rows[0]
    # A failed row is no result: it is dropped and run again, and stands once.
    again = quick(*words, cwd=tmp_path).out
    assert '"rows": 2, "run": 1, "skipped": 1, "failed": 1' in again
    assert (tmp_path / "out2" / "rows.jsonl").read_bytes().count(b"\n") == 2
    assert os.fsencode(tmp_path) not in rows[0]
