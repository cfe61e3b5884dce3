"""Pages of any size out of a trace's block ids: exact upwards, with a stated loss downwards.

Multiples of the block size are exact: a page is shared where all ids up to its end agree. For
divisors each id is split into sub-ids, and sharing that ended inside a block cannot be known.
RAGPulse's chunks say how long each is, so its pages are exact at any size. No other size is
possible, and none is made up.
"""

from __future__ import annotations

import numpy as np

from kvsim.errors import WorkloadError
from kvsim.workload.traces.chains import ROOT, Chains
from kvsim.workload.traces.request import MOST_TOKENS, NO_IDS, Request

CAVEAT = (
    "ids of {block}-token blocks were split into {page}-token pages: sharing that ended inside "
    "a block cannot be recovered"
)


class Reblocker:
    """Turns the ids of requests into ids of pages.

    Parameters
    ----------
    block_tokens : int
        Tokens of the trace's blocks; 0 where requests carry `chunk_tokens`.
    page_tokens : int or None
        Tokens of a page; None takes the ids as they are.

    Attributes
    ----------
    caveat : str or None
        What the page ids cannot tell.
    chains : Chains
        Where pages are several blocks or parts of one: numbers of the prefixes of blocks.
    nodes : int64 [blocks]
        Those of the request that was turned last, where pages are several blocks.

    Raises
    ------
    WorkloadError
        If neither size divides the other.
    """

    def __init__(self, block_tokens: int, page_tokens: int | None) -> None:
        self.caveat: str | None = None
        self.page_tokens = page_tokens
        self._pages = self._own
        if page_tokens is None or page_tokens == block_tokens:
            self.page_tokens = page_tokens or block_tokens
            return
        if not 0 < page_tokens < MOST_TOKENS:
            raise WorkloadError(f"pages cannot have {page_tokens} tokens")
        self.chains = Chains()
        self.nodes = NO_IDS
        if not block_tokens:
            # Of each prefix of chunks: tokens up to its end, and the first of its pages.
            self._prefixes: dict[tuple[int, int], tuple[int, int, int]] = {}
            self._next = 0
            self._pages = self._from_chunks
        elif page_tokens % block_tokens == 0:
            self._ratio = page_tokens // block_tokens
            self._pages = self._coarser
        elif block_tokens % page_tokens == 0:
            self._ratio = block_tokens // page_tokens
            self._pages = self._finer
            self.caveat = CAVEAT.format(block=block_tokens, page=page_tokens)
        else:
            raise WorkloadError(
                f"pages of {page_tokens} tokens cannot be made of blocks of {block_tokens}: "
                "neither divides the other"
            )

    def __call__(self, request: Request) -> np.ndarray:
        """Return the page ids of a request's prompt, int64 [pages]; the last may be partial."""
        return self._pages(request)

    def _own(self, request: Request) -> np.ndarray:
        return request.hash_ids

    def _coarser(self, request: Request) -> np.ndarray:
        self.nodes = nodes = self.chains(request.hash_ids)
        pages = nodes[self._ratio - 1 :: self._ratio]
        if request.rounds_up and nodes.size % self._ratio:
            return np.append(pages, nodes[-1])
        return pages

    def _finer(self, request: Request) -> np.ndarray:
        size = self.page_tokens or 1
        nodes = self.chains(request.hash_ids)
        pages = (nodes[:, None] * self._ratio + np.arange(self._ratio)).ravel()
        if request.rounds_up:
            return pages[: -(-request.input_tokens // size)]
        # Whole pages behind the last whole block: their content is known to nobody else.
        beyond = request.input_tokens // size - pages.size
        if beyond > 0:
            own = self.chains.fresh() * self._ratio + np.arange(beyond)
            return np.concatenate([pages, own])
        return pages

    def _from_chunks(self, request: Request) -> np.ndarray:
        size = self.page_tokens or 1
        if request.chunk_tokens is None:
            return NO_IDS
        parent, end, parts = ROOT, 0, []
        for chunk, length in zip(
            request.hash_ids.tolist(), request.chunk_tokens.tolist(), strict=True
        ):
            begin = end
            end += length
            known = self._prefixes.get((parent, chunk))
            if known is None:
                # A page belongs to the prefix in which its last token lies.
                known = (len(self._prefixes), self._next, end // size - begin // size)
                self._prefixes[parent, chunk] = known
                self._next += known[2]
            parent = known[0]
            parts.append(np.arange(known[1], known[1] + known[2]))
        # Separators have no id, so a page that they complete is nobody else's.
        beyond = request.input_tokens // size - end // size
        parts.append(np.arange(self._next, self._next + beyond))
        self._next += beyond
        return np.concatenate(parts)


def with_output(request: Request, block_tokens: int) -> Request:
    """Return a request whose prompt goes on over the blocks of its output that have ids."""
    if not request.output_ids.size:
        return request
    ids = np.concatenate([request.hash_ids, request.output_ids])
    return request._replace(hash_ids=ids, input_tokens=ids.size * block_tokens)


def weights(request: Request, pages: int, page_tokens: int) -> np.ndarray:
    """Return how many tokens of the prompt each of its pages holds, int64 [pages].

    Parameters
    ----------
    page_tokens : int
        0 where the pages are chunks that say their own sizes.
    """
    if not page_tokens:
        chunks = request.chunk_tokens
        return chunks if chunks is not None else np.zeros(0, dtype=np.int64)
    found = np.full(pages, page_tokens, dtype=np.int64)
    if pages:
        found[-1] = min(page_tokens, request.input_tokens - (pages - 1) * page_tokens)
    return found
