"""The lockstep of the paged cache: every verb goes to it and to contiguous caches, and all agree.

Rows are compared as integers, in ascending position, in every plane of every sequence after every
verb. A refused verb must leave every array of the ledger and every byte of the planes alone.
Knows nothing about who chooses the verbs.
"""

from __future__ import annotations

import numpy as np

from differential.paged_agreement import agree
from differential.paged_oracle import Truth
from differential.paged_rows import MAX_POSITIONS, bits, rows_of
from differential.watch import Receipts, Saved, must_say
from kvsim.errors import (
    CeilingExceeded,
    ExactnessRefused,
    LedgerError,
    RotationError,
    SwapError,
    VictimError,
)
from kvsim.paging import fields as f
from kvsim.tensors.mapped import mapped_cache
from kvsim.tensors.paged_cache import PagedCache
from kvsim.tensors.proof.codes import Coded

OUTSIDE = ((2**63, 1), (0, 2**63), (-(2**63) - 1, 1), (True, 1), (0, 1.0), (None, 1))
ROOM_PAGES = 8


class PagedLockstep:
    """A paged cache and what its sequences must hold.

    Parameters
    ----------
    shape : CacheShape
    page_tokens : int
    options : dict
        Of PagedCache: scope, sets, compaction, unit, positions, append, order, layout, keys ...
    ceiling : int
        Pages; 0 means none.
    mapped : bool
        Whether planes lie in mappings of which only held extents are in memory. Needs a ceiling.
    seed : int
        Draws the rows.
    hard : bool
        Whether rows hold NaN, infinities and denormals.
    decoder : TinyDecoder, optional
        One that runs on this shape, to compare logits.
    note : callable, optional
        Told the name of every path that was reached.
    """

    def __init__(
        self,
        shape,
        page_tokens,
        options,
        *,
        ceiling=0,
        mapped=False,
        seed=0,
        hard=True,
        decoder=None,
        note=None,
    ):
        self.shape, self.page_tokens, self.options = shape, page_tokens, options
        self.decoder, self.hard = decoder, hard
        self.note = note or (lambda path: None)
        self.rng = np.random.default_rng(seed)
        self.memory = None
        if mapped:
            self.cache, self.memory = mapped_cache(
                shape, page_tokens, ceiling, extent_bytes=4096, **options
            )
        else:
            self.cache = PagedCache(
                shape, page_tokens, ceiling_pages=ceiling, pages=ROOM_PAGES, **options
            )
        self.ledger = self.cache.ledger
        self.ceiling = ceiling
        self.receipts = Receipts(self.cache)
        self.renumbers = options["positions"] == "renumber"
        self.moves = options["compaction"] != "none"
        by_row = self.moves and options["unit"] == "row"
        geometry = self.ledger.geometry
        self.empty = lambda: Truth(shape, geometry, options["positions"], by_row)
        self.sets = geometry.sets
        self.truths = {}
        self.swapped = []
        self.returned = 0
        self.room = self.ledger.room_pages
        if any(self.cache.store._streams):
            self.note("streams")
        if self.memory is not None:
            self.note("mapped")

    # Verbs

    def open(self):
        """Open a sequence."""
        return self.do("open", self.cache.open, lambda new: self.begin(new, self.empty()))

    def append(self, sequence, tokens):
        """Append tokens; past the rotation tables it must be refused. Returns whether it was."""
        rows = rows_of(self.shape, tokens, self.rng, self.hard, self.cache.keys)
        truth = self.truths[sequence]
        last = truth.length() + tokens
        if last > MAX_POSITIONS or (self.renumbers and self.regime(last) != "short"):
            self.must_refuse("append past the tables", RotationError, "append", sequence, rows)
            return False
        before = self.copied_on_write(), self.ledger.reserved_pages(sequence)
        dead = self.holes(sequence)

        def settle(_):
            truth.append(rows)
            if self.copied_on_write() > before[0]:
                self.note("append copies on write")
            if self.ledger.reserved_pages(sequence) < before[1]:
                self.note("a page taken ahead is used")
            if self.holes(sequence) < dead:
                self.note("a hole is used again")

        self.do("append", lambda: self.cache.append(sequence, rows), settle)
        return True

    def fork(self, parent):
        """Fork; no page is taken. Returns the child."""
        held, copy = self.ledger.held_pages, self.truths[parent].fork()

        def settle(child):
            assert self.ledger.held_pages == held
            assert self.ledger.reserved_pages(child) == 0
            self.begin(child, copy)

        return self.do("fork", lambda: self.cache.fork(parent), settle)

    def clone(self, parent):
        """Clone: pages of its own, as many as the parent's, those taken ahead included."""
        copy = self.truths[parent].fork()

        def settle(child):
            for scope in range(self.ledger.geometry.scope_units):
                theirs = self.ledger.pages_of(parent, scope)
                mine = self.ledger.pages_of(child, scope)
                assert ((mine < 0) == (theirs < 0)).all()
                assert (self.ledger.refcounts()[mine[mine >= 0]] == 1).all()
                ahead = [self.ledger.table(s, scope, f.RESERVED) for s in (parent, child)]
                assert ahead[0] == ahead[1]
                if ahead[0]:
                    self.note("clone of pages taken ahead")
            self.begin(child, copy)

        return self.do("clone", lambda: self.cache.clone(parent), settle)

    def reserve(self, sequence, tokens):
        """Take pages ahead."""
        held, ahead = self.ledger.held_pages, self.ledger.reserved_pages(sequence)

        def settle(_):
            taken = self.ledger.held_pages - held
            assert self.ledger.reserved_pages(sequence) - ahead == taken
            for scope in range(self.ledger.geometry.scope_units):
                table = (self.ledger.table(sequence, scope, n) for n in (f.ENTRIES, f.RESERVED))
                room = sum(table) * self.page_tokens
                assert room >= self.ledger.cursor(sequence, scope) + tokens

        self.do("reserve", lambda: self.cache.reserve(sequence, tokens), settle)

    def evict_span(self, sequence, first, count, shape="span"):
        """Evict a span of positions, or see it refused."""
        truth = self.truths[sequence]
        length = truth.length()
        nothing = first < 0 or count <= 0 or first >= length
        last = first if nothing else min(first + count, length)
        lists = [self.between(truth, which, first, last) for which in range(self.sets)]
        shifts = not nothing and last < length
        if self.renumbers and self.shape.planes == "kv" and shifts:
            self.must_refuse(
                "evict kv refused", ExactnessRefused, "evict_span", sequence, first, count
            )
            return
        call = lambda: self.cache.evict_span(sequence, first, count)  # noqa: E731
        path = f"evict {shape}" if any(map(len, lists)) else "evict nothing"
        idle = nothing or not any(map(len, lists))
        self.evict_by(path, sequence, lists, call, (first, last), idle=idle)

    def evict(self, sequence, lists):
        """Evict scattered positions, a list for each set, or see it refused."""
        slots = [self.slots(sequence, which, wanted) for which, wanted in enumerate(lists)]
        if self.renumbers and self.shape.planes == "kv":
            # Whatever the victims: a list of none, or of the last ones, is refused as well.
            self.must_refuse("evict kv refused", ExactnessRefused, "evict", sequence, slots)
            return
        path = "evict scattered" if any(map(len, lists)) else "evict nothing"
        if len({tuple(wanted) for wanted in lists}) > 1:
            self.note("sets drop other tokens")
        self.evict_by(path, sequence, lists, lambda: self.cache.evict(sequence, slots), (0, 0))

    def flush(self, sequence):
        """Drop every token, which is exact under all planes."""
        lists = [self.positions(sequence, which) for which in range(self.sets)]
        span = 0, self.length(sequence)
        self.evict_by("flush", sequence, lists, lambda: self.cache.flush(sequence), span)

    def evict_by(self, path, sequence, lists, call, span, idle=False):
        """Evict these positions by a call that returns a receipt."""
        truth = self.truths[sequence]
        before = self.receipts.before(
            sequence, [self.slots(sequence, *x) for x in enumerate(lists)]
        )

        def settle(receipt):
            changed = 0
            if not idle:
                truth.evict(lists)
                changed = truth.changed_rows(whole_slots=self.moves)
            writes = self.renumbers and self.shape.planes == "kv_raw"
            evicted = sum(map(len, lists)) // self.sets
            rotated = changed if writes else 0
            self.receipts.check(sequence, receipt, before, span, evicted, rotated, idle)
            for name, found in self.receipts.paths(receipt).items():
                if found:
                    self.note(name)

        self.do(path, call, settle, receipt=True)

    def compact(self, sequence):
        """Compact; without an algorithm that is refused."""
        if not self.moves:
            self.must_refuse(
                "compact without an algorithm refused", LedgerError, "compact", sequence
            )
            return
        nobody = [np.empty(0, np.int64)] * self.sets
        self.do(
            "compact",
            lambda: self.cache.compact(sequence),
            lambda _: self.truths[sequence].evict(nobody),
        )

    def swap_out(self, sequence):
        """Swap a sequence out; its bytes are kept for `swap_in`."""
        ahead = [
            self.ledger.table(sequence, scope, f.RESERVED)
            for scope in range(self.ledger.geometry.scope_units)
        ]

        def settle(data):
            self.swapped = [*self.swapped[-2:], (data, self.truths.pop(sequence), ahead)]

        self.do("swap out", lambda: self.cache.swap_out(sequence), settle)

    def swap_in(self, number):
        """Swap one of the last sequences in again, even if it is in by now."""
        data, truth, ahead = self.swapped[number % len(self.swapped)]

        def settle(new):
            for scope, pages in enumerate(ahead):
                assert self.ledger.table(new, scope, f.RESERVED) == pages
            self.begin(new, truth.fork())

        self.do("swap in", lambda: self.cache.swap_in(data), settle)

    def swap_in_damaged(self, number, where, flip):
        """Swap in bytes that were cut (`flip` 0) or altered at a place, and see it refused."""
        data = bytearray(self.swapped[number % len(self.swapped)][0])
        at = where * (len(data) - 1) // 255
        if flip:
            data[at] ^= flip
        else:
            del data[at:]
        self.must_refuse("damaged swap refused", SwapError, "swap_in", bytes(data))

    def free(self, sequence):
        """End a sequence; a second time is refused."""
        self.do("free", lambda: self.cache.free(sequence), lambda _: self.truths.pop(sequence))
        self.must_refuse("double free refused", LedgerError, "free", sequence)

    def misuse(self, sequence, number):
        """Do one of the things that are refused whatever the cache holds."""
        outside = OUTSIDE[number % len(OUTSIDE)]
        slots = [
            self.slots(sequence, w, self.truths[sequence].positions(w)) for w in range(self.sets)
        ]
        slots[-1] = np.append(slots[-1], slots[-1][:1] if slots[-1].size else -1)
        rows = rows_of(self.shape, 2, self.rng)
        rows[-1] = {name: array[:, 1:] for name, array in rows[-1].items()}
        wrong = (
            (LedgerError, "evict_span", sequence, *outside),
            (LedgerError, "evict_span", 10**6, 0, 1),
            (LedgerError, "fork", 10**6),
            (LedgerError, "append", sequence, rows),
            (LedgerError, "reserve", sequence, (-1, 2.0, True, 2**40)[number % 4]),
            (SwapError, "swap_in", b"kvsimswp" + bytes(80)),
        )
        self.must_refuse("misuse refused", *wrong[number % len(wrong)])
        if not (self.renumbers and self.shape.planes == "kv"):
            self.must_refuse("bad victim refused", VictimError, "evict", sequence, slots)

    def logits(self, sequence, token):
        """Compare the next token's logits, as integers."""
        (numbering,) = self.truths[sequence].numberings
        view = self.cache.view(sequence)
        if view.next_position < MAX_POSITIONS:
            ours = self.decoder.next_logits(view, token)
            theirs = self.decoder.next_logits(Coded(numbering.caches[0], self.cache.keys), token)
            assert np.array_equal(bits(ours), bits(theirs))
            self.note("logits")

    # What the chooser may ask

    def sequences(self):
        """Return the open sequences, ascending."""
        return sorted(self.truths)

    def positions(self, sequence, which):
        """Return the positions that a set retains, ascending."""
        return self.truths[sequence].positions(which)

    def length(self, sequence):
        """Return one past the last position that a span can name."""
        return self.truths[sequence].length()

    # The inside

    def between(self, truth, which, first, last):
        """Return the positions of a set in [first, last)."""
        positions = truth.positions(which)
        return positions[(positions >= first) & (positions < last)]

    def slots(self, sequence, which, positions):
        """Return the slots at which a set has these positions."""
        slots, here = self.ledger.rows(sequence, which)
        return slots[np.isin(here, positions)]

    def regime(self, tokens):
        """Return "long" if any layer's rotation takes its long factors at this length."""
        return "long" if any(r.regime(tokens) == "long" for r in self.shape.ropes) else "short"

    def copied_on_write(self):
        """Return the pages copied on write so far."""
        return self.ledger.total(f.COW_TOTAL)

    def holes(self, sequence):
        """Return the dead slots of a sequence's first table."""
        return self.ledger.table(sequence, 0, f.DEAD)

    def begin(self, number, truth):
        """Take in a new sequence."""
        assert number not in self.truths, "a sequence number is given out twice"
        self.truths[number] = truth

    def do(self, path, call, settle, receipt=False):
        """Call a verb and settle what it returns, unless the ceiling refuses it."""
        saved = Saved(self)
        try:
            done = call()
        except CeilingExceeded as refusal:
            assert self.ceiling, "there is no ceiling, and it was exceeded"
            saved.must_be_unchanged(path)
            if receipt:
                must_say(refusal)
            self.note(f"{path.split()[0]} refused")
            if self.memory is None:
                self.note("a ceiling that just fits")
                saved.just_fits(refusal, call, settle)
            return None
        settle(done)
        self.note(path)
        if self.ledger.room_pages > self.room:
            self.room = self.ledger.room_pages
            self.note("the pool grows")
        self.agree()
        return done

    def must_refuse(self, path, error, verb, *arguments):
        """Call a verb that must be refused and change nothing."""
        saved = Saved(self)
        try:
            getattr(self.cache, verb)(*arguments)
        except error as refusal:
            saved.must_be_unchanged(path)
            if isinstance(refusal, ExactnessRefused | VictimError):
                must_say(refusal)
        else:
            raise AssertionError(f"{verb} was not refused")
        self.note(path)

    def agree(self):
        """Assert that every sequence holds what it must, and that the ledger's recount agrees."""
        agree(self)
        if self.memory is not None:
            self.memory.check_resident()
            if self.memory.extents.returned_extents_total > self.returned:
                self.returned = self.memory.extents.returned_extents_total
                self.note("extents are given back")
