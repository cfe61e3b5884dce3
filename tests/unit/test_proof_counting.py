"""The proof's independent count of pages, by hand."""

from __future__ import annotations

from kvsim.tensors.proof.counting import PageCount


def count_of(turning=(0,), **order):
    usual = {"compaction": "none", "unit": "slot", "positions": "renumber", "append": "tail"}
    return PageCount(4, ((0,),), **(usual | order), turning=(frozenset(turning),))


def test_the_count_by_hand_forks_and_copies():
    """A count that ignores sharing, or that copies when nothing is written."""
    count = count_of()
    count.open(0)
    count.append(0, [range(7)])
    assert count.held == 2
    count.fork(0, 1)
    assert count.held == 2
    # Positions 2 to 4 die; 5 and 6 turn in the shared second page.
    count.evict(1, [{2, 3, 4}])
    assert (count.held, count.taken, count.freed) == (3, 3, 0)
    count.append(0, [range(7, 9)])
    assert count.held == 4
    count.free(0)
    assert count.held == 2


def test_the_count_by_hand_compacts():
    """A compaction that is counted as another one."""
    held = {}
    for compaction in ("none", "rebuild", "forward", "hole_fill"):
        count = count_of(compaction=compaction)
        count.open(0)
        count.append(0, [range(16)])
        count.fork(0, 1)
        count.evict(1, [{5, 6, 9, 10}])
        held[compaction] = count.held, count.taken
    # Of 12 survivors, 0 to 4 stay in the first page and in the first slot of the second.
    assert held == {"none": (7, 7), "rebuild": (7, 7), "forward": (6, 6), "hole_fill": (6, 6)}


def test_the_count_by_hand_copies_only_what_turns():
    """Values, or keys without rotation, that are copied because positions changed."""
    held = []
    for turning in ((0,), ()):
        for compaction in ("none", "forward"):
            count = count_of(turning, compaction=compaction)
            count.open(0)
            count.append(0, [range(12)])
            count.fork(0, 1)
            # The first page goes; what is left moves no row, and turns or not.
            count.evict(1, [{0, 1, 2, 3}])
            held.append(count.held)
    assert held == [5, 5, 3, 3]


def test_the_count_by_hand_reuses_holes_of_unshared_pages():
    """A new token in a dead slot of a page that a fork still reads."""
    count = count_of(append="reuse_holes", positions="keep")
    count.open(0)
    count.append(0, [range(8)])
    count.evict(0, [{1, 2}])
    count.append(0, [range(8, 10)])
    assert count.held == 2
    count.fork(0, 1)
    count.evict(1, [{4, 5}])
    count.append(1, [range(10, 11)])
    assert count.held == 3
    count.reserve(1, 12)
    # 9 slots and 12 more are 6 pages, and 3 are named.
    assert count.held == 6
    count.clone(1, 2)
    assert count.held == 12
