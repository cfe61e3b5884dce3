"""The table of rooms: which room may import which. Reads the sources; runs none of them.

Imports inside functions and those for type checkers only count too.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "kvsim"
MOST_LINES = 400

# The table of the design. Every room may also import `errors`, `seeds` and `jit`.
BELOW_EVICTION = {"policies", "paging", "tensors", "workload", "layout"}
BELOW_LAB = {"engine", "models", "eviction", *BELOW_EVICTION}
ARROWS: dict[str, set[str]] = {
    "errors": set(),
    "seeds": set(),
    "jit": set(),
    "layout": set(),
    "paging": {"layout"},
    "tensors": {"paging", "layout"},
    "policies": set(),
    "workload": {"layout"},
    "eviction": {"policies", "paging", "tensors", "workload"},
    "engine": {"eviction", *BELOW_EVICTION},
    "models": {"eviction", *BELOW_EVICTION},
    "lab": BELOW_LAB,
    "bench": {"lab", *BELOW_LAB},
    "figures": set(),
    "cli": {"lab", "bench", "figures", *BELOW_LAB},
    # The entry point of `python -m kvsim`.
    "__main__": {"cli"},
    # The package itself holds its version, for anyone, and imports nothing.
    "": set(),
}
FOR_EVERYONE = {"errors", "jit", "seeds", ""}
THE_LOWEST = {"errors", "seeds", ""}
# Libraries that belong to certain rooms.
RESERVED = {
    "simpy": {"engine", "bench"},
    "matplotlib": {"figures"},
    "seaborn": {"figures"},
    "typer": {"cli"},
    "rich": {"cli"},
}
FORBIDDEN = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve"}


class Import(NamedTuple):
    """One import: the line, and the dotted name that is imported."""

    line: int
    name: str


def imports(text: str, module: str, is_package: bool = False) -> Iterator[Import]:
    """Yield every import of a module, relative ones resolved, and imports by string too."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(node.lineno, alias.name)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = module.split(".") if is_package else module.split(".")[:-1]
                parts = parts[: len(parts) - node.level + 1]
                base = ".".join([*parts, base] if base else parts)
            for alias in node.names:
                yield Import(node.lineno, f"{base}.{alias.name}")
        elif isinstance(node, ast.Call):
            function = node.func
            called = function.attr if isinstance(function, ast.Attribute) else ""
            called = function.id if isinstance(function, ast.Name) else called
            if called in ("import_module", "__import__", "files", "run_module") and node.args:
                yield Import(node.lineno, leading_text(node.args[0]))


def leading_text(node: ast.expr) -> str:
    """Return a string, or what an f-string begins with; "" for anything else."""
    if isinstance(node, ast.JoinedStr) and node.values:
        node = node.values[0]
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    return ""


def room_of(name: str) -> str | None:
    """Return the room that a dotted name lies in, "" for the package itself, None if not ours."""
    first, _, rest = name.partition(".")
    if first != "kvsim":
        return None
    room = rest.partition(".")[0]
    return room if room in ARROWS else ""


def faults(text: str, module: str, is_package: bool = False) -> list[str]:
    """Return what a module imports and may not."""
    found = []
    mine = module.partition(".")[2].partition(".")[0]
    allowed = set() if mine in THE_LOWEST else ARROWS[mine] | FOR_EVERYONE
    for line, name in imports(text, module, is_package):
        room = room_of(name)
        library = name.partition(".")[0]
        if room is not None and room not in {mine, *allowed}:
            found.append(f"{module}:{line}: {mine or 'kvsim'} may not import {room}")
        if mine not in RESERVED.get(library, {mine}):
            found.append(f"{module}:{line}: {mine} may not import {library}")
        if library in FORBIDDEN:
            found.append(f"{module}:{line}: nothing may import {library}")
    return found


