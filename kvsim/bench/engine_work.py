"""What `kvsim bench engine` serves: requests drawn from a seed, and the terms that go with them."""

from __future__ import annotations

import numpy as np

from kvsim.bench.engine_report import StaticEviction, Terms
from kvsim.engine.costs.roofline import CostModel
from kvsim.workload.requests import Requests, without_keys

PAGE_TOKENS = 16
RUNNING = 256
GROUPS = 64  # groups of requests that share the first pages of their prompts,
SHARED_PAGES = 8  # and how many these are at most

#: A model of 8 billion parameters in 16 bits with 8 KV heads of 128 in 32 layers, on 3.35 TB/s
#: and 0.99 PFLOP/s. The numbers only set the pace: all engines are asked the same.
COST = CostModel(
    weights_bytes=16_060_522_496,
    parameters=8_030_261_248,
    row_bytes=131_072,
    pair_flops=524_288,
    bandwidth_bytes_per_s=3.35e12,
    flops_per_s=9.9e14,
    host_bytes_per_s=6.4e10,
).coefficients()


def plain(rng: np.random.Generator, requests: int, most_output: int = 512) -> Requests:
    """Return requests that share nothing; 256 of them run nearly all the time.

    Parameters
    ----------
    rng : Generator
    requests : int
    most_output : int
        Outputs are from 1 token to one less than this, prompts from 16 to 496.
    """
    arrival = np.cumsum(rng.exponential(2.5e6, requests)).astype(np.int64)
    prompts = rng.integers(16, 497, requests)
    return without_keys(PAGE_TOKENS, arrival, prompts, rng.integers(1, most_output, requests))


def plain_terms() -> Terms:
    """Return terms on which nothing stands in a request's way but the seats."""
    return Terms(2048, RUNNING)


def long_prompts(rng: np.random.Generator, requests: int) -> Requests:
    """Return requests that are over a budget of 512 tokens from their first step on."""
    arrival = np.cumsum(rng.exponential(5e6, requests)).astype(np.int64)
    prompts = rng.integers(512, 1025, requests)
    return without_keys(PAGE_TOKENS, arrival, prompts, rng.integers(128, 385, requests))


def scattered_terms() -> Terms:
    """Return terms on which every step evicts a token of each member by a fixed random priority."""
    eviction = StaticEviction("random", tokens=512, sinks=4, recent=32)
    return Terms(8192, RUNNING, eviction=eviction)


def shared(rng: np.random.Generator, requests: int) -> Requests:
    """Return requests of groups with a common prompt prefix; one in ten has two samples."""
    arrival = np.cumsum(rng.exponential(2.5e6, requests)).astype(np.int64)
    prompts, outputs = rng.integers(128, 513, requests), rng.integers(1, 512, requests)
    group = rng.integers(0, GROUPS, requests)
    samples = 1 + (rng.random(requests) < 0.1)
    pages = np.minimum(SHARED_PAGES, prompts // PAGE_TOKENS)
    keys = [
        np.arange(held) + SHARED_PAGES * of
        for of, held in zip(group.tolist(), pages.tolist(), strict=True)
    ]
    return Requests(
        PAGE_TOKENS,
        arrival,
        prompts,
        outputs,
        np.zeros(requests, np.int64),
        samples.astype(np.int64),
        np.concatenate(keys).astype(np.int32),
        np.concatenate([[0], np.cumsum(pages)]),
        GROUPS * SHARED_PAGES,
    )


def pressed_terms() -> Terms:
    """Return terms with a prefix cache in a pool that is too small for all who have a seat."""
    return Terms(2048, RUNNING, ceiling_pages=4000, watermark=0.01, cache="blocks")
