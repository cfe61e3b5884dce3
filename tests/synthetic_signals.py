"""Synthetic signals of a few units, all their bytes, and their rows by the definition.

The definition is evaluated in O(tokens²) with NumPy alone, from the saliences.
"""

from __future__ import annotations

import numpy as np

from kvsim.policies import Attention
from kvsim.workload.synthetic import Process, SyntheticSignals

PARTS = ("cumulative", "last", "window")
EVERYTHING = SyntheticSignals.provides
UNITS = (2, 3)
DEFAULT = Process()


def signals(appended=0, *, process=DEFAULT, seed=7, sequence=0, needs=EVERYTHING, **options):
    made = SyntheticSignals(process, UNITS, seed, sequence, Attention, needs, **options)
    made.extend(appended)
    return made


def blob(made, columns=None):
    """Return all bytes that the signals of these tokens consist of."""
    columns = np.arange(made.appended) if columns is None else columns
    found = made.observe(columns)
    attention = found.pop("attention")
    arrays = [getattr(attention, part) for part in PARTS] + [found[name] for name in sorted(found)]
    return [np.ascontiguousarray(array).tobytes() for array in arrays]


def rows(made, queries):
    """Return the rows of these first queries by the definition, float64 [units, query, token]."""
    tokens = made._tokens
    tokens.reach(queries)
    units, process = tokens.units, made._tokens._process
    age = np.subtract.outer(np.arange(queries), np.arange(queries))
    reach = 1.0, process.short_tokens, process.long_tokens
    g = sum(
        units.amplitude[part][:, None, None]
        * (np.exp(-np.maximum(age, 0) / reach[part]) if part else np.ones(age.shape))
        for part in range(3)
    )
    numerator = tokens.salience[:, None, :queries].astype(np.float64) * g * (age >= 0)
    return numerator / numerator.sum(axis=2, keepdims=True)


def same(have, want, rtol=2e-6):
    np.testing.assert_allclose(have.reshape(want.shape), want, rtol=rtol, atol=1e-12)
