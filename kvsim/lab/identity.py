"""The key of a run: a hash of its canonical scenario, of what its files hold, and of the model.

Paths never enter it: two copies of one recording give one run.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from pathlib import Path
from typing import Any

from kvsim.errors import LayoutError, PolicyError
from kvsim.lab.scenario import Scenario
from kvsim.lab.studies.study import TABLES, find
from kvsim.layout import catalogue_names
from kvsim.paging.version import MODEL_VERSION
from kvsim.policies import registry
from kvsim.workload.recorded import locate

WITHOUT_A_FILE = ("synthetic", "extents", "quarantine")


@functools.lru_cache(maxsize=64)
def _digest(path: str, stamp: tuple[int, int]) -> str:
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def file_digest(path: Path) -> str:
    """Return the sha256 of a file's contents; an unchanged file is read once a process."""
    stat = path.stat()
    return _digest(str(path), (stat.st_mtime_ns, stat.st_size))


def files(scenario: Scenario) -> dict[str, Path]:
    """Return the files that a scenario names, by key.

    Raises
    ------
    LayoutError, PolicyError, WorkloadError
        If one is missing.
    """
    named = {}
    if scenario.workload.kind not in WITHOUT_A_FILE:
        named["workload.path"] = locate(scenario.workload.path)
    if scenario.layout not in catalogue_names() and Path(scenario.layout).is_file():
        named["layout"] = Path(scenario.layout)
    elif scenario.layout.endswith((".json", ".toml")):
        raise LayoutError(f"layout: there is no file {scenario.layout}")
    if registry.is_path(scenario.policy.name):
        if not Path(scenario.policy.name).is_file():
            raise PolicyError(f"policy.name: there is no file {scenario.policy.name}")
        named["policy.name"] = Path(scenario.policy.name)
    return named


def run_id(scenario: Scenario) -> str:
    """Return 16 hex digits that name the run.

    The ledger's model version is part of it, so that rows of another model are never taken for
    rows of this one.
    """
    canonical = scenario.flat()
    if scenario.workload.kind in WITHOUT_A_FILE:
        del canonical["workload.path"]
    study = find(scenario.workload.kind)
    if study is not None:
        canonical = study.keys(canonical)
    else:
        canonical = {k: v for k, v in canonical.items() if k.partition(".")[0] not in TABLES}
    if scenario.workload.kind == "recorded":
        # A recording leaves nothing for the synthetic process to say.
        canonical = {k: v for k, v in canonical.items() if not k.startswith("process.")}
    if study is None or "policy." in study.concerns:
        canonical |= _policy(scenario)
    for key, path in files(scenario).items():
        canonical[key] = f"sha256:{file_digest(path)}"
    text = json.dumps({"model": MODEL_VERSION, **canonical}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _policy(scenario: Scenario) -> dict[str, Any]:
    """Return every parameter of the policy, defaults included: a changed default is another run."""
    policy = registry.build(scenario.policy.name, dict(scenario.policy.parameters))
    fields = dataclasses.fields(policy)
    return {f"policy.{field.name}": getattr(policy, field.name) for field in fields}
