"""The models of physical memory by name: what each imitates, takes, and is based on."""

from __future__ import annotations

from dataclasses import MISSING, dataclass, fields
from typing import Any

from kvsim.errors import LedgerError
from kvsim.layout.kinds import nearest
from kvsim.paging.physical.async_pool import AsyncPool, AsyncPoolParameters
from kvsim.paging.physical.caching_allocator import CachingAllocator, CachingAllocatorParameters
from kvsim.paging.physical.contiguous import Contiguous, ContiguousParameters
from kvsim.paging.physical.fixed_pool import FixedPool, FixedPoolParameters
from kvsim.paging.physical.kvcached import Kvcached, KvcachedParameters
from kvsim.paging.physical.mapped_exactly import ExtentsParameters, MappedExactly
from kvsim.paging.physical.model import Parameters, PhysicalModel
from kvsim.paging.physical.slab import Slab, SlabParameters
from kvsim.paging.physical.token_pool import TokenPool, TokenPoolParameters


@dataclass(frozen=True)
class Entry:
    """One model.

    Attributes
    ----------
    model, parameters : type
        The class, and the dataclass that it is made from.
    events : {"pages", "bytes", "sequences"}
        What it is told of: pages taken and let go, sizes allocated and freed, or sequences.
    summary, source : str
    """

    model: Any
    parameters: type[Parameters]
    events: str
    summary: str
    source: str


#: Every model, in the order in which they are listed.
MODELS: dict[str, Entry] = {
    "fixed_pool": Entry(
        FixedPool,
        FixedPoolParameters,
        "pages",
        "everything is mapped at the start, and nothing goes back",
        "vLLM (Kwon et al., 2023)",
    ),
    "token_pool": Entry(
        TokenPool,
        TokenPoolParameters,
        "pages",
        "a fixed pool with pages of one token",
        "SGLang (Zheng et al., 2024), page size 1",
    ),
    "extents": Entry(
        MappedExactly,
        ExtentsParameters,
        "pages",
        "extents mapped exactly while a held page overlaps them",
        "vAttention (Prabhu et al., 2024), without deferred unmapping",
    ),
    "kvcached": Entry(
        Kvcached,
        KvcachedParameters,
        "pages",
        "extents with a reserve of parked ones, best fit, and victims by extent",
        "kvcached (ovg-project), reconstructed",
    ),
    "slab": Entry(
        Slab,
        SlabParameters,
        "pages",
        "fixed numbers of pages, mapped and returned whole",
        "Bonwick (1994)",
    ),
    "caching_allocator": Entry(
        CachingAllocator,
        CachingAllocatorParameters,
        "bytes",
        "segments that stay after what was in them is freed",
        "PyTorch, CUDACachingAllocator",
    ),
    "async_pool": Entry(
        AsyncPool,
        AsyncPoolParameters,
        "bytes",
        "a pool that shrinks to a threshold at synchronisations",
        "CUDA, cudaMallocAsync",
    ),
    "contiguous": Entry(
        Contiguous,
        ContiguousParameters,
        "sequences",
        "memory reserved for the longest that a sequence could become",
        "FasterTransformer; Kwon et al. (2023)",
    ),
}


def build(name: str, **values: Any) -> PhysicalModel:
    """Return a model made from its parameters.

    Raises
    ------
    LedgerError
        If the name or a parameter is unknown, a parameter is missing, or a value cannot be.
    """
    if name not in MODELS:
        close = nearest(str(name), MODELS)
        raise LedgerError(f"no model of memory is called {name!r:.60}; did you mean {close!r}?")
    entry = MODELS[name]
    known = {each.name: each for each in fields(entry.parameters)}
    for key in values:
        if key not in known:
            raise LedgerError(f"{name} has no parameter {key!r:.60}; it has {', '.join(known)}")
    missing = [key for key, each in known.items() if each.default is MISSING and key not in values]
    if missing:
        raise LedgerError(f"{name} needs {', '.join(missing)}")
    model: PhysicalModel = entry.model(entry.parameters(**values))
    return model


def describe() -> list[dict[str, Any]]:
    """Return what `kvsim allocators` lists: each model with its parameters and sources.

    A parameter that has no default must be given, and says `required`; its default is null.
    """
    return [
        {
            "name": name,
            "events": entry.events,
            "summary": entry.summary,
            "source": entry.source,
            "parameters": [
                {
                    "name": each.name,
                    "required": each.default is MISSING,
                    "default": None if each.default is MISSING else each.default,
                    "doc": each.metadata["doc"],
                    "source": each.metadata["source"],
                }
                for each in fields(entry.parameters)
            ],
        }
        for name, entry in MODELS.items()
    ]
