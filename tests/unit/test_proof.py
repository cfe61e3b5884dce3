"""The proof itself: its cover, its independent count, its comparisons, and that it can fail.

Each part is also broken on purpose here, because a proof that cannot fail proves nothing.
"""

from __future__ import annotations

import os
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest

from kvsim.errors import CeilingExceeded, LedgerError
from kvsim.paging import fields as f
from kvsim.seeds import stream
from kvsim.tensors import moving
from kvsim.tensors.array_store import ArrayStore
from kvsim.tensors.contiguous import ContiguousCache
from kvsim.tensors.proof import (
    ceilings,
    controls,
    fak,
    faults,
    matrix,
    pairwise,
    proving,
    quarantine,
)
from kvsim.tensors.proof.assembly import Gate
from kvsim.tensors.proof.codes import stored_keys
from kvsim.tensors.proof.controls import Control
from kvsim.tensors.proof.counting import PageCount
from kvsim.tensors.proof.lockstep import Lockstep
from kvsim.tensors.proof.script import run_case
from kvsim.tensors.proof.shapes import ODD, drawn_rows, rows_of
from kvsim.tensors.proof.tally import Tally
from kvsim.tensors.rope import rotate, tables

SEED = 7
DOCUMENT = Path(__file__).parents[2] / "docs" / "proof.md"
#: A case of the matrix that forks, copies on write, renumbers, compacts and runs into ceilings.
ONE = matrix.Case(
    family="dense",
    rotation="per_layer_theta",
    planes="kv_raw",
    keys="float32",
    positions="renumber",
    compaction="forward",
    unit="slot",
    append="tail",
    tables="shared",
    span="unaligned",
    forks=2,
    evicts="both",
    page_tokens=4,
    rounds=3,
    ceiling="tight",
    aside="swap",
    layout="page_major",
    kernel="portable",
    pages="churned",
    reuse="yes",
    values="normal",
)


@pytest.fixture(scope="module")
def cover():
    return pairwise.cover()


# Comparing


def test_bits_are_compared_and_not_numbers():
    tally = Tally()
    assert tally.words("zeros", np.float32([0.0, 1.0]), np.float32([-0.0, 1.0])) == 1
    nan = np.array([0x7FC00000, 0x7FC00001], np.uint32).view(np.float32)
    assert tally.words("NaN", nan, nan[::-1].copy()) == 2
    assert tally.words("NaN", nan, nan.copy()) == 0
    assert (tally.words_compared, tally.words_differing) == (6, 3)
    assert len(tally.failures) == 2
    assert not tally.holds


def test_other_shapes_and_types_differ_in_every_element():
    tally = Tally()
    assert tally.words("shape", np.zeros((2, 3)), np.zeros((3, 2))) == 6
    assert tally.words("type", np.zeros(4), np.zeros(4, np.float32)) == 4
    assert tally.words("nothing", np.zeros((0, 4)), np.zeros((0, 3))) == 1
    tally = Tally()
    tally.planes("planes", {"K": np.zeros(2)}, {"K": np.zeros(2), "V": np.zeros(2)})
    assert not tally.holds


# The matrix and its cover


def test_every_pair_of_values_that_may_meet_does_meet(cover):
    allowed, met = pairwise.allowed_pairs(), pairwise.pairs_met(cover)
    assert not (allowed & ~met).any()
    # And nothing meets that may not.
    assert not (met & ~allowed).any()
    assert np.array_equal(allowed, allowed.T)
    # Every two axes have a pair, and two values of one axis never meet.
    axis = np.array([list(matrix.AXES).index(name) for name, _ in matrix.VALUES])
    for left in range(len(matrix.AXES)):
        for right in range(len(matrix.AXES)):
            block = allowed[np.ix_(axis == left, axis == right)]
            assert block.any() == (left != right)


def test_the_cover_is_small_and_always_the_same(cover):
    assert pairwise.cover() == cover
    assert len(set(cover)) == len(cover) <= 150


def test_pairs_that_cases_of_the_product_have_are_those_that_are_allowed():
    rng = stream(SEED, "test")
    cases = [matrix.case_of(int(n)) for n in rng.integers(matrix.size(), size=4000)]
    met = pairwise.pairs_met(cases)
    assert not (met & ~pairwise.allowed_pairs()).any()
    # A sample so large meets nearly all, so the table of allowed pairs is not too wide either.
    assert met.sum() > 0.97 * pairwise.allowed_pairs().sum()


