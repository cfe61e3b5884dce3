"""A scenario: everything that decides one run, frozen, with every default in one place."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from kvsim.engine.costs.settings import Cost
from kvsim.lab.keys import choice, count, number
from kvsim.lab.studies.branch_keys import Branches
from kvsim.lab.studies.extents_keys import ExtentStudy
from kvsim.lab.studies.quarantine_keys import Quarantine
from kvsim.lab.studies.serving_keys import Memory, Prefix, Serving
from kvsim.workload.synthetic_process import Process


@dataclass(frozen=True)
class Pages:
    """How slots make pages.

    Attributes
    ----------
    tokens : int
        Slots of a page.
    scope : str
        What one block table covers.
    append : str
        Where a new token goes.
    """

    tokens: int = count(16, 1)
    scope: str = choice("sequence", "group", "layer", "head")
    append: str = choice("tail", "reuse_holes")


@dataclass(frozen=True)
class Pool:
    """The pool of pages; 0 means unlimited. Both ceilings hold if both are given.

    Attributes
    ----------
    ceiling_pages, ceiling_bytes : int
        Over all scope units.
    order : str
        Which free page is taken first.
    """

    ceiling_pages: int = count(0)
    ceiling_bytes: int = count(0)
    order: str = choice("fifo", "lifo")


@dataclass(frozen=True)
class PolicyChoice:
    """A policy by name or by the path of a file, and its parameters.

    Attributes
    ----------
    name : str
    parameters : tuple of (str, value)
        Every other key of the table [policy].
    """

    name: str = "h2o"
    parameters: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True)
class Selection:
    """How victims are chosen.

    Attributes
    ----------
    granularity, sets : str
    window_tokens : int
        Length of a run under `window`.
    protect_recent, protect_sinks : int
        Newest and oldest tokens that always stay.
    """

    granularity: str = choice("token", "window", "page", "page_completion")
    sets: str = choice("shared", "layer", "head")
    window_tokens: int = count(16, 1)
    protect_recent: int = count(64)
    protect_sinks: int = count(0)


@dataclass(frozen=True)
class Budget:
    """How much is kept, and when eviction happens.

    Attributes
    ----------
    fraction : float
        Of the dense footprint, above 0 and at most 1.
    tokens : int
        Tokens that each set keeps; 0 means that `fraction` decides.
    when : str
        At the end of the prompt, after each chunk of appended tokens, or after each decode step.
    chunk_tokens : int
        Length of a chunk under `when = "chunk"`, at most the prompt's.
    """

    fraction: float = number(0.5, 0.0, 1.0)
    tokens: int = count(0)
    when: str = choice("prefill_end", "chunk", "step")
    chunk_tokens: int = count(0)


@dataclass(frozen=True)
class Compaction:
    """How live rows are moved so that pages empty.

    Attributes
    ----------
    algorithm, unit, positions : str
    """

    algorithm: str = choice("none", "rebuild", "forward", "hole_fill")
    unit: str = choice("slot", "row")
    positions: str = choice("keep", "renumber")


@dataclass(frozen=True)
class Workload:
    """What is cached.

    Attributes
    ----------
    kind : str
        A recording; the synthetic attention process; the process for requests that arrive. Or a
        serving engine, under a recorded trace or under requests that arrive by chance; or an
        eviction of cached pages over extents, or the removal of a span from a shared context.
    path : str
        A recording, where ``package:NAME`` is one that kvsim ships; for requests, a CSV of
        lengths.
    sequences : int
        Independent sequences: each replays the recording, or runs a process of its own.
    forks : int
        Forks of each sequence's prompt, which share its pages.
    forks_evict : bool
        Whether the forks are evicted too, or only the sequence that they come from.
    tokens : int
        Tokens of a synthetic prompt.
    decode_tokens : int
        Tokens that each sequence generates after its prompt.
    requests : int
        Requests that arrive, under kind `requests`.
    rate_per_s : float
        Their mean rate, Poisson.
    """

    kind: str = choice(
        "recorded", "synthetic", "requests", "trace", "poisson", "extents", "quarantine"
    )
    path: str = "package:smollm2-135m-4096-reduced"
    sequences: int = count(1, 1)
    forks: int = count(0)
    forks_evict: bool = True
    tokens: int = count(4096, 1)
    decode_tokens: int = count(0)
    requests: int = count(100, 1)
    rate_per_s: float = number(1.0, 0.0, 1e9)


@dataclass(frozen=True)
class Store:
    """Where rows live and which planes they have.

    Attributes
    ----------
    kind, planes : str
    element_bytes : int
        Bytes of one element, for all byte figures.
    memory : str
        Whether planes lie in NumPy's memory or in mappings that are given back.
    plane_layout : str
        One buffer per plane, or one per layer of each plane.
    extent_bytes : int
        The unit in which physical memory is mapped. 0: there is no physical model; mapped memory
        has one of 2 MiB then.
    """

    kind: str = choice("counting", "array")
    planes: str = choice("kv", "kv_raw", "raw_only")
    element_bytes: int = count(2, 1)
    memory: str = choice("heap", "mapped")
    plane_layout: str = choice("page_major", "layer_major")
    extent_bytes: int = count(0)


@dataclass(frozen=True)
class Record:
    """What a run writes beside its row.

    Attributes
    ----------
    page_map : bool
        The state of every slot of the pool before the first eviction, after it, and after its
        compaction, as an .npz that the row names.
    """

    page_map: bool = False


PROCESS = Process()
SERVING = Serving()
PREFIX = Prefix()
MEMORY = Memory()
COST = Cost()
EXTENTS = ExtentStudy()
BRANCHES = Branches()
QUARANTINE = Quarantine()


@dataclass(frozen=True)
class Scenario:
    """One run. Equal scenarios, files and versions give equal rows.

    Attributes
    ----------
    seed : int
    layout : str
        A name of the catalogue, or the path of a layout file.
    process : Process
        Parameters of the synthetic attention process.
    """

    seed: int = count(7)
    layout: str = "SmolLM2-135M"
    pages: Pages = Pages()
    pool: Pool = Pool()
    policy: PolicyChoice = PolicyChoice()
    selection: Selection = Selection()
    budget: Budget = Budget()
    compaction: Compaction = Compaction()
    workload: Workload = Workload()
    process: Process = PROCESS
    store: Store = Store()
    record: Record = Record()
    serving: Serving = SERVING
    prefix: Prefix = PREFIX
    memory: Memory = MEMORY
    cost: Cost = COST
    extents: ExtentStudy = EXTENTS
    branches: Branches = BRANCHES
    quarantine: Quarantine = QUARANTINE

    def flat(self) -> dict[str, Any]:
        """Return every key of the scenario with its value, dotted, in order."""
        flat: dict[str, Any] = {}
        for top in dataclasses.fields(self):
            value = getattr(self, top.name)
            if isinstance(value, PolicyChoice):
                flat["policy.name"] = value.name
                flat.update({f"policy.{key}": item for key, item in value.parameters})
            elif dataclasses.is_dataclass(value):
                for inner in dataclasses.fields(value):
                    flat[f"{top.name}.{inner.name}"] = getattr(value, inner.name)
            else:
                flat[top.name] = value
        return flat
