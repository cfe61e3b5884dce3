"""Real float32 rows beside the serving engine, which moves only counters.

A tiny decoder computes every row that the engine schedules, reading the rows that the member's
table retains at that moment, out of the pages that it names. So a page that a request gets as a
hit holds here what it would hold in a machine, and can be compared, as integers, with a dense
prefill of that request's own tokens. Rows are computed once everything in a step is scheduled,
as a machine does it: whoever was preempted in that step computes nothing.

The shadow reads the engine's arrays and takes no decision. Tokens come from the requests alone,
so a key that names other content than the engine thinks cannot deceive it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from kvsim.engine.serving import fields as s
from kvsim.engine.serving.engine import ServingEngine
from kvsim.engine.serving.unhashing import Unhashing
from kvsim.paging import fields as f
from kvsim.seeds import stream
from kvsim.tensors.array_store import ArrayStore
from kvsim.tensors.contiguous import ContiguousCache
from kvsim.tensors.decoder import DecoderConfig, TinyDecoder
from kvsim.tensors.rope import Rope
from kvsim.workload.requests import Requests

SEED = 11
# Two layers: what the second one stores depends on every token before it.
SMALL = DecoderConfig(
    (Rope(4, 1e4), Rope(4, 1e4)),
    (None, None),
    q_heads=2,
    kv_heads=1,
    head_dim=4,
    hidden=8,
    intermediate=8,
    vocabulary=64,
    max_positions=256,
)
DECODER = TinyDecoder(SMALL, stream(SEED, "test"))
SHAPE = DECODER.shape("kv_raw")


class Held(ContiguousCache):
    """Rows that a member's table retains, and the position at which the next one stands."""

    at = 0

    @property
    def next_position(self) -> int:
        """One past the last row's, or later where rows between them were just evicted."""
        return max(self.at, super().next_position)


EMPTY = Held(SHAPE, "keep")
GEOMETRY = SHAPE.geometry("sequence", "shared")


class WrongBytes(AssertionError):
    """A page holds other bytes than a dense prefill of the tokens that it stands for."""


class Words:
    """The tokens of all requests: equal keys have equal tokens, everything else is its own.

    Parameters
    ----------
    requests : Requests
    parents : sequence of int
        For each row of the engine the request that it is a sample of, or -1.
    """

    def __init__(self, requests: Requests, parents: list[int]) -> None:
        self.requests = requests
        self.parents = parents
        self._known: dict[int, list[int]] = {}

    def of(self, row: int) -> list[int]:
        """Return prompt and output of a row of the engine's requests."""
        if row not in self._known:
            self._known[row] = self._made(row)
        return self._known[row]

    def _made(self, row: int) -> list[int]:
        requests, parent = self.requests, self.parents[row]
        own = stream(SEED, "workload", 0, row).integers(0, SMALL.vocabulary, SMALL.max_positions)
        if parent >= 0:
            prompt = int(requests.input_tokens[parent])
            total = prompt + int(requests.output_tokens[parent])
            return self.of(parent)[:prompt] + own[prompt:total].tolist()
        first, last = requests.key_start[row], requests.key_start[row + 1]
        total = int(requests.input_tokens[row] + requests.output_tokens[row])
        shared = [
            stream(SEED, "workload", 1, key).integers(0, SMALL.vocabulary, requests.page_tokens)
            for key in requests.keys[first:last].tolist()
        ]
        given = [token for page in shared for token in page.tolist()]
        return given + own[len(given) : total].tolist()


class Dense:
    """What a dense prefill of a row's tokens leaves in a contiguous cache."""

    def __init__(self, words: Words) -> None:
        self._words = words
        self._caches: dict[int, ContiguousCache] = {}

    def rows(self, row: int, count: int) -> dict[str, np.ndarray]:
        """Return the first rows of every plane, [count, elements]."""
        cache = self._caches.setdefault(row, EMPTY.fork())
        words = self._words.of(row)
        while cache.length < count:
            DECODER.step(cache, words[cache.length])
        found = cache.rows()
        return {plane: found[plane][:count] for plane in ("K", "k_raw", "V")}


@dataclass
class Life:
    """A request from an admission on until it is freed; a swap does not end it.

    Attributes
    ----------
    written : int
        Tokens whose rows were written in this life, those of its hits included.
    pages : list of int
        Its pages by entry, as they were when it was last looked at; -1 for none.
    decodes : bool
        Whether it decoded then.
    host : dict, optional
        While it is swapped out, its rows by (entry, offset).
    """

    preemptions: int
    written: int
    pages: list[int] = field(default_factory=list)
    decodes: bool = False
    host: dict[tuple[int, int], dict[str, np.ndarray]] | None = None


class Moving(Unhashing):
    """The engine's own store, with rows: it carries out the plans of compactions."""

    def __init__(self, engine: ServingEngine, rows: ArrayStore) -> None:
        super().__init__(lambda: engine.ledger.arrays, engine.ledger.page_tokens)
        self._rows = rows

    def resize(self, pages: int) -> None:
        """Make room for the rows of more pages."""
        self._rows.resize(pages)

    def apply(self, plan: np.ndarray) -> None:
        """Move rows, and forget keys."""
        self._rows.apply(plan)
        super().apply(plan)


