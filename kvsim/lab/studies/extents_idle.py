"""What a serving loop over kvcached's extents holds once it is idle.

Its traffic is that of kvcached's bench_idle_footprint: prefixes that come back, a long tail of
prompts that are seen once, and decode lengths that differ, so that requests end at different
moments. A step has no duration and no tokens are drawn, only their numbers; the pool never runs
short, and no thread maps extents ahead.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from kvsim.lab.studies.extents_keys import ExtentStudy
from kvsim.paging.physical.kvcached import Kvcached
from kvsim.paging.physical.kvcached_victims import GONE

# Source: bench_idle_footprint's defaults, and vLLM's budget of tokens a step.
HOT_TOKENS, SUFFIX_TOKENS, HOT_SHARE = 128, 64, 0.3
PROMPT_TOKENS = (192, 1024)
STEP_TOKENS = 2048

# What a full page is cached under: the prefix (below 0) or the request, and its place in it.
Key = tuple[int, int]


@dataclass
class Request:
    """A request: its hot prefix or -1, its tokens, and what it holds so far."""

    number: int
    hot: int
    prompt_tokens: int
    decode_tokens: int
    done_tokens: int = 0
    pages: list[int] = field(default_factory=list)

    @property
    def tokens(self) -> int:
        """Tokens that it has in the end."""
        return self.prompt_tokens + self.decode_tokens

    def key(self, place: int, page_tokens: int) -> Key:
        """Return what its page at a place is cached under."""
        hot = self.hot >= 0 and (place + 1) * page_tokens <= HOT_TOKENS
        return (-1 - self.hot, place) if hot else (self.number, place)


def traffic(study: ExtentStudy, rng: random.Random) -> list[Request]:
    """Return the requests; hot prefixes come up one by one over the whole run."""
    found = []
    for number in range(study.requests):
        share = number / max(1, study.requests - 1)
        known = min(study.hot_prefixes, 1 + int(study.hot_prefixes * share))
        if rng.random() < HOT_SHARE:
            hot, prompt = rng.randrange(known), HOT_TOKENS + SUFFIX_TOKENS
        else:
            hot, prompt = -1, rng.randint(*PROMPT_TOKENS)
        decode = rng.randint(study.decode_tokens_least, study.decode_tokens_most)
        found.append(Request(number, hot, prompt, decode))
    return found


class Server:
    """Continuous batching with chunked prefill, and a prefix cache that is trimmed to a cap."""

    def __init__(self, study: ExtentStudy, model: Kvcached, page_tokens: int) -> None:
        self.study, self.model, self.page_tokens = study, model, page_tokens
        self._references: dict[int, int] = {}
        # Cached pages that nobody holds, the least recently used first.
        self._evictable: dict[int, None] = {}
        self._key: dict[int, Key] = {}
        self._above: dict[int, Key] = {}
        self._pages: dict[Key, dict[int, None]] = {}
        self.hit_pages_total = self.evicted_pages_total = self.stranded_pages_total = 0
        self.tokens_total = 0
        self.used_extents_peak = 0

    @property
    def cached(self) -> list[int]:
        """Cached pages that nobody holds, the least recently used first."""
        return list(self._evictable)

    def parents(self) -> dict[int, int]:
        """Return the page before each cached one, `GONE` where no page has its key any more.

        Where several pages have one key, a hit takes the one that was cached first.
        """
        found = {}
        for page in self._evictable:
            if page in self._above:
                found[page] = next(iter(self._pages.get(self._above[page], ())), GONE)
        return found

    def serve(self, requests: list[Request]) -> None:
        """Run requests to their end."""
        waiting = requests[::-1]
        running: list[Request] = []
        while waiting or running:
            left = STEP_TOKENS
            for request in running:
                left -= self._compute(request, left)
            while waiting and left and len(running) < self.study.running:
                request = waiting.pop()
                self._admit(request)
                left -= self._compute(request, left)
                running.append(request)
            self.used_extents_peak = max(self.used_extents_peak, self.model.used_extents)
            for request in [each for each in running if each.done_tokens == each.tokens]:
                running.remove(request)
                self._finish(request)

    def _compute(self, request: Request, budget_tokens: int) -> int:
        """Compute the rest of a prompt or one token, within a budget; return how many tokens.

        Pages are taken for them, and those that are full are cached.
        """
        tokens = min(budget_tokens, max(1, request.prompt_tokens - request.done_tokens))
        full = request.done_tokens // self.page_tokens
        request.done_tokens += tokens
        self.tokens_total += tokens
        missing = -(-request.done_tokens // self.page_tokens) - len(request.pages)
        if missing > 0:
            pages = self.model.allocate(missing)
            self._references |= dict.fromkeys(pages, 1)
            request.pages += pages
        for place in range(full, request.done_tokens // self.page_tokens):
            page, key = request.pages[place], request.key(place, self.page_tokens)
            self._key[page] = key
            self._pages.setdefault(key, {})[page] = None
            if place:
                self._above[page] = request.key(place - 1, self.page_tokens)
        return tokens

    def _admit(self, request: Request) -> None:
        """Take over the cached pages of a request's hot prefix."""
        while request.hot >= 0 and (len(request.pages) + 1) * self.page_tokens <= HOT_TOKENS:
            key = request.key(len(request.pages), self.page_tokens)
            page = next(iter(self._pages.get(key, ())), None)
            if page is None:
                break
            self._references[page] += 1
            self._evictable.pop(page, None)
            request.pages.append(page)
            request.done_tokens += self.page_tokens
            self.hit_pages_total += 1

    def _finish(self, request: Request) -> None:
        """Let go of a request's pages, the last first, and trim the cache to its cap."""
        dropped = []
        for page in reversed(request.pages):
            self._references[page] -= 1
            if not self._references[page]:
                if page in self._key:
                    self._evictable[page] = None
                else:
                    dropped.append(page)
        self.model.let_go(dropped)
        excess = len(self._evictable) - self.study.cached_pages
        if excess > 0:
            self._trim(excess)

    def _trim(self, count: int) -> None:
        chains = self.parents() if self.study.victims == "chain_aware" else None
        victims = self.model.victims(
            list(self._evictable),
            count,
            self.study.victims != "lru",
            parents=chains,
            top_up=self.study.top_up,
        )
        extents = [self.model.extent_of(page) for page in victims]
        for page in victims:
            del self._evictable[page]
            self._above.pop(page, None)
            key = self._key.pop(page)
            del self._pages[key][page]
            if not self._pages[key]:
                del self._pages[key]
        self.model.let_go(victims)
        self.evicted_pages_total += len(victims)
        self.stranded_pages_total += sum(
            self.model.occupied(extent) > 0 for extent in extents if extent is not None
        )
