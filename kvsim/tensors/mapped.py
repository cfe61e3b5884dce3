"""Planes in real mappings: extents are populated and given back as the ledger orders it.

It knows where each plane's bytes lie and nothing of tokens. What is resident is the operating
system's answer and never computed here; `check_resident` compares it with what the extents say.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from kvsim.errors import LedgerError, MemoryRefused
from kvsim.layout.families import ROW_TYPES
from kvsim.paging import Geometry
from kvsim.paging.physical import BufferSpec, Extents, Orders, buffers_of
from kvsim.tensors import lanes as n
from kvsim.tensors.buffers import OS_PAGE_BYTES, allocate
from kvsim.tensors.lanes import Block, blocks
from kvsim.tensors.paged_cache import PagedCache
from kvsim.tensors.shape import CacheShape

_WIDTHS = {"K": n.KEY, "k_raw": n.RAW, "V": n.VALUE}


def buffers_of_shape(
    shape: CacheShape,
    geometry: Geometry,
    page_tokens: int,
    plane_layout: str,
    element_bytes: int | None = None,
) -> list[BufferSpec]:
    """Return the buffers that hold a cache's planes, one for each plane of an ArrayStore.

    Parameters
    ----------
    shape : CacheShape
    geometry : Geometry
        Its units are those of the shape.
    page_tokens : int
    plane_layout : {"page_major", "layer_major"}
    element_bytes : int, optional
        Bytes of one element, for accounting alone; by default those of each family's dtype.

    Raises
    ------
    LayoutError
        If the layout is unknown.
    LedgerError
        If a buffer would hold pages of several scope units and not of all: which of its bytes
        belong to held pages could not be said.
    """
    planes: dict[str, dict[str, list[int]]] = {}
    users: dict[str, set[int]] = {}
    cut = blocks(shape, geometry, plane_layout)
    for block in cut:
        family = shape.families[block.family]
        width = element_bytes or ROW_TYPES[family.dtype]
        for plane, elements in block.elements.items():
            widths = planes.setdefault(family.name, {}).setdefault(plane, [])
            layer = max(block.layer, 0)
            widths += [0] * (layer - len(widths)) + [elements * width]
            name = f"{family.name}.{plane}" + (f".{layer}" if block.layer >= 0 else "")
            users[name] = _users(block, geometry, plane)
    return [
        dataclasses.replace(spec, scope=_scope(spec.name, users[spec.name], geometry.scope_units))
        for spec in buffers_of(plane_layout, planes, page_tokens)
    ]


def _users(block: Block, geometry: Geometry, plane: str) -> set[int]:
    """Return the scope units that have rows in a plane of a block."""
    holding = block.lanes[block.lanes[:, _WIDTHS[plane]] > 0]
    return {geometry.unit_scope[unit] for unit in holding[:, n.UNIT].tolist()}


def _scope(name: str, users: set[int], scope_units: int) -> int | None:
    if len(users) == scope_units:
        return None
    if len(users) == 1:
        return next(iter(users))
    raise LedgerError(
        f"buffer {name} would hold pages of {len(users)} of {scope_units} scope units;"
        " extents need buffers of one scope unit or of all"
    )


def extents_of_shape(
    shape: CacheShape,
    geometry: Geometry,
    page_tokens: int,
    pages: int,
    *,
    plane_layout: str,
    extent_bytes: int,
    element_bytes: int | None = None,
) -> Extents:
    """Return the extents under a cache's planes, with room for `pages` pages.

    Parameters as for `buffers_of_shape`; `extent_bytes` is the unit of mapping.
    """
    specs = buffers_of_shape(shape, geometry, page_tokens, plane_layout, element_bytes)
    extents = Extents(specs, extent_bytes)
    extents.resize(pages)
    return extents


class MappedMemory:
    """Planes in buffers of a fixed size, of which only mapped extents are in memory.

    The sizes are those of the extents' pages, so a ledger above needs that many `room_pages`
    and the same extents as its physical model. All buffers are asked for at once and checked
    against the memory that is available; should the machine lose it later, mapping raises
    MemoryRefused in the middle of a verb, and the cache can no longer be used.

    Parameters
    ----------
    extents : Extents
        With room for all pages that there will ever be.

    Raises
    ------
    MemoryRefused
        If the buffers, all mapped, would not fit into the memory that is available.
    LedgerError
        If an extent is no whole number of operating system pages, or the platform cannot give
        memory back.
    """

    def __init__(self, extents: Extents) -> None:
        if extents.extent_bytes % OS_PAGE_BYTES:
            raise LedgerError(
                f"extents of {extents.extent_bytes} bytes are not whole pages of the operating"
                f" system, which have {OS_PAGE_BYTES}"
            )
        if not extents.pages:
            raise LedgerError("mapped planes need the number of their pages beforehand")
        self.extents = extents
        self._numbers = {spec.name: number for number, spec in enumerate(extents.buffers)}
        self._buffers = allocate([extents.buffer_bytes(b) for b in range(len(extents.buffers))])

    def check(self, size_bytes: int) -> None:
        """Nothing: all of it was asked for when the mappings were made."""

    def plane(self, name: str, slots: int, elements: int, dtype: np.dtype[Any]) -> np.ndarray:
        """Return a plane's array [slots, elements], or an empty one where there are no slots.

        Raises
        ------
        MemoryRefused
            If the plane is not of the size that its buffer was made for.
        """
        if not slots or not elements:
            return np.empty((slots, elements), dtype)
        if name not in self._numbers:
            raise LedgerError(f"there is no buffer for plane {name}")
        number = self._numbers[name]
        room = self.extents.pages * self.extents.buffers[number].page_bytes
        size = slots * elements * np.dtype(dtype).itemsize
        if size != room:
            raise MemoryRefused(
                f"plane {name} was mapped for {room} bytes and cannot have {size}: mapped planes"
                " have their size from the start"
            )
        flat = self._buffers[number].array(dtype)
        return flat[: slots * elements].reshape(slots, elements)

    def grow(self, name: str, old: np.ndarray, slots: int) -> np.ndarray:
        """Return the plane at its one size; any other is refused with MemoryRefused."""
        return self.plane(name, slots, old.shape[1], old.dtype)

    def map(self, orders: Orders) -> None:
        """Make the extents of the orders resident."""
        size = self.extents.extent_bytes
        for number, first, count in orders.map:
            self._buffers[number].map(first * size, count * size)

    def give_back(self, orders: Orders) -> None:
        """Give the extents of the orders back to the operating system."""
        size = self.extents.extent_bytes
        for number, first, count in orders.give_back:
            self._buffers[number].give_back(first * size, count * size)

    def resident_bytes(self) -> dict[str, int]:
        """Return how many bytes of each buffer are in memory, by mincore."""
        return {name: self._buffers[at].resident_bytes() for name, at in self._numbers.items()}

    def check_resident(self) -> int:
        """Return the bytes in memory, if they are those of the mapped extents and no others.

        Raises
        ------
        LedgerError
            At the first buffer that has a byte in memory outside its mapped extents, because
            something wrote or read there, or a mapped one that is not, because it was swapped.
        """
        size = self.extents.extent_bytes
        total = 0
        for name, number in self._numbers.items():
            mapped = self.extents.mapped(number)
            edges = np.flatnonzero(np.diff(mapped, prepend=~mapped[:1])).tolist()
            for first, past in zip(edges, [*edges[1:], mapped.size], strict=True):
                length = (past - first) * size
                there = self._buffers[number].resident_bytes(first * size, length)
                wanted = length if mapped[first] else 0
                if there != wanted:
                    raise LedgerError(
                        f"buffer {name}: of its {'mapped' if wanted else 'unmapped'} extents"
                        f" {first} to {past - 1}, {there} bytes are in memory and not {wanted}"
                    )
                total += there
        return total

    def close(self) -> None:
        """Give everything back and let go of the buffers; their planes hold zeros from here on.

        Arrays that are still about keep the address space, and no memory. Closing twice is
        allowed.
        """
        buffers, self._buffers = self._buffers, []
        for buffer in buffers:
            buffer.give_back(0, buffer.size_bytes)
            buffer.close()


def mapped_cache(
    shape: CacheShape,
    page_tokens: int,
    pages: int,
    *,
    extent_bytes: int,
    layout: str = "layer_major",
    scope: str = "sequence",
    sets: str = "shared",
    **options: Any,
) -> tuple[PagedCache, MappedMemory]:
    """Return a paged cache of at most `pages` pages in mapped memory, and that memory.

    Other options are those of `PagedCache`.

    Raises
    ------
    LedgerError
        As `buffers_of_shape` and `MappedMemory` raise it.
    """
    extents = extents_of_shape(
        shape,
        shape.geometry(scope, sets),
        page_tokens,
        pages,
        plane_layout=layout,
        extent_bytes=extent_bytes,
    )
    memory = MappedMemory(extents)
    cache = PagedCache(
        shape,
        page_tokens,
        scope=scope,
        sets=sets,
        pages=pages,
        ceiling_pages=pages,
        layout=layout,
        memory=memory,
        physical_model=extents,
        **options,
    )
    return cache, memory
