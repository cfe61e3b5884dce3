"""The cases of fak's own tests, with their sizes, and what those leave uncompared.

Source: github.com/anthony-chaudhary/fak, its paged KV and GLM-DSA tests. Added here: k_raw of the
child after a COW eviction, and the pages before and after, which none of its tests asserts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from kvsim.errors import ExactnessRefused
from kvsim.paging import Receipt
from kvsim.seeds import stream
from kvsim.tensors.paged_cache import PagedCache
from kvsim.tensors.proof.ceilings import fingerprint
from kvsim.tensors.proof.lockstep import Lockstep
from kvsim.tensors.proof.shapes import drawn_rows, rows_of
from kvsim.tensors.proof.tally import Tally

#: 7 tokens in pages of 4, of which the span [2, 5) goes; thetas 1e4 and 1e6, 4 query and 2 KV
#: heads of 8 elements.
TOKENS, PAGE, SPAN = 7, 4, (2, 3)
COMPACTIONS = ("none", "rebuild", "forward", "hole_fill")
BLOCK = 16
OVERHEAD_LENGTHS = (320, 96, 512, 1024, 200, 448, 768, 130)
ALLOCATIONS = (0, 1, 15, 16, 17, 100, 256)


def cases(seed: int) -> Iterator[tuple[str, Callable[[], Tally]]]:
    """Yield the name of each case and a function that runs it."""
    table: list[tuple[str, Callable[[Tally, np.random.Generator], None]]] = []
    for compaction in COMPACTIONS:
        table.append((f"paged equals contiguous, {compaction}", _paged(compaction)))
        table.append((f"COW eviction by the child, {compaction}", _child_evicts(compaction)))
        table.append((f"GLM-DSA, {compaction}", _glm(compaction)))
    table.append(("governed eviction", _governed))
    table += [(f"allocation of {tokens} tokens", _allocation(tokens)) for tokens in ALLOCATIONS]
    table.append(("gather and COW append", _cow_append))
    table.append(("overhead", _overhead))
    table.append(("reuse", _reuse))
    table.append(("contiguous theta", _theta))
    table += [(f"pages of {row[0]} tokens, {row[2]}", _pages(*row)) for row in PAGES]
    for number, (name, run) in enumerate(table):
        yield name, _bound(name, run, seed, number)


def _bound(
    name: str, run: Callable[[Tally, np.random.Generator], None], seed: int, number: int
) -> Callable[[], Tally]:
    def case() -> Tally:
        tally = Tally(cases=1, case=f"fak: {name}")
        run(tally, stream(seed, "test", 1, number))
        return tally

    return case


def _lockstep(
    tally: Tally, rng: np.random.Generator, page: int, compaction: str, family: str = "dense"
) -> Lockstep:
    rows = rows_of(family, "per_layer_theta", "kv_raw", 2048)
    return Lockstep(rows, page, tally, rng, compaction=compaction, order="lifo")


def _churn(both: Lockstep) -> None:
    """Six allocations; those with even numbers are freed."""
    numbers = []
    for _ in range(6):
        numbers.append(both.open())
        both.append(numbers[-1], 1)
    for sequence in numbers[::2]:
        both.free(sequence)


def _paged(compaction: str) -> Callable[[Tally, np.random.Generator], None]:
    def run(tally: Tally, rng: np.random.Generator) -> None:
        both = _lockstep(tally, rng, PAGE, compaction)
        _churn(both)
        sequence = both.open()
        both.append(sequence, TOKENS)
        table = both.paged.ledger.pages_of(sequence).tolist()
        tally.fact(table == [4, 2], f"the table is {table}, not [4, 2]")
        both.verify("appended")
        receipt = both.evict_span(sequence, *SPAN)
        tally.fact(receipt.evicted_tokens == 3, f"{receipt.evicted_tokens} of 3 evicted")
        tally.fact(both.paged.length(sequence) == 4, "4 tokens are not left")
        both.verify("evicted")
        both.append(sequence, 1)
        both.verify("decoded on")

    return run


def _child_evicts(compaction: str) -> Callable[[Tally, np.random.Generator], None]:
    def run(tally: Tally, rng: np.random.Generator) -> None:
        both = _lockstep(tally, rng, PAGE, compaction)
        parent = both.open()
        both.append(parent, TOKENS)
        held = both.paged.ledger.held_pages
        child = both.fork(parent)
        tally.fact(both.paged.ledger.held_pages == held, "a fork took pages")
        before = both.paged.rows(parent)
        both.evict_span(child, *SPAN)
        # Against the twin below, and here against its own bytes: K, k_raw and V.
        tally.planes("the parent's bytes", both.paged.rows(parent), before)
        both.verify("child evicted")
        both.evict_span(parent, *SPAN)
        both.verify("parent evicted too")

    return run


def _glm(compaction: str) -> Callable[[Tally, np.random.Generator], None]:
    def run(tally: Tally, rng: np.random.Generator) -> None:
        both = _lockstep(tally, rng, 3, compaction, family="glm_dsa")
        sequence = both.open()
        both.append(sequence, 6)
        both.verify("appended")
        receipt = both.evict_span(sequence, 2, 2)
        # Two survivors turn in 2 layers x 2 heads of keys and in the one row of the index.
        turned = receipt.survivors_rotated_rows
        tally.fact(turned >= 2 * 5, f"{turned} rows were rotated")
        both.verify("evicted")
        both.append(sequence, 1)
        both.verify("next step")

    return run


def _governed(tally: Tally, rng: np.random.Generator) -> None:
    """The receipt says what was done; a refused eviction leaves the bytes as they were."""
    both = _lockstep(tally, rng, PAGE, "forward")
    sequence = both.open()
    both.append(sequence, TOKENS)
    receipt = both.evict_span(sequence, *SPAN)
    expected = {
        "first": 2,
        "last": 5,
        "evicted_tokens": 3,
        # Two survivors in 2 layers x 2 heads.
        "survivors_rotated_rows": 8,
        "copied_rows": 8,
        "freed_pages": 1,
        "cow_pages": 0,
        "exact": True,
        "refused": "",
    }
    found = {name: receipt.as_dict()[name] for name in expected}
    tally.fact(found == expected, f"the receipt says {found}")
    both.verify("evicted")
    shape = rows_of("dense", "per_layer_theta", "kv_raw").shape
    cache = PagedCache(shape, PAGE, positions="renumber", recurrent_layers=(1,))
    sequence = cache.open()
    cache.append(sequence, drawn_rows(shape, TOKENS, rng))
    before = fingerprint(cache)
    try:
        cache.evict_span(sequence, *SPAN)
        tally.fact(False, "a recurrent layer forgot a span")
    except ExactnessRefused as refusal:
        said = refusal.receipt
        tally.fact(isinstance(said, Receipt) and "recurrent" in said.refused, "no reason is given")
    tally.fact(fingerprint(cache) == before, "a refused eviction changed something")


def _allocation(tokens: int) -> Callable[[Tally, np.random.Generator], None]:
    def run(tally: Tally, rng: np.random.Generator) -> None:
        both = _lockstep(tally, rng, BLOCK, "none")
        both.append(both.open(), tokens)
        held, wanted = both.paged.ledger.held_pages, -(-tokens // BLOCK)
        tally.fact(held == wanted, f"{held} pages for {tokens} tokens")
        both.verify("appended")

    return run


def _cow_append(tally: Tally, rng: np.random.Generator) -> None:
    both = _lockstep(tally, rng, BLOCK, "none")
    parent = both.open()
    held = []
    both.append(parent, 40)
    held.append(both.paged.ledger.held_pages)
    both.verify("gathered")
    child = both.fork(parent)
    held.append(both.paged.ledger.held_pages)
    before = both.paged.rows(parent)
    both.append(child, 1)
    held.append(both.paged.ledger.held_pages)
    tally.fact(held == [3, 3, 4], f"{held} pages, not [3, 3, 4]")
    tally.planes("the parent's bytes", both.paged.rows(parent), before)
    both.verify("appended")


def _overhead(tally: Tally, rng: np.random.Generator) -> None:
    both = _lockstep(tally, rng, BLOCK, "none")
    slots = 0
    for tokens in OVERHEAD_LENGTHS:
        sequence = both.open()
        both.append(sequence, tokens)
        own = both.paged.ledger.pages_of(sequence).size * BLOCK
        tally.fact(own <= 1.20 * tokens, f"{own} slots for {tokens} tokens")
        slots += own
    total = sum(OVERHEAD_LENGTHS)
    tally.fact(slots <= 1.05 * total, f"{slots} slots for {total} tokens")
    both.verify("appended")


def _reuse(tally: Tally, rng: np.random.Generator) -> None:
    both = _lockstep(tally, rng, BLOCK, "none")
    room = both.paged.ledger.room_pages
    held = []
    for _ in range(2):
        sequence = both.open()
        both.append(sequence, 100)
        held.append(both.paged.ledger.held_pages)
        both.verify("appended")
        both.free(sequence)
        held.append(both.paged.ledger.held_pages)
    tally.fact(held == [7, 0, 7, 0], f"{held} pages, not [7, 0, 7, 0]")
    tally.fact(both.paged.ledger.room_pages == room, "the pool grew")


def _theta(tally: Tally, rng: np.random.Generator) -> None:
    """Every key is its own pre-RoPE row, turned by its own layer's theta at its own position.

    Element by element in float32 numbers, which shares no array code with either cache.
    """
    both = _lockstep(tally, rng, PAGE, "forward")
    sequence = both.open()
    both.append(sequence, TOKENS)
    both.evict_span(sequence, 2, 2)
    rows = both.paged.rows(sequence)
    expected = np.empty_like(rows["K"])
    for position, raw in enumerate(rows["k_raw"].reshape(-1, 2, 2, 2, 4)):
        for layer, theta in enumerate((1e4, 1e6)):
            for head in range(2):
                for pair in range(4):
                    a, b = raw[layer, head, :, pair]
                    angle = position * theta ** (-2.0 * pair / 8)
                    c, s = np.float32(np.cos(angle)), np.float32(np.sin(angle))
                    at = 16 * layer + 8 * head + pair
                    expected[position, at] = np.float32(a * c) - np.float32(b * s)
                    expected[position, at + 4] = np.float32(b * c) + np.float32(a * s)
    tally.words("K against one rotation of k_raw", rows["K"], expected)
    both.verify("evicted")


#: (tokens, page, what, span, pages: alone and, beside a fork, by rebuild, in place, kept).
PAGES: tuple[tuple[int, int, str, tuple[int, int], tuple[int, int, int, int]], ...] = (
    (7, 4, "span [2, 5)", (2, 3), (1, 3, 3, 2)),
    (1024, 16, "an aligned page", (512, 16), (63, 127, 95, 64)),
    (1024, 16, "an unaligned span", (505, 15), (64, 128, 97, 64)),
    (1024, 16, "the tail", (1000, 24), (63, 127, 64, 64)),
)


def _pages(
    tokens: int,
    page: int,
    what: str,
    span: tuple[int, int],
    expected: tuple[int, int, int, int],
) -> Callable[[Tally, np.random.Generator], None]:
    """Pages held after an eviction, as measured on a replica of fak's accounting."""

    def run(tally: Tally, rng: np.random.Generator) -> None:
        found = []
        rows = rows_of("dense", "per_layer_theta", "kv_raw", 2048)
        for forked, compaction, positions in (
            (False, "forward", "renumber"),
            (True, "rebuild", "renumber"),
            (True, "forward", "renumber"),
            (True, "none", "keep"),
        ):
            both = Lockstep(rows, page, tally, rng, compaction=compaction, positions=positions)
            sequence = both.open()
            both.append(sequence, tokens)
            if forked:
                both.fork(sequence)
            both.evict_span(sequence, *span)
            both.verify(f"{compaction}, {positions}")
            found.append(both.paged.ledger.held_pages)
        tally.fact(found == list(expected), f"{what}: {found} pages, not {list(expected)}")

    return run
