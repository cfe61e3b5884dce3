"""What sequences read once a span is gone: rows of token numbers, and keys of positions.

The context is that of test_quarantine_study: pages of 4, a prefix of 6, a span of 7, a suffix of 5.
"""

from __future__ import annotations

import numpy as np
import pytest
from differential.moving import KeyedStore
from moved import append as append_rows
from moved import in_order

from kvsim.lab.studies.quarantine_keys import REWRITES, Quarantine
from kvsim.lab.studies.quarantine_removal import Removal
from kvsim.paging import Ledger, Order, single

METHODS = ("renumber", "compact", "keep", "keep_aligned", "reprefill_suffix", "reset")


class Keyed(Ledger):
    """A ledger whose rows are token numbers and whose keys are their positions."""

    def append(self, sequence, tokens, rows=None):
        if rows is None:
            append_rows(self, sequence, tokens)
        else:
            super().append(sequence, tokens, rows)


class WithoutCopies(KeyedStore):
    """A store that writes through to the page that others still read: the control."""

    def apply(self, plan):
        super().apply(plan)
        plan = plan.copy()
        plan[1] = plan[0]
        super().apply(plan)


def built(method, sharing="each", store=KeyedStore):
    """Return a removal on a ledger with rows, before anything is removed."""
    order = Order(
        compaction="forward" if method == "compact" else "none",
        positions="renumber" if method in REWRITES else "keep",
    )
    ledger = Keyed(single(), 4, ordering=order, store=store((0,), (0,), 4))
    study = Quarantine(method, sharing, 6, 7, 5, 3)
    removal = Removal(ledger, study)
    removal.build()
    return removal


def keyed(removal, member):
    """Return the rows of a sequence, and the positions that its keys are rotated to."""
    ledger = removal.ledger
    numbers, positions = in_order(ledger, member)
    keys = ledger.store.keys[0, ledger.physical(member, 0, ledger.rows(member, 0)[0])]
    assert keys.tolist() == positions
    return numbers, positions


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("sharing", ["each", "once"])
def test_every_sequence_reads_the_rows_that_stay_at_their_positions(method, sharing):
    removal = built(method, sharing if method in REWRITES else "each")
    removal.remove()
    removal.ledger.check()
    kept = [*range(6), *range(13, 18)]
    wanted = {
        "keep": (kept, kept),
        "keep_aligned": ([*range(8), *range(12, 18)],) * 2,
    }
    if method in REWRITES:
        wanted[method] = (kept, list(range(11)))
    # What is computed again is numbered anew by the test's ledger, as its positions are.
    expected = wanted.get(method, (list(range(11)),) * 2)
    assert len(removal.members) == 3
    for member in removal.members:
        assert keyed(removal, member) == expected
    assert removal.ledger.sequences() == sorted(removal.members)


def test_sharers_see_nothing_of_a_rewrite_until_they_drop_the_span_too():
    """With the control that must fail: without copies on write their keys turn under them."""
    whole = (list(range(18)),) * 2
    for method in REWRITES:
        removal = built(method)
        removal._rewrite(removal.members[0])
        for member in removal.members[1:]:
            assert keyed(removal, member) == whole
        broken = built(method, store=WithoutCopies)
        broken._rewrite(broken.members[0])
        with pytest.raises(AssertionError):
            keyed(broken, broken.members[1])


def test_the_slots_of_a_victim_list_are_those_of_the_span():
    assert built("keep").victims().tolist() == list(range(6, 13))
    assert built("keep_aligned").victims().tolist() == [8, 9, 10, 11]
    assert np.array_equal(built("keep_aligned").span_left(), [6, 7, 12])
