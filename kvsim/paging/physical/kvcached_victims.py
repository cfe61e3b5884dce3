"""Which cached pages an eviction takes so that extents empty, and which pages it cuts off.

It knows cached pages in their order of use, the extents that could empty, and which page stands
before each in its chain. It maps nothing and knows no sizes.

A chain is what a prefix cache follows from its first page to its last: a page is found only
through the one before it, its parent. A cached page whose parent is gone is an *orphan*; it and
all that stands behind it are *unreachable*: they take up memory and can never be hit again.

Chains are given as a mapping from each page to its parent. First pages of chains are no keys, and
the parent is `GONE` where it is no longer there. A parent that is held and not cached is there.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from kvsim.errors import LedgerError

#: Stands for a parent that is no longer there.
GONE = -1
_NOTHING: frozenset[int] = frozenset()

Eligible = Mapping[int, Sequence[int]]
Parents = Mapping[int, int]


def _path(page: int, parents: Parents, known: Mapping[int, object]) -> list[int]:
    """Return a page and those before it, up to the first that is known or begins a chain."""
    path = [page]
    seen = {page}
    while path[-1] not in known and path[-1] in parents:
        above = parents[path[-1]]
        if above in seen:
            raise LedgerError("the parents of cached pages run in a circle")
        seen.add(above)
        path.append(above)
    return path


def unreachable(cached: Iterable[int], parents: Parents, gone: Iterable[int] = ()) -> set[int]:
    """Return the cached pages of which any page before them is gone.

    Parameters
    ----------
    cached : iterable of int
    parents : mapping of int to int
    gone : iterable of int
        Pages that are gone, beside those whose children have `GONE` for a parent.

    Raises
    ------
    LedgerError
        If chains run in circles.
    """
    lost = dict.fromkeys([GONE, *gone], True)
    found = set()
    for page in cached:
        path = _path(page, parents, lost)
        answer = lost.get(path[-1], False)
        lost |= dict.fromkeys(path, answer)
        if answer:
            found.add(page)
    return found


class Broken(NamedTuple):
    """Cached pages that cannot be hit any more.

    Attributes
    ----------
    orphan_pages : int
        Those whose parent is gone.
    unreachable_pages : int
        Those of which any page before them is gone, orphans among them.
    """

    orphan_pages: int
    unreachable_pages: int


def broken(cached: Sequence[int], parents: Parents, gone: Iterable[int] = ()) -> Broken:
    """Count what evictions leave of chains that they cut; parameters as for `unreachable`."""
    away = {GONE, *gone}
    orphans = sum(page in parents and parents[page] in away for page in cached)
    return Broken(orphans, len(unreachable(cached, parents, away)))


def page_aligned(cached: Sequence[int], eligible: Eligible, count: int) -> list[int]:
    """Return the pages of whole extents: fewest pages first, until one would pass `count`.

    Parameters
    ----------
    cached : sequence of int
        Pages that no table needs, the least recently used first.
    eligible : mapping of int to sequence of int
        Extents in which every occupied page is cached, with those pages in order of use.
    count : int
        Most pages to take.

    Returns
    -------
    list of int
        Extents of equally many pages in the order of their latest use. The first that does not
        fit ends it, also if a later one would. Source: kvcached's page-aligned eviction.
    """
    rank = {page: place for place, page in enumerate(cached)}
    found: list[int] = []
    # Pages of an extent stand in order of use, so the last is the most recently used.
    for size, _, ids in sorted((len(ids), rank[ids[-1]], ids) for ids in eligible.values()):
        if len(found) + size > count:
            break
        found += ids
    return found


def _extents_above(
    cached: Sequence[int], home: Mapping[int, int], parents: Parents
) -> dict[int, frozenset[int]]:
    """Return the eligible extents in which pages before each reachable one lie."""
    above: dict[int, frozenset[int] | None] = {GONE: None}
    for page in cached:
        first, *rest = reversed(_path(page, parents, above))
        known = above.setdefault(first, _NOTHING)
        for child in rest:
            if known is not None and first in home:
                known |= {home[first]}
            above[child] = known
            first = child
    return {page: found for page in cached if (found := above[page]) is not None}


def chain_aware(
    cached: Sequence[int], eligible: Eligible, count: int, parents: Parents
) -> list[int]:
    """Return the pages of whole extents, those that cut off fewest pages first.

    Parameters
    ----------
    cached, eligible, count
        As for `page_aligned`.
    parents : mapping of int to int
        The page before each in its chain.

    Returns
    -------
    list of int
        One extent after another: of those that still fit into `count`, the one with the least
        (pages cut off, pages, place of its latest use). It cuts off the cached pages that can be
        reached until it is taken and not afterwards, and that are not taken with it: those with a
        page before them in it, outside it and outside the extents taken before. An extent that
        cuts off none leaves no orphan but among pages that were lost already. Counts are kept up
        to date, so a chain that runs over several extents is taken from its end. Other than
        `page_aligned` it goes on past an extent that does not fit.
    """
    rank = {page: place for place, page in enumerate(cached)}
    # Those that never fit need no counting, which is most of the work of a small eviction.
    left = {extent: ids for extent, ids in eligible.items() if len(ids) <= count}
    home = {page: extent for extent, ids in left.items() for page in ids}
    above = _extents_above(cached, home, parents)
    below: dict[int, list[int]] = {extent: [] for extent in left}
    cut = dict.fromkeys(left, 0)
    for page, extents in above.items():
        for extent in extents:
            below[extent].append(page)
            cut[extent] += extent != home.get(page)
    found: list[int] = []
    while True:
        fitting = [
            (cut[extent], len(ids), rank[ids[-1]], extent)
            for extent, ids in left.items()
            if len(found) + len(ids) <= count
        ]
        if not fitting:
            return found
        taken = min(fitting)[3]
        ids = left.pop(taken)
        found += ids
        for page in (*ids, *below[taken]):
            # Gone or lost: nobody can cut it off any more.
            for extent in above.pop(page, _NOTHING):
                cut[extent] -= extent != home.get(page)


def oldest(cached: Sequence[int], chosen: Sequence[int], count: int) -> list[int]:
    """Return the `count` pages used longest ago, of those that are not chosen already."""
    gone = set(chosen)
    return [page for page in cached if page not in gone][: max(0, count)]


def ends_of_chains(
    cached: Sequence[int], chosen: Sequence[int], count: int, parents: Parents
) -> list[int]:
    """Return `count` pages that are not chosen already, none of which cuts off another.

    First those that cannot be reached once the chosen ones are gone, in order of use; then, one
    after another, of the pages that have no page behind them any more, the one used longest ago.
    """
    rest = oldest(cached, chosen, len(cached))
    lost = unreachable(rest, parents, chosen)
    found = [page for page in rest if page in lost][: max(0, count)]
    rank = {page: place for place, page in enumerate(rest) if page not in lost}
    children = dict.fromkeys(rank, 0)
    for page in rank:
        if parents.get(page) in children:
            children[parents[page]] += 1
    ends = [(rank[page], page) for page, behind in children.items() if not behind]
    heapq.heapify(ends)
    while len(found) < count and ends:
        page = heapq.heappop(ends)[1]
        found.append(page)
        parent = parents.get(page, GONE)
        if parent in children:
            children[parent] -= 1
            if not children[parent]:
                heapq.heappush(ends, (rank[parent], parent))
    return found