class Shadow:
    """Rows of every page of an engine, by page and slot.

    Parameters
    ----------
    engine : ServingEngine
        With the geometry of this module, nothing run yet.
    requests : Requests
    audits : bool
        Whether every page that could be a hit is compared in every step, and not only hits.

    Attributes
    ----------
    hits : int
        Pages compared because a request got them.
    computed : int
        Rows computed.
    """

    def __init__(self, engine: ServingEngine, requests: Requests, *, audits: bool = True) -> None:
        self.engine = engine
        self.page_tokens = requests.page_tokens
        self.words = Words(requests, engine.rows[:, s.PARENT].tolist())
        self.dense = Dense(self.words)
        self.store = ArrayStore(SHAPE, GEOMETRY, self.page_tokens)
        self.store.resize(int(engine.ledger.arrays.scalars[f.PAGES]))
        engine.ledger.store = Moving(engine, self.store)
        self.audits = audits
        self.lives: dict[int, Life] = {}
        self.hits = self.computed = 0
        self._early: dict[int, int] = {}
        self._behind = self._keys_of() if audits else {}

    def _keys_of(self) -> dict[int, tuple[int, int]]:
        """Return for each key a request and the number of a page of it which the key names."""
        behind: dict[int, tuple[int, int]] = {}
        keys, rows = self.engine.serving.keys, self.engine.rows
        for number, row in enumerate(rows):
            for page in range(int(row[s.INPUT] + row[s.OUTPUT]) // self.page_tokens):
                key = int(row[s.OWN_KEY]) + page
                if page < row[s.KEY_COUNT]:
                    key = int(keys[row[s.KEYS] + page])
                elif page < row[s.PROMPT_PAGES]:
                    key = int(row[s.PROMPT_KEY]) + page
                behind.setdefault(key, (number, page))
        return behind

    # What the step loop calls

    def between_steps(self) -> None:
        """Look at all tables before a step changes them, its leavers' included."""
        for request, life in self._living():
            row = self.engine.rows[request]
            life.decodes = bool(row[s.STATUS] == s.DECODES)
            if row[s.STATUS] != s.SWAPPED:
                life.pages = self._pages(request)
        self._early.clear()

    def before_press(self, rank: int) -> None:
        """Note who has a row of this step already, before an eviction under pressure."""
        state, rows = self.engine.state, self.engine.rows
        for request in self.engine.serving.running[: state[s.RUNNING]].tolist():
            row = rows[request]
            wrote = row[s.SINCE] > state[s.STEP] or row[s.RANK] < rank
            if row[s.STATUS] == s.DECODES and wrote:
                self._early[request] = self._cursor(request)

    def compute(self) -> None:
        """Carry out what a step has scheduled: copies first, then every new row, in order."""
        living = dict(self._living())
        copies = [copy for request, life in living.items() for copy in self._copied(request, life)]
        for target, rows in copies:
            self.store.write(0, np.array([target]), rows)
        running = self.engine.serving.running[: self.engine.state[s.RUNNING]].tolist()
        for request in running:
            self._write(request, living[request])
        if self.audits:
            self._audit()

    # Tables

    def _cursor(self, request: int) -> int:
        """Return the cursor of a member's table once its row of the step under way is written."""
        row = self.engine.rows[request]
        cursor = int(self.engine.ledger.arrays.tables[row[s.SEQUENCE], f.CURSOR])
        if row[s.STATUS] == s.DECODES:
            cursor += max(0, int(self.engine.state[s.STEP] + 1 - row[s.SINCE]))
        return cursor

    def _pages(self, request: int) -> list[int]:
        arrays = self.engine.ledger.arrays
        table = arrays.tables[self.engine.rows[request, s.SEQUENCE]]
        start = int(table[f.START])
        return arrays.entries[f.PAGE, start : start + int(table[f.ENTRIES])].tolist()

    def _live(self, request: int, cursor: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the live slots of a table below a cursor, and their positions, by position."""
        arrays, size = self.engine.ledger.arrays, self.page_tokens
        base = int(arrays.tables[self.engine.rows[request, s.SEQUENCE], f.START]) * size
        pages = np.array(self._pages(request), np.int64)
        slots = np.arange(cursor)
        kept = (arrays.dead[base : base + cursor] == 0) & (pages[slots // size] >= 0)
        slots = slots[kept]
        positions = slots
        if arrays.position.shape[0]:
            positions = arrays.position[0, base + slots].astype(np.int64)
        order = np.argsort(positions)
        physical = pages[slots // size] * size + slots % size
        return physical[order], positions[order]

    # Lives

    def _living(self) -> list[tuple[int, Life]]:
        """Begin and end lives, save the rows of those swapped out, and return who lives."""
        rows = self.engine.rows
        found = []
        for request in range(rows.shape[0]):
            row, life = rows[request], self.lives.get(request)
            if row[s.SEQUENCE] < 0:
                self.lives.pop(request, None)
                continue
            preemptions = int(row[s.PREEMPTIONS])
            if life is not None and life.host is None and row[s.STATUS] == s.SWAPPED:
                life.host = self._saved(request, life)
                life.preemptions = preemptions
            if life is None or life.preemptions != preemptions:
                life = self.lives[request] = self._born(request, preemptions)
            found.append((request, life))
        return found

    def _born(self, request: int, preemptions: int) -> Life:
        row = self.engine.rows[request]
        if row[s.STATUS] == s.PREFILLS:
            return Life(preemptions, int(row[s.HIT_TOKENS]), self._pages(request))
        # A fork of a sample: it begins where its parent stands.
        parent = self.lives[int(row[s.PARENT])]
        return Life(preemptions, parent.written, self._pages(request), decodes=True)

    def _saved(self, request: int, life: Life) -> dict[tuple[int, int], dict[str, np.ndarray]]:
        """Return the rows of a member that was swapped out, by entry and offset."""
        gone = self._pages(request)
        return {
            (entry, offset): self._gather([page * self.page_tokens + offset])
            for entry, page in enumerate(life.pages)
            if page >= 0 and entry < len(gone) and gone[entry] < -1
            for offset in range(self.page_tokens)
        }

    def _copied(self, request: int, life: Life) -> list[tuple[int, dict[str, np.ndarray]]]:
        """Return (slot, its row) for what came back from the host and what was copied on write."""
        if self.engine.rows[request, s.STATUS] == s.SWAPPED:
            return []
        size, found = self.page_tokens, []
        pages = self._pages(request)
        if life.host is not None:
            for (entry, offset), rows in life.host.items():
                found.append((pages[entry] * size + offset, rows))
            life.host = None
            life.decodes = False
            return found
        for old, new in zip(life.pages, pages, strict=False):
            if new >= 0 and old >= 0 and old != new:
                for offset in range(size):
                    found.append((new * size + offset, self._gather([old * size + offset])))
        return found

    # Rows

    def _gather(self, slots: list[int] | np.ndarray) -> dict[str, np.ndarray]:
        return self.store.gather_scope(np.asarray(slots, np.int64), 0)

    def _write(self, request: int, life: Life) -> None:
        """Compute the rows that a member got in this step."""
        cursor = self._cursor(request)
        row = self.engine.rows[request]
        if row[s.STATUS] == s.PREFILLS:
            if life.written == row[s.HIT_TOKENS]:
                self._check_hits(request)
            count = cursor - life.written
        elif life.decodes:
            count = 1
            if cursor < self._early.get(request, 0):
                # Evicted before it was computed: nothing is ever written there.
                life.written += 1
                count = 0
        else:
            count = 0
        if not count:
            return
        slots, positions = self._live(request, cursor)
        self._compute(request, life, slots, positions, count)
        if row[s.STATUS] == s.DECODES:
            known = row[s.INPUT] + row[s.GENERATED] + self.engine.state[s.STEP] - row[s.SINCE]
            assert life.written == known, "the shadow lost count of a member's tokens"

    def _compute(
        self, request: int, life: Life, slots: np.ndarray, positions: np.ndarray, count: int
    ) -> None:
        """Let the decoder write the last `count` of a table's live slots."""
        held = EMPTY.fork()
        # Rows that are there already keep the bytes that they have; an append would rotate anew.
        held._planes = [self._gather(slots[:-count])]
        held.pos = positions[:-count]
        if request in self._early:
            held.at = int(positions[-count])
        words = self.words.of(request)
        for _ in range(count):
            DECODER.step(held, words[life.written])
            life.written += 1
        assert held.pos.tolist() == positions.tolist(), "a row stands at another position"
        found = held.rows()
        new = {plane: found[plane][-count:] for plane in ("K", "k_raw", "V")}
        self.store.write(0, slots[-count:], new)
        self.computed += count

    # Comparing

    def _check_hits(self, request: int) -> None:
        """Compare every page that a request got as a hit with a prefill of its own tokens."""
        pages = int(self.engine.rows[request, s.HIT_TOKENS]) // self.page_tokens
        for number, page in enumerate(self._pages(request)[:pages]):
            self._same(request, number, page, "hit")
            self.hits += 1

    def _audit(self) -> None:
        """Compare every page that the index would serve."""
        keys = self.engine.ledger.arrays.pages[f.KEY, :-1]
        for page in np.flatnonzero(keys).tolist():
            key = int(keys[page]) - 1
            if int(self.engine.serving.page_of[key]) == page:
                request, number = self._behind[key]
                self._same(request, number, page, "page in the index")

    def _same(self, request: int, number: int, page: int, what: str) -> None:
        size = self.page_tokens
        wanted = self.dense.rows(request, (number + 1) * size)
        for plane, rows in self._gather(np.arange(page * size, (page + 1) * size)).items():
            differs = rows.view(np.uint32) != wanted[plane][number * size :].view(np.uint32)
            if differs.any():
                raise WrongBytes(
                    f"step {int(self.engine.state[s.STEP])}, {what}: page {page}, as page "
                    f"{number} of request {request}: {int(differs.sum())} words of {plane} differ"
                )