def test_what_cannot_be_is_not_in_the_matrix():
    for wrong in (
        {"planes": "raw_only", "keys": "int8"},
        {"unit": "row", "compaction": "none", "tables": "sets"},
        {"unit": "row", "tables": "shared"},
        {"append": "reuse_holes"},
        {"family": "glm_dsa", "rotation": "plain", "tables": "sets"},
        {"family": "glm_dsa", "rotation": "partial"},
        {"family": "mla", "rotation": "alibi"},
        {"kernel": "streaming"},
        {"kernel": "streaming", "family": "wide", "keys": "int8"},
        {"kernel": "streaming", "family": "wide", "rotation": "partial"},
        {"span": "per_set"},
        {"span": "per_set", "tables": "sets", "compaction": "none"},
        {"forks": 0, "evicts": "child"},
    ):
        with pytest.raises(ValueError, match="does not allow"):
            matrix.number_of(ONE._replace(**wrong))


def test_a_pair_with_an_idle_kernel_is_not_met(cover):
    """A kernel that was asked for, moved nothing, and counts as covered."""
    asked = [case for case in cover if case.kernel == "streaming"]
    met = pairwise.pairs_met(asked, set(asked))
    assert not met[matrix.NUMBERS["kernel", "streaming"]].any()
    others = [at for at, (axis, _) in enumerate(matrix.VALUES) if axis != "kernel"]
    assert np.array_equal(met[np.ix_(others, others)], pairwise.pairs_met(asked)[:, others][others])


def test_the_documentation_counts_the_axes_and_the_product():
    text = DOCUMENT.read_text(encoding="utf-8")
    assert len(matrix.AXES) == 21
    assert "Twenty-one axes" in text
    assert f"{matrix.size() / 1e9:.1f} thousand million cases" in text


def test_numbers_and_cases_are_one_to_one():
    rng = stream(SEED, "test")
    for number in (0, matrix.size() - 1, *rng.integers(matrix.size(), size=50).tolist()):
        assert matrix.number_of(matrix.case_of(number)) == number
    for number in (-1, matrix.size()):
        with pytest.raises(LedgerError, match="the matrix has cases 0 to"):
            proving.prove_case(number)


# The independent count


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


# What must hold


@pytest.mark.parametrize("name", [name for name, _ in fak.cases(SEED)])
def test_faks_cases_hold(name):
    tally = dict(fak.cases(SEED))[name]()
    assert tally.failures == []
    assert tally.words_compared > 0


def test_the_quarantine_invariant_holds():
    names = []
    for name, run in quarantine.cases(SEED):
        tally = run()
        assert tally.failures == [], name
        assert tally.words_compared > 0
        names.append(name)
    assert sum("never read it" in name for name in names) >= 12


def test_cases_of_the_cover_hold(cover):
    # Every fourth here; the whole cover runs as a user runs it, in tests/cli/test_prove.py.
    for case in cover[::4]:
        tally = run_case(case, SEED)
        assert tally.failures == []
        assert tally.words_compared > 0


def test_a_case_is_what_its_seed_makes_it():
    first, again, other = (run_case(ONE, seed) for seed in (1, 1, 2))
    assert first.failures == other.failures == []
    assert first.words_compared == again.words_compared
    one, two = (proving.prove_case(matrix.number_of(ONE), 1).as_dict() for _ in range(2))
    assert one | {"seconds": 0} == two | {"seconds": 0}
    assert one["words_compared"] == first.words_compared
    assert one["holds"]


@pytest.mark.skipif(not moving.streaming.STREAMS, reason="no non-temporal stores here")
def test_wide_rows_use_the_streaming_kernel(monkeypatch):
    used = []
    real = moving.move_streaming

    def watched(*arguments):
        used.append(arguments[3].shape[1])
        real(*arguments)

    monkeypatch.setattr(moving, "move_streaming", watched)
    wide = ONE._replace(family="wide", kernel="streaming")
    tally = run_case(wide, SEED)
    assert tally.failures == []
    assert sum(used) == tally.streamed_moves > tally.streamed_rotations > 0
    assert moving.move_streaming is watched
    used.clear()
    assert run_case(wide._replace(kernel="portable"), SEED).failures == []
    assert used == []


def test_odd_rows_reach_the_cache_bit_for_bit():
    shape = rows_of("dense", "plain", "kv_raw").shape
    rows = drawn_rows(shape, 64, stream(SEED, "test"), odd="all")[0]
    for name in ("k", "v"):
        found = set(np.unique(rows[name].view(np.uint32)).tolist())
        assert set(ODD.view(np.uint32).tolist()) <= found
    assert np.isfinite(drawn_rows(shape, 64, stream(SEED, "test"), odd="values")[0]["k"]).all()


# The controls, and controls of the controls


@pytest.mark.parametrize("run", [run for run in controls.controls(SEED)])
def test_every_control_is_noticed(run):
    control = run()
    assert control.detected, control
    assert control.detail


