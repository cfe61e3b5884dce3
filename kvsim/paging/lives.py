"""How sequences begin and end: the verbs open, fork, clone, reserve, free, and images of tables."""

from __future__ import annotations

import numpy as np

from kvsim.errors import LedgerError, SwapError
from kvsim.paging import fields as f
from kvsim.paging import images, lifecycle
from kvsim.paging.calls import Calls
from kvsim.paging.images import TableImage

#: Tokens of one verb stay below this, so that no product of them leaves an int64.
TOKENS_LIMIT = 2**31 - 1


class Lives(Calls):
    """The verbs that begin and end sequences; `Ledger` adds those that fill and empty them."""

    def open(self) -> int:
        """Return the number of a new, empty sequence."""
        self._call("open", lifecycle.open_sequence)
        return self._taken_number()

    def fork(self, parent: int) -> int:
        """Return the number of a new sequence that shares every page of `parent`.

        Pages that the parent has reserved stay its own.
        """
        self._check_open(parent)
        self._call("fork", lifecycle.fork, parent)
        return self._taken_number()

    def clone(self, parent: int) -> int:
        """Return the number of a new sequence with its own copy of every page of `parent`.

        Its pages are copied at once, those reserved included, and count as copied on write.

        Raises
        ------
        CeilingExceeded
            If the copies do not fit. Nothing is changed.
        """
        self._check_open(parent)
        self._call("clone", lifecycle.clone, parent)
        return self._taken_number()

    def reserve(self, sequence: int, tokens: int) -> None:
        """Take the pages that the next `tokens` tokens of a sequence need.

        They are held, and their slots are tail slots; appends use them before any other page.
        A reservation outlives evictions and compactions, and is not shared with forks.

        Raises
        ------
        CeilingExceeded
            If they do not fit. Nothing is changed.
        LedgerError
            If the sequence is not open, or `tokens` is negative or beyond any table.
        """
        self._check_open(sequence)
        if isinstance(tokens, bool) or not isinstance(tokens, int | np.integer):
            raise LedgerError(f"room is reserved for whole tokens, not {tokens!r:.60}")
        if not 0 <= tokens < TOKENS_LIMIT:
            raise LedgerError(f"cannot reserve room for {tokens} tokens")
        self._call("reserve", lifecycle.reserve_ahead, sequence, tokens)

    def free(self, sequence: int) -> None:
        """End a sequence and let go of its pages.

        Raises
        ------
        LedgerError
            If the sequence is not open: a double free is refused, not ignored.
        """
        self._check_open(sequence)
        self._call("free", lifecycle.free, sequence)

    def reserved_pages(self, sequence: int) -> int:
        """Pages that a sequence has taken ahead, over all its tables."""
        tables = self._arrays.tables[sequence * self._units : (sequence + 1) * self._units]
        return int(tables[:, f.RESERVED].sum())

    def image(self, sequence: int) -> tuple[TableImage, np.ndarray]:
        """Return an image of a sequence's tables, and where its slots lie.

        Returns
        -------
        image : TableImage
        placed : int64 [slots]
            The physical slot of each of the image's slots, -1 where the entry is null.
        """
        self._check_open(sequence)
        arrays = self._arrays
        tables = arrays.tables[sequence * self._units : (sequence + 1) * self._units].copy()
        slots, named, placed = [], [], []
        for scope, row in enumerate(tables):
            base = int(row[f.START]) * self.page_tokens
            slots.append(np.arange(base, base + int(row[f.CURSOR])))
            pages = self.pages_of(sequence, scope)
            named.append(pages >= 0)
            numbers = np.arange(int(row[f.CURSOR]))
            page = pages[numbers // self.page_tokens]
            where = page * self.page_tokens + numbers % self.page_tokens
            placed.append(np.where(page >= 0, where, -1))
        every = np.concatenate(slots)
        image = TableImage(
            cursors=tables[:, f.CURSOR].copy(),
            reserved=tables[:, f.RESERVED].copy(),
            following=tables[:, f.NEXT_POSITION :].copy(),
            named=np.concatenate(named).astype(np.uint8),
            dead=arrays.dead[every],
            holders=arrays.holders[:, every],
            position=arrays.position[:, every],
        )
        return image, np.concatenate(placed)

    def restore(self, image: TableImage) -> tuple[int, np.ndarray]:
        """Open a sequence with the tables of an image, in fresh pages.

        Returns
        -------
        sequence : int
        placed : int64 [slots]
            The physical slot of each of the image's slots, -1 where the entry is null.

        Raises
        ------
        SwapError
            If the image is not of a ledger like this one. Nothing is changed.
        CeilingExceeded
            If its pages do not fit. Nothing is changed.
        """
        arrays = self._arrays
        if (
            image.cursors.shape != (self._units,)
            or image.reserved.shape != (self._units,)
            or image.following.shape != (self._units, arrays.tables.shape[1] - f.TABLE_FIELDS)
            or image.named.ndim != 1
            or image.dead.ndim != 1
            or image.holders.shape != (arrays.holders.shape[0], image.dead.size)
            or image.position.shape != (arrays.position.shape[0], image.dead.size)
        ):
            raise SwapError("the image is of a ledger with other tables")
        for counts in (image.cursors, image.reserved, image.following):
            if counts.size and not 0 <= counts.min() <= counts.max() < TOKENS_LIMIT:
                raise SwapError("a count is negative, or beyond any table")
        image.check(self.page_tokens)
        placed = np.empty(image.dead.size, np.int64)
        self._call(
            "restore",
            images.restore,
            image.cursors,
            image.reserved,
            image.following,
            image.named,
            image.dead,
            image.holders,
            image.position,
            placed,
        )
        return self._taken_number(), placed
