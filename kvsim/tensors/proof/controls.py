"""Controls: what the proof must notice, done on purpose. One that goes unnoticed fails the proof.

Each runs a broken twin through the same comparison as the cases, and asks whether that failed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from kvsim.layout.families import dense
from kvsim.seeds import stream
from kvsim.tensors.paged_cache import SequenceView
from kvsim.tensors.proof import assembly
from kvsim.tensors.proof.faults import Composing, Rewriting, Stale, no_page_looks_shared
from kvsim.tensors.proof.lockstep import Lockstep
from kvsim.tensors.proof.quarantine import quarantined
from kvsim.tensors.proof.shapes import Rows, decoder_of, rows_of
from kvsim.tensors.proof.tally import Tally
from kvsim.tensors.rope import Rope, rotate, tables
from kvsim.tensors.shape import CacheShape

HEAD_DIM, WIDE_TOKENS = 128, 64
#: What a control says where the machine cannot commit the fault: no FMA, or nothing compiled.
UNDETECTABLE = "undetectable"


class Control(NamedTuple):
    """A control and what came of it.

    Attributes
    ----------
    name : str
    detected : bool or "undetectable"
    detail : str
    """

    name: str
    detected: bool | str
    detail: str


def controls(seed: int) -> Iterator[Callable[[], Control]]:
    """Yield every control but that of the FMA gate, which comes with the gate."""
    for number, run in enumerate(
        (
            *(composed, fastmath, skipped_cow, stale_destination, another_order, late_eviction),
            *(unsigned_zeros, lost_payloads),
        )
    ):
        yield _bound(run, seed, number)


def _bound(
    run: Callable[[np.random.Generator], Control], seed: int, number: int
) -> Callable[[], Control]:
    return lambda: run(stream(seed, "test", 3, number))


def composed(rng: np.random.Generator) -> Control:
    """Two rotations in a row are not one: at head_dim 128 most elements differ."""
    shape = CacheShape(dense([2], HEAD_DIM, HEAD_DIM), (Rope(HEAD_DIM),), "kv_raw", 256)
    tally = Tally()
    both = Lockstep(Rows(shape, None), 16, tally, rng, compaction="forward")
    sequence = both.open()
    both.append(sequence, WIDE_TOKENS)
    Composing(both.paged, moved=20)
    receipt = both.evict_span(sequence, 5, 20)
    both.verify("composed")
    turned = receipt.survivors_rotated_rows * HEAD_DIM
    share = tally.words_differing / turned
    return Control(
        "two rotations composed",
        share >= 0.5,
        f"{100 * share:.0f}% of {turned} elements of K differ at head_dim {HEAD_DIM}",
    )


def fastmath(rng: np.random.Generator) -> Control:
    """The product's own rotation, compiled with fastmath: products and sums fuse."""
    name = "a fastmath kernel"
    twin = assembly.fastmath_twin()
    if twin is None:
        return Control(name, UNDETECTABLE, "kernels are not compiled: NUMBA_DISABLE_JIT")
    raw = rng.standard_normal((WIDE_TOKENS, HEAD_DIM), dtype=np.float32)
    cos, sin = tables(Rope(HEAD_DIM), WIDE_TOKENS)
    fast = np.empty_like(raw)
    lane = assembly.lane_of(HEAD_DIM)
    for row in range(WIDE_TOKENS):
        twin(fast, raw, row, row, lane, cos.ravel(), sin.ravel(), row * HEAD_DIM // 2)
    tally = Tally()
    differing = tally.words("K", fast, rotate(raw, cos, sin, "half_split"))
    detail = f"{differing} of {raw.size} elements of K differ"
    if not differing and not assembly.processor_fuses():
        return Control(name, UNDETECTABLE, "this processor has no FMA")
    return Control(name, differing > 0, detail)


def _forked(rng: np.random.Generator, tally: Tally) -> tuple[Lockstep, int, int]:
    rows = rows_of("dense", "per_layer_theta", "kv_raw")
    both = Lockstep(rows, 4, tally, rng, compaction="forward")
    parent = both.open()
    both.append(parent, 14)
    return both, parent, both.fork(parent)


def _sibling(name: str, both: Lockstep, parent: int) -> Control:
    """Return whether the parent's rows are no longer what they should be."""
    seen = Tally()
    seen.planes("the sibling", both.paged.rows(parent), both.twins[parent][0].rows())
    return Control(
        name,
        seen.words_differing > 0,
        f"{seen.words_differing} of the sibling's {seen.words_compared} words differ",
    )


def skipped_cow(rng: np.random.Generator) -> Control:
    """A child that writes into pages which its parent reads."""
    both, parent, child = _forked(rng, Tally())
    with no_page_looks_shared(both.paged):
        both.paged.evict_span(child, 2, 3)
    return _sibling("a skipped copy-on-write", both, parent)


def stale_destination(rng: np.random.Generator) -> Control:
    """A child that copies pages on write, and then writes where they were."""
    both, parent, child = _forked(rng, Tally())
    Stale(both.paged, child)
    both.paged.evict_span(child, 2, 3)
    return _sibling("a stale destination after copy-on-write", both, parent)


class _Reordered:
    """A sequence whose rows are gathered in another order than that of their positions."""

    def __init__(self, view: SequenceView, order: np.ndarray) -> None:
        self._view = view
        self._order = order

    @property
    def next_position(self) -> int:
        return self._view.next_position

    def rows(self, family: int = 0) -> dict[str, np.ndarray]:
        return {
            name: np.ascontiguousarray(rows[self._order])
            for name, rows in self._view.rows(family).items()
        }

    def append(self, rows: Any) -> None:
        self._view.append(rows)


def another_order(rng: np.random.Generator) -> Control:
    """The same rows at the same positions, gathered as they lie in the pool: sums round anew."""
    rows = rows_of("dense", "per_layer_theta", "kv_raw")
    assert rows.decoder is not None
    both = Lockstep(rows, 4, Tally(), rng, order="lifo")
    first, second = both.open(), both.open()
    for sequence in (first, second) * 8:
        both.append(sequence, 4)
    view = both.paged.view(first)
    ledger = both.paged.ledger
    # Pages of this sequence in reverse, as if they had been taken from the other end.
    slots = ledger.physical(first, 0, ledger.rows(first, 0)[0])
    order = np.argsort(-(slots // 4), kind="stable")
    seen = Tally()
    tokens = range(rows.decoder.config.vocabulary)
    for token in tokens:
        seen.words(
            "logits",
            rows.decoder.next_logits(_Reordered(view, order), token),
            rows.decoder.next_logits(view, token),
        )
    return Control(
        "gathering in another order",
        seen.words_differing > 0,
        f"{seen.words_differing} of {seen.words_compared} logits differ",
    )


def late_eviction(rng: np.random.Generator) -> Control:
    """A span evicted after later tokens have read it: what they absorbed stays."""
    seen = Tally()
    quarantined(decoder_of("dense", "per_layer_theta"), "forward", seen, rng, late=True)
    return Control(
        "a span evicted after it was read",
        seen.words_differing > 0,
        f"{seen.words_differing} of {seen.words_compared} words differ from never having seen it",
    )


def unsigned_zeros(rng: np.random.Generator) -> Control:
    """A store that keeps -0.0 as 0.0, which is the same number and not the same bits."""
    return _same_numbers("a store that drops the sign of zero", "zeros", rng)


def lost_payloads(rng: np.random.Generator) -> Control:
    """A store that keeps every NaN of V as one and the same."""
    return _same_numbers("a store that drops a NaN's payload", "payloads", rng)


def _same_numbers(name: str, what: str, rng: np.random.Generator) -> Control:
    """Return whether other bits for the same numbers are noticed."""
    both = Lockstep(rows_of("dense", "plain", "kv_raw"), 4, Tally(), rng, odd=True)
    Rewriting(both.paged, what)
    sequence = both.open()
    both.append(sequence, 14)
    ours, theirs = both.paged.rows(sequence)["V"], both.twins[sequence][0].rows()["V"]
    seen = Tally()
    seen.words("V", ours, theirs)
    with np.errstate(invalid="ignore"):
        same = bool(np.array_equal(ours, theirs, equal_nan=True))
    return Control(
        name,
        seen.words_differing > 0 and same,
        f"{seen.words_differing} of {seen.words_compared} words of V differ, "
        f"{'no number does' if same else 'and numbers do'}",
    )
