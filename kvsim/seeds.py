"""Named random streams: every consumer of randomness has its own, derived from one seed.

A stream does not depend on which others were drawn from, so every policy sees one workload.
"""

from __future__ import annotations

import numpy as np

STREAMS = {
    "workload": 0,
    "policy": 1,
    "arrivals": 2,
    "victims": 3,
    "merge": 4,
    "test": 5,
    "branches": 6,
    "beams": 7,
}


def stream(seed: int, name: str, *index: int) -> np.random.Generator:
    """Return the generator of one named stream.

    Parameters
    ----------
    seed : int
        The scenario's seed, non-negative.
    name : str
        A key of :data:`STREAMS`.
    *index : int
        Further spawn keys, one stream each (a sequence number, say).

    Returns
    -------
    numpy.random.Generator
    """
    sequence = np.random.SeedSequence(seed, spawn_key=(STREAMS[name], *index))
    return np.random.Generator(np.random.PCG64(sequence))
