"""A heap of numbers by key, the largest key on top and of equal keys the larger number.

`place_of[n]` is where n stands in the heap, -1 where it does not, so that any entry can be moved
or taken out.
"""

from __future__ import annotations

import numpy as np

from kvsim.jit import kernel


@kernel
def above(keys, one, other):
    """Whether one stands above another."""
    return keys[one] > keys[other] or (keys[one] == keys[other] and one > other)


@kernel
def sift_up(heap, place_of, keys, place):
    """Move an entry up to its place."""
    one = heap[place]
    while place > 0:
        parent = (place - 1) >> 1
        other = heap[parent]
        if not above(keys, one, other):
            break
        heap[place] = other
        place_of[other] = place
        place = parent
    heap[place] = one
    place_of[one] = place


@kernel
def sift_down(heap, place_of, keys, place, size):
    """Move an entry down to its place."""
    one = heap[place]
    child = 2 * place + 1
    while child < size:
        if child + 1 < size and above(keys, heap[child + 1], heap[child]):
            child += 1
        other = heap[child]
        if not above(keys, other, one):
            break
        heap[place] = other
        place_of[other] = place
        place = child
        child = 2 * place + 1
    heap[place] = one
    place_of[one] = place


@kernel
def push(heap, place_of, keys, one, size):
    """Put a number into a heap of `size`, and return the new size."""
    heap[size] = one
    sift_up(heap, place_of, keys, size)
    return size + 1


@kernel
def remove(heap, place_of, keys, place, size):
    """Take out the entry at a place of a heap of `size`, and return the new size."""
    place_of[heap[place]] = -1
    last = size - 1
    if place < last:
        heap[place] = heap[last]
        place_of[heap[place]] = place
        sift_up(heap, place_of, keys, place)
        sift_down(heap, place_of, keys, np.int64(place_of[heap[place]]), last)
    return last
