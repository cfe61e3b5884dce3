"""A radix tree over the prefix index: nodes are runs of pages, whole leaves are evicted.

A key stands for the tokens of a page and of all pages before it, so which pages follow each
other is known from the keys alone: the index finds a page, and the tree says in which node it
lies. A node is named by its last page, which no other node has; cutting a node leaves that name
to its rear part. A node's lock is the refcount of its pages: a table that names a page of the
tree names all pages before it too, so the pages of a node have one refcount, and no node is
locked whose parent is not.

All nodes stand in one list in the order of their last use. Whoever uses a node uses those above
it, and they go behind it, so the first node of the list that nobody locks is a leaf: the
unlocked leaf that was not used for longest.
"""

from __future__ import annotations

import numpy as np

from kvsim.jit import kernel
from kvsim.paging import fields as f
from kvsim.paging.pool import enqueue, unlink

# tree, int32 [field, page + 1]; the last column closes the list. Of each page in the tree:
NODE = 0  # the node that it belongs to
BEFORE = 1  # the page before it in the prefix, or -1
# and of each page that names a node:
LENGTH = 2  # the node's pages
CHILDREN = 3
PARENT = 4  # the node above, or -1
OLDER = 5  # in the list
NEWER = 6
TREE_FIELDS = 7


@kernel
def join_list(tree, node):
    """Put a node at the list's end, as the one used last."""
    end = tree.shape[1] - 1
    before = np.int64(tree[OLDER, end])
    tree[OLDER, node] = before
    tree[NEWER, node] = end
    tree[NEWER, before] = node
    tree[OLDER, end] = node


@kernel
def leave_list(tree, node):
    """Take a node out of the list."""
    before = np.int64(tree[OLDER, node])
    after = np.int64(tree[NEWER, node])
    tree[NEWER, before] = after
    tree[OLDER, after] = before


@kernel
def touch(tree, node):
    """Use a node: it goes to the list's end, and behind it those above."""
    while node >= 0:
        leave_list(tree, node)
        join_list(tree, node)
        node = np.int64(tree[PARENT, node])


@kernel
def cut(tree, page):
    """Let a node end at `page`; return its rear part, which goes to the list's end, or -1.

    The caller uses the front part afterwards, which brings it behind the rear one.
    """
    rear = np.int64(tree[NODE, page])
    if rear == page:
        return np.int64(-1)
    left = np.int64(0)
    at = rear
    while at != page:
        left += 1
        at = np.int64(tree[BEFORE, at])
    length = tree[LENGTH, rear] - left
    for _ in range(length):
        tree[NODE, at] = page
        at = np.int64(tree[BEFORE, at])
    tree[LENGTH, page] = length
    tree[CHILDREN, page] = 1
    tree[PARENT, page] = tree[PARENT, rear]
    tree[LENGTH, rear] = left
    tree[PARENT, rear] = page
    leave_list(tree, rear)
    join_list(tree, rear)
    join_list(tree, page)
    return rear


@kernel
def grow_leaf(tree, entries, first, count, parent):
    """Make the pages of `count` arena entries a new leaf under a node, or under the root (-1)."""
    leaf = np.int64(entries[f.PAGE, first + count - 1])
    before = parent
    for at in range(first, first + count):
        page = np.int64(entries[f.PAGE, at])
        tree[NODE, page] = leaf
        tree[BEFORE, page] = before
        before = page
    tree[LENGTH, leaf] = count
    tree[CHILDREN, leaf] = 0
    tree[PARENT, leaf] = parent
    if parent >= 0:
        tree[CHILDREN, parent] += 1
    join_list(tree, leaf)


@kernel
def free_leaf(scalars, pages, tree, leaf):
    """Take an unlocked leaf out of the tree: its pages lose their keys and head the queue."""
    leave_list(tree, leaf)
    parent = np.int64(tree[PARENT, leaf])
    if parent >= 0:
        tree[CHILDREN, parent] -= 1
    page = leaf
    for _ in range(tree[LENGTH, leaf]):
        pages[f.KEY, page] = 0
        pages[f.STATE, page] = f.FREE_PAGE
        unlink(pages, page)
        enqueue(scalars, pages, page, True)
        page = np.int64(tree[BEFORE, page])
    scalars[f.CACHED] -= tree[LENGTH, leaf]
    scalars[f.RECLAIMED_TOTAL] += tree[LENGTH, leaf]


@kernel
def make_free(scalars, pages, tree, count):
    """Evict leaves until `count` pages are free or none is left to evict; return how many went.

    Only the last leaf may be more than it takes.
    """
    end = tree.shape[1] - 1
    free = scalars[f.PAGES] - scalars[f.HELD] - scalars[f.CACHED] - scalars[f.PARKED]
    leaves = np.int64(0)
    node = np.int64(tree[NEWER, end])
    while free < count and node != end:
        newer = np.int64(tree[NEWER, node])
        # A parent stands behind its children, so it is met after they are gone.
        if pages[f.REFCOUNT, node] == 0 and tree[CHILDREN, node] == 0:
            free += tree[LENGTH, node]
            free_leaf(scalars, pages, tree, node)
            leaves += 1
        node = newer
    return leaves
