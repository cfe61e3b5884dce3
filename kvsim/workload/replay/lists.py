"""Doubly linked lists inside one array, for the policies: a node is in one list at most.

`links[node]` is (before, after). A list is closed by a sentinel, a node of its own number, whose
`after` is the list's head and whose `before` is its tail; an empty list's sentinel names itself.
"""

from __future__ import annotations

from kvsim.jit import kernel


@kernel
def unlink(links, node):
    """Take a node out of its list."""
    before, after = links[node, 0], links[node, 1]
    links[before, 1] = after
    links[after, 0] = before


@kernel
def insert_before(links, node, place):
    """Put a node before another; before a sentinel is the tail."""
    before = links[place, 0]
    links[node, 0] = before
    links[node, 1] = place
    links[before, 1] = node
    links[place, 0] = node
