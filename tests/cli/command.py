"""Calling kvsim as a user does, and the small folders of files that it is called on."""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from recordings import arrays, write_layout, write_recording

# A user's environment: colours are a terminal's business, and nothing here is one.
PLAIN = {
    name: value
    for name, value in os.environ.items()
    if name not in ("FORCE_COLOR", "NO_COLOR", "COLUMNS")
} | {"TERM": "xterm-256color", "PYTHONUTF8": "1"}

POLICY = """\
from dataclasses import dataclass
from kvsim.policies import Policy


@dataclass(frozen=True)
class Mine(Policy):
    signals = ("attention", "key_norms")

    def score(self, view):
        {body}
"""


class Answer(NamedTuple):
    """What a command left: its exit code and what it wrote."""

    code: int
    out: str
    err: str


def start(*words: object, cwd: Path, **env: str) -> subprocess.Popen[str]:
    """Start `python -m kvsim` as a process of its own, in a process group of its own."""
    command = [sys.executable, "-m", "kvsim", *map(str, words)]
    pipe = subprocess.PIPE
    return subprocess.Popen(
        command,
        cwd=cwd,
        env=PLAIN | env,
        stdin=subprocess.DEVNULL,
        stdout=pipe,
        stderr=pipe,
        text=True,
        encoding="utf-8",
        start_new_session=True,
        # A shell that runs the tests in the background has taught them to ignore Ctrl-C, and
        # their children would inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def kvsim(*words: object, cwd: Path, **env: str) -> Answer:
    """Run `python -m kvsim` to its end."""
    child = start(*words, cwd=cwd, **env)
    out, err = child.communicate(timeout=120)
    return Answer(child.returncode, out, err)


@functools.cache
def _ready() -> Any:
    """Import what commands import when they run, and compile, once for all forks."""
    for name in ("bench", "cli.render", "figures", "lab.execute", "lab.sweep", "layout"):
        importlib.import_module(f"kvsim.{name}")
    importlib.import_module("rich.progress")
    with contextlib.suppress(ImportError):
        # Some versions of typer load pydantic when they first parse a word.
        importlib.import_module("typer._adapters")
    importlib.import_module("kvsim.lab.warm").warm()
    return importlib.import_module("kvsim.cli").app


def quick(*words: object, cwd: Path, before: Callable[[], Any] = lambda: None) -> Answer:
    """Run a command in a fork of this process: real files and exit code, and no import to pay."""
    app = _ready()
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        child = os.fork()
        if child == 0:
            code = 70
            try:
                os.chdir(cwd)
                os.dup2(out.fileno(), 1)
                os.dup2(err.fileno(), 2)
                # pytest has put its own streams there, which go to its own files.
                sys.stdout, sys.stderr = (
                    os.fdopen(n, "w", encoding="utf-8", errors=errors)
                    for n, errors in ((1, "strict"), (2, "backslashreplace"))
                )
                before()
                try:
                    app([str(word) for word in words], prog_name="kvsim")
                except SystemExit as leaving:
                    code = leaving.code if isinstance(leaving.code, int) else leaving.code is None
                except BaseException:
                    traceback.print_exc()
                with contextlib.suppress(ValueError, OSError):
                    sys.stdout.flush()
                sys.stderr.flush()
            finally:
                os._exit(code)
        _, status = os.waitpid(child, 0)
        out.seek(0)
        err.seek(0)
        code = os.waitstatus_to_exitcode(status)
        return Answer(code, out.read().decode(), err.read().decode())


def tiny(folder: Path, tokens: int = 64) -> Path:
    """Write scenario.toml with its recording and layout: 2 layers, 2 heads, pages of 4 tokens."""
    folder.mkdir(parents=True, exist_ok=True)
    write_recording(folder, arrays(2, 2, tokens))
    layout = Path(write_layout(folder, 2, 2)).name
    text = (
        f'layout = "{layout}"\npages.tokens = 4\nselection.protect_recent = 4\n'
        'workload.path = "recording.npz"\n'
    )
    (folder / "scenario.toml").write_text(text)
    return folder / "scenario.toml"


def sweep_of(folder: Path, *axes: str, tokens: int = 64) -> Path:
    """Write sweep.toml: the tiny scenario with axes, one TOML table each."""
    text = tiny(folder, tokens).read_text() + "".join(f"[[axes]]\n{axis}\n" for axis in axes)
    (folder / "sweep.toml").write_text(text)
    return folder / "sweep.toml"


def policy(folder: Path, body: str, name: str = "mine") -> Path:
    """Write a policy file whose `score` has this body."""
    (folder / f"{name}.py").write_text(POLICY.format(body=body))
    return folder / f"{name}.py"


def contents(folder: Path, *names: str) -> dict[str, tuple[bytes, int]]:
    """The bytes and the time of change of a folder's files, all or some."""
    files = [file for file in sorted(folder.rglob("*")) if file.is_file() and file.name != ".lock"]
    found = {str(file.relative_to(folder)): file for file in files}
    return {
        name: (file.read_bytes(), file.stat().st_mtime_ns)
        for name, file in found.items()
        if not names or name in names
    }
