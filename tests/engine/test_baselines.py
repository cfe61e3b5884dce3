"""The baselines of `kvsim bench engine`: tiny runs that were worked out by hand.

Kills: an arrival served a step late, a generated token whose row is written in its own step, a
victim that keeps its row, a hit past the last token, a key that outlives its page's content, a
copy too many among forks, an eviction that forgets to rewind.
"""

from __future__ import annotations

import numpy as np
import pytest
from engine_workloads import Steps, requests

from kvsim.bench import engine_numpy, engine_process
from kvsim.bench.engine_process_members import Keys, Member
from kvsim.bench.engine_report import StaticEviction, Terms


def both(of, terms):
    """Run both engines; return the process engine's report and what its steps were told."""
    steps = Steps()
    report = engine_process.serve(of, terms, steps, checking=True)
    other = Steps()
    assert report.differences(engine_numpy.serve(of, terms, other)) == []
    assert steps.told == other.told
    return report, steps.told


def test_two_requests_by_hand():
    # Step 1, at 0: A's 6 tokens in 2 pages; its first token at 100. B arrived at 50.
    # Step 2: A writes row 7; B's 3 tokens in 1 page. At 200 A has 2 tokens, B has 1.
    # Step 3: A writes row 8, B row 4, both the last slot of their page. Both end at 300.
    report, told = both(requests((0, 6, 3, 0, 1), (50, 3, 2, 0, 1)), Terms(8, 2))
    assert told == [(0, 0, 6, 6, 21, 0, 0), (1, 7, 3, 3, 6, 0, 0), (2, 12, 0, 0, 0, 0, 0)]
    assert (report.steps, report.end_ns, report.finished) == (3, 300, 2)
    assert (report.generated_tokens_total, report.prefilled_tokens_total) == (5, 9)
    assert (report.allocated_pages_total, report.held_pages_peak) == (3, 3)
    assert report.page_integral == 2 + 3 + 3
    assert report.first_token_ns.tolist() == [100, 200]
    assert report.last_token_ns.tolist() == [300, 300]


def test_a_prompt_in_chunks_and_no_output_by_hand():
    # 10 tokens, 4 a step: 4, 4, 2. Without output it ends with its prefill, without a token.
    report, told = both(requests((30, 10, 0, 0, 1)), Terms(4, 1))
    assert [step[2:5] for step in told] == [(4, 4, 10), (4, 8, 4 * 4 + 10), (2, 10, 8 * 2 + 3)]
    assert (report.end_ns, report.page_integral, report.finished) == (330, 1 + 2 + 3, 1)
    assert report.last_token_ns.tolist() == [-1]


def test_recompute_by_hand():
    # A: 4 + 6, B: 4 + 4, three pages. Step 2: A takes the third page for row 5; B, the last of
    # the running, needs one too and is preempted itself. It knows 5 tokens, 2 pages, and waits
    # until A, which takes its own third page in step 6, has left. Steps 7 to 9: 5 tokens are
    # computed for its second token, then rows 6 and 7.
    report, _ = both(requests((0, 4, 6, 0, 1), (0, 4, 4, 0, 1)), Terms(16, 4, ceiling_pages=3))
    assert (report.steps, report.preemptions_total) == (9, 1)
    assert report.request_preemptions.tolist() == [0, 1]
    assert report.prefilled_tokens_total == 4 + 4 + 5
    assert report.generated_tokens_total == 10
    assert report.allocated_pages_total == 2 + 1 + 1 + 2
    assert report.page_integral == 5 * 2 + 3 + 3 * 2
    assert report.first_token_ns.tolist() == [100, 100]
    assert report.last_token_ns.tolist() == [600, 900]


def test_a_hit_in_the_step_that_publishes_by_hand():
    # B's first two pages are published by A's prefill in the same step; its ninth token is not
    # in no page yet. C has two pages of known tokens; the last token is always computed.
    of = requests((0, 9, 1, 0, 1), (0, 9, 1, 0, 1), (200, 8, 1, 0, 1), keys=[[0, 1]] * 3)
    steps = Steps()
    report = engine_process.serve(of, Terms(16, 2, cache="blocks"), steps, checking=True)
    # One chunk of 9 rows after 0 and one of 1 row after 8; then one of 4 rows after 4.
    assert steps.told == [(0, 0, 10, 9 + 9, 45 + 9, 0, 0), (0, 0, 4, 8, 16 + 10, 0, 0)]
    assert report.hit_tokens.tolist() == [0, 8, 4]
    assert (report.hit_tokens_total, report.allocated_pages_total) == (12, 3 + 1 + 1)


