"""Extents: which parts of the buffers must be mapped, given which pages are held.

An extent is mapped if, and only if, a held page overlaps it; there is no reserve and no delay.
Integers only: it knows no memory, no slots and no tokens. It gives orders, a store carries them
out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from kvsim.errors import LayoutError, LedgerError, MemoryRefused
from kvsim.layout.kinds import integer

#: How planes are cut into buffers: one per family and plane, or one per layer of each as well.
PLANE_LAYOUTS = ("page_major", "layer_major")

_NOBODY = -1
_BYTES_LIMIT = 2**63


@dataclass(frozen=True)
class BufferSpec:
    """One buffer, in which page p occupies the bytes [p * page_bytes, (p + 1) * page_bytes).

    Attributes
    ----------
    name : str
    page_bytes : int
        Bytes of one page in this buffer, at least 1.
    scope : int, optional
        The scope unit whose pages live here; None: all pages do.
    """

    name: str
    page_bytes: int
    scope: int | None = None

    def __post_init__(self) -> None:
        integer(self.page_bytes, f"page_bytes of buffer {self.name!r}", lowest=1)
        if self.scope is not None:
            integer(self.scope, f"scope of buffer {self.name!r}", lowest=0)


@dataclass(frozen=True)
class Orders:
    """What a store must do: runs of neighbouring extents, as (buffer, first extent, count).

    Both lists ascend by buffer and extent, and no extent is in both. `map` comes before the
    pages are written, `give_back` after the last read of the pages that were let go.
    """

    map: list[tuple[int, int, int]]
    give_back: list[tuple[int, int, int]]


def buffers_of(
    plane_layout: str,
    planes: Mapping[str, Mapping[str, Sequence[int]]],
    page_tokens: int,
    scopes: Mapping[str, int] | None = None,
) -> list[BufferSpec]:
    """Return the buffers that hold some families' planes.

    Parameters
    ----------
    plane_layout : {"page_major", "layer_major"}
        One buffer per family and plane ("kv.K"), or one per layer of each ("kv.K.3").
    planes : mapping of family to (mapping of plane to sequence of int)
        Bytes that one token has in each layer of a plane. A layer with 0 gets no buffer.
    page_tokens : int
        Slots in a page, at least 1.
    scopes : mapping of family to int, optional
        The scope unit of each family's pages; without it, every page lives in every buffer.

    Raises
    ------
    LayoutError
        If the layout is unknown, a size is no size, or a family lacks a scope unit.
    """
    if plane_layout not in PLANE_LAYOUTS:
        known = ", ".join(PLANE_LAYOUTS)
        raise LayoutError(f"planes are laid out {known}, not {plane_layout!r:.60}")
    integer(page_tokens, "page_tokens", lowest=1)
    found = []
    for family, by_plane in planes.items():
        if scopes is not None and family not in scopes:
            raise LayoutError(f"family {family!r} has no scope unit")
        scope = None if scopes is None else scopes[family]
        for plane, widths in by_plane.items():
            name = f"{family}.{plane}"
            widths = [integer(width, f"bytes of a token in {name}", 0) for width in widths]
            cut = {name: sum(widths)}
            if plane_layout == "layer_major":
                cut = {f"{name}.{layer}": width for layer, width in enumerate(widths)}
            found += [
                BufferSpec(key, page_tokens * width, scope) for key, width in cut.items() if width
            ]
    return found


@dataclass
class _Group:
    """Buffers that hold the same pages in the same sizes, and so are mapped alike.

    `counts` is int64 [extents]: the held pages that overlap each extent.
    """

    page_bytes: int
    scope: int | None
    members: list[int] = field(default_factory=list)
    counts: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    held_pages: int = 0
    mapped_extents: int = 0

    def takes(self, owner: np.ndarray) -> np.ndarray:
        """Return whether a page with this owner is held here, bool like `owner`."""
        return owner > _NOBODY if self.scope is None else owner == self.scope

    def change(
        self, pages: np.ndarray, signs: np.ndarray, extent_bytes: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Count ascending pages in (+1) or out (-1); return the extents gained and lost."""
        first = pages * self.page_bytes // extent_bytes
        past = ((pages + 1) * self.page_bytes - 1) // extent_bytes + 1
        spans = past - first
        # Every extent of every page, behind one another. A page begins no earlier than the last
        # extent of the page before it, so they ascend, and equal ones are neighbours.
        extents = np.repeat(past - np.cumsum(spans), spans) + np.arange(spans.sum())
        starts = np.flatnonzero(np.diff(extents, prepend=-1))
        touched = extents[starts]
        before = self.counts[touched]
        after = before + np.add.reduceat(np.repeat(signs, spans), starts)
        self.counts[touched] = after
        gained = touched[(before == 0) & (after > 0)]
        lost = touched[(before > 0) & (after == 0)]
        self.held_pages += int(signs.sum())
        self.mapped_extents += gained.size - lost.size
        return gained, lost


