"""The results folder: what survives a kill, a full disk, a second writer and a damaged file."""

from __future__ import annotations

import inspect
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kvsim.errors import ResultsError
from kvsim.lab.results import ResultsFolder, read_rows

TABLES = ("rows.jsonl", "measured.jsonl")


def row(number, outcome="completed"):
    stocks = {"held_pages": number, "held_fraction": number / 7, "note": "é" * (number % 40)}
    return {"run_id": f"run-{number:06d}", "outcome": outcome} | stocks


def measured(number):
    return {"seconds": number / 3}


def take(path, version=1):
    return ResultsFolder.open(path, model_version=version, command=["kvsim", "sweep"])


def fill(path, count):
    with take(path) as folder:
        for number in range(count):
            if row(number)["run_id"] not in folder.known:
                folder.append(row(number), measured(number))


# A child process has the helpers above, as they stand, and a program of its own.
PRELUDE = "import os, resource, signal, sys\nfrom kvsim.errors import ResultsError\n"
PRELUDE += "from kvsim.lab.results import ResultsFolder, read_rows\n"
PRELUDE += "".join(inspect.getsource(helper) for helper in (row, measured, take, fill))


def start(program: str, *arguments: object) -> subprocess.Popen[str]:
    words = [sys.executable, "-c", PRELUDE + program, *map(str, arguments)]
    return subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def finish(child: subprocess.Popen[str], code: int = 0) -> str:
    output, _ = child.communicate(timeout=60)
    assert child.returncode == code
    return output


def everything(path: Path) -> dict[str, tuple[bytes, int]]:
    """Every file's bytes and time of change. To open a held lock file here would drop the lock."""
    files = [file for file in path.glob("*") if file.name != ".lock"]
    found = {file.name: (file.read_bytes(), file.stat().st_mtime_ns) for file in files}
    return found | {name: (b"", 0) for name in os.listdir(path) if name == ".lock"}


def tables(path: Path) -> list[bytes]:
    return [(path / name).read_bytes() for name in TABLES]


def refused(path: Path, version: int = 1) -> str:
    """The one line of a refusal, which must have changed nothing."""
    before = everything(path) if path.is_dir() else None
    with pytest.raises(ResultsError) as caught:
        take(path, version)
    assert (everything(path) if path.is_dir() else None) == before
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.fixture(params=["with lock file", "cloned without"])
def filled(tmp_path: Path, request) -> Path:
    fill(tmp_path / "out", 5)
    if request.param == "cloned without":
        (tmp_path / "out/.lock").unlink()
    return tmp_path / "out"


def ends(path: Path, name: str = "rows.jsonl") -> str:
    """The last digits of the run ids of a table, in file order."""
    return "".join(json.loads(line)["run_id"][-1] for line in (path / name).open())


def test_rows_and_measurements_come_back_in_order(filled):
    assert read_rows(filled) == read_rows(filled / "rows.jsonl") == [row(n) for n in range(5)]
    assert ends(filled, "measured.jsonl") == "01234"
    with take(filled) as folder:
        assert folder.known == {row(n)["run_id"] for n in range(5)}
        assert (folder.cut_bytes, folder.dropped_rows) == (0, 0)
        folder.append(row(5), None)
        assert folder.rows()[-1] == row(5)


def test_append_refuses_a_known_a_nameless_and_a_foreign_run(filled):
    before = tables(filled)
    with take(filled) as folder:
        for wrong, times in [(row(0), None), ({"a": 1}, None), (row(9), {"run_id": "other"})]:
            with pytest.raises(ResultsError):
                folder.append(wrong, times)
        assert tables(filled) == before
    with pytest.raises(ResultsError, match="not opened"):
        folder.append(row(9), None)