def test_a_victim_finds_its_own_pages_by_hand():
    # B hits two pages of A's at once. In step 5 both need a page for row 13, and one is left: B
    # is preempted. It knows 13 tokens in step 6, and its third page is cached like the others.
    of = requests((0, 9, 5, 0, 1), (0, 9, 5, 0, 1), keys=[[0, 1], [0, 1]])
    terms = Terms(16, 2, ceiling_pages=5, cache="blocks")
    report = engine_process.serve(of, terms, Steps(), checking=True)
    assert report.request_preemptions.tolist() == [0, 1]
    assert (report.hit_tokens.tolist(), report.hit_tokens_total) == ([0, 12], 8 + 12)
    assert (report.prefilled_tokens_total, report.steps) == (9 + 1 + 1, 6)


def test_samples_have_equal_keys_in_the_prompt_and_own_ones_behind_it():
    # Request 0 is given one key and has 13 tokens: its second page is all prompt, its third is not.
    of = requests((0, 9, 4, 0, 2), (0, 4, 4, 0, 1), keys=[[0], []])
    keys = Keys(of)
    first, second = (Member(0, sample, 0, 0, 9, 4, 1) for sample in (0, 1))
    assert [keys.of(first, entry) for entry in range(3)] == [0, 1, 2]
    assert [keys.of(second, entry) for entry in range(3)] == [0, 1, 4]
    assert keys.of(Member(1, 0, 0, 0, 4, 4, 1), 0) == 5


def test_tails_are_reused_first_by_hand():
    # Three pages. A leaves 1 and then 0 at the tail, behind page 2, which was never used. B
    # takes 2 and 1, so A's second key is gone. C hits A's first page only and takes the rest.
    of = requests(
        (0, 8, 1, 0, 1), (200, 8, 1, 0, 1), (400, 9, 1, 0, 1), keys=[[0, 1], [2, 3], [0, 1]]
    )
    terms = Terms(16, 2, ceiling_pages=3, cache="blocks")
    report = engine_process.serve(of, terms, Steps(), checking=True)
    assert report.hit_tokens.tolist() == [0, 0, 4]
    assert report.allocated_pages_total == 2 + 2 + 2


@pytest.mark.parametrize(("unhashed", "hit"), [("head", 4), ("tail", 0)])
def test_where_pages_without_a_key_go_by_hand(unhashed, hit):
    # Two pages. X leaves page 0 with a key. Y takes page 1, never used, and leaves it without
    # one: before page 0 or behind it. Z takes whichever is first; X's prompt comes again.
    of = requests(
        (0, 4, 1, 0, 1),
        (200, 3, 1, 0, 1),
        (400, 3, 1, 0, 1),
        (600, 5, 1, 0, 1),
        keys=[[0], [], [], [0]],
    )
    terms = Terms(16, 2, ceiling_pages=2, cache="blocks", unhashed=unhashed)
    report = engine_process.serve(of, terms, Steps(), checking=True)
    assert report.hit_tokens.tolist() == [0, 0, 0, hit]


@pytest.mark.parametrize(("publish", "hit"), [("all", 8), ("prompt", 4)])
def test_which_pages_are_published_by_hand(publish, hit):
    # A's second page holds 2 prompt tokens and 2 generated ones; its third row of output, which
    # would fill more, is never written.
    of = requests((0, 6, 3, 0, 1), (400, 9, 1, 0, 1), keys=[[0, 1], [0, 1]])
    terms = Terms(16, 2, cache="blocks", publish=publish)
    report = engine_process.serve(of, terms, Steps(), checking=True)
    assert report.hit_tokens.tolist() == [0, hit]


