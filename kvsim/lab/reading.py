"""Reading scenarios: TOML and ``--set`` in, a checked Scenario out, or one line that says why not.

Everything goes through one flat dictionary of dotted keys, so that a file, an override and an
axis of a sweep are checked by the same code.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from kvsim.errors import ScenarioError
from kvsim.lab.scenario import PolicyChoice, Scenario

PATH_KEYS = ("layout", "policy.name", "workload.path")


def _known() -> dict[str, dataclasses.Field[Any]]:
    """Return the field behind each dotted key, policy parameters aside."""
    known = {}
    for top in dataclasses.fields(Scenario):
        section = top.default
        if isinstance(section, PolicyChoice):
            known["policy.name"] = next(f for f in dataclasses.fields(section) if f.name == "name")
        elif dataclasses.is_dataclass(section):
            for inner in dataclasses.fields(section):
                known[f"{top.name}.{inner.name}"] = inner
        else:
            known[top.name] = top
    return known


def is_policy_parameter(key: str) -> bool:
    """Tell whether a key is (or could be) a parameter of the policy."""
    return key.startswith("policy.") and key.count(".") == 1


def flatten(table: dict[str, Any], source: str, prefix: str = "") -> dict[str, Any]:
    """Return nested TOML tables as one dictionary of dotted keys."""
    flat: dict[str, Any] = {}
    sections = {key.partition(".")[0] for key in _known() if "." in key}
    for key, value in table.items():
        dotted = f"{prefix}{key}"
        # An empty table names no key, and would pass whatever its name: it stays, to be refused.
        nested = isinstance(value, dict) and (value or dotted in sections)
        inner = flatten(value, source, f"{dotted}.") if nested else {dotted: value}
        for name, item in inner.items():
            # TOML lets "a.b" in quotes stand beside b in [a].
            if name in flat:
                raise ScenarioError(f"{source}: key {name} is given twice")
            flat[name] = item
    return flat


def _check_value(key: str, value: Any, spec: Any, source: str) -> Any:
    wanted = type(spec.default)
    if wanted is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if type(value) is not wanted:
        raise ScenarioError(
            f"{source}: {key} must be {wanted.__name__}, not {type(value).__name__} ({value!r:.60})"
        )
    choices = spec.metadata.get("choices")
    if choices and value not in choices:
        near = difflib.get_close_matches(str(value), choices, 1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ScenarioError(
            f"{source}: {key} must be one of {', '.join(choices)}, not {value!r}{hint}"
        )
    least = spec.metadata.get("least")
    if least is not None and value < least:
        raise ScenarioError(f"{source}: {key} must be at least {least}, not {value}")
    if least is not None and value >= 2**53:
        raise ScenarioError(f"{source}: {key} is too large: {value}")
    above = spec.metadata.get("above")
    if above is not None and not (math.isfinite(value) and above < value <= spec.metadata["most"]):
        raise ScenarioError(
            f"{source}: {key} must be above {above:g} and at most "
            f"{spec.metadata['most']:g}, not {value}"
        )
    return value


def check_key(key: str, source: str) -> None:
    """Refuse a key that no scenario has, naming the nearest one that it has."""
    known = _known()
    if key in known or is_policy_parameter(key):
        return
    near = difflib.get_close_matches(key, known, 1, 0.5)
    if not near:
        leaf = key.rsplit(".", 1)[-1]
        near = [name for name in known if name.rsplit(".", 1)[-1] == leaf][:1]
    hint = f"; the nearest valid key is {near[0]}" if near else ""
    if key in ("axes", "grid"):
        hint = "; it belongs to a sweep, which kvsim sweep runs"
    raise ScenarioError(f"{source}: unknown key {key}{hint}")


def build(flat: dict[str, Any], source: str) -> Scenario:
    """Return the scenario of a flat dictionary; keys that it lacks keep their defaults.

    Raises
    ------
    ScenarioError
        Naming the source and the key at fault.
    """
    known = _known()
    sections: dict[str, dict[str, Any]] = {}
    top: dict[str, Any] = {}
    parameters = []
    for key, value in flat.items():
        check_key(key, source)
        if key not in known:
            if not isinstance(value, (bool, int, float, str)):
                raise ScenarioError(f"{source}: {key} must be a number, a string or a boolean")
            parameters.append((key.removeprefix("policy."), value))
            continue
        value = _check_value(key, value, known[key], source)
        section, _, leaf = key.rpartition(".")
        if section:
            sections.setdefault(section, {})[leaf] = value
        else:
            top[key] = value
    if parameters:
        sections.setdefault("policy", {})["parameters"] = tuple(sorted(parameters))
    defaults: dict[str, Any] = {f.name: f.default for f in dataclasses.fields(Scenario)}
    for name, values in sections.items():
        top[name] = dataclasses.replace(defaults[name], **values)
    return Scenario(**top)


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file.

    Raises
    ------
    ScenarioError
        If it is missing or malformed; a syntax error is named with its line.
    """
    try:
        text = path.read_bytes().decode("utf-8")
    except OSError as error:
        raise ScenarioError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ScenarioError(f"{path}: not UTF-8 at byte {error.start}") from None
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        # Beside syntax errors: an integer of thousands of digits, and brackets as deep.
        raise ScenarioError(f"{path}: {error}") from None


