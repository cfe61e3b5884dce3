"""What a kvcached instance holds once it is idle: a small serving loop over the model.

The traffic is that of kvcached's bench_idle_footprint: hot prefixes that come back, a long tail
of prompts seen once, and decode lengths that differ, so that requests end at different moments.
2,500 requests, 96 at a time, pages of 16 tokens, 64 of them to an extent, a cap of 1,000 cached
pages.

What deviates from the run on an L40 with vLLM: lengths come from Python's generator with the same
seed but not from the same draws, since tokens are never drawn; a step has no duration, so a
request that ends is replaced in the next step; the pool never runs short, and extents are mapped
at once and not by a thread.

python tests/idle_footprint.py     # prints the extents in use
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from kvsim.paging.physical.kvcached import Kvcached, KvcachedParameters

PAGE_TOKENS, CAP_PAGES = 16, 1000
LAYERS, PAGE_BYTES, PAGES = 36, 32 * 1024, 14_000
STEP_TOKENS = 2048
HOT_TOKENS, SUFFIX_TOKENS, HOT_RATIO = 128, 64, 0.3


@dataclass
class Request:
    """A request: its hot prefix or -1, its tokens, and what it holds so far."""

    number: int
    hot: int
    prompt: int
    decode: int
    done: int = 0
    pages: list[int] = field(default_factory=list)


def requests(
    seed: int, count: int, decode_tokens: tuple[int, int], hot_prefixes: int
) -> list[Request]:
    """Return the traffic; hot prefixes are introduced one by one over the whole run."""
    rng = random.Random(seed)
    found = []
    for number in range(count):
        introduced = min(hot_prefixes, 1 + int(hot_prefixes * number / max(1, count - 1)))
        if rng.random() < HOT_RATIO:
            hot, prompt = rng.randrange(introduced), HOT_TOKENS + SUFFIX_TOKENS
        else:
            hot, prompt = -1, rng.randint(192, 1024)
        found.append(Request(number, hot, prompt, rng.randint(*decode_tokens)))
    return found


class Server:
    """A prefix cache with a cap over the model, and a loop of steps with chunked prefill."""

    def __init__(self, allocation: str, page_aligned: bool) -> None:
        self.model = Kvcached(
            KvcachedParameters(
                pages=PAGES, page_bytes=PAGE_BYTES, layers=LAYERS, allocation=allocation
            )
        )
        self.page_aligned = page_aligned
        self.references: dict[int, int] = {}
        # Cached pages that nobody needs, oldest first; what each hashed page is cached under.
        self.evictable: dict[int, None] = {}
        self.keys: dict[int, tuple[int, int]] = {}
        self.by_key: dict[tuple[int, int], dict[int, None]] = {}
        self.hit_pages = 0
        self.largest = 0

    def grow(self, request: Request, tokens: int) -> None:
        """Compute tokens of a request: take pages for them, and cache those that are full."""
        full = request.done // PAGE_TOKENS
        request.done += tokens
        missing = -(-request.done // PAGE_TOKENS) - len(request.pages)
        if missing > 0:
            pages = self.model.allocate(missing)
            self.references |= dict.fromkeys(pages, 1)
            request.pages += pages
        for place in range(full, request.done // PAGE_TOKENS):
            hot = request.hot >= 0 and (place + 1) * PAGE_TOKENS <= HOT_TOKENS
            key = (-1 - request.hot, place) if hot else (request.number, place)
            self.keys[request.pages[place]] = key
            self.by_key.setdefault(key, {})[request.pages[place]] = None

    def admit(self, request: Request) -> None:
        """Take over the cached pages of a request's hot prefix."""
        while request.hot >= 0 and request.done < HOT_TOKENS:
            page = next(iter(self.by_key.get((-1 - request.hot, len(request.pages)), ())), None)
            if page is None:
                break
            self.references[page] = self.references.get(page, 0) + 1
            self.evictable.pop(page, None)
            request.pages.append(page)
            request.done += PAGE_TOKENS
            self.hit_pages += 1

    def finish(self, request: Request) -> None:
        """Let go of a request's pages, the last first, and trim the cache to its cap."""
        dropped = []
        for page in reversed(request.pages):
            self.references[page] -= 1
            if not self.references[page]:
                if page in self.keys:
                    self.evictable[page] = None
                else:
                    dropped.append(page)
        self.model.let_go(dropped)
        excess = len(self.evictable) - CAP_PAGES
        if excess > 0:
            victims = self.model.victims(list(self.evictable), excess, self.page_aligned)
            for page in victims:
                del self.evictable[page]
                del self.by_key[self.keys.pop(page)][page]
            self.model.let_go(victims)

    def serve(self, waiting: list[Request], concurrency: int) -> None:
        """Run requests to their end, so many at a time."""
        waiting = waiting[::-1]
        running: list[Request] = []
        while waiting or running:
            budget = STEP_TOKENS
            for request in running:
                whole = request.prompt + request.decode
                left = max(1, request.prompt - request.done)
                tokens = min(left, whole - request.done, budget)
                if tokens:
                    self.grow(request, tokens)
                budget -= tokens
            while waiting and budget and len(running) < concurrency:
                request = waiting.pop()
                self.admit(request)
                tokens = min(request.prompt - request.done, budget)
                self.grow(request, tokens)
                budget -= tokens
                running.append(request)
            self.largest = max(self.largest, self.model.used_extents)
            for request in [r for r in running if r.done == r.prompt + r.decode]:
                running.remove(request)
                self.finish(request)


#: Allocation and victims of each row of the published table.
ROWS = {
    "before": ("newest", False),
    "page-aligned victims": ("newest", True),
    "best fit too": ("best_fit", True),
}


def idle(
    row: str,
    seed: int = 1234,
    count: int = 2500,
    concurrency: int = 96,
    decode_tokens: tuple[int, int] = (16, 256),
) -> Server:
    """Serve the traffic under a row's rules and return the idle server."""
    server = Server(*ROWS[row])
    server.serve(requests(seed, count, decode_tokens, 16), concurrency)
    server.model.check()
    return server


def main() -> None:
    for seed in (1234, 1, 2, 3):
        used = {row: idle(row, seed) for row in ROWS}
        print(
            seed, {row: (s.model.used_extents, s.largest, s.hit_pages) for row, s in used.items()}
        )
    print("decode of 4 tokens:", idle("before", decode_tokens=(4, 4)).model.used_extents)


if __name__ == "__main__":
    main()