def test_samples_copy_on_write_by_hand():
    # 6 tokens in 2 pages, three samples of 2 tokens. The first two to write row 7 copy the two
    # rows of the shared last page; the third has it to itself by then. Two seats are too few.
    of = requests((0, 6, 2, 0, 3))
    steps = Steps()
    report = engine_process.serve(of, Terms(8, 3, row_bytes=10), steps, checking=True)
    assert steps.told == [(0, 0, 6, 6, 21, 0, 0), (3, 21, 0, 0, 0, 2 * 10 * 4, 0)]
    assert (report.cow_pages_total, report.copied_rows_total) == (2, 4)
    assert (report.allocated_pages_total, report.page_integral) == (4, 2 + 4)
    assert (report.generated_tokens_total, report.finished) == (6, 3)
    report = engine_process.serve(of, Terms(8, 2), steps)
    assert report.outcome == "infeasible: request 0 needs 3 seats and there are 2"


def test_samples_are_evicted_like_their_parent_by_hand():
    # 6 tokens in pages of 2; each of two samples keeps the newest 2, so two pages have no reader.
    of = requests((0, 6, 1, 0, 2), page_tokens=2)
    eviction = StaticEviction("streaming", tokens=2, when="prefill_end")
    report = engine_process.serve(of, Terms(8, 2, eviction=eviction), Steps(), checking=True)
    assert (report.evicted_tokens_total, report.freed_pages_total) == (2 * 4, 2)
    assert report.page_integral == 1


def test_a_sibling_that_goes_makes_its_copy_needless():
    # Three pages hold prompt and first copy; the third sample is preempted for the second's
    # copy, whose page then is nobody else's. It comes back alone, and hits nothing.
    of = requests((0, 6, 2, 0, 3))
    report = engine_process.serve(of, Terms(8, 3, ceiling_pages=3), Steps(), checking=True)
    assert (report.preemptions_total, report.cow_pages_total) == (1, 1)
    assert (report.outcome, report.finished) == ("completed", 3)
    assert report.prefilled_tokens_total == 6 + 7


def test_a_victim_that_already_wrote_by_hand():
    # A: 4 + 9 of low priority, B: 8 + 2 of high; 3 pages, 5 tokens a step. Step 2: A takes its
    # second page, B is admitted with 4 tokens. Step 3: A writes row 6; B's next 4 tokens need a
    # page, and A is the victim: the step is B's chunk alone. Step 4: B writes row 9. Steps 5, 6:
    # A's 6 known tokens again, 5 and 1; then its tokens 4 to 9, one a step.
    of = requests((0, 4, 9, 1, 1), (50, 8, 2, 0, 1))
    steps = Steps()
    terms = Terms(5, 2, ceiling_pages=3, order="priority")
    report = engine_process.serve(of, terms, steps, checking=True)
    assert steps.told[1:4] == [
        (1, 5, 4, 4, 10, 0, 0),
        (0, 0, 4, 8, 4 * 4 + 10, 0, 0),
        (1, 9, 0, 0, 0, 0, 0),
    ]
    assert report.request_preemptions.tolist() == [1, 0]
    assert (report.steps, report.prefilled_tokens_total) == (12, 4 + 8 + 6)
    assert report.last_token_ns.tolist() == [1200, 400]


def test_streaming_by_hand():
    # Pages of 2, keep 4 with the first protected. After the prefill of 6, positions 1 and 2 go.
    # Rows 6, 7, 8 drive out 3, 4, 5: 3 empties page 1, 5 empties page 2.
    of = requests((0, 6, 4, 0, 1), page_tokens=2)
    eviction = StaticEviction("streaming", tokens=4, sinks=1)
    report, told = both(of, Terms(8, 1, eviction=eviction))
    assert [step[1] for step in told] == [0, 7, 8 - 2, 9 - 2]
    assert (report.evicted_tokens_total, report.freed_pages_total) == (2 + 3, 2)
    assert (report.allocated_pages_total, report.page_integral) == (5, 4 * 3)