def started(tally, family="dense"):
    rows = rows_of(family, "per_layer_theta", "kv_raw")
    both = Lockstep(rows, 4, tally, stream(SEED, "test"), compaction="forward")
    parent = both.open()
    both.append(parent, 14)
    return both, parent, both.fork(parent)


@pytest.mark.parametrize("fault", ["none", "between", "cow", "stale"])
def test_a_sibling_is_corrupted_by_the_fault_alone(fault):
    tally = Tally()
    both, _, child = started(tally)
    if fault == "between":
        faults.Between(both.paged)
    if fault == "stale":
        faults.Stale(both.paged, child)
    believing = faults.no_page_looks_shared(both.paged) if fault == "cow" else nullcontext()
    with believing:
        both.paged.evict_span(child, 2, 3)
    both.twins[child][0].evict_span(2, 3)
    parent = min(both.twins)
    tally.planes("sibling", both.paged.rows(parent), both.twins[parent][0].rows())
    assert tally.holds == (fault in ("none", "between"))


def test_one_rotation_is_not_two():
    """The control of the composition: with the real store the same comparison holds."""
    tally = Tally()
    both, _, child = started(tally)
    both.evict_span(child, 2, 3)
    both.verify("evicted")
    assert tally.holds


def test_rows_gathered_in_order_give_the_same_logits():
    tally = Tally()
    both, parent, _ = started(tally)
    view = both.paged.view(parent)
    same = controls._Reordered(view, np.arange(14))
    decoder = both.rows.decoder
    tally.words("logits", decoder.next_logits(same, 3), decoder.next_logits(view, 3))
    assert tally.holds


# What goes wrong is seen


def broken_apply(real, how):
    def apply(self, plan):
        wrong = plan.copy()
        how(wrong)
        real(self, wrong)

    return apply


def no_rotation(plan):
    plan[f.POSITION] = -1


def one_position_off(plan):
    plan[f.POSITION, plan[f.POSITION] > 0] -= 1


def backwards(plan):
    plan[:] = plan[:, ::-1].copy()


@pytest.mark.parametrize("how", [no_rotation, one_position_off, backwards])
def test_a_broken_store_is_noticed(how, monkeypatch):
    monkeypatch.setattr(ArrayStore, "apply", broken_apply(ArrayStore.apply, how))
    tally = run_case(ONE, SEED)
    assert tally.words_differing > 0
    case, what = tally.failures[0]
    assert case.startswith(f"case {matrix.number_of(ONE)}: family=dense")
    assert "words differ" in what
    # fak's own sizes are too small to see moves in the wrong order; all of its cases together do.
    assert [name for name, run in fak.cases(SEED) if not run().holds]


def test_a_wrong_page_count_is_noticed(monkeypatch):
    monkeypatch.setattr(PageCount, "held", property(lambda self: 1))
    assert any("pages held" in what for _, what in run_case(ONE, SEED).failures)


def test_a_wrong_twin_is_noticed(monkeypatch):
    """Logits and rows are those of the twin: a twin that forgets too much must be seen."""
    real = ContiguousCache.evict_span
    monkeypatch.setattr(
        ContiguousCache, "evict_span", lambda self, first, count: real(self, first, count + 1)
    )
    found = " ".join(what for _, what in run_case(ONE, SEED).failures)
    assert "lengths or next positions differ" in found


def test_a_crash_is_a_failure_and_the_proof_goes_on(monkeypatch):
    def crash(self, plan):
        raise RuntimeError("what no case expects")

    monkeypatch.setattr(ArrayStore, "apply", crash)
    tally = run_case(ONE, SEED)
    assert tally.failures[-1][1] == "RuntimeError: what no case expects"
    report = proving._run([("one", lambda: 1 / 0), ("two", lambda: Tally(cases=1))], lambda: None)
    assert report.cases == 2
    assert report.failures == [("one", "ZeroDivisionError: division by zero")]


def test_a_refused_verb_that_changes_a_byte_is_noticed():
    tally = Tally()
    both, _, _ = started(Tally())
    cache, tries = both.paged, []

    def verb():
        tries.append(len(tries))
        if len(tries) < 3:
            cache.store.planes[0]["V"][0, 0] += 1
            raise CeilingExceeded("verb", 1, 0)
        return "done"

    assert ceilings.under_ceilings(cache, verb, tally) == "done"
    assert len([w for _, w in tally.failures if "changed something" in w]) == 2
    ledger = cache.ledger
    assert ledger._arrays.scalars[f.CEILING] > 10**6
    before = ceilings.fingerprint(cache)
    ceilings.set_ceiling(cache, 12)
    assert ceilings.fingerprint(cache) == before
    ledger._arrays.dead[0] ^= 1
    assert ceilings.fingerprint(cache) != before


