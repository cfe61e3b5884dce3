"""The tables of a scenario that only the serving engine reads: its scheduler, cache and memory."""

from __future__ import annotations

from dataclasses import dataclass

from kvsim.lab.keys import choice, count, number


@dataclass(frozen=True)
class Serving:
    """The scheduler, and what its users expect.

    Attributes
    ----------
    step_tokens : int
        Tokens that one step may compute, decoding and prefill together.
    max_running : int
        Most sequences that run at once.
    chunked : bool
        Whether a prompt may be computed over several steps.
    watermark : float
        Share of the ceiling that an admission leaves free; 0 for none.
    admission : str
        Who is admitted first.
    preemption : str
        What becomes of a preempted request's rows.
    pressure : str
        What is tried before a preemption: nothing, or the policy's eviction on every decoding
        sequence that holds more than its budget; then nothing is evicted at other times.
    limit : int
        Requests read from the trace; 0 for all.
    time_scale : float
        What recorded arrival times are multiplied with.
    skip_bad : bool
        Whether bad lines of a trace are skipped and counted instead of refused.
    sample_ms : float
        Simulated time between two samples of the time series; none are taken at 0.
    slo_ttft_ms, slo_tpot_ms : float
        What a request has to meet to count as goodput.
    input_tokens, output_tokens : int
        Lengths of requests under kind `poisson`; 0 takes them from workload.path.
    shared_prefix_tokens : int
        A prefix that all requests of kind `poisson` share.
    samples : int
        Outputs generated from each prompt, as forks; a trace that says its own keeps them.
    """

    step_tokens: int = count(2048, 1)
    max_running: int = count(256, 1)
    chunked: bool = True
    watermark: float = number(0.0, -1e-300, 0.99)
    admission: str = choice("fcfs", "priority")
    preemption: str = choice("recompute", "swap")
    pressure: str = choice("none", "evict")
    limit: int = count(0)
    time_scale: float = number(1.0, 0.0, 1e6)
    skip_bad: bool = False
    sample_ms: float = number(1000.0, -1e-300, 1e9)
    slo_ttft_ms: float = number(2000.0, 0.0, 1e9)
    slo_tpot_ms: float = number(100.0, 0.0, 1e9)
    input_tokens: int = count(0)
    output_tokens: int = count(0)
    shared_prefix_tokens: int = count(0)
    samples: int = count(1, 1)


@dataclass(frozen=True)
class Prefix:
    """The prefix cache.

    Attributes
    ----------
    cache : str
        Hash-chained full pages, as vLLM has them; none; or a radix tree of them, as SGLang has it.
    unhashed : str
        Where in the queue a freed page without a key goes.
    publish : str
        Whether pages that hold generated tokens enter the index too.
    cap_pages : int
        Cached pages that a trimming leaves; 0 for no cap and no trimming.
    victims : str
        Which cached pages a trimming takes. `lru`: those used longest ago. `page_aligned`: whole
        extents, fewest pages first. `chain_aware`: whole extents, those first that cut off the
        fewest pages from their chains.
    trim_ms : float
        Simulated time between two trimmings, where there is a cap.
    """

    cache: str = choice("blocks", "none", "radix")
    unhashed: str = choice("head", "tail")
    publish: str = choice("all", "prompt")
    cap_pages: int = count(0)
    victims: str = choice("lru", "page_aligned", "chain_aware")
    trim_ms: float = number(1000.0, 0.0, 1e9)


@dataclass(frozen=True)
class Memory:
    """The allocator under the pool.

    Attributes
    ----------
    model : str
        One of `kvsim allocators`, or none.
    reserve_extents : int
        Empty extents that stay mapped, under `kvcached` and `slab`.
    every_steps : int
        Steps between two looks of the allocator at the pool.
    """

    model: str = choice(
        "none",
        "fixed_pool",
        "token_pool",
        "extents",
        "kvcached",
        "slab",
        "caching_allocator",
        "async_pool",
        "contiguous",
    )
    reserve_extents: int = count(10)
    every_steps: int = count(1, 1)
