"""kvcached: extents of 2 MiB under small pages, a reserve of parked ones, victims by extent.

It knows page ids, sizes and the order in which cached pages were last used; no contents, no
time. kvcached's own words are others: its block is a page here, its page an extent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kvsim.errors import CeilingExceeded, LedgerError
from kvsim.paging.physical.kvcached_victims import chain_aware, ends_of_chains, oldest
from kvsim.paging.physical.kvcached_victims import page_aligned as aligned
from kvsim.paging.physical.model import MIB, Figures, Meter, Parameters, TakenPages, parameter
from kvsim.paging.sizes import whole

EXTENT_UNIT_BYTES = 2 * MIB


@dataclass(frozen=True, kw_only=True)
class KvcachedParameters(Parameters):
    """Parameters of kvcached."""

    pages: int = parameter(doc="Page ids that there are, null pages included.", lowest=1)
    page_bytes: int = parameter(doc="Bytes of a page in one buffer of one layer.", lowest=1)
    layers: int = parameter(doc="Layers.", lowest=1)
    buffers: int = parameter(
        2, doc="Buffers of a layer.", source="K and V; an MLA latent has one", lowest=1
    )
    extent_bytes: int = parameter(
        EXTENT_UNIT_BYTES,
        doc="Bytes of an extent in one buffer of one layer, a multiple of 2 MiB.",
        source="kvcached: PAGE_SIZE; 2 MiB is what CUDA maps at once",
        lowest=1,
    )
    compound: bool = parameter(
        False,
        doc="Map an extent for all layers and buffers in one call instead of one each.",
        source="kvcached: its contiguous layout, which costs the same bytes",
    )
    reserve_min: int = parameter(
        5, doc="refill() parks extents up to this.", source="kvcached: KVCACHED_MIN_RESERVED_PAGES"
    )
    reserve_max: int = parameter(
        10,
        doc="Extents that stay mapped when they empty, until trim().",
        source="kvcached: KVCACHED_MAX_RESERVED_PAGES",
    )
    allocation: str = parameter(
        "best_fit",
        doc="Extent for new pages: best_fit, or newest, the one that last had a page freed.",
        source="kvcached after and before its page-aware allocation",
        choices=("best_fit", "newest"),
    )
    null_pages: int = parameter(
        1, doc="First pages, which no table gets.", source="kvcached and vLLM: block 0 is null"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.extent_bytes % EXTENT_UNIT_BYTES:
            raise LedgerError(f"extent_bytes must be a multiple of {EXTENT_UNIT_BYTES}")
        if self.page_bytes > self.extent_bytes:
            raise LedgerError(
                f"a page of {self.page_bytes} bytes passes an extent of {self.extent_bytes}"
            )
        if self.reserve_min > self.reserve_max:
            raise LedgerError(f"reserve_min {self.reserve_min} is above {self.reserve_max}")


class Kvcached:
    """Extents that are mapped when no used one has a free page, and parked when they empty.

    Page p lies in extent e if [p, p + 1) * page_bytes lies in [e, e + 1) * extent_bytes; a page
    that straddles two belongs to none and is never handed out. An extent is mapped in every
    layer and buffer at once. Pages of an extent are handed out in the order in which they came
    free. Source: kvcached (ovg-project), reconstructed from its behaviour.
    """

    def __init__(self, parameters: KvcachedParameters) -> None:
        self.parameters = p = parameters
        self.copies = p.layers * p.buffers
        #: Bytes of one extent over all layers and buffers.
        self.whole_bytes = p.extent_bytes * self.copies
        self.extents = p.pages * p.page_bytes // p.extent_bytes
        self.limit_extents = self.extents
        self._taken = TakenPages(p.pages, p.null_pages)
        # Extents in use with their free pages, in order of release; those of them that have
        # some, in order of change; parked and unmapped ones, first in first out.
        self._free: dict[int, dict[int, None]] = {}
        self._free_pages = 0
        self._partial: dict[int, None] = {}
        self._reserve: dict[int, None] = {}
        self._unmapped = dict.fromkeys(range(self.extents))
        self._mapped_extents_total = self._emptied_extents_total = self._reused_extents_total = 0
        self._meter = Meter()
        for page in range(p.null_pages):
            self._remove(page, self._extent_that_holds(page))

    def pages_of(self, extent: int) -> range:
        """Return the pages that lie in an extent, possibly none."""
        size, page = self.parameters.extent_bytes, self.parameters.page_bytes
        return range(-(-extent * size // page), (extent + 1) * size // page)

    def extent_of(self, page: int) -> int | None:
        """Return the extent in which a page lies; None if it straddles or lies past the last."""
        size, width = self.parameters.extent_bytes, self.parameters.page_bytes
        extent = page * width // size
        inside = extent < self.extents and (page + 1) * width <= (extent + 1) * size
        return extent if inside else None

    def _extent_that_holds(self, page: int) -> int:
        extent = self.extent_of(page)
        if extent is None:
            raise LedgerError(f"page {page} lies in no extent")
        return extent

    @property
    def used_extents(self) -> int:
        """Extents in which a page is taken or null; kvcached's in-use pages."""
        return len(self._free)

    @property
    def parked_extents(self) -> int:
        """Extents in the reserve: mapped, and empty."""
        return len(self._reserve)

    def occupied(self, extent: int) -> int:
        """Return how many pages of an extent are taken or null."""
        if extent not in self._free:
            return 0
        return len(self.pages_of(extent)) - len(self._free[extent])

    # -- mapping

    def _use(self, extent: int) -> None:
        """Bring an extent into use, from the reserve or by mapping it."""
        if extent in self._reserve:
            del self._reserve[extent]
            self._reused_extents_total += 1
        else:
            self._map(extent)
        self._free[extent] = dict.fromkeys(self.pages_of(extent))
        self._free_pages += len(self._free[extent])

    def _map(self, extent: int) -> None:
        del self._unmapped[extent]
        self._mapped_extents_total += 1
        self._meter.map(self.whole_bytes)

    def _settle(self, extent: int) -> None:
        """Put a used extent behind the others that have free pages, or take it out of them."""
        self._partial.pop(extent, None)
        if self._free[extent]:
            self._partial[extent] = None

    def _remove(self, page: int, extent: int) -> None:
        """Take one page, bringing its extent into use if it is not."""
        if extent not in self._free:
            self._use(extent)
        del self._free[extent][page]
        self._free_pages -= 1
        self._settle(extent)

    def refill(self) -> int:
        """Map extents until `reserve_min` are parked, as kvcached's thread does; return them."""
        # What is parked counts in no limit: the limit is on extents in use.
        wanted = self.parameters.reserve_min - len(self._reserve)
        extents = [extent for extent, _ in zip(self._unmapped, range(wanted), strict=False)]
        for extent in extents:
            self._map(extent)
            self._reserve[extent] = None
        return len(extents)

    def trim(self) -> int:
        """Return every parked extent to the device; return how many bytes that were."""
        given = len(self._reserve) * self.whole_bytes
        self._unmapped |= self._reserve
        self._reserve.clear()
        self._meter.give_back(given)
        return given

    def resize(self, limit_extents: int) -> None:
        """Limit the extents in use. Those above it stay; no new one is used until they are gone.

        Raises
        ------
        LedgerError
            If that is more than there are.
        """
        if whole("limit_extents", limit_extents) > self.extents:
            raise LedgerError(f"there are {self.extents} extents, not {limit_extents}")
        self.limit_extents = limit_extents

    # -- verbs

    def allocate(self, count: int) -> list[int]:
        """Choose free pages as kvcached does, take them, and return them.

        The extent is the one with the fewest free pages that holds the whole remaining run,
        else the one with most; ties go to the one that changed longest ago. A new extent is
        used only if no used one has a free page.

        Raises
        ------
        CeilingExceeded
            If fewer pages are free under the limit. Nothing is changed.
        """
        count = whole("count", count)
        fresh: list[int] = []
        if count > self._free_pages:
            # Looked at only here: the list of unmapped extents is long, and this is rare.
            fresh = [*self._reserve, *self._unmapped]
            fresh = fresh[: max(0, self.limit_extents - len(self._free))]
            free = self._free_pages + sum(len(self.pages_of(extent)) for extent in fresh)
            if count > free:
                raise CeilingExceeded("allocate", count, free)
        found: list[int] = []
        upcoming = iter(fresh)
        while len(found) < count:
            if self._partial:
                extent = self._choose(count - len(found))
            else:
                extent = next(upcoming)
                self._use(extent)
            pages = self._free[extent]
            chosen = [page for page, _ in zip(pages, range(count - len(found)), strict=False)]
            for page in chosen:
                del pages[page]
            found += chosen
            self._free_pages -= len(chosen)
            self._settle(extent)
        self._taken.take(found)
        return found

    def _choose(self, wanted: int) -> int:
        if self.parameters.allocation == "newest":
            return next(reversed(self._partial))
        free = {extent: len(self._free[extent]) for extent in self._partial}
        enough = [extent for extent in free if free[extent] >= wanted]
        return min(enough, key=free.__getitem__) if enough else max(free, key=free.__getitem__)

    def take(self, pages: Sequence[int]) -> None:
        """Take pages that somebody else chose, bringing the extents in which they lie into use.

        Raises
        ------
        LedgerError
            If a page is taken, unknown, null, named twice, or lies in no extent; CeilingExceeded
            if the limit forbids an extent. Nothing is changed.
        """
        ids = self._taken.to_take(pages)
        extents = [self._extent_that_holds(page) for page in ids]
        fresh = {extent for extent in extents if extent not in self._free}
        left = max(0, self.limit_extents - len(self._free))
        if fresh and len(fresh) > left:
            raise CeilingExceeded("take", len(fresh), left)
        for page, extent in zip(ids, extents, strict=True):
            self._remove(page, extent)
        self._taken.take(ids)

    def let_go(self, pages: Sequence[int]) -> None:
        """Let go of pages; extents that empty are parked while the reserve has room, else returned.

        Raises
        ------
        LedgerError
            If a page is not taken or named twice. Nothing is changed.
        """
        ids = self._taken.to_let_go(pages)
        self._taken.let_go(ids)
        by_extent = self.by_extent(ids)
        for extent, gone in by_extent.items():
            self._free[extent] |= dict.fromkeys(gone)
            self._free_pages += len(gone)
            self._settle(extent)
        for extent in by_extent:
            if self.occupied(extent):
                continue
            self._free_pages -= len(self._free.pop(extent))
            del self._partial[extent]
            self._emptied_extents_total += 1
            if len(self._reserve) < self.parameters.reserve_max:
                self._reserve[extent] = None
            else:
                self._unmapped[extent] = None
                self._meter.give_back(self.whole_bytes)

    # -- victims

    def by_extent(self, pages: Sequence[int]) -> dict[int, list[int]]:
        """Return pages by the extent in which they lie, both in the order given."""
        found: dict[int, list[int]] = {}
        for page in pages:
            found.setdefault(self._extent_that_holds(page), []).append(page)
        return found

    def eligible(self, cached: Sequence[int]) -> dict[int, list[int]]:
        """Return the extents that evicting all `cached` pages would empty, with those pages.

        Raises
        ------
        LedgerError
            If a page is not taken or named twice.
        """
        groups = self.by_extent(self._taken.to_let_go(cached))
        return {e: ids for e, ids in groups.items() if len(ids) >= self.occupied(e)}

    def eligible_extents(self, cached: Sequence[int]) -> list[int]:
        """Return the extents that evicting all `cached` pages would empty."""
        return list(self.eligible(cached))

    def victims(
        self,
        cached: Sequence[int],
        count: int,
        page_aligned: bool = True,
        *,
        parents: Mapping[int, int] | None = None,
        top_up: bool = True,
    ) -> list[int]:
        """Return the pages to evict from a prefix cache.

        Parameters
        ----------
        cached : sequence of int
            Pages that no table needs, the least recently used first.
        count : int
            How many to evict; all, if fewer are cached.
        page_aligned : bool
            Whether to empty whole extents first: only those in which every occupied page is
            cached, the one with fewest pages first, ties to the one whose latest use is oldest,
            until one would overflow `count`. The rest is in order of use. kvcached does so when
            it trims its cache to a cap, and takes the order of use when it needs pages.
        parents : mapping of int to int, optional
            The page before each in its chain. With it, whole extents are those that cut off
            fewest pages (`kvcached_victims.chain_aware`), and the rest is ends of chains.
        top_up : bool
            Whether the rest is taken at all. Without it, fewer than `count` pages may be
            returned, and every one of them lies in an extent that empties.

        Raises
        ------
        LedgerError
            If a page is not taken or named twice, or parents run in a circle.
        """
        count = whole("count", count)
        if not page_aligned:
            return self._taken.to_let_go(cached)[:count]
        eligible = self.eligible(cached)
        if parents is not None:
            found = chain_aware(cached, eligible, count, parents)
            rest = count - len(found) if top_up else 0
            return found + ends_of_chains(cached, found, rest, parents)
        found = aligned(cached, eligible, count)
        return found + oldest(cached, found, count - len(found) if top_up else 0)

    # -- readings

    def figures(self) -> Figures:
        """Return where the bytes are. Null pages count as empty: no table holds them."""
        held = self._taken.count * self.parameters.page_bytes * self.copies
        return self._meter.figures(held, len(self._reserve) * self.whole_bytes)

    def counters(self) -> dict[str, int]:
        """Return stocks and flows of extents, mapping calls, flows of pages and bytes."""
        calls = 1 if self.parameters.compound else self.copies
        returned = self._meter.returned_bytes_total // self.whole_bytes
        return {
            "used_extents": len(self._free),
            "parked_extents": len(self._reserve),
            "mapped_extents_total": self._mapped_extents_total,
            "emptied_extents_total": self._emptied_extents_total,
            "reused_extents_total": self._reused_extents_total,
            "returned_extents_total": returned,
            "mapping_calls_total": calls * (self._mapped_extents_total + returned),
        } | (self._taken.counters() | self._meter.counters())

    def check(self) -> None:
        """Raise LedgerError unless a recount confirms every number."""
        self._taken.check()
        everywhere = [*self._free, *self._reserve, *self._unmapped]
        if sorted(everywhere) != list(range(self.extents)):
            raise LedgerError("check failed: an extent is in no state, or in two")
        taken = self.by_extent([*range(self.parameters.null_pages), *self._taken.ids()])
        for extent, free in self._free.items():
            pages = sorted([*free, *taken.pop(extent, [])])
            if pages != list(self.pages_of(extent)):
                raise LedgerError(f"check failed: extent {extent} has lost count of its pages")
            if bool(free) != (extent in self._partial):
                raise LedgerError(f"check failed: extent {extent} is wrongly offered or withheld")
        if self._free_pages != sum(map(len, self._free.values())):
            raise LedgerError("check failed: wrong count of free pages in used extents")
        if taken or len(self._reserve) > self.parameters.reserve_max:
            raise LedgerError("check failed: a taken page is not mapped, or too much is parked")
        mapped = (len(self._free) + len(self._reserve)) * self.whole_bytes
        self._meter.check(self.figures(), mapped)
