"""A heap of the slots that a member may lose next, where single tokens go at every step.

It lies in an array beside the arena, at the place of the member's table, a priority and its slot
side by side: the least priority is at the root, and among equals the oldest slot. A slot enters
it when it is old enough.
"""

from __future__ import annotations

import numpy as np

from kvsim.jit import kernel


@kernel
def goes_first(heap, place, priority, slot):
    """Tell whether what stands at a place goes before another slot."""
    found = heap[place, 0]
    return found < priority or (found == priority and heap[place, 1] < slot)


@kernel
def put(heap, base, size, priority, slot):
    """Put a slot into the heap of `size` slots that begins at `base`."""
    at = size
    while at > 0:
        above = (at - 1) // 2
        if goes_first(heap, base + above, priority, slot):
            break
        heap[base + at, 0] = heap[base + above, 0]
        heap[base + at, 1] = heap[base + above, 1]
        at = above
    heap[base + at, 0] = priority
    heap[base + at, 1] = slot


@kernel
def sink(heap, base, size, priority, slot):
    """Let a slot take the place of the root, and restore the order below."""
    at = np.int64(0)
    while True:
        least = 2 * at + 1
        if least >= size:
            break
        if least + 1 < size:
            left = base + least
            least += goes_first(heap, left + 1, heap[left, 0], heap[left, 1])
        if not goes_first(heap, base + least, priority, slot):
            break
        heap[base + at, 0] = heap[base + least, 0]
        heap[base + at, 1] = heap[base + least, 1]
        at = least
    heap[base + at, 0] = priority
    heap[base + at, 1] = slot


@kernel
def take(heap, base, size):
    """Take the first slot out of a heap of `size` slots, and return it."""
    slot = heap[base, 1]
    size -= 1
    sink(heap, base, size, heap[base + size, 0], heap[base + size, 1])
    return slot


@kernel
def put_and_take(heap, base, size, priority, slot):
    """Return the slot that goes first of a heap and one more, which stays in it otherwise."""
    if size == 0 or not goes_first(heap, base, priority, slot):
        return slot
    first = heap[base, 1]
    sink(heap, base, size, priority, slot)
    return first
