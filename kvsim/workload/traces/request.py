"""One request of a trace, whatever format it came in, and what may be wrong with a line.

Knows nothing about files: a format makes requests out of its lines, and everything above reads
only these.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from kvsim.errors import WorkloadError

# No recorded workload comes near it (the longest request known here has 894,371 tokens), and a
# length beyond it is a counter that overflowed or two numbers run together.
MOST_TOKENS = 10_000_000
MOST_NANOSECONDS = 1 << 62
NO_IDS = np.zeros(0, dtype=np.int64)


class BadRecord(WorkloadError):
    """A line, or one request of it, cannot be used. Says why; the reader adds where."""


class Problem(NamedTuple):
    """What is wrong with a line.

    Attributes
    ----------
    kind : str
        One word for a program: ``blank``, ``order``, or ``record``.
    place : str
        File and line, and the request inside the line where a line holds several.
    what : str
    """

    kind: str
    place: str
    what: str

    def __str__(self) -> str:
        return f"{self.place}: {self.what}"


class Request(NamedTuple):
    """One request.

    Attributes
    ----------
    arrival_ns : int
        Nanoseconds since the clock of the trace began, or of the conversation where the format
        has only that (`Format.clock`); 0 where it has no times.
    input_tokens, output_tokens : int
        At least 1, at least 0, their sum below 10^7.
    hash_ids : int64 [blocks]
        Block ids in prefix order, as the file has them, distinct between conversations; empty
        where the format has none.
    rounds_up : bool
        Whether a prompt that ends inside a block has an id for that block too.
    chunk_tokens : int64 [blocks] or None
        Tokens of each id where blocks are not of one size (RAGPulse).
    request_id : int
        The file's own number of this request; else its number in the file, from 0.
    conversation : int
        Requests of one conversation share it; -1 where the format does not tell.
    parent : int
        `request_id` of the request that this one continues, or -1.
    agent : int
        0, or the number of the sub-agent inside the conversation, from 1.
    output_ids : int64 [blocks]
        Ids of the full blocks behind those of the prompt, where a format knows what will be
        generated: the first may begin with the prompt's last tokens. Only beside prompts whose
        ids are all of full blocks.
    priority : int
        A lower one is served first.
    samples : int
        Outputs to generate from the prompt; 0 where the format does not tell.
    """

    arrival_ns: int
    input_tokens: int
    output_tokens: int
    hash_ids: np.ndarray = NO_IDS
    rounds_up: bool = False
    chunk_tokens: np.ndarray | None = None
    request_id: int = -1
    conversation: int = -1
    parent: int = -1
    agent: int = 0
    output_ids: np.ndarray = NO_IDS
    priority: int = 0
    samples: int = 0


def check_lengths(input_tokens: int, output_tokens: int) -> None:
    """Refuse a request of 10^7 tokens or more, prompt and output together."""
    if input_tokens + output_tokens >= MOST_TOKENS:
        raise BadRecord(
            f"{input_tokens:,} input and {output_tokens:,} output tokens: no request has "
            f"{MOST_TOKENS:,} tokens or more"
        )


def check_hashes(count: int, input_tokens: int, block_tokens: int, rounding: str) -> None:
    """Refuse a number of block ids that the prompt's length contradicts.

    Parameters
    ----------
    rounding : {"up", "down", "either"}
        Whether the format counts a last, partial block, or lets each request decide.
    """
    down = input_tokens // block_tokens
    up = -(-input_tokens // block_tokens)
    allowed = {"up": (up,), "down": (down,), "either": (down, up)}[rounding]
    if count not in allowed:
        wanted = " or ".join(str(one) for one in sorted(set(allowed)))
        raise BadRecord(
            f"{count} hash ids for {input_tokens} input tokens in blocks of {block_tokens}: "
            f"{wanted} needed"
        )
