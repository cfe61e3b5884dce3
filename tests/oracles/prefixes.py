"""Caches of prefixes, written for reading: a block is the tuple of ids up to it.

Each takes requests (lists of ids) and returns how many blocks hit in each request.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

Prefix = tuple[int, ...]
Requests = Sequence[Sequence[int]]


def paths(requests: Requests) -> list[list[Prefix]]:
    return [[tuple(one[: i + 1]) for i in range(len(one))] for one in requests]


def _cached_beginning(path: list[Prefix], cached: dict[Prefix, int]) -> int:
    hit = 0
    while hit < len(path) and path[hit] in cached:
        hit += 1
    return hit


def fifo(requests: Requests, pages: int) -> list[int]:
    cached: dict[Prefix, int] = {}
    hits, now = [], 0
    for path in paths(requests):
        hits.append(_cached_beginning(path, cached))
        for prefix in path:
            if prefix in cached:
                continue
            if len(cached) == pages:
                del cached[min(cached, key=lambda other: cached[other])]
            now += 1
            cached[prefix] = now
    return hits


def _leaves(
    requests: Requests,
    pages: int,
    key: Callable[[Prefix, int, int], int],
    worst: Callable[[dict[Prefix, int], list[Prefix]], Prefix],
    refuses: Callable[[int, int], bool],
) -> list[int]:
    """Of the leaves that the request did not hit, the worst by key goes, one for each insertion.

    `key(prefix, request, clock)` is a prefix's key when it is touched.
    """
    cached: dict[Prefix, int] = {}
    hits, clock = [], 0
    for number, path in enumerate(paths(requests)):
        hit = _cached_beginning(path, cached)
        hits.append(hit)
        for prefix in path[:hit]:
            clock += 1
            cached[prefix] = key(prefix, number, clock)
        safe = set(path[:hit])
        for prefix in path[hit:]:
            clock += 1
            mine = key(prefix, number, clock)
            if len(cached) == pages:
                inner = {other[:-1] for other in cached}
                free = [one for one in cached if one not in inner and one not in safe]
                if not free:
                    break
                victim = worst(cached, free)
                if refuses(cached[victim], mine):
                    break
                del cached[victim]
                if len(prefix) > 1 and prefix[:-1] not in cached:
                    break
            cached[prefix] = mine
    return hits


def lru(requests: Requests, pages: int) -> list[int]:
    return _leaves(
        requests,
        pages,
        lambda prefix, number, clock: clock,
        lambda cached, free: min(free, key=lambda one: cached[one]),
        lambda victim, mine: False,
    )


def optimal(requests: Requests, pages: int) -> list[int]:
    every = paths(requests)
    never = len(every)
    first: dict[Prefix, int] = {}
    for path in every:
        for prefix in path:
            first.setdefault(prefix, len(first))

    def needed(prefix: Prefix, number: int, clock: int) -> int:
        later = range(number + 1, len(every))
        return next((then for then in later if prefix in every[then]), never)

    return _leaves(
        requests,
        pages,
        needed,
        lambda cached, free: max(free, key=lambda one: (cached[one], first[one])),
        lambda victim, mine: victim <= mine,
    )
