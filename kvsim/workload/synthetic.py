"""A seeded synthetic attention process, as the eviction loop asks for it.

Query q of unit u attends to token j <= q with

    A[u, q, j] = w[u, j] * g_u(q - j) / Z[u, q],   Z[u, q] = sum over j <= q of the numerator,

where w is a heavy-tailed salience (see `synthetic_tokens`) and g_u a mixture of a constant and
two exponentials (see `synthetic_process`). Every row, and every sum of rows, is exact up to
rounding, and costs O(tokens): a sum over queries of exponentials is a first-order recursion.

The process is exogenous: rows do not react to evictions. Neither does a token's salience depend
on the query. docs/synthetic.md says what that means for results.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kvsim.errors import WorkloadError
from kvsim.workload.synthetic_process import Process
from kvsim.workload.synthetic_rows import attend
from kvsim.workload.synthetic_tokens import BLOCK, Tokens, decayed, grown

__all__ = ["WINDOW", "Process", "SyntheticSignals"]

WINDOW = 32
"""Queries that the window's mean is over: the last ones, or all if there are fewer."""
TINY = 2.0**-80
"""Powers of a decay below this count as 0, lest they become subnormal numbers, which are slow."""


class SyntheticSignals:
    """One sequence of the process.

    What is returned depends on the arguments and on how many tokens have been appended: not on
    how many at a time, nor on what was asked before.

    Parameters
    ----------
    process : Process
    unit_shape : (layers, kv_heads)
    seed, sequence : int
        The scenario's seed, and a number that no other sequence or fork of the run has.
    attention : type
        Builds the view's attention from (cumulative, last, window); handed in, because a
        workload knows nothing about policies.
    needs : tuple of str
        The signals that `observe` returns.
    query_heads : int
        Query heads per KV head. A row stands for their mean; `cumulative` is their sum.

    Raises
    ------
    WorkloadError
        If an argument cannot be used.
    """

    provides = ("attention", "keys", "key_norms", "value_norms")

    def __init__(
        self,
        process: Process,
        unit_shape: tuple[int, int],
        seed: int,
        sequence: int,
        attention: Any,
        needs: tuple[str, ...] = ("attention",),
        query_heads: int = 1,
    ) -> None:
        unknown = [signal for signal in needs if signal not in self.provides]
        if unknown:
            raise WorkloadError(f"the synthetic process does not provide {unknown[0]!r}")
        if len(unit_shape) != 2 or min(unit_shape) < 1 or query_heads < 1:
            raise WorkloadError(
                f"the synthetic process needs layers and heads, not {unit_shape} x {query_heads}"
            )
        if seed < 0 or sequence < 0:
            raise WorkloadError("seeds and sequence numbers of the synthetic process are >= 0")
        self._tokens = Tokens(
            process,
            unit_shape,
            seed,
            sequence,
            norms="key_norms" in needs or "value_norms" in needs,
            keys="keys" in needs,
        )
        self._unit_shape = unit_shape
        self._attention = attention
        self._needs = needs
        self._query_heads = query_heads
        self._decays = process.decays
        self._appended = 0
        units = unit_shape[0] * unit_shape[1]
        # Of each token, the sum of g / Z over the queries of its own block; and of each block
        # the three parts of that sum, without their amplitudes, at its first token.
        self._local = np.zeros((units, 0), np.float32)
        self._starts = np.zeros((3, units, 0), np.float64)
        self._powers = [np.zeros(0, np.float32) for _ in self._decays]

    @property
    def appended(self) -> int:
        """Tokens appended so far; each was a query once."""
        return self._appended

    def extend(self, tokens: int) -> None:
        """Append tokens, of a prompt or of a decode step."""
        if tokens < 0:
            raise WorkloadError(f"{tokens} tokens cannot be appended")
        if not tokens:
            return
        first = self._appended // BLOCK
        self._appended += tokens
        blocks = -(-self._appended // BLOCK)
        self._tokens.reach(self._appended)
        if "attention" not in self._needs:
            return
        self._local = grown(self._local, blocks * BLOCK, 1)
        self._starts = grown(self._starts, blocks, 2)
        for block in range(first, blocks):
            self._sum_block(block)

    def fork(self, sequence: int) -> SyntheticSignals:
        """Return a copy that goes on with the tokens of another sequence number.

        Nothing that can change is shared. Both have the same tokens up to here.

        Raises
        ------
        WorkloadError
            If this sequence or an ancestor has that number.
        """
        if sequence < 0 or self._tokens.has_drawn_from(sequence):
            raise WorkloadError(f"a fork needs a sequence number of its own, not {sequence}")
        child = object.__new__(SyntheticSignals)
        child.__dict__.update(self.__dict__)
        child._tokens = self._tokens.fork(self._appended, sequence)
        child._local = self._local.copy()
        child._starts = self._starts.copy()
        child._powers = list(self._powers)
        return child

    def observe(self, columns: np.ndarray) -> dict[str, Any]:
        """Return the signals of these tokens, ascending, after the queries so far."""
        count = int(columns.size)
        if count and not (
            columns[0] >= 0 and columns[-1] < self._appended and bool((np.diff(columns) > 0).all())
        ):
            raise WorkloadError(f"columns must ascend below {self._appended}, the tokens appended")
        where: Any = slice(0, count) if count == self._appended else columns
        found: dict[str, Any] = {}
        if "attention" in self._needs:
            found["attention"] = self._attention(*map(self._by_layer, self._attended(columns)))
        for name in ("key_norms", "value_norms", "keys"):
            if name in self._needs:
                found[name] = self._by_layer(getattr(self._tokens, name)[:, where])
        return found

    def next_query(self, appended: int) -> np.ndarray:
        """Return the row of the query that follows `appended` tokens, over those tokens.

        Returns
        -------
        float32 [layers, kv_heads, appended]
            It sums to less than 1, by what the query gives to itself.
        """
        if not 0 <= appended <= self._appended:
            raise WorkloadError(f"{self._appended} tokens are appended, not {appended}")
        self._tokens.reach(appended + 1)
        distance = appended - np.arange(appended)
        heights = self._tokens.units.amplitude * self._tokens.inverse[:, appended]
        height = heights.astype(np.float32)[..., None]
        row = height[1] * self._power(1, distance) + height[2] * self._power(2, distance)
        row += height[0]
        row *= self._tokens.salience[:, :appended]
        return self._by_layer(row)

    def _by_layer(self, array: np.ndarray) -> np.ndarray:
        result = array.reshape(*self._unit_shape, *array.shape[1:])
        result.setflags(write=False)
        return result

    def _power(self, part: int, distance: np.ndarray) -> np.ndarray:
        """Return a decay to these powers, float32; 0 once it is tiny."""
        longest = int(distance.max(initial=0)) + 1
        if self._powers[part].size < longest:
            table = np.full(max(longest, 2 * self._powers[part].size), self._decays[part])
            table[0] = 1.0
            table = np.multiply.accumulate(table)
            table[table < TINY] = 0.0
            self._powers[part] = table.astype(np.float32)
        return self._powers[part][distance]

    def _powers_of(self, distance: np.ndarray) -> np.ndarray:
        """Return the two decays to these powers, float32 [2, columns]."""
        return np.stack([self._power(part, distance) for part in (1, 2)])

    def _received(self, start: int, end: int) -> np.ndarray:
        """Return, for each of these tokens, what the queries up to `end` give to a weight of 1.

        Returns
        -------
        float64 [3, units, end - start]
            The three parts, without their amplitudes.
        """
        reverse = self._tokens.inverse[:, start:end][:, ::-1]
        return np.stack([decayed(reverse, decay)[:, ::-1] for decay in self._decays])

    def _sum_block(self, block: int) -> None:
        """Sum, over the block's queries so far, what its own tokens receive from them."""
        start = block * BLOCK
        end = min(self._appended, start + BLOCK)
        received = self._received(start, end)
        self._starts[:, :, block] = received[:, :, 0]
        amplitude = self._tokens.units.amplitude[..., None]
        self._local[:, start:end] = (amplitude * received).sum(axis=0)

    def _later(self) -> np.ndarray:
        """Return the three parts of what all later blocks' queries give to a block's end.

        Returns
        -------
        float32 [3, units, blocks]
            Amplitudes included.
        """
        blocks = -(-self._appended // BLOCK)
        later = np.zeros((*self._starts.shape[:2], blocks))
        starts = self._starts[:, :, 1:blocks][:, :, ::-1]
        for part, decay in enumerate(self._decays):
            later[part, :, :-1] = decayed(starts[part], decay**BLOCK)[:, ::-1]
        later *= self._tokens.units.amplitude[..., None]
        return later.astype(np.float32)

    def _attended(self, columns: np.ndarray) -> np.ndarray:
        """Return cumulative, last and window of these tokens, float32 [3, units, columns]."""
        units, count = self._local.shape[0], columns.size
        found = np.empty((3, units, count), np.float32)
        if not count:
            return found
        tokens, query = self._tokens, self._appended - 1
        start = max(0, self._appended - WINDOW)
        amplitude = tokens.units.amplitude
        received = self._received(start, query + 1)
        received *= amplitude[..., None] / (query + 1 - start)
        early = int(np.searchsorted(columns, start))
        later = self._later()
        attend(
            columns,
            np.searchsorted(columns, BLOCK * np.arange(later.shape[2] + 1)),
            tokens.salience,
            self._local,
            later,
            self._powers_of(BLOCK - columns % BLOCK),
            np.stack([amplitude * tokens.inverse[:, query], received[:, :, 0]]).astype(np.float32),
            np.stack(
                [self._powers_of(query - columns), self._powers_of(np.maximum(start - columns, 0))]
            ),
            received.sum(axis=0)[:, columns[early:] - start].astype(np.float32),
            found,
        )
        if self._query_heads != 1:
            found[0] *= np.float32(self._query_heads)
        return found