def test_a_page_that_a_victim_would_have_filled_is_not_served_by_hand():
    # X (4 + 5) holds key 0, so A's equal first page has none. B (2 + 9) comes at 50. In step 5
    # A fills its second page, under key 1; then B needs a page, and A is the victim: B takes
    # A's first page, which went to the queue's head last. C, which knows both pages, is
    # admitted in step 6 when X has left, and finds the first one only.
    of = requests(
        (0, 4, 5, 0, 1),
        (0, 4, 6, 1, 1),
        (50, 2, 9, 0, 1),
        (450, 9, 1, 0, 1),
        keys=[[0], [0, 1], [], [0, 1]],
    )
    terms = Terms(16, 4, ceiling_pages=5, order="priority", cache="blocks")
    report = engine_process.serve(of, terms, Steps(), checking=True)
    assert report.request_preemptions.tolist() == [0, 1, 0, 0]
    assert report.first_token_ns.tolist() == [100, 100, 200, 600]
    assert report.hit_tokens[3] == 4


@pytest.mark.parametrize(("outputs", "hit"), [(1, 4), (2, 0)])
def test_a_page_that_is_written_again_is_not_served(outputs, hit):
    # Rows 2 and 3 of a published page die and its cursor rewinds. Only if another token is
    # written over them is the page no longer what its key says.
    of = requests((0, 4, outputs, 0, 1), (400, 5, 1, 0, 1), keys=[[0], [0]])
    terms = Terms(8, 1, cache="blocks", eviction=StaticEviction("streaming", tokens=2, sinks=2))
    report = engine_process.serve(of, terms, Steps(), checking=True)
    assert report.hit_tokens.tolist() == [0, hit]


def splitmix(number, position, seed):
    """The priority of one token, in plain integers."""
    mask = (1 << 64) - 1
    x = number * 0x9E3779B97F4A7C15 + position * 0xBF58476D1CE4E5B9
    x = (x + seed * 0x94D049BB133111EB) & mask
    x = ((x ^ x >> 30) * 0xBF58476D1CE4E5B9) & mask
    x = ((x ^ x >> 27) * 0x94D049BB133111EB) & mask
    return (x ^ x >> 31) >> 1


def test_priorities_are_splitmix64s():
    found = StaticEviction("random", seed=3).priorities(5, 2, 9)
    assert found.dtype == np.int64
    assert found.tolist() == [splitmix(5, position, 3) for position in range(2, 9)]


@pytest.mark.parametrize("when", ["step", "prefill_end"])
@pytest.mark.parametrize(("sinks", "recent"), [(0, 0), (3, 0), (2, 2), (9, 9)])
def test_random_evictions_equal_a_set_of_positions(when, sinks, recent):
    eviction = StaticEviction("random", 0, 0.4, sinks, recent, when, seed=11)
    inputs, outputs = 23, 40
    of = requests((0, inputs, outputs, 0, 1), page_tokens=3)
    report, told = both(of, Terms(64, 1, eviction=eviction))
    # By hand: a set of live positions, and nothing else.
    live, cursor, gone = set(range(inputs)), inputs, 0
    reads = []
    for appended in range(inputs, inputs + outputs):
        if appended > inputs:
            live.add(cursor)
            cursor += 1
            pages = {position // 3 for position in live}
            reads.append(cursor - 3 * (-(-cursor // 3) - len(pages)))
        if when == "step" or appended == inputs:
            free = sorted(range(sinks, cursor - recent), key=lambda p: (splitmix(0, p, 11), p))
            excess = max(0, len(live) - int(0.4 * appended))
            victims = [p for p in free if p in live][:excess]
            live -= set(victims)
            gone += len(victims)
            cursor = max(live, default=-1) + 1
    assert report.evicted_tokens_total == gone > 0
    assert [step[1] for step in told[1:]] == reads


def test_decoding_is_progress():
    report, _ = both(requests((0, 4, 10_100, 0, 1), page_tokens=512), Terms(8, 1))
    assert (report.outcome, report.steps) == ("completed", 10_100)


@pytest.mark.parametrize(
    ("of", "terms", "reason"),
    [
        ((0, 20, 1, 0, 1), Terms(64, 1, ceiling_pages=4), "request 0 needs at least 5 pages"),
        ((0, 20, 1, 0, 1), Terms(16, 1, chunked=False), "request 0 needs 20 tokens in a step"),
        ((0, 20, 1, 0, 1), Terms(4, 1, ceiling_pages=4), "nothing new in 10000 steps"),
    ],
    ids=["pages", "step", "livelock"],
)
def test_infeasible(of, terms, reason):
    report, _ = both(requests(of), terms)
    assert report.outcome.startswith(f"infeasible: {reason}")
    assert report.finished == 0