def modules() -> dict[str, Path]:
    """Return every module of the package by its dotted name."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def test_every_folder_is_a_room_of_the_table():
    rooms = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or path.is_dir()}
    assert rooms - {"__init__", "__pycache__"} <= set(ARROWS)
    assert {"layout", "paging", "policies", "workload", "eviction", "engine", "lab"} <= rooms


@pytest.mark.parametrize("module", modules())
def test_no_arrow_turns(module):
    path = modules()[module]
    assert faults(path.read_text(), module, path.name == "__init__.py") == []


def test_the_table_has_no_cycle():
    # A room below another must not import it back, whatever is added to the table.
    def below(room: str, seen: tuple[str, ...] = ()) -> None:
        assert room not in seen, " -> ".join((*seen, room))
        for other in ARROWS[room]:
            below(other, (*seen, room))

    for room in ARROWS:
        below(room)


@pytest.mark.parametrize(
    ("module", "text"),
    [
        ("kvsim.paging.pool", "from kvsim.policies import View"),
        ("kvsim.paging.pool", "import kvsim.eviction.loop"),
        ("kvsim.paging.pool", "from kvsim import lab"),
        ("kvsim.paging.pool", "def late():\n    from kvsim.engine import Engine"),
        ("kvsim.paging.pool", "if TYPE_CHECKING:\n    from kvsim.engine import Engine"),
        ("kvsim.paging.pool", "from ..policies import view"),
        ("kvsim.paging.pool", "from .. import policies"),
        ("kvsim.policies.h2o", "from kvsim.paging import Ledger"),
        ("kvsim.policies.h2o", "importlib.import_module('kvsim.paging')"),
        ("kvsim.policies.h2o", "importlib.import_module(f'kvsim.paging.{name}')"),
        ("kvsim.workload.recorded", "from kvsim.policies import Attention"),
        ("kvsim.lab.run", "from kvsim.figures import draw"),
        ("kvsim.bench.ledger", "from kvsim.cli import app"),
        ("kvsim.figures.style", "from kvsim.lab import results"),
        ("kvsim.errors", "from kvsim import seeds"),
        ("kvsim.seeds", "from kvsim.errors import KvsimError"),
        ("kvsim", "from kvsim.layout import KVLayout"),
        ("kvsim.eviction.loop", "import simpy"),
        ("kvsim.lab.run", "from simpy.core import Environment"),
        ("kvsim.lab.run", "import matplotlib.pyplot as plt"),
        ("kvsim.engine.driver", "import pickle"),
    ],
)
def test_a_turned_arrow_is_noticed(module, text):
    assert faults(text, module, is_package=module == "kvsim")


@pytest.mark.parametrize(
    ("module", "text"),
    [
        ("kvsim.paging.pool", "from kvsim.layout import KVLayout\nfrom kvsim.errors import X"),
        ("kvsim.paging.pool", "from . import fields\nfrom .jit import kernel"),
        ("kvsim.engine.driver", "import simpy\nfrom kvsim.paging import Ledger"),
        ("kvsim.cli.commands", "from kvsim.bench import measure\nfrom kvsim.figures import draw"),
        ("kvsim.lab.manifest", "import kvsim"),
        ("kvsim.policies.registry", "importlib.import_module(f'kvsim.policies.{name}')"),
    ],
)
def test_an_arrow_of_the_table_passes(module, text):
    assert faults(text, module) == []


@pytest.mark.parametrize("module", modules())
def test_files_stay_small_and_unpickled(module):
    path = modules()[module]
    text = path.read_text()
    assert len(text.splitlines()) <= MOST_LINES
    assert path.name not in ("utils.py", "util.py", "helpers.py", "misc.py", "common.py")
    assert text.startswith('"""'), "a module starts with what it is"
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call):
            name = node.func.id if isinstance(node.func, ast.Name) else ""
            assert name not in ("eval", "exec", "compile"), f"line {node.lineno} calls {name}"
            for keyword in node.keywords:
                if keyword.arg == "allow_pickle":
                    value = keyword.value
                    assert isinstance(value, ast.Constant), f"line {node.lineno}"
                    assert value.value is False, f"line {node.lineno} unpickles"


def loaded_by(statement: str) -> set[str]:
    """Return the top-level packages that a statement loads, in a process of its own."""
    code = f"import sys\n{statement}\nprint(*{{n.partition('.')[0] for n in sys.modules}})"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return set(done.stdout.split())


HEAVY = {"numpy", "numba", "llvmlite", "scipy", "matplotlib", "seaborn", "pandas", "simpy"}


def test_the_command_line_starts_without_heavy_imports():
    # So that --help and a refusal answer at once: a command imports what it needs when it runs.
    loaded = loaded_by("import kvsim.cli")
    assert "typer" in loaded
    assert not loaded & HEAVY
    # The check can see such an import at all.
    assert loaded_by("import kvsim.seeds") & HEAVY == {"numpy"}


def test_reading_layouts_needs_no_numpy():
    assert not loaded_by("import kvsim.layout") & HEAVY