def test_failed_rows_are_dropped_and_run_again(tmp_path):
    with take(tmp_path) as folder:
        for number in range(4):
            folder.append(row(number, "failed" if number in (1, 2) else "completed"), measured(7))
        assert row(1)["run_id"] in folder.known
    with take(tmp_path) as folder:
        assert folder.dropped_rows == 2
        assert folder.known == {row(0)["run_id"], row(3)["run_id"]}
        assert folder.rows() == [row(0), row(3)]
        folder.append(row(1), measured(1))
    assert ends(tmp_path) == ends(tmp_path, "measured.jsonl") == "031"
    assert not list(tmp_path.glob("*.tmp"))


@pytest.mark.parametrize(
    ("name", "old", "new", "says"),
    [
        ("rows.jsonl", b'"run-000002"', b"'run-000002'", "rows.jsonl:3:"),
        ("rows.jsonl", b'{"run_id":"run-000002"', b'{"run":"run-000002"', "rows.jsonl:3:"),
        ("rows.jsonl", b'"held_pages":1', b'"held_pages":NaN', "rows.jsonl:2:"),
        ("rows.jsonl", b"\n", b"\n\n", "rows.jsonl:2:"),
        ("rows.jsonl", "é".encode(), b"\xe9", "rows.jsonl:2:"),
        ("rows.jsonl", b'"run-000002"', b'"run-000000"', "rows.jsonl:3:"),
        ("measured.jsonl", b'"run-000003"', b"3", "measured.jsonl:4:"),
        ("measured.jsonl", b'"run-000003"', b'"run-000002"', "measured.jsonl:4:"),
        ("manifest.json", b"{", b"", "manifest.json: cannot be read (not valid"),
        (
            "manifest.json",
            b'"model_version"',
            b'"version"',
            "manifest.json: cannot be read (no model",
        ),
        ("manifest.json", b'"commands"', b'"command"', "manifest.json: cannot be read (no list"),
    ],
)
def test_damage_is_named_and_nothing_changes(filled, name, old, new, says):
    file = filled / name
    assert old in file.read_bytes()
    torn = b"" if name == "manifest.json" else b'{"torn'
    file.write_bytes(file.read_bytes().replace(old, new, 1) + torn)
    assert says in refused(filled)
    if name == "rows.jsonl":
        with pytest.raises(ResultsError, match=says):
            read_rows(filled)


def test_another_model_version_is_refused_and_nothing_changes(filled):
    with (filled / "rows.jsonl").open("ab") as file:
        file.write(b'{"run_id":"x","outcome":"failed"}\n{"torn')
    assert "manifest.json: the folder has model version 1 and this kvsim 2" in refused(filled, 2)


def test_a_strangers_folder_is_refused_and_one_of_ours_is_not(tmp_path):
    (tmp_path / "thesis.tex").write_text("x")
    assert "thesis.tex" in refused(tmp_path)
    (tmp_path / "empty").mkdir()
    fill(tmp_path / "empty", 1)
    # Figures are drawn into a results folder, and a kill may leave a temporary file.
    for name in ("freed.pdf", "rows.jsonl.tmp"):
        (tmp_path / "empty" / name).touch()
    fill(tmp_path / "empty", 2)
    names = {".lock", "freed.pdf", "manifest.json", *TABLES}
    assert set(os.listdir(tmp_path / "empty")) == names
    for name in (".lock", "manifest.json.tmp"):
        (tmp_path / "half").mkdir(exist_ok=True)
        (tmp_path / "half" / name).touch()
    fill(tmp_path / "half", 1)


def test_a_path_that_cannot_be_a_folder_is_refused(tmp_path):
    (tmp_path / "file").write_text("x")
    assert "not a folder" in refused(tmp_path / "file")
    assert "Not a directory" in refused(tmp_path / "file/out")
    with pytest.raises(ResultsError, match="none: cannot be read"):
        read_rows(tmp_path / "none")


