"""What every model of physical memory answers: four figures in bytes, counters, and a recount.

It knows neither pages' contents nor which allocator a model imitates. A page is *taken* when the
pool hands it out and *let go* when nothing needs it any more; a page that only a prefix cache
keeps is still taken, since its memory cannot be used for anything else.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, NamedTuple, Protocol

from kvsim.errors import LedgerError
from kvsim.paging.sizes import whole

MIB = 2**20


class Figures(NamedTuple):
    """Where the bytes are at one moment. The four add up to the most that was ever mapped.

    Attributes
    ----------
    held_bytes : int
        Bytes of taken pages, without any rounding.
    empty_bytes : int
        The rest of mapped memory that cannot go back now: free places between taken ones,
        rounding, and pages set aside that no table gets.
    parked_bytes : int
        Mapped memory in which nothing is taken and which the model keeps for later: what its
        trimming verb would give back.
    returned_bytes : int
        What was mapped at the peak and is not mapped now: a stock. The flow is the counter
        `returned_bytes_total`.
    """

    held_bytes: int
    empty_bytes: int
    parked_bytes: int
    returned_bytes: int

    @property
    def mapped_bytes(self) -> int:
        """Bytes that are mapped now."""
        return self.held_bytes + self.empty_bytes + self.parked_bytes


class PhysicalModel(Protocol):
    """What can be asked of every model."""

    def figures(self) -> Figures:
        """Return where the bytes are now."""

    def counters(self) -> dict[str, int]:
        """Return flows since the start, and peaks."""

    def check(self) -> None:
        """Raise LedgerError unless a count from scratch confirms every number."""


class PageModel(PhysicalModel, Protocol):
    """A model that is told which pages are taken and let go, in order."""

    def take(self, pages: Sequence[int]) -> None:
        """Take pages by their ids. Refused as a whole or done as a whole."""

    def let_go(self, pages: Sequence[int]) -> None:
        """Let go of taken pages. Refused as a whole or done as a whole."""


class ByteModel(PhysicalModel, Protocol):
    """A model that allocates sizes and is told addresses back."""

    def allocate(self, size_bytes: int) -> int:
        """Return the address of an allocation."""

    def free(self, address: int) -> None:
        """Free an allocation."""


def parameter(
    default: Any = MISSING,
    *,
    doc: str,
    source: str = "",
    lowest: int = 0,
    choices: Sequence[str] = (),
) -> Any:
    """Return a dataclass field of a model's parameters, with what `kvsim allocators` prints."""
    metadata = {"doc": doc, "source": source, "lowest": lowest, "choices": tuple(choices)}
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, kw_only=True)
class Parameters:
    """Parameters of a model: integers with a lowest value, switches, or one of some words.

    Raises
    ------
    LedgerError
        If a value is none of these.
    """

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            choices = each.metadata["choices"]
            if choices:
                if value not in choices:
                    known = ", ".join(choices)
                    raise LedgerError(f"{each.name} must be one of {known}, not {value!r:.60}")
            elif isinstance(each.default, bool):
                if not isinstance(value, bool):
                    raise LedgerError(f"{each.name} must be true or false, not {value!r:.60}")
            else:
                object.__setattr__(
                    self, each.name, whole(each.name, value, each.metadata["lowest"])
                )


