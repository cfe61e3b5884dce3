"""Caches of single blocks, written for reading and not for speed. Each returns its hits."""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Sequence


def fifo(ids: Sequence[int], pages: int) -> int:
    queue: deque[int] = deque()
    hits = 0
    for one in ids:
        if one in queue:
            hits += 1
            continue
        if len(queue) == pages:
            queue.popleft()
        queue.append(one)
    return hits


def lru(ids: Sequence[int], pages: int) -> int:
    cached: OrderedDict[int, None] = OrderedDict()
    hits = 0
    for one in ids:
        if one in cached:
            hits += 1
            cached.move_to_end(one)
            continue
        if len(cached) == pages:
            cached.popitem(last=False)
        cached[one] = None
    return hits


def lfu(ids: Sequence[int], pages: int) -> int:
    # Of each cached block: its uses, and when it was last moved.
    cached: dict[int, tuple[int, int]] = {}
    hits = 0
    for now, one in enumerate(ids):
        if one in cached:
            hits += 1
            cached[one] = (cached[one][0] + 1, now)
            continue
        if len(cached) == pages:
            del cached[min(cached, key=lambda other: cached[other])]
        cached[one] = (1, now)
    return hits


def sieve(ids: Sequence[int], pages: int) -> int:
    queue: list[int] = []  # The newest last.
    marked: set[int] = set()
    hand = 0
    hits = 0
    for one in ids:
        if one in queue:
            hits += 1
            marked.add(one)
            continue
        if len(queue) == pages:
            hand %= len(queue)
            while queue[hand] in marked:
                marked.remove(queue[hand])
                hand = (hand + 1) % len(queue)
            # What stood behind the victim now stands where it stood.
            del queue[hand]
            if hand == len(queue):
                hand = 0
        queue.append(one)
    return hits


def s3fifo(ids: Sequence[int], pages: int) -> int:
    small: deque[int] = deque()
    main: deque[int] = deque()
    ghost: deque[int] = deque()
    uses: Counter[int] = Counter()
    small_pages = max(1, int(pages * 0.1))
    ghost_pages = int(pages * 0.9)
    evicted = False
    hits = 0

    def from_main() -> None:
        while main:
            other = main.popleft()
            if not uses[other]:
                return
            uses[other] = min(uses[other], 3) - 1
            main.append(other)

    def from_small() -> None:
        while small:
            other = small.popleft()
            if uses[other] < 2:
                ghost.append(other)
                if len(ghost) > ghost_pages:
                    ghost.popleft()
                return
            uses[other] = 0
            main.append(other)

    for one in ids:
        if one in small or one in main:
            hits += 1
            uses[one] += 1
            continue
        known = one in ghost
        if known:
            ghost.remove(one)
        while len(small) + len(main) >= pages:
            evicted = True
            if len(main) > pages - small_pages or not small:
                from_main()
            else:
                from_small()
        uses[one] = 0
        if known or (not evicted and len(small) >= small_pages):
            main.append(one)
        else:
            small.append(one)
    return hits


def belady(ids: Sequence[int], pages: int) -> int:
    cached: set[int] = set()
    hits = 0
    for now, one in enumerate(ids):
        if one in cached:
            hits += 1
            continue
        if len(cached) == pages:
            rest = list(ids[now:])
            cached.remove(
                max(cached, key=lambda other: rest.index(other) if other in rest else len(rest))
            )
        cached.add(one)
    return hits


def stack_distances(ids: Sequence[int]) -> list[int]:
    """How many distinct blocks were used since a block's last use, itself included; 0: never."""
    found = []
    for now, one in enumerate(ids):
        before = [then for then in range(now) if ids[then] == one]
        found.append(len(set(ids[before[-1] : now])) if before else 0)
    return found