def test_an_unwritable_folder_is_refused(tmp_path):
    tmp_path.chmod(0o755)
    (tmp_path / "out").mkdir(mode=0o555)
    program = """
os.chdir(sys.argv[1])
if os.getuid() == 0:
    os.setresuid(65534, 65534, 65534)
for path in ("out", "out/deeper"):
    try: take(path)
    except ResultsError as error: print(error)
"""
    lines = finish(start(program, tmp_path)).splitlines()
    assert [line.split(":")[0] for line in lines] == ["out", "out/deeper"]
    assert all("Permission denied" in line for line in lines)
    assert not list((tmp_path / "out").iterdir())


def test_another_process_is_kept_out_until_the_holder_dies(tmp_path):
    path = tmp_path / "out"
    # Reading the tables back closes descriptors of them, which must not drop the lock.
    program = """
folder = take(sys.argv[1])
folder.append(row(0), measured(0))
assert folder.rows() == read_rows(sys.argv[1])
print("held", flush=True)
sys.stdin.read()
"""
    child = start(program, path)
    try:
        assert child.stdout.readline() == "held\n"
        assert f"{path}: another writer" in refused(path)
        assert read_rows(path) == [row(0)]
    finally:
        child.kill()
        finish(child, -signal.SIGKILL)
    fill(path, 2)
    assert read_rows(path) == [row(0), row(1)]


def test_the_same_process_is_kept_out_and_does_not_lose_its_lock(tmp_path):
    out, link = tmp_path / "out", tmp_path / "link"
    program = "try: take(sys.argv[1])\nexcept ResultsError: print('no')"
    link.symlink_to(out)
    with take(out):
        assert "another writer" in refused(link)
        assert finish(start(program, out)) == "no\n"
    assert finish(start(program, out)) == ""
    take(out).close()


def test_a_forked_worker_may_not_write(tmp_path):
    program = """
folder = take(sys.argv[1])
if os.fork() == 0:
    try: folder.append(row(0), None)
    except ResultsError: os._exit(7)
    os._exit(0)
sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))
"""
    finish(start(program, tmp_path), 7)
    assert read_rows(tmp_path) == []


@pytest.mark.parametrize("name", TABLES)
def test_a_torn_last_line_is_cut_and_run_again(filled, name):
    before = tables(filled)
    file = filled / name
    file.write_bytes(file.read_bytes()[:-3])
    lines = before[TABLES.index(name)].splitlines(keepends=True)
    assert len(read_rows(filled)) == (4 if name == "rows.jsonl" else 5)
    with take(filled) as folder:
        assert folder.cut_bytes == len(lines[4]) - 3
        assert file.read_bytes() == b"".join(lines[:4])
    if name == "rows.jsonl":
        # The measured line without row is gone too, so the repeat writes it once.
        assert ends(filled, "measured.jsonl") == "0123"
        fill(filled, 5)
        assert tables(filled) == before


@pytest.mark.parametrize(("table", "share"), [(0, 0.0), (0, 0.5), (1, 0.0), (1, 0.5)])
def test_a_full_disk_takes_nothing_and_the_same_writer_may_go_on(tmp_path, table, share):
    # The limit bites in one table only: the other's line is short where this one's is long.
    # Python itself ignores SIGXFSZ, so the write returns short and then fails.
    program = """
path, table, share = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
long, short = {"text": "x" * 4000}, {"text": ""}
pairs = [(long, short), (short, long)][table]
with take(path) as folder:
    folder.append(row(0) | pairs[0], measured(0) | pairs[1])
    names = [os.path.join(path, name) for name in ("rows.jsonl", "measured.jsonl")]
    before = [open(name, "rb").read() for name in names]
    limit = len(before[table]) + int(share * 4000)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    try: folder.append(row(1) | pairs[0], measured(1) | pairs[1])
    except ResultsError as error: print(error)
    assert [open(name, "rb").read() for name in names] == before
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
    folder.append(row(1) | pairs[0], measured(1) | pairs[1])
"""
    output = finish(start(program, tmp_path, table, share))
    assert output == f"{tmp_path / TABLES[table]}: cannot append: File too large\n"
    assert ends(tmp_path) == ends(tmp_path, "measured.jsonl") == "01"


