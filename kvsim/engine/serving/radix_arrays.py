"""The radix tree's arrays: made, grown, and recounted from scratch."""

from __future__ import annotations

import numpy as np

from kvsim.engine.serving import fields as s
from kvsim.engine.serving import radix as r
from kvsim.errors import LedgerError, ScenarioError
from kvsim.paging import fields as f
from kvsim.paging.arrays import Arrays
from kvsim.workload.requests import Requests


def tree_of(pages: int, before: np.ndarray | None = None) -> np.ndarray:
    """Return a tree with room for so many pages: an empty one, or a wider copy.

    Parameters
    ----------
    pages : int
    before : int32 [TREE_FIELDS, fewer pages + 1], optional
        The tree as it was.
    """
    tree = np.full((r.TREE_FIELDS, pages + 1), -1, np.int32)
    tree[r.OLDER : r.NEWER + 1, pages] = pages
    if before is not None:
        old = before.shape[1] - 1
        tree[:, :old] = before[:, :old]
        tree[r.OLDER : r.NEWER + 1, pages] = before[r.OLDER : r.NEWER + 1, old]
        # No page had the number of the old end, so each link to it is a link to the end.
        links = tree[r.OLDER : r.NEWER + 1]
        links[links == old] = pages
    return tree


def check_keys(requests: Requests) -> None:
    """Raise ScenarioError where a key follows two different keys: no tree has such prefixes."""
    if requests.keys.size == 0:
        return
    before = np.empty_like(requests.keys)
    before[1:] = requests.keys[:-1]
    starts = requests.key_start[:-1]
    before[starts[np.diff(requests.key_start) > 0]] = -1
    known = np.full(requests.given_keys, -2, np.int64)
    # Backwards, so that what stays written is what a key follows first.
    known[requests.keys[::-1]] = before[::-1]
    wrong = np.flatnonzero(known[requests.keys] != before)
    if wrong.size:
        at = int(wrong[0])
        request = int(np.searchsorted(requests.key_start, at, side="right")) - 1
        raise ScenarioError(
            f"request {request}: key {int(requests.keys[at])} follows another key in another "
            "request, so prefix.cache = radix cannot tell which prefix it stands for"
        )


def _must(holds: bool, what: str) -> None:
    if not holds:
        raise LedgerError(f"check failed: the radix tree: {what}")


def _pages_of(tree: np.ndarray, node: int) -> list[int]:
    """Return a node's pages, from its last to its first."""
    found = [node]
    while len(found) < int(tree[r.LENGTH, node]):
        found.append(int(tree[r.BEFORE, found[-1]]))
    return found


def check_tree(arrays: Arrays, tree: np.ndarray) -> None:
    """Recount the tree from the pages; raise LedgerError at the first mismatch.

    Checks that the pages with a key are those of the nodes, each in one; that the pages of a node
    have one refcount and a parent is held wherever a child is; that the list holds each node
    once, and its first unlocked node is a leaf; and that free pages stand before cached ones.
    """
    pages, end = arrays.pages, tree.shape[1] - 1
    _must(end == int(arrays.scalars[f.PAGES]), "it has not as many pages as the pool")
    nodes: list[int] = []
    last, at = end, int(tree[r.NEWER, end])
    while at != end:
        _must(int(tree[r.OLDER, at]) == last, "the list's two directions disagree")
        nodes.append(at)
        _must(len(nodes) <= end, "the list of nodes is no ring")
        last, at = at, int(tree[r.NEWER, at])
    _must(int(tree[r.OLDER, end]) == last, "the list's two directions disagree")
    place = {node: number for number, node in enumerate(nodes)}
    children = dict.fromkeys(nodes, 0)
    keyed: list[int] = []
    for node in nodes:
        parent = int(tree[r.PARENT, node])
        mine = _pages_of(tree, node)
        keyed += mine
        _must(all(int(tree[r.NODE, page]) == node for page in mine), f"a page of node {node}")
        _must(int(tree[r.BEFORE, mine[-1]]) == parent, f"node {node} does not follow its parent")
        held = np.unique(pages[f.REFCOUNT, mine])
        _must(held.size == 1, f"the pages of node {node} have several refcounts")
        if parent >= 0:
            _must(parent in place, f"node {node} is an orphan")
            _must(place[parent] > place[node], f"node {node} was used after its parent")
            above = int(pages[f.REFCOUNT, parent])
            _must(above >= int(held[0]), f"node {node} is locked more often than its parent")
            children[parent] += 1
    for node, count in children.items():
        _must(int(tree[r.CHILDREN, node]) == count, f"node {node} has {count} children")
    _must(len(set(keyed)) == len(keyed), "a page lies in two nodes")
    _must(
        sorted(keyed) == np.flatnonzero(pages[f.KEY, :end]).tolist(),
        "its pages are not those that have a key",
    )
    page, cached = int(pages[f.NEXT, end]), False
    while page != end:
        _must(bool(pages[f.KEY, page]) or not cached, "a free page stands behind a cached one")
        cached = bool(pages[f.KEY, page])
        page = int(pages[f.NEXT, page])


def check_members(arrays: Arrays, rows: np.ndarray, running: np.ndarray) -> None:
    """Check that the first DONE_PAGES entries of each member are a path of the tree's pages.

    Raises
    ------
    LedgerError
        If one is not, or another of its pages has a key.
    """
    for request in running.tolist():
        sequence, done = int(rows[request, s.SEQUENCE]), int(rows[request, s.DONE_PAGES])
        start, count = (int(x) for x in arrays.tables[sequence, [f.START, f.ENTRIES]])
        keys = arrays.pages[f.KEY, arrays.entries[f.PAGE, start : start + count]]
        _must(bool((keys[:done] > 0).all()), f"request {request} lost a page of its path")
        _must(not keys[done:].any(), f"request {request} has a page in the tree beyond its path")
