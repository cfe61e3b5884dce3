"""Finding policies: every file of this folder that holds one, and a user's own file by path."""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import importlib.util
import inspect
import warnings
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from kvsim.errors import PolicyError
from kvsim.policies.base import Policy
from kvsim.policies.view import SIGNALS, View

NOT_POLICIES = {"__init__", "base", "registry", "selection", "view"}


def names() -> tuple[str, ...]:
    """Names of the policies that come with kvsim: the names of their files."""
    folder = Path(__file__).parent
    return tuple(sorted({file.stem for file in folder.glob("*.py")} - NOT_POLICIES))


def is_path(name: str) -> bool:
    """Tell a user's own file from the name of a policy that comes with kvsim."""
    return name.endswith(".py")


def short_name(name: str) -> str:
    """Return the name that results show: a file's stem, or the name itself."""
    return Path(name).stem if is_path(name) else name


def _module(name: str) -> ModuleType:
    if not is_path(name):
        if name not in names():
            near = difflib.get_close_matches(name, names(), 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise PolicyError(f"policy.name: unknown policy {name!r}{hint}")
        return importlib.import_module(f"kvsim.policies.{name}")
    path = Path(name)
    if not path.is_file():
        raise PolicyError(f"policy.name: there is no file {name}")
    spec = importlib.util.spec_from_file_location(f"kvsim_user_policy_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise PolicyError(f"policy.name: {name} cannot be loaded")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except SyntaxError as error:
        where = name if error.lineno is None else f"{name}:{error.lineno}"
        raise PolicyError(f"{where}: {error.msg}") from None
    except Exception as error:
        raise PolicyError(f"{name}: {type(error).__name__}: {error}") from None
    return module


def policy_class(name: str) -> type[Policy]:
    """Return the one policy class that a file defines.

    Raises
    ------
    PolicyError
        If the name is unknown, the file cannot be loaded, or it does not define exactly one.
    """
    module = _module(name)
    found = [
        member
        for _, member in inspect.getmembers(module, inspect.isclass)
        if issubclass(member, Policy) and member.__module__ == module.__name__
    ]
    if len(found) != 1:
        raise PolicyError(f"{name}: one policy class is needed, {len(found)} are defined")
    cls = found[0]
    if "__dataclass_fields__" not in vars(cls):
        raise PolicyError(f"{name}: {cls.__name__} must be a frozen dataclass")
    unknown = [signal for signal in cls.signals if signal not in SIGNALS]
    if unknown:
        raise PolicyError(f"{name}: unknown signal {unknown[0]!r}; known: {', '.join(SIGNALS)}")
    return cls


def build(name: str, parameters: dict[str, Any]) -> Policy:
    """Return a policy with its parameters; unknown ones and wrong types are refused.

    Raises
    ------
    PolicyError
        Naming the key at fault.
    """
    cls = policy_class(name)
    known = {field.name: field for field in dataclasses.fields(cls)}
    converted = dict(parameters)
    for key, value in parameters.items():
        if key not in known:
            near = difflib.get_close_matches(key, [*known, "name"], 1)
            hint = f"; did you mean policy.{near[0]}?" if near else ""
            raise PolicyError(
                f"policy.{key}: {short_name(name)} has no such parameter"
                f" (it has {', '.join(known) or 'none'}){hint}"
            )
        default = known[key].default
        wanted = type(default) if default is not dataclasses.MISSING else object
        right = isinstance(value, wanted) and isinstance(value, bool) == (wanted is bool)
        if wanted is float and isinstance(value, int) and not isinstance(value, bool):
            right = True
            converted[key] = float(value)
        if wanted is not object and not right:
            raise PolicyError(
                f"policy.{key}: must be {wanted.__name__}, not {type(value).__name__}"
            )
    try:
        return cls(**converted)
    except (TypeError, ValueError) as error:
        raise PolicyError(f"policy {short_name(name)}: {error}") from None


def scores(policy: Policy, view: View, name: str) -> np.ndarray:
    """Return a policy's scores averaged to its sets, float64 [set layers, set heads, tokens].

    Raises
    ------
    PolicyError
        If the policy raises, or returns another shape, another type, or a number that is not
        finite.
    """
    try:
        with warnings.catch_warnings():
            # What a division by zero leaves behind is refused below, in one line.
            warnings.simplefilter("ignore")
            raw = np.asarray(policy.score(view))
    except Exception as error:
        raise PolicyError(f"policy {name}: score raised {type(error).__name__}: {error}") from None
    if raw.dtype.kind not in "fiu":
        raise PolicyError(f"policy {name}: scores must be numbers, not {raw.dtype}")
    full = (*view.unit_shape, view.tokens)
    padded = (1,) * (3 - raw.ndim) + raw.shape
    fits = len(padded) == 3 and all(
        have in (1, want) for have, want in zip(padded, full, strict=False)
    )
    if not fits or padded[2] != view.tokens:
        raise PolicyError(
            f"policy {name}: scores of shape {raw.shape} do not fit "
            f"[layers, kv_heads, tokens] = {full}"
        )
    if not np.isfinite(raw).all():
        raise PolicyError(f"policy {name}: scores contain a number that is not finite")
    result = raw.reshape(padded).astype(np.float64)
    for axis in (0, 1):
        if view.set_shape[axis] == 1 and result.shape[axis] > 1:
            result = result.mean(axis=axis, keepdims=True)
    return np.broadcast_to(result, (*view.set_shape, view.tokens))


def protected(policy: Policy, view: View, name: str) -> np.ndarray:
    """Return a policy's own protected columns, bool [tokens], checked for shape and type."""
    try:
        mask = np.asarray(policy.protected(view))
    except Exception as error:
        raise PolicyError(
            f"policy {name}: protected raised {type(error).__name__}: {error}"
        ) from None
    if mask.shape != (view.tokens,) or mask.dtype != np.bool_:
        raise PolicyError(f"policy {name}: protected must return bool [{view.tokens}]")
    return mask


def describe() -> list[dict[str, Any]]:
    """Return what `kvsim policies` prints: one entry per policy that comes with kvsim."""
    entries = []
    for name in names():
        cls = policy_class(name)
        text = (inspect.getdoc(inspect.getmodule(cls)) or "").split("\n")[0]
        entries.append(
            {
                "name": name,
                "kind": cls.kind,
                "signals": list(cls.signals),
                "granularities": list(cls.granularities),
                "sets": list(cls.sets),
                "static": cls.static,
                "paper": cls.paper,
                "reconstructed": cls.reconstructed,
                "parameters": {f.name: f.default for f in dataclasses.fields(cls)},
                "summary": text,
            }
        )
    return entries
