"""A heap of the slots that a member may lose next, where single tokens go at every step.

It lies in two arrays beside the arena, at the place of the member's table: the least priority is
at the root, and among equals the oldest slot. A slot enters it when it is old enough.
"""

from __future__ import annotations

import numpy as np

from kvsim.jit import kernel


@kernel
def goes_first(priorities, slots, one, other):
    """Tell whether one place of the arrays goes before another."""
    if priorities[one] != priorities[other]:
        return priorities[one] < priorities[other]
    return slots[one] < slots[other]


@kernel
def swap(priorities, slots, one, other):
    """Exchange two places."""
    priorities[one], priorities[other] = priorities[other], priorities[one]
    slots[one], slots[other] = slots[other], slots[one]


@kernel
def put(priorities, slots, base, size, priority, slot):
    """Put a slot into the heap of `size` slots that begins at `base`."""
    at = size
    priorities[base + at] = priority
    slots[base + at] = slot
    while at > 0:
        above = (at - 1) // 2
        if not goes_first(priorities, slots, base + at, base + above):
            break
        swap(priorities, slots, base + at, base + above)
        at = above


@kernel
def take(priorities, slots, base, size):
    """Take the first slot out of a heap of `size` slots, and return it."""
    slot = np.int64(slots[base])
    size -= 1
    priorities[base] = priorities[base + size]
    slots[base] = slots[base + size]
    at = np.int64(0)
    while True:
        least = 2 * at + 1
        if least >= size:
            break
        if least + 1 < size and goes_first(priorities, slots, base + least + 1, base + least):
            least += 1
        if not goes_first(priorities, slots, base + least, base + at):
            break
        swap(priorities, slots, base + least, base + at)
        at = least
    return slot