@pytest.mark.parametrize("writes", [0, 1])
def test_an_interrupt_between_the_writes_takes_the_whole_run_back(filled, monkeypatch, writes):
    before, calls, write = tables(filled), [], os.write

    def interrupted(descriptor, data):
        calls.append(write(descriptor, data))
        if len(calls) > writes:
            raise KeyboardInterrupt
        return calls[-1]

    with take(filled) as folder:
        monkeypatch.setattr(os, "write", interrupted)
        with pytest.raises(KeyboardInterrupt):
            folder.append(row(5), measured(5))
        assert tables(filled) == before
        # Where even the cut fails, the writer stops, and the next opening mends.
        monkeypatch.setattr(os, "ftruncate", lambda *_: (_ for _ in ()).throw(OSError("no")))
        for says in ("cannot take back", "is torn"):
            with pytest.raises(ResultsError, match=says):
                folder.append(row(5), measured(5))
    monkeypatch.undo()
    fill(filled, 6)
    assert ends(filled) == ends(filled, "measured.jsonl") == "012345"


def test_a_full_disk_at_opening_leaves_the_folder_as_it_was(filled):
    with take(filled) as folder:
        folder.append(row(5, "failed"), None)
    before = everything(filled)
    program = """
resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))
try: take(sys.argv[1])
except ResultsError as error: print(error)
"""
    assert "rows.jsonl: cannot be written: File too large" in finish(start(program, filled))
    assert everything(filled) == before


@pytest.mark.parametrize("writes", range(8))
@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_a_kill_before_within_or_after_any_write_is_mended(tmp_path, writes, share):
    program = """
path, left, share = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
folder, write = take(path), os.write
def deadly(descriptor, data):
    global left
    if (left := left - 1) < 0:
        write(descriptor, data[: int(share * len(data))])
        os.kill(os.getpid(), signal.SIGKILL)
    return write(descriptor, data)
os.write = deadly
for number in range(5):
    folder.append(row(number), measured(number))
"""
    fill(tmp_path / "whole", 5)
    finish(start(program, tmp_path / "killed", writes, share), -signal.SIGKILL)
    fill(tmp_path / "killed", 5)
    assert tables(tmp_path / "killed") == tables(tmp_path / "whole")


def test_a_kill_while_mending_is_mended(filled):
    with take(filled) as folder:
        folder.append(row(5, "failed"), measured(5))
    program = """
replace, left = os.replace, int(sys.argv[2])
def deadly(source, target):
    global left
    if (left := left - 1) < 0:
        os.kill(os.getpid(), signal.SIGKILL)
    replace(source, target)
os.replace = deadly
take(sys.argv[1])
"""
    for replaced in (0, 1, 1):
        finish(start(program, filled, replaced), -signal.SIGKILL)
    fill(filled, 6)
    assert read_rows(filled) == [row(n) for n in range(6)]
    assert ends(filled, "measured.jsonl") == "012345"


def test_a_sweep_killed_at_random_moments_ends_with_the_bytes_of_one_that_was_not(tmp_path):
    count, killed, rows = 8_000, tmp_path / "killed", tmp_path / "killed/rows.jsonl"
    fill(tmp_path / "whole", count)
    size, moments, midway = len(tables(tmp_path / "whole")[0]), random.Random(20260707), 0
    for kill in range(6):
        # Each kill strikes in its own eighth of the file, so that there is always work left.
        target = size * (kill + moments.random()) / 8
        child = start("fill(sys.argv[1], int(sys.argv[2]))\nsys.stdin.read()", killed, count)
        try:
            deadline = time.monotonic() + 60
            while not rows.exists() or rows.stat().st_size < target:
                assert time.monotonic() < deadline, "the child wrote too little"
                time.sleep(0.0005)
        finally:
            child.kill()
            finish(child, -signal.SIGKILL)
        midway += len(read_rows(killed)) < count
    assert midway > 0
    fill(killed, count)
    assert read_rows(killed) == [row(n) for n in range(count)]
    assert tables(killed) == tables(tmp_path / "whole")