def anchor(flat: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return the keys with paths made relative to a file's folder.

    A layout or policy by name is not a path, and neither is ``package:NAME``.
    """
    anchored = dict(flat)
    for key in PATH_KEYS:
        value = flat.get(key)
        if isinstance(value, list):
            anchored[key] = [_anchored(key, item, folder) for item in value]
        else:
            anchored[key] = _anchored(key, value, folder)
    return {key: anchored[key] for key in flat}


def _anchored(key: str, value: Any, folder: Path) -> Any:
    if not isinstance(value, str) or value.startswith("package:"):
        return value
    if key == "policy.name" and not value.endswith(".py"):
        return value
    if key == "layout" and not value.endswith((".json", ".toml")):
        return value
    return str(folder / value)


def parse_override(text: str) -> tuple[str, Any]:
    """Return the key and value of one ``--set key=value``; a bare word is a string."""
    key, equals, raw = text.partition("=")
    key = key.strip()
    if not equals or not key:
        raise ScenarioError(f"--set {text}: key=value is needed")
    try:
        value, *more = tomllib.loads(f"value = {raw.strip()}").values()
    except (ValueError, RecursionError):
        value, more = raw.strip(), []
    if more:
        raise ScenarioError(f"--set {text}: one key and value are needed")
    if not isinstance(value, (bool, int, float, str)):
        raise ScenarioError(f"--set {text}: {key} takes one number, string or boolean")
    return key, value


def overrides(pairs: Iterable[str], policy: str | None = None) -> dict[str, Any]:
    """Return all overrides of a command line, checked for their keys."""
    flat: dict[str, Any] = {}
    if policy is not None:
        flat["policy.name"] = policy
    for pair in pairs:
        key, value = parse_override(pair)
        check_key(key, f"--set {pair}")
        flat[key] = value
    return flat


def load(path: Path, extra: dict[str, Any] | None = None) -> Scenario:
    """Return the scenario of a TOML file with overrides on top."""
    flat = anchor(flatten(read_toml(path), str(path)), path.parent)
    for key in flat:
        check_key(key, str(path))
    build(flat, str(path))
    if not extra:
        return build(flat, str(path))
    return build(with_overrides(flat, extra), "--set")


def with_overrides(flat: dict[str, Any], extra: dict[str, Any]) -> dict[str, Any]:
    """Return keys with overrides on top; another policy drops the parameters of the first."""
    merged = dict(flat)
    if "policy.name" in extra and extra["policy.name"] != flat.get("policy.name"):
        merged = {k: v for k, v in merged.items() if not is_policy_parameter(k)}
    return {**merged, **extra}