def test_ceilings_are_tried_from_below():
    """A refusal that asks for a page too few or too many, or never ends."""
    both, _, _ = started(Tally())
    ledger = both.paged.ledger
    held = ledger.held_pages

    def needing(pages, asked):
        def verb():
            free = int(ledger._arrays.scalars[f.CEILING]) - held
            if free < pages:
                raise CeilingExceeded("verb", asked, free)
            return free

        return verb

    tally = Tally()
    assert ceilings.under_ceilings(both.paged, needing(5, 5), tally) == 5
    assert tally.holds
    tally = Tally()
    ceilings.under_ceilings(both.paged, needing(5, 7), tally)
    assert not tally.holds
    tally = Tally()
    ceilings.under_ceilings(both.paged, needing(50, 3), tally)
    assert not tally.holds


def test_stored_codes_are_those_of_the_rotated_key():
    """Codes of the wrong rows, or a scale that covers two parts of a key."""
    shape = rows_of("mla", "plain", "kv_raw").shape
    spec = shape.families[0].rows[0]
    keys = stream(SEED, "test").standard_normal((3, 24), dtype=np.float32)
    keys[:, :16] *= 100
    found = stored_keys("int8", spec, keys)
    assert found["K"].shape == (3, 24)
    assert found["K_scale"].shape == (3, 2)
    assert (found["K_scale"][:, 0] > 10 * found["K_scale"][:, 1]).all()


def test_every_verdict_needs_all_of_it():
    good = proving.Report(
        7, controls=[Control("one", True, ""), Control("two", "undetectable", "")]
    )
    assert good.holds
    assert not proving.Report(7, controls=[Control("one", False, "")]).holds
    assert not proving.Report(7, gate=Gate("failed")).holds
    assert not proving.Report(7, sections={"one": Tally(words_differing=1)}).holds
    assert not proving.Report(7, sections={"one": Tally(failures=[("case", "what")])}).holds
    gates = (
        (Gate("skipped", reason="why"), "undetectable"),
        (Gate("passed", fuses=False), "undetectable"),
        (Gate("passed", fuses=True), False),
        (Gate("passed", control=3, fuses=True), True),
    )
    assert [proving._gate_control(gate).detected for gate, _ in gates] == [d for _, d in gates]


def test_fastmath_differs_from_two_products_and_a_sum():
    """Unless this processor has no FMA, and then the control says that it cannot tell."""
    control = controls.fastmath(stream(SEED, "test"))
    assert control.detected in (True, "undetectable")
    if control.detected == "undetectable":
        assert "FMA" in control.detail or "NUMBA_DISABLE_JIT" in control.detail
    # The same kernel without fastmath has the bits of the reference.
    raw = stream(SEED, "test").standard_normal((4, 128), dtype=np.float32)
    shape = rows_of("wide", "plain", "kv_raw").shape
    cos, sin = tables(shape.ropes[0], 4)
    wide = raw.reshape(4, 2, 64)
    plain = rotate(wide, cos[:, None], sin[:, None], "half_split").reshape(4, 128)
    out = np.empty_like(raw)
    lane = controls.assembly.lane_of(64)
    for row in range(4):
        moving.rotate_part(out, raw, row, row, lane, cos.ravel(), sin.ravel(), row * 32)
    assert np.array_equal(out[:, :64].view(np.uint32), plain[:, :64].copy().view(np.uint32))


def test_time_goes_into_cases_of_the_product(monkeypatch):
    """A product that repeats the cover or itself, or that does not end with the time."""
    monkeypatch.setattr(
        proving, "run_case", lambda case, seed: Tally(cases=1, case=case.describe())
    )
    report = proving.Report(7, product=matrix.size())
    known = {1, 2}
    cases = proving._shuffled(7, known, report)
    names = [next(cases)[0] for _ in range(200)]
    assert len(set(names)) == 200
    assert report.product_run == 200
    again = proving._shuffled(7, {1, 2}, proving.Report(7, product=matrix.size()))
    assert [next(again)[0] for _ in range(200)] == names
    assert list(proving._until(0.0, cases, 0.0, None)) == []


@pytest.mark.nightly
def test_the_product_for_long():
    seconds = float(os.environ.get("KVSIM_PROVE_SECONDS", "3600"))
    report = proving.prove(int(os.environ.get("KVSIM_PROVE_SEED", "7")), seconds)
    assert report.as_dict()["failures"] == []
    assert report.holds
    assert report.product_run > len(pairwise.cover())


@pytest.mark.nightly
def test_two_proofs_say_the_same():
    one, two = (proving.prove(11).as_dict() for _ in range(2))
    assert one | {"seconds": 0} == two | {"seconds": 0}
