"""The table [extents] of a scenario: cached pages, and who takes them back to empty extents."""

from __future__ import annotations

from dataclasses import dataclass

from kvsim.lab.keys import choice, count


@dataclass(frozen=True)
class ExtentStudy:
    """One eviction of cached pages over an extent allocator.

    Attributes
    ----------
    victims : str
        Which cached pages go first.
    """

    victims: str = choice("lru", "page_aligned")
    evicted_pages: int = count(0)
