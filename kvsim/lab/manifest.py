"""manifest.json: which model, commands, machine and packages made the rows beside it.

It names no path of the machine, so that a results folder can be published as it is.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import kvsim
from kvsim.errors import ResultsError

NAME = "manifest.json"

# An absolute path, alone or behind an equals sign: /a/b, --out=/a/b, workload.path="/a/b".
_ABSOLUTE = re.compile(r"""(|.*?=)(["']?)(/.*)\2""", re.DOTALL)


def read(path: Path, model_version: int) -> dict[str, Any] | None:
    """Return the manifest, or None where there is none.

    Parameters
    ----------
    path : Path
        The manifest's own path.
    model_version : int
        The version that the caller's rows will have.

    Returns
    -------
    dict or None

    Raises
    ------
    ResultsError
        It cannot be understood, or was written under another model version.
    """
    try:
        manifest = json.loads(path.read_bytes().decode())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _unreadable(path, model_version, error.strerror or str(error)) from None
    except (ValueError, RecursionError):
        raise _unreadable(path, model_version, "not valid JSON") from None
    if not isinstance(manifest, dict) or type(manifest.get("model_version")) is not int:
        raise _unreadable(path, model_version, "no model_version in it")
    if not isinstance(manifest.get("commands"), list):
        raise _unreadable(path, model_version, "no list of commands in it")
    if manifest["model_version"] != model_version:
        raise ResultsError(
            f"{path}: the folder has model version {manifest['model_version']} and this kvsim "
            f"{model_version}; name another folder with --out, or move this one away"
        )
    return manifest


def _unreadable(path: Path, model_version: int, reason: str) -> ResultsError:
    return ResultsError(
        f"{path}: cannot be read ({reason}), so the folder's model version is unknown and this "
        f"kvsim has {model_version}; name another folder with --out, or restore the manifest"
    )


def updated(manifest: dict[str, Any] | None, model_version: int, command: list[str]) -> bytes:
    """Return the content of a new manifest, or of an old one with one more command."""
    if manifest is None:
        manifest = _new(model_version)
    commands = [*manifest["commands"], public_command(command)]
    # ASCII escapes carry an undecodable file name, which raw UTF-8 could not.
    return (json.dumps(manifest | {"commands": commands}, indent=2) + "\n").encode()


def public_command(command: list[str]) -> list[str]:
    """Return a command with its absolute paths made relative or, outside, reduced to a name."""
    return [Path(word).name for word in command[:1]] + [_public_word(word) for word in command[1:]]


def _public_word(word: str) -> str:
    match = _ABSOLUTE.fullmatch(word)
    if match is None:
        return word
    before, quote, text = match.groups()
    path, here = Path(text), Path.cwd()
    shown = str(path.relative_to(here)) if path.is_relative_to(here) else f".../{path.name}"
    return before + quote + shown + quote


def _new(model_version: int) -> dict[str, Any]:
    # Imported here, because a command that writes no results should not pay for them.
    import platform
    from datetime import UTC, datetime

    return {
        "model_version": model_version,
        "kvsim_version": kvsim.__version__,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "commands": [],
        "machine": {
            "platform": platform.platform(),
            "machine": platform.machine(),
            "processor": _processor() or platform.processor(),
            "cpu_count": os.cpu_count(),
            "python": platform.python_version(),
        },
        "packages": _packages(),
    }


def _processor() -> str:
    # platform.processor() is empty on most Linux systems; the kernel knows the name.
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line[:10] == "model name"), "")


def _packages() -> dict[str, str]:
    from importlib import metadata

    versions: dict[str, str] = {}
    try:
        requirements = metadata.requires("kvsim") or []
    except metadata.PackageNotFoundError:
        # A source tree on PYTHONPATH has no metadata, and is no reason to refuse results.
        return versions
    for requirement in sorted(requirements):
        name = re.match(r"[\w.-]+", requirement)
        if name is None or "extra ==" in requirement:
            continue
        try:
            versions[name[0]] = metadata.version(name[0])
        except metadata.PackageNotFoundError:
            continue
    return versions