class Meter:
    """Bytes that are mapped: now, at most, and as flows."""

    def __init__(self) -> None:
        self.mapped_bytes = 0
        self.mapped_bytes_peak = 0
        self.mapped_bytes_total = 0
        self.returned_bytes_total = 0

    def map(self, size_bytes: int) -> None:
        """Count bytes as mapped."""
        self.mapped_bytes += size_bytes
        self.mapped_bytes_total += size_bytes
        self.mapped_bytes_peak = max(self.mapped_bytes_peak, self.mapped_bytes)

    def give_back(self, size_bytes: int) -> None:
        """Count mapped bytes as returned."""
        self.mapped_bytes -= size_bytes
        self.returned_bytes_total += size_bytes

    def figures(self, held_bytes: int, parked_bytes: int) -> Figures:
        """Return the four figures, given two of them."""
        return Figures(
            held_bytes,
            self.mapped_bytes - held_bytes - parked_bytes,
            parked_bytes,
            self.mapped_bytes_peak - self.mapped_bytes,
        )

    def counters(self) -> dict[str, int]:
        """Return the flows and the peak."""
        return {
            "mapped_bytes_peak": self.mapped_bytes_peak,
            "mapped_bytes_total": self.mapped_bytes_total,
            "returned_bytes_total": self.returned_bytes_total,
        }

    def check(self, figures: Figures, mapped_bytes: int) -> None:
        """Raise LedgerError unless the figures are sound and `mapped_bytes`, recounted, agrees."""
        if mapped_bytes != self.mapped_bytes:
            raise LedgerError(f"check failed: {self.mapped_bytes} bytes mapped, not {mapped_bytes}")
        if self.mapped_bytes_total - self.returned_bytes_total != mapped_bytes:
            raise LedgerError("check failed: bytes mapped minus returned are not those mapped")
        if min(figures) < 0 or sum(figures) != self.mapped_bytes_peak:
            raise LedgerError(f"check failed: {figures} do not add up to the peak")


class TakenPages:
    """Which pages are taken.

    Parameters
    ----------
    pages : int
        Page ids run from 0 to below this.
    null_pages : int
        The first ids, set aside: no table gets them.
    """

    def __init__(self, pages: int, null_pages: int) -> None:
        if null_pages >= pages:
            raise LedgerError(f"{null_pages} null pages leave none of {pages} pages")
        self._taken = bytearray(pages)
        self.null_pages = null_pages
        self.count = 0
        self.taken_total = 0
        self.let_go_total = 0

    def __contains__(self, page: int) -> bool:
        return bool(self._taken[page])

    def _ids(self, pages: Iterable[int], verb: str, taken: bool) -> list[int]:
        """Return the ids once all are known to be `taken` or not, and to differ."""
        ids = [whole("a page id", page) for page in pages]
        size = len(self._taken)
        for page in ids:
            if not self.null_pages <= page < size:
                raise LedgerError(f"cannot {verb} page {page}: pages are {self.null_pages}..{size}")
            if bool(self._taken[page]) is not taken:
                raise LedgerError(f"cannot {verb} page {page}: it is {'not ' * taken}taken")
        if len(set(ids)) != len(ids):
            raise LedgerError(f"cannot {verb} a page twice")
        return ids

    def to_take(self, pages: Iterable[int]) -> list[int]:
        """Return ids that may be taken, or raise LedgerError."""
        return self._ids(pages, "take", taken=False)

    def to_let_go(self, pages: Iterable[int]) -> list[int]:
        """Return ids that may be let go, or raise LedgerError."""
        return self._ids(pages, "let go of", taken=True)

    def take(self, ids: Sequence[int]) -> None:
        """Mark checked ids as taken."""
        for page in ids:
            self._taken[page] = 1
        self.count += len(ids)
        self.taken_total += len(ids)

    def let_go(self, ids: Sequence[int]) -> None:
        """Mark checked ids as not taken."""
        for page in ids:
            self._taken[page] = 0
        self.count -= len(ids)
        self.let_go_total += len(ids)

    def ids(self) -> list[int]:
        """Return the taken ids, ascending."""
        return [page for page, taken in enumerate(self._taken) if taken]

    def counters(self) -> dict[str, int]:
        """Return the flows."""
        return {"taken_pages_total": self.taken_total, "let_go_pages_total": self.let_go_total}

    def check(self) -> None:
        """Raise LedgerError unless the marks and the counts agree."""
        marked = sum(self._taken)
        if marked != self.count or self.taken_total - self.let_go_total != marked:
            raise LedgerError(f"check failed: {marked} pages are taken, not {self.count}")
