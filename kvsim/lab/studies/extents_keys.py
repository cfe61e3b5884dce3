"""The table [extents] of a scenario: cached pages, and who takes them back to empty extents."""

from __future__ import annotations

from dataclasses import dataclass

from kvsim.lab.keys import choice, count


@dataclass(frozen=True)
class ExtentStudy:
    """Cached pages over an allocator of extents, and their eviction.

    A recipe reads some of the keys; one that it does not read has to keep its default.

    Attributes
    ----------
    recipe : str
        How pages come to lie where they lie. `stride`: a run of pages of which every so many-th
        was used again. `random`: requests whose pages are drawn among the first free ones.
        `idle`: a serving loop that trims its cache to a cap, looked at once nothing runs.
    victims : str
        Which cached pages go first. `lru`: in order of use. `page_aligned`: whole extents, fewest
        pages first, as kvcached has it. `chain_aware`: whole extents, those first
        that cut off the fewest pages from their chains.
    top_up : bool
        Whether an eviction that has no further extent to empty takes single pages up to its
        number, or ends there.
    allocation : str
        Extent for new pages: the best fit, or the one that last had a page freed.
    queue : str
        Whether a request's pages stand in the order of use with the first or the last in front.
        The recipe `idle` has the last in front, as vLLM frees them.
    pool_pages : int
        Page ids that there are, page 0, which no table gets, included.
    cached_pages : int
        Pages that are cached and held by nobody before the eviction; under `idle`, the cap.
    evict_pages : int
        How many of them are to go.
    stride : int
        Of so many neighbouring pages, one was used again after all had been cached.
    touch : str
        Which one of them.
    chain_pages : int
        Pages of a request, which follow one another; a request is one chain.
    pinned_pages : int
        Pages that running requests hold.
    spread_extents : int
        Pages are drawn among the free ones that so many extents have room for; 0: among all.
    request_pages_least, request_pages_most : int
        Pages of a request, drawn between both; a request is one chain, in the order drawn.
    reserve_extents : int
        Empty extents that stay mapped.
    requests, running : int
        Requests that are served, and how many at once.
    hot_prefixes : int
        Prefixes of 128 tokens that requests share.
    decode_tokens_least, decode_tokens_most : int
        Tokens that a request generates, drawn between both.
    """

    recipe: str = choice("stride", "random", "idle")
    victims: str = choice("lru", "page_aligned", "chain_aware")
    top_up: bool = True
    allocation: str = choice("best_fit", "newest")
    queue: str = choice("head_first", "tail_first")
    pool_pages: int = count(8192, 2)
    cached_pages: int = count(4096, 1)
    evict_pages: int = count(3584)
    stride: int = count(1, 1)
    touch: str = choice("first", "last")
    chain_pages: int = count(64, 1)
    pinned_pages: int = count(0)
    spread_extents: int = count(0)
    request_pages_least: int = count(8, 1)
    request_pages_most: int = count(64, 1)
    reserve_extents: int = count(10)
    requests: int = count(2500, 1)
    running: int = count(96, 1)
    hot_prefixes: int = count(16, 1)
    decode_tokens_least: int = count(16, 1)
    decode_tokens_most: int = count(256, 1)


# What each recipe reads beside recipe, victims, top_up and reserve_extents, which all read.
READ = {
    "stride": (
        "queue",
        "pool_pages",
        "cached_pages",
        "evict_pages",
        "stride",
        "touch",
        "chain_pages",
    ),
    "random": (
        "queue",
        "pool_pages",
        "cached_pages",
        "evict_pages",
        "pinned_pages",
        "spread_extents",
        "request_pages_least",
        "request_pages_most",
    ),
    "idle": (
        "allocation",
        "pool_pages",
        "cached_pages",
        "requests",
        "running",
        "hot_prefixes",
        "decode_tokens_least",
        "decode_tokens_most",
    ),
}