class Extents:
    """The extents of some buffers, mapped while a held page overlaps them.

    Parameters
    ----------
    buffers : sequence of BufferSpec
    extent_bytes : int
        The unit of mapping, at least 1: 2 MiB as GPUs have it, or the page of the operating
        system.

    Attributes
    ----------
    mapped_extents_total, returned_extents_total : int
        Extents that were ever mapped, and ever given back.
    """

    def __init__(self, buffers: Sequence[BufferSpec], extent_bytes: int) -> None:
        self.buffers = tuple(buffers)
        self.extent_bytes = integer(extent_bytes, "extent_bytes", lowest=1)
        self.mapped_extents_total = 0
        self.returned_extents_total = 0
        self._owner = np.empty(0, np.int64)
        alike: dict[tuple[int, int | None], _Group] = {}
        for number, spec in enumerate(self.buffers):
            key = (spec.page_bytes, spec.scope)
            alike.setdefault(key, _Group(*key)).members.append(number)
        self._groups = list(alike.values())
        self._group_of = {number: group for group in self._groups for number in group.members}

    @property
    def pages(self) -> int:
        """Pages that the buffers have room for."""
        return self._owner.size

    def buffer_bytes(self, buffer: int) -> int:
        """Return the size of a buffer: its pages, rounded up to whole extents."""
        return self._group_of[buffer].counts.size * self.extent_bytes

    def mapped(self, buffer: int) -> np.ndarray:
        """Return which extents of a buffer are mapped, bool [extents]."""
        return self._group_of[buffer].counts > 0

    @property
    def mapped_extents(self) -> int:
        """Extents that are mapped now, over all buffers."""
        return sum(group.mapped_extents * len(group.members) for group in self._groups)

    @property
    def mapped_bytes(self) -> int:
        """Bytes of the extents that are mapped now."""
        return self.mapped_extents * self.extent_bytes

    @property
    def returned_bytes_total(self) -> int:
        """Bytes of the extents that were ever given back."""
        return self.returned_extents_total * self.extent_bytes

    @property
    def empty_mapped_bytes(self) -> int:
        """Bytes of mapped extents that no held page covers: what the extents' size costs."""
        held = sum(g.held_pages * g.page_bytes * len(g.members) for g in self._groups)
        return self.mapped_bytes - held

    def resize(self, pages: int) -> None:
        """Give the buffers room for `pages` pages; the new ones are not held.

        Raises
        ------
        LedgerError
            If that is fewer than before.
        MemoryRefused
            If a buffer would not fit into an int64.
        """
        if pages < self.pages:
            raise LedgerError(f"buffers of {self.pages} pages cannot shrink to {pages}")
        for group in self._groups:
            if pages * group.page_bytes + self.extent_bytes >= _BYTES_LIMIT:
                raise MemoryRefused(f"{pages} pages of {group.page_bytes} bytes pass an int64")
        self._owner = _grown(self._owner, pages, _NOBODY)
        for group in self._groups:
            extents = -(-pages * group.page_bytes // self.extent_bytes)
            group.counts = _grown(group.counts, extents, 0)

    def update(self, held: np.ndarray, scope_of_page: np.ndarray | None = None) -> Orders:
        """Take in which pages are held now; return what is to be mapped and given back.

        Only the extents of pages that changed are looked at.

        Parameters
        ----------
        held : bool [pages]
        scope_of_page : int [pages], optional
            The scope unit that each held page serves; other entries do not matter. Needed where
            a buffer belongs to one scope unit.

        Raises
        ------
        LedgerError
            If an array does not fit, or a held page serves no scope unit. Nothing is changed.
        """
        owner = self._owner_of(held, scope_of_page)
        changed = np.flatnonzero(owner != self._owner)
        before, after = self._owner[changed], owner[changed]
        orders = Orders([], [])
        for group in self._groups:
            signs = group.takes(after).astype(np.int64) - group.takes(before)
            moved = np.flatnonzero(signs)
            if not moved.size:
                continue
            gained, lost = group.change(changed[moved], signs[moved], self.extent_bytes)
            for extents, runs in ((gained, orders.map), (lost, orders.give_back)):
                spans = _runs(extents)
                runs += [(number, *span) for number in group.members for span in spans]
            self.mapped_extents_total += gained.size * len(group.members)
            self.returned_extents_total += lost.size * len(group.members)
        orders.map.sort()
        orders.give_back.sort()
        self._owner = owner
        return orders

    def recount(self, held: np.ndarray, scope_of_page: np.ndarray | None = None) -> None:
        """Raise LedgerError unless a count from scratch confirms every number.

        It goes the other way round, from each extent to the pages that lie in it, and shares no
        arithmetic with `update`.
        """
        owner = self._owner_of(held, scope_of_page)
        if not np.array_equal(owner, self._owner):
            raise LedgerError("check failed: pages changed that the extents were not told of")
        mapped_extents = covered_bytes = 0
        for number, spec in enumerate(self.buffers):
            spare_bytes = self.buffer_bytes(number) - self.pages * spec.page_bytes
            if not 0 <= spare_bytes < self.extent_bytes:
                raise LedgerError(f"check failed: {spec.name!r} is not its pages in whole extents")
            here = held if spec.scope is None else held & (owner == spec.scope)
            below = np.concatenate(([0], np.cumsum(here)))
            begins = np.arange(0, self.buffer_bytes(number), self.extent_bytes, dtype=np.int64)
            ends = begins + self.extent_bytes
            first = np.minimum(begins // spec.page_bytes, self.pages)
            past = np.minimum(-(-ends // spec.page_bytes), self.pages)
            overlapping = below[past] - below[first]
            group = self._group_of[number]
            wanted = int(np.count_nonzero(overlapping))
            mapped_extents += wanted
            covered_bytes += int(here.sum()) * spec.page_bytes
            if not np.array_equal(overlapping, group.counts) or wanted != group.mapped_extents:
                raise LedgerError(f"check failed: wrong extents are mapped in {spec.name!r}")
        if self.mapped_extents_total - self.returned_extents_total != mapped_extents:
            raise LedgerError("check failed: extents mapped minus given back are not those mapped")
        if self.empty_mapped_bytes != mapped_extents * self.extent_bytes - covered_bytes:
            raise LedgerError("check failed: wrong count of held pages in the buffers")

    def _owner_of(self, held: np.ndarray, scope_of_page: np.ndarray | None) -> np.ndarray:
        """Return the scope unit of each page, -1 where it is not held, int64 [pages]."""
        if held.dtype != np.bool_ or held.shape != (self.pages,):
            raise LedgerError(f"held must be bool [{self.pages}], not {held.dtype} {held.shape}")
        if scope_of_page is None:
            if any(group.scope is not None for group in self._groups):
                raise LedgerError("buffers of one scope unit need the scope unit of each page")
            return held.astype(np.int64) - 1
        if scope_of_page.dtype.kind != "i" or scope_of_page.shape != held.shape:
            raise LedgerError(f"scope_of_page must be int [{self.pages}]")
        owner = np.where(held, scope_of_page, np.int64(_NOBODY))
        if np.count_nonzero(owner > _NOBODY) != np.count_nonzero(held):
            raise LedgerError("a held page serves no scope unit")
        return owner


def _grown(array: np.ndarray, size: int, value: int) -> np.ndarray:
    return np.concatenate((array, np.full(size - array.size, value, array.dtype)))


def _runs(extents: np.ndarray) -> list[tuple[int, int]]:
    """Return (first, count) of every run of neighbours among ascending extents."""
    if not extents.size:
        return []
    cuts = np.flatnonzero(np.diff(extents) != 1) + 1
    edges = np.concatenate(([0], cuts, [extents.size]))
    return list(zip(extents[edges[:-1]].tolist(), np.diff(edges).tolist(), strict=True))
