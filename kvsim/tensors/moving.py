"""The kernels that carry out a plan on real rows: copy, or rotate from k_raw while copying.

Two kernels with the same bits: one with plain loads and stores for any shape, and one with
non-temporal stores for rows of whole cache lines. Moves are carried out in plan order.
"""

from __future__ import annotations

import numpy as np

from kvsim.jit import kernel
from kvsim.paging import fields as f
from kvsim.tensors import lanes as n
from kvsim.tensors import streaming
from kvsim.tensors.streaming import fence, prefetch, stream, stream_moved, stream_rotated

#: What a rotation stores where the machine makes a NaN: its sign and payload never leak.
CANONICAL_NAN = np.array([streaming.CANONICAL_NAN_BITS], np.uint32).view(np.float32)[0]


@kernel
def copy_part(plane, source, target, first, width):
    """Copy some elements of one slot to another."""
    for at in range(first, first + width):
        plane[target, at] = plane[source, at]


@kernel
def rotate_part(key, raw, source, target, lane, cosines, sines, first):
    """Set a key's rotated elements from the pre-RoPE row: two products and one sum each."""
    half = lane[n.ROPE_DIM] // 2
    read = lane[n.RAW_AT] + lane[n.ROPE_FROM]
    write = lane[n.KEY_AT] + lane[n.CARRIED] + lane[n.ROPE_FROM]
    pairing = lane[n.PAIRING]
    for pair in range(half):
        near, far, upper, lower = pair, pair + half, pair, pair + half
        if pairing > 0:
            near, far = 2 * pair, 2 * pair + 1
        if pairing == 1:
            upper, lower = 2 * pair, 2 * pair + 1
        a = np.float32(raw[source, read + near])
        b = np.float32(raw[source, read + far])
        c = cosines[first + pair]
        s = sines[first + pair]
        x = a * c - b * s
        y = b * c + a * s
        key[target, write + upper] = x if x == x else CANONICAL_NAN
        key[target, write + lower] = y if y == y else CANONICAL_NAN


@kernel
def move_plainly(key, raw, value, plan, moves, lanes, starts, sets, cosines, sines, at, halves):
    """Carry out a plan on one block with plain loads and stores.

    Parameters
    ----------
    key, raw, value : float32 or float64 [slot, elements]
        Planes of the block; without elements where the plane set has none.
    plan : int64 [PLAN_FIELDS, move]
    lanes, starts : int64
        As in `lanes.Block`.
    sets : int
        Sets inside a scope unit.
    cosines, sines : float32 [n]
        All rotation tables, one behind the other.
    at, halves : int64 [table]
        Where each table begins, and the pairs of one position in it.
    """
    for move in range(moves):
        which = plan[f.SET_OF, move]
        base = plan[f.SCOPE_OF, move] * sets
        first = starts[base + max(which, 0)]
        last = starts[base + which + 1] if which >= 0 else starts[base + sets]
        source = plan[f.SOURCE, move]
        target = plan[f.TARGET, move]
        where = plan[f.POSITION, move]
        for index in range(first, last):
            lane = lanes[index]
            if where < 0:
                copy_part(key, source, target, lane[n.KEY_AT], lane[n.KEY])
            elif lane[n.KEY]:
                copy_part(key, source, target, lane[n.KEY_AT], lane[n.CARRIED])
                rotated = lane[n.ROPE_FROM] + lane[n.ROPE_DIM]
                key_at = lane[n.KEY_AT] + lane[n.CARRIED]
                for element in range(lane[n.RAW]):
                    if element < lane[n.ROPE_FROM] or element >= rotated:
                        key[target, key_at + element] = raw[source, lane[n.RAW_AT] + element]
                table = lane[n.TABLE]
                if lane[n.ROPE_DIM]:
                    begin = at[table] + where * halves[table]
                    rotate_part(key, raw, source, target, lane, cosines, sines, begin)
            if source != target:
                copy_part(raw, source, target, lane[n.RAW_AT], lane[n.RAW])
                copy_part(value, source, target, lane[n.VALUE_AT], lane[n.VALUE])


