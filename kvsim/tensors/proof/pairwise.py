"""A pairwise cover: few cases in which every two values that may meet do meet.

Most faults of a parametrized system show when two parameters meet (Kuhn, Wallace and Gallo 2004).
The cover is built greedily, in the manner of AETG (Cohen et al. 1997), without randomness.
"""

from __future__ import annotations

from collections.abc import Container, Iterable

import numpy as np

from kvsim.tensors.proof.matrix import NUMBERS, VALUES, Case, Group, groups, of_values

PREFERRED = NUMBERS["keys", "float32"]


def allowed_pairs() -> np.ndarray:
    """Return which two values of different axes may meet, bool [value, value], symmetric."""
    group_of = _group_of()
    # Across groups everything meets; inside one, what stands in the same combination.
    pairs = group_of[:, None] != group_of[None]
    for group in groups():
        columns = group.combinations.T
        for left in range(len(columns)):
            for right in range(len(columns)):
                if left != right:
                    pairs[columns[left], columns[right]] = True
    return pairs


def cover() -> list[Case]:
    """Return cases in which every allowed pair of values meets; always the same ones."""
    open_pairs = allowed_pairs()
    used = np.zeros(open_pairs.shape, np.int64)
    found = []
    while open_pairs.any():
        first, second = np.unravel_index(int(open_pairs.argmax()), open_pairs.shape)
        chosen = _case_with(open_pairs, used, (int(first), int(second)))
        open_pairs[np.ix_(chosen, chosen)] = False
        used[np.ix_(chosen, chosen)] += 1
        # Where there is a choice, float32 rows are taken: they are what is claimed, and the only
        # ones that the streaming kernel moves.
        used[PREFERRED] = used[:, PREFERRED] = 0
        found.append(of_values(chosen))
    return found


def pairs_met(cases: Iterable[Case], idle: Container[Case] = ()) -> np.ndarray:
    """Return which two values of different axes meet in these cases, bool [value, value].

    In idle ones the kernel that was asked for moved nothing, so that no value met it.
    """
    met = np.zeros((len(VALUES), len(VALUES)), np.bool_)
    for case in cases:
        values = [
            NUMBERS[pair]
            for pair in case._asdict().items()
            if pair[0] != "kernel" or case not in idle
        ]
        met[np.ix_(values, values)] = True
    np.fill_diagonal(met, False)
    return met


def _group_of() -> np.ndarray:
    """Return the group that each value belongs to, int64 [value]."""
    of_axis = {axis: number for number, group in enumerate(groups()) for axis in group.axes}
    return np.array([of_axis[axis] for axis, _ in VALUES])


def _case_with(open_pairs: np.ndarray, used: np.ndarray, wanted: tuple[int, int]) -> list[int]:
    """Return the values of a case that holds two wanted ones and covers many open pairs.

    Of combinations that cover equally many, the one whose pairs were met least often is taken.
    """
    chosen: list[int] = []
    # Groups that hold a wanted value come first: they have the least choice.
    bound = {int(_group_of()[value]) for value in wanted}
    numbers = range(len(groups()))
    for number in sorted(numbers, key=lambda at: (at not in bound, -len(groups()[at].axes))):
        candidates = _with(groups()[number], wanted)
        seen = [*wanted, *chosen]
        gain = _met(open_pairs, candidates, seen)
        candidates = candidates[gain == gain.max()]
        often = _met(used, candidates, seen)
        chosen += candidates[int(often.argmin())].tolist()
    return chosen


def _with(group: Group, wanted: tuple[int, int]) -> np.ndarray:
    """Return the combinations of a group that have those wanted values which are its own."""
    candidates = group.combinations
    for value in wanted:
        axis = VALUES[value][0]
        if axis in group.axes:
            candidates = candidates[candidates[:, group.axes.index(axis)] == value]
    return candidates


def _met(pairs: np.ndarray, candidates: np.ndarray, seen: list[int]) -> np.ndarray:
    """Sum a table of pairs over those that each candidate makes, inside and with those seen."""
    with_seen = pairs[:, seen].sum(axis=1)
    columns = np.ascontiguousarray(candidates.T)
    total = with_seen[columns].sum(axis=0)
    for left in range(len(columns)):
        for right in range(left):
            total += pairs[columns[left], columns[right]]
    return total
