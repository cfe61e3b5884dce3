"""The seeded traces of `kvsim bench replay`: a Zipf stream of blocks, and conversations."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from kvsim.seeds import stream
from kvsim.workload.replay.oracle_general import RECORD

ALPHA = 0.9
BLOCK_TOKENS = 512
PROMPTS = 64
OPEN = 256


def write_zipf(path: Path, requests: int, objects: int, seed: int = 7) -> None:
    """Write an oracleGeneral file of requests for blocks whose ids are random 63-bit hashes.

    Parameters
    ----------
    path : Path
    requests, objects : int
        The n-th most popular of the objects is drawn in proportion to n^-0.9.
    seed : int
    """
    rng = stream(seed, "test")
    weights = np.cumsum(np.arange(1, objects + 1) ** -ALPHA)
    ranks = np.searchsorted(weights, rng.random(requests) * weights[-1])
    names = rng.integers(1, np.iinfo(np.int64).max, objects)
    records = np.zeros(requests, dtype=RECORD)
    records["time"] = np.arange(requests) // 1000
    records["id"] = names[ranks]
    records["size"] = 1
    records["next"] = -1
    records.tofile(path)


def conversations(blocks: int, seed: int = 7) -> tuple[list[np.ndarray], np.ndarray]:
    """Return requests of conversations that repeat their own turns and share system prompts.

    Parameters
    ----------
    blocks : int
        Requests are added until they hold so many blocks.
    seed : int

    Returns
    -------
    requests : list of int64 [blocks]
        Block ids. 256 conversations are open at once; the next request is a random one's next
        turn. The first turn adds 1 to 40 blocks to a system prompt, later ones 1 to 20, and every
        second turn is a conversation's last: about half of the blocks were seen before.
    sizes : int64 [all their blocks]
        512 tokens each, and from 1 to 512 at the end of a request.
    """
    rng = stream(seed, "test")
    popularity = np.cumsum(1 / np.arange(1, PROMPTS + 1))
    lengths = rng.integers(1, 13, PROMPTS)
    fresh = PROMPTS * 16

    def begin() -> np.ndarray:
        prompt = int(np.searchsorted(popularity, rng.random() * popularity[-1]))
        return prompt * 16 + np.arange(lengths[prompt])

    talks = [begin() for _ in range(OPEN)]
    turns = [0] * OPEN
    requests: list[np.ndarray] = []
    sizes: list[np.ndarray] = []
    held = 0
    while held < blocks:
        talk = int(rng.integers(OPEN))
        more = int(rng.integers(1, 21 if turns[talk] else 41))
        turn = np.concatenate([talks[talk], np.arange(fresh, fresh + more)])
        fresh += more
        requests.append(turn)
        tokens = np.full(turn.size, BLOCK_TOKENS)
        tokens[-1] = rng.integers(1, BLOCK_TOKENS + 1)
        sizes.append(tokens)
        held += turn.size
        last = rng.random() < 1 / 2
        talks[talk], turns[talk] = (begin(), 0) if last else (turn, turns[talk] + 1)
    return requests, np.concatenate(sizes)