@kernel
def stream_keys(key, raw, plan, moves, lanes, starts, sets, cosines, sines, at, halves):
    """Carry out a plan on the key and k_raw planes, as `move_plainly` does."""
    line = streaming.LINE_BYTES
    keys, raws = key.ctypes.data, raw.ctypes.data
    cosine_at, sine_at = cosines.ctypes.data, sines.ctypes.data
    key_bytes, raw_bytes = 4 * key.shape[1], 4 * raw.shape[1]
    for move in range(moves):
        which = plan[f.SET_OF, move]
        base = plan[f.SCOPE_OF, move] * sets
        first = starts[base + max(which, 0)]
        last = starts[base + which + 1] if which >= 0 else starts[base + sets]
        source = plan[f.SOURCE, move]
        target = plan[f.TARGET, move]
        where = plan[f.POSITION, move]
        moved = source != target
        key_from, key_to = keys + source * key_bytes, keys + target * key_bytes
        raw_from, raw_to = raws + source * raw_bytes, raws + target * raw_bytes
        # The machine follows rows by itself within a page of memory, and not to the next slot.
        raw_next = raws + plan[f.SOURCE, min(move + 1, moves - 1)] * raw_bytes
        for index in range(first, last):
            near = 4 * lanes[index, n.KEY_AT]
            far = 4 * lanes[index, n.RAW_AT]
            key_end = near + 4 * lanes[index, n.KEY]
            raw_end = far + 4 * lanes[index, n.RAW]
            half = 2 * lanes[index, n.ROPE_DIM]
            if where >= 0 and half > 0:
                table = lanes[index, n.TABLE]
                begin = 4 * (at[table] + where * halves[table])
                if moved:
                    for byte in range(0, half, line):
                        stream_moved(
                            key_to + near + byte,
                            raw_to + far + byte,
                            raw_from + far + byte,
                            cosine_at + begin + byte,
                            sine_at + begin + byte,
                            half,
                        )
                else:
                    for byte in range(0, half, line):
                        prefetch(raw_next + far + byte)
                        prefetch(raw_next + far + byte + half)
                        stream_rotated(
                            key_to + near + byte,
                            raw_from + far + byte,
                            cosine_at + begin + byte,
                            sine_at + begin + byte,
                            half,
                        )
                continue
            if where >= 0:
                for byte in range(0, key_end - near, line):
                    stream(key_to + near + byte, raw_from + far + byte)
            elif moved:
                for byte in range(near, key_end, line):
                    stream(key_to + byte, key_from + byte)
            if moved:
                for byte in range(far, raw_end, line):
                    stream(raw_to + byte, raw_from + byte)


@kernel
def stream_values(value, plan, moves, lanes, starts, sets):
    """Carry out a plan on the value plane: what moves is copied, what stays stays."""
    line = streaming.LINE_BYTES
    values = value.ctypes.data
    value_bytes = 4 * value.shape[1]
    for move in range(moves):
        source = plan[f.SOURCE, move]
        target = plan[f.TARGET, move]
        if source == target:
            continue
        which = plan[f.SET_OF, move]
        base = plan[f.SCOPE_OF, move] * sets
        first = starts[base + max(which, 0)]
        last = starts[base + which + 1] if which >= 0 else starts[base + sets]
        value_from, value_to = values + source * value_bytes, values + target * value_bytes
        for index in range(first, last):
            begin = 4 * lanes[index, n.VALUE_AT]
            for byte in range(begin, begin + 4 * lanes[index, n.VALUE], line):
                stream(value_to + byte, value_from + byte)


@kernel
def move_streaming(key, raw, value, plan, moves, lanes, starts, sets, cosines, sines, at, halves):
    """Carry out a plan as `move_plainly` does, with non-temporal stores.

    Every row must be whole cache lines in float32, at addresses of whole lines, and rotate as a
    whole in half-split pairs or not at all. Keys and values go in two passes: two planes that
    are written while a third is read at the same offset in its page of memory wait on one another.
    """
    stream_keys(key, raw, plan, moves, lanes, starts, sets, cosines, sines, at, halves)
    stream_values(value, plan, moves, lanes, starts, sets)
    fence()


def can_stream(lanes: np.ndarray, planes: list[np.ndarray]) -> bool:
    """Tell whether rows and addresses are such that `move_streaming` may be used here."""
    if not streaming.STREAMS:
        return False
    for plane in planes:
        if plane.size and (plane.dtype != np.float32 or plane.ctypes.data % streaming.LINE_BYTES):
            return False
        if plane.shape[1] % streaming.LANES:
            return False
    for column in (n.KEY_AT, n.KEY, n.RAW_AT, n.RAW, n.VALUE_AT, n.VALUE):
        if (lanes[:, column] % streaming.LANES).any():
            return False
    turns = lanes[:, n.ROPE_DIM] > 0
    whole = (lanes[:, n.ROPE_DIM] == lanes[:, n.RAW]) & (lanes[:, n.PAIRING] == 0)
    half_lines = lanes[:, n.ROPE_DIM] % (2 * streaming.LANES) == 0
    # Without a pre-RoPE row no move rotates.
    rotates = (lanes[:, n.KEY] > 0) & (lanes[:, n.RAW] > 0)
    no_parts = lanes[:, n.CARRIED] == 0
    return bool((~rotates | (no_parts & (~turns | (whole & half_lines)))).all())
