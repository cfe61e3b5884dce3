"""Numbers for prefixes of ids: the nodes of the prefix tree.

An open-addressing table inside flat arrays, grown from Python. A prefix is (the prefix before
it, its last id), so two requests get the same numbers exactly as far as all their ids agree.
"""

from __future__ import annotations

import numpy as np

from kvsim.jit import kernel

ROOT = -1
# Products of 32-bit parts and these stay inside 63 bits: the same hash with and without the JIT.
_LOW, _HIGH, _PARENT, _LAST = 0x2C1B3C6D, 0x297A2D39, 0x1B873593, 0x3C6EF35F
_PART = 0xFFFFFFFF
_FIRST_SLOTS = 1 << 12
# Ids of many lists numbered at once: room is made for all of them, as if each were new.
_PIECE = 1 << 16


@kernel
def slot_of(parent, one, mask):
    """Return where the search for a prefix begins."""
    mixed = (one & _PART) * _LOW ^ (one >> 32 & _PART) * _HIGH ^ (parent + 1) * _PARENT
    mixed ^= mixed >> 32
    return (mixed & _PART) * _LAST >> 20 & mask


@kernel
def find_all(ids, begin, end, slots, keys, count, nodes):
    """Write the number of each prefix, making new ones; return how many there are then.

    Parameters
    ----------
    ids : int64 [n]
    begin, end : int
        Where one list of ids begins and ends.
    slots : int32 [power of two]
        Numbers, -1 where empty; the caller keeps half of them empty.
    keys : int64 [capacity, 2]
        Of each number, the number of the prefix before it and the id.
    count : int
        Numbers there are.
    nodes : int64 [n]
        On entry, numbers of another list of ids that may begin alike (-1: none); on return,
        of these.
    """
    mask = np.int64(slots.size - 1)
    parent = np.int64(ROOT)
    alike = True
    for i in range(begin, end):
        one = ids[i]
        guess = nodes[i]
        # A turn of a conversation mostly repeats the turn before it: no search for that part.
        if alike and guess >= 0 and keys[guess, 0] == parent and keys[guess, 1] == one:
            parent = guess
            continue
        alike = False
        at = slot_of(parent, one, mask)
        node = np.int64(slots[at])
        while node >= 0 and not (keys[node, 0] == parent and keys[node, 1] == one):
            at = at + 1 & mask
            node = np.int64(slots[at])
        if node < 0:
            node = count
            count += 1
            slots[at] = node
            keys[node, 0] = parent
            keys[node, 1] = one
        nodes[i] = node
        parent = node
    return count


@kernel
def find_each(ids, starts, slots, keys, count, nodes):
    """Do the same for lists that lie behind each other; each is guessed to begin as the last."""
    for r in range(starts.size - 1):
        begin, end = starts[r], starts[r + 1]
        if r:
            before = starts[r - 1]
            for i in range(begin, end):
                nodes[i] = nodes[before + i - begin] if before + i - begin < begin else -1
        count = find_all(ids, begin, end, slots, keys, count, nodes)
    return count


@kernel
def refill(slots, keys, count):
    """Enter all numbers into an empty, larger table."""
    mask = np.int64(slots.size - 1)
    for node in range(count):
        # A number that was handed out without an id is found by nobody.
        if keys[node, 0] == ROOT - 1:
            continue
        at = slot_of(keys[node, 0], keys[node, 1], mask)
        while slots[at] >= 0:
            at = at + 1 & mask
        slots[at] = node


class Chains:
    """Numbers of prefixes, from 0, in the order in which they first come up."""

    def __init__(self) -> None:
        self.count = 0
        self._slots = np.full(_FIRST_SLOTS, -1, dtype=np.int32)
        self._keys = np.zeros((_FIRST_SLOTS // 2, 2), dtype=np.int64)
        self._last = np.zeros(0, dtype=np.int64)

    def _make_room(self, more: int) -> None:
        size = self._slots.size
        while self.count + more > size // 2:
            size *= 2
        if size == self._slots.size:
            return
        keys = np.zeros((size // 2, 2), dtype=np.int64)
        keys[: self.count] = self._keys[: self.count]
        self._keys = keys
        self._slots = np.full(size, -1, dtype=np.int32)
        refill(self._slots, self._keys, self.count)

    def __call__(self, ids: np.ndarray) -> np.ndarray:
        """Return the number of the prefix that each id ends, int64 [n].

        Numbers from the count before the call on are new.
        """
        self._make_room(ids.size)
        nodes = np.full(ids.size, -1, dtype=np.int64)
        known = min(ids.size, self._last.size)
        nodes[:known] = self._last[:known]
        self.count = int(find_all(ids, 0, ids.size, self._slots, self._keys, self.count, nodes))
        self._last = nodes
        return nodes

    def each(self, ids: np.ndarray, starts: np.ndarray) -> np.ndarray:
        """Return what a call for each of many lists in turn would, int64 [n].

        Parameters
        ----------
        ids : int64 [n]
            The lists behind each other.
        starts : int64 [lists + 1]
            Where each begins, and the end of the last.
        """
        nodes = np.full(ids.size, -1, dtype=np.int64)
        first, lists = 0, starts.size - 1
        while first < lists:
            begin = int(starts[first])
            # One list at least, and no more than a piece beyond it.
            behind = int(np.searchsorted(starts, begin + _PIECE, side="right")) - 1
            behind = min(max(behind, first + 1), lists)
            part = slice(begin, int(starts[behind]))
            inside, found = starts[first : behind + 1] - begin, nodes[part]
            self._make_room(found.size)
            known = min(int(inside[1]), self._last.size)
            found[:known] = self._last[:known]
            self.count = int(
                find_each(ids[part], inside, self._slots, self._keys, self.count, found)
            )
            self._last = found[int(inside[-2]) :].copy()
            first = behind
        return nodes

    def fresh(self) -> int:
        """Return a number that stands for content nobody else has."""
        self._make_room(1)
        self._keys[self.count] = ROOT - 1
        self.count += 1
        return self.count - 1

    def parents(self) -> np.ndarray:
        """Return the number of the prefix before each, -1 where there is none; int64 [count]."""
        return self._keys[: self.count, 0].copy()
