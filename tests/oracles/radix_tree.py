"""A radix tree of token sequences as SGLang keeps it: objects, dictionaries, clocks and a heap.

Written from the rules alone: keys are token sequences cut to whole pages; a match or an insertion
that leaves a node in its middle splits it there; a running request locks the node where its
prefix ends and all above; eviction frees whole unlocked leaves, the one used longest ago first,
until enough pages are gone, and a parent without children becomes a leaf.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from itertools import count

Page = tuple[int, ...]


class Node:
    """A run of pages between two branchings."""

    def __init__(self, pages: list[Page], parent: Node | None, time: int) -> None:
        self.pages = pages
        self.parent = parent
        self.children: dict[Page, Node] = {}
        self.lock_ref = 0
        self.time = time

    def tokens(self) -> tuple[int, ...]:
        """Return all tokens from the root to the node's end."""
        above = self.parent.tokens() if self.parent is not None else ()
        return above + tuple(token for page in self.pages for token in page)


class RadixTree:
    """The tree; the clock never shows one time twice."""

    def __init__(self, page_tokens: int) -> None:
        self.page_tokens = page_tokens
        self._clock = count()
        self.root = Node([], None, next(self._clock))
        self.splits = 0
        self.evicted: list[tuple[int, ...]] = []

    def cut(self, tokens: list[int]) -> list[Page]:
        """Return the whole pages of a token sequence."""
        size = self.page_tokens
        return [tuple(tokens[at : at + size]) for at in range(0, len(tokens) - size + 1, size)]

    def peek(self, tokens: list[int]) -> tuple[int, int]:
        """Return how many pages a match would find, and how many nobody locks; change nothing."""
        pages, node, found, unlocked = self.cut(tokens), self.root, 0, 0
        while found < len(pages) and pages[found] in node.children:
            node = node.children[pages[found]]
            same = _common(node.pages, pages[found:])
            found += same
            unlocked += same if node.lock_ref == 0 else 0
            if same < len(node.pages):
                break
        return found, unlocked

    def match(self, tokens: list[int]) -> tuple[int, Node]:
        """Return how many pages are found, and the node where they end."""
        return self._walk(self.cut(tokens))

    def insert(self, tokens: list[int]) -> tuple[int, Node]:
        """Insert whole pages; return how many were there, and the node where all of them end."""
        pages = self.cut(tokens)
        found, node = self._walk(pages)
        if found < len(pages):
            leaf = Node(pages[found:], node, next(self._clock))
            node.children[pages[found]] = leaf
            node = leaf
        return found, node

    def _walk(self, pages: list[Page]) -> tuple[int, Node]:
        time, node, found = next(self._clock), self.root, 0
        while found < len(pages) and pages[found] in node.children:
            node = node.children[pages[found]]
            node.time = time
            same = _common(node.pages, pages[found:])
            found += same
            if same < len(node.pages):
                node = self._split(node, same)
        return found, node

    def _split(self, child: Node, at: int) -> Node:
        self.splits += 1
        above = child.parent
        assert above is not None
        upper = Node(child.pages[:at], above, next(self._clock))
        upper.lock_ref = child.lock_ref
        upper.children = {child.pages[at]: child}
        above.children[child.pages[0]] = upper
        child.pages = child.pages[at:]
        child.parent = upper
        return upper

    def lock(self, node: Node, change: int = 1) -> None:
        """Lock a node and all above it, or unlock them with a change of -1."""
        while node.parent is not None:
            node.lock_ref += change
            assert node.lock_ref >= 0
            node = node.parent

    def evict(self, pages: int) -> int:
        """Evict whole leaves until so many pages are gone; return how many are."""
        heap = [
            (node.time, id(node), node)
            for node in self.nodes()
            if not node.children and node.lock_ref == 0
        ]
        heapq.heapify(heap)
        gone = 0
        while gone < pages and heap:
            _, _, leaf = heapq.heappop(heap)
            gone += len(leaf.pages)
            self.evicted.append(leaf.tokens())
            above = leaf.parent
            assert above is not None
            del above.children[leaf.pages[0]]
            if above is not self.root and not above.children and above.lock_ref == 0:
                heapq.heappush(heap, (above.time, id(above), above))
        return gone

    def nodes(self) -> Iterator[Node]:
        """Yield every node but the root."""
        left = list(self.root.children.values())
        while left:
            node = left.pop()
            left += node.children.values()
            yield node

    def pages(self, *, locked: bool) -> int:
        """Return how many pages are in locked nodes, or in unlocked ones."""
        return sum(len(node.pages) for node in self.nodes() if (node.lock_ref > 0) is locked)


def _common(one: list[Page], other: list[Page]) -> int:
    same = 0
    while same < min(len(one), len(other)) and one[same] == other[same]:
        same += 1
    return same
