"""Small scenarios of the radix cache, with every number worked out by hand.

Pages have 4 tokens, a step takes a millisecond, and a request of one output token is there for
one step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from kvsim.engine.serving import fields as s
from kvsim.engine.serving.drive import Drive, Foreign
from kvsim.engine.serving.engine import ServingEngine
from kvsim.engine.serving.radix_arrays import check_keys, check_tree, tree_of
from kvsim.engine.serving.settings import Eviction, Settings
from kvsim.errors import LedgerError, ScenarioError
from kvsim.paging import fields as f
from kvsim.paging import single
from kvsim.workload.requests import Requests
from tests.engine.serving_clock import MS, a_millisecond

Row = tuple[int, int, int, list[int]]


def _requests(rows: Sequence[Row]) -> Requests:
    """Rows of (arrival in ms, input, output, keys)."""
    keys = [key for row in rows for key in row[3]]
    return Requests(
        page_tokens=4,
        arrival_ns=np.array([row[0] * MS for row in rows]),
        input_tokens=np.array([row[1] for row in rows]),
        output_tokens=np.array([row[2] for row in rows]),
        priority=np.zeros(len(rows), np.int64),
        samples=np.ones(len(rows), np.int64),
        keys=np.array(keys, np.int32),
        key_start=np.cumsum([0, *(len(row[3]) for row in rows)]),
        given_keys=max(keys, default=-1) + 1,
    )


def _run(rows: Sequence[Row], **settings: object) -> tuple[ServingEngine, list[tuple[int, int]]]:
    """Run rows of requests to the end; see `_serve`."""
    return _serve(_requests(rows), **settings)  # type: ignore[arg-type]


def _serve(
    requests: Requests, foreign: tuple[Foreign, ...] = (), **settings: object
) -> tuple[ServingEngine, list[tuple[int, int]]]:
    """Run to the end; return the engine, and (held, cached) pages after each step."""
    engine = ServingEngine(
        requests,
        Settings(**{"prefix": "radix", **settings}),  # type: ignore[arg-type]
        a_millisecond(),
        single(),
    )
    seen: list[tuple[int, int]] = []

    def watch(of: ServingEngine) -> None:
        of.check()
        seen.append((of.ledger.total(f.HELD), of.ledger.total(f.CACHED)))

    Drive(engine, foreign, every_steps=1, watch=watch).run()
    return engine, seen


def _totals(engine: ServingEngine) -> tuple[int, int, int]:
    """Return (leaves evicted, their pages, nodes cut)."""
    leaves, cuts = (int(engine.state[x]) for x in (s.EVICTED_LEAVES_TOTAL, s.CUTS_TOTAL))
    return leaves, engine.ledger.total(f.RECLAIMED_TOTAL), cuts


def _hits(engine: ServingEngine) -> list[int]:
    return [int(hits) for hits in engine.rows[:, s.HIT_TOKENS]]


def test_a_node_is_split_where_a_request_diverges() -> None:
    # The first leaves a node of three pages. The second shares two of them: the node is cut
    # behind them, and the page of its own becomes a leaf beside the rest.
    engine, _ = _run([(0, 12, 1, [0, 1, 2]), (5, 12, 1, [0, 1, 3])], ceiling_pages=8)
    assert _hits(engine) == [0, 8]
    assert _totals(engine) == (0, 0, 1)
    assert engine.ledger.total(f.CACHED) == 4


def test_a_node_is_split_where_a_request_stops() -> None:
    # Its last token is always computed: of its two pages one is a hit, where the node is cut.
    # The other one is computed again, and freed at the end of the step as a duplicate of what
    # follows the cut: it was held by then, so the second cut is behind the second page.
    engine, seen = _run([(0, 12, 1, [0, 1, 2]), (5, 8, 2, [0, 1])], ceiling_pages=8)
    assert _hits(engine) == [0, 4]
    assert _totals(engine) == (0, 0, 2)
    assert engine.ledger.total(f.ALLOCATED_TOTAL) == 3 + 1 + 1
    assert engine.ledger.total(f.FREED_TOTAL) == 1
    # While it decodes it holds the two pages of the tree; then one more for its next row.
    assert seen[1:3] == [(2, 1), (0, 3)]


def test_equal_prompts_of_one_step_are_merged_at_its_end() -> None:
    # Neither finds the other, because nothing is inserted before the step ends: four pages are
    # taken, and the two of the second are freed as duplicates.
    engine, seen = _run([(0, 8, 3, [0, 1]), (0, 8, 3, [0, 1])], ceiling_pages=8)
    assert _hits(engine) == [0, 0]
    assert engine.ledger.total(f.FREED_TOTAL) == 2
    assert seen[0] == (2, 0)


@pytest.mark.parametrize(("prefix", "gone"), [("radix", 5), ("blocks", 1)])
def test_a_whole_leaf_goes_where_one_page_is_missing(prefix: str, gone: int) -> None:
    # Five of eight pages are cached, and four are needed.
    engine, _ = _run([(0, 20, 1, []), (5, 16, 1, [])], ceiling_pages=8, prefix=prefix)
    assert engine.ledger.total(f.RECLAIMED_TOTAL) == gone
    assert engine.ledger.total(f.CACHED) == 5 - gone + 4


def test_a_running_request_locks_its_path_to_the_root() -> None:
    rows = [
        (0, 8, 1, [0, 1]),
        # Hits the node of the first, which was used before all others, and stays until 15 ms
        # with four pages.
        (10, 12, 5, [0, 1, 2]),
        # Is there for a step, and leaves a page: used last, and the only one that is not locked.
        (12, 4, 1, []),
        # One page of six is free and two are needed: that one goes.
        (13, 8, 1, []),
        # Hits three pages. The pages of the request before it were used before the rest of the
        # second's, which was used when it finished: both of them go, though one is needed.
        (20, 13, 1, [0, 1, 2]),
    ]
    engine, _ = _run(rows, ceiling_pages=6)
    assert _hits(engine) == [0, 8, 0, 0, 12]
    assert _totals(engine) == (2, 1 + 2, 0)
    assert engine.ledger.total(f.CACHED) == 4


@pytest.mark.parametrize(
    ("tokens", "leaves", "pages"),
    [
        # The rest of the node that was cut goes before the leaf beside it,
        (4, 1, 1),
        # which goes before their parent, that is a leaf then,
        (8, 2, 2),
        # and goes as a whole: four pages for three.
        (12, 3, 4),
    ],
)
def test_a_parent_without_children_is_a_leaf(tokens: int, leaves: int, pages: int) -> None:
    rows = [(0, 12, 1, [0, 1, 2]), (5, 12, 1, [0, 1, 3]), (10, tokens, 1, [])]
    engine, seen = _run(rows, ceiling_pages=4)
    assert seen[1] == (0, 4)
    assert _totals(engine) == (leaves, pages, 1)
    assert engine.ledger.total(f.CACHED) == 4 - pages + tokens // 4


def test_the_rest_of_a_cut_node_goes_first() -> None:
    # After the third request, only the second's leaf is left beside the parent.
    rows = [(0, 12, 1, [0, 1, 2]), (5, 12, 1, [0, 1, 3]), (10, 4, 1, []), (20, 13, 1, [0, 1, 3])]
    engine, _ = _run(rows, ceiling_pages=4)
    assert _hits(engine)[3] == 12


def test_a_preempted_request_finds_what_it_inserted() -> None:
    # Three pages. The second is preempted in the second step, when the first takes the third
    # page: its page is inserted, and nothing is evicted for a step. It comes back when the first
    # has left, with one token generated: its page is a hit, and one token is computed.
    engine, _ = _run([(0, 4, 5, []), (0, 4, 5, [])], ceiling_pages=3, step_tokens=8, max_running=2)
    assert int(engine.state[s.PREEMPTIONS_TOTAL]) == 1
    assert _hits(engine) == [0, 4]
    assert int(engine.state[s.PREFILLED_TOTAL]) == 4 + 4 + 1


def test_the_page_of_a_withdrawn_row_is_not_inserted() -> None:
    # Pages of one token, and the first request is the less urgent one. In the third step its
    # third row takes the last of four pages, and then the second needs one: the first is
    # preempted. Two pages of it are inserted, and the third one is free: the second takes it.
    requests = replace(
        _requests([(0, 1, 4, []), (1, 1, 2, [])]),
        priority=np.array([1, 0], np.int64),
        page_tokens=1,
    )
    engine, seen = _serve(
        requests, ceiling_pages=4, step_tokens=8, max_running=2, admission="priority"
    )
    assert int(engine.state[s.PREEMPTIONS_TOTAL]) == 1
    # The second has left with two rows.
    assert seen[2] == (0, 4)
    # The first finds its two pages, and its third and fourth row take those of the second, which
    # are two leaves: what it computed, and below it what it generated.
    assert _hits(engine) == [2, 0]
    assert _totals(engine) == (2, 2, 0)


def test_a_cancelled_request_leaves_its_pages() -> None:
    # It has 4 rows after its first step and 8 after its fifth; when it is cancelled, at 6 ms, its
    # second page is full, and another prompt begins with the same tokens.
    engine, _ = _run(
        [(0, 4, 8, [0, 1, 2]), (20, 9, 1, [0, 1])],
        foreign=(Foreign(6 * MS, lambda e: e.cancel(0)),),
        ceiling_pages=8,
    )
    assert _hits(engine) == [0, 8]


def test_a_refused_request_is_looked_at_again_after_an_insertion() -> None:
    # In the first step it would need four pages, and two of five are left. The three that the
    # first has computed are in the tree at its end, so one is enough then, though the first has
    # taken another one.
    engine, _ = _run(
        [(0, 12, 3, [0, 1, 2]), (0, 13, 1, [0, 1, 2])],
        ceiling_pages=5,
        step_tokens=32,
        max_running=2,
    )
    assert engine.rows[:, s.SCHEDULED_NS].tolist() == [0, MS]
    assert _hits(engine) == [0, 12]


def test_a_pool_whose_ceiling_falls_parks_whole_leaves() -> None:
    engine, _ = _run([(0, 20, 1, []), (5, 8, 1, [])], ceiling_pages=8)
    assert engine.ledger.total(f.CACHED) == 7
    # One of eight pages is free; four have to go, and the oldest leaf has five.
    engine.set_ceiling(4)
    engine.check()
    assert engine.ledger.total(f.CACHED) == 2
    assert engine.ledger.total(f.PARKED) == 4
    # And pages that come back are free ones.
    engine.set_ceiling(16)
    engine.check()
    assert engine.ledger.total(f.CACHED) == 2


def test_settings_that_do_not_go_with_it_are_refused() -> None:
    with pytest.raises(ScenarioError, match=r"prefix\.unhashed: tail"):
        Settings(prefix="radix", unhashed="tail")
    with pytest.raises(ScenarioError, match=r"prefix\.cache: radix does not go with a policy"):
        Settings(prefix="radix", eviction=Eviction(order="oldest"))


def test_keys_that_are_no_prefixes_are_refused() -> None:
    with pytest.raises(ScenarioError, match="request 1: key 1 follows another key"):
        check_keys(_requests([(0, 8, 1, [0, 1]), (0, 8, 1, [2, 1])]))
    check_keys(_requests([(0, 8, 1, [0, 1]), (0, 4, 1, []), (0, 8, 1, [0, 2])]))


def test_a_tree_grows_with_its_list() -> None:
    engine, _ = _run([(0, 12, 1, [0, 1, 2]), (5, 12, 1, [0, 1, 3])], ceiling_pages=8)
    before = engine.serving.tree
    wider = tree_of(20, before)
    order = []
    for tree, end in ((before, 8), (wider, 20)):
        nodes, at = [], int(tree[6, end])
        while at != end:
            nodes.append(at)
            at = int(tree[6, at])
        order.append(nodes)
    assert order[0] == order[1]
    assert len(order[0]) == 3


def test_the_check_sees_a_tree_that_is_wrong() -> None:
    engine, _ = _run([(0, 12, 1, [0, 1, 2]), (5, 12, 1, [0, 1, 3])], ceiling_pages=8)
    for field in range(engine.serving.tree.shape[0]):
        node = int(engine.serving.tree[6, 8])
        wrong = engine.serving.tree.copy()
        wrong[field, node] = 7
        with pytest.raises(LedgerError, match="the radix tree"):
            check_tree(engine.ledger.arrays, wrong)
