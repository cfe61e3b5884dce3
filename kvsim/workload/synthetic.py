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
        whole = count == self._appended
        where: Any = slice(0, count) if whole else columns
        found: dict[str, Any] = {}
        if "attention" in self._needs:
            found["attention"] = self._attention(
                *(self._by_layer(a) for a in self._attended(columns, where, whole))
            )
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
        columns = np.arange(appended)
        return self._by_layer(self._row(appended, columns, slice(0, appended)))

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

    def _spread(self, height: np.ndarray, distance: np.ndarray) -> np.ndarray:
        """Return the sum over parts of height times decay ** distance, float32.

        Parameters
        ----------
        height : float64 [3, units]
        distance : int64 [columns]
            Descending.
        """
        heights = height.astype(np.float32)[..., None]
        result = np.broadcast_to(heights[0], (heights.shape[1], distance.size)).copy()
        for part in (1, 2):
            power = self._power(part, distance)
            near = distance.size - int(np.count_nonzero(power))
            result[:, near:] += heights[part] * power[near:]
        return result

    def _row(self, query: int, columns: np.ndarray, where: Any) -> np.ndarray:
        """Return one query's attention to these tokens, float32 [units, columns]."""
        tokens = self._tokens
        row = self._spread(tokens.units.amplitude * tokens.inverse[:, query], query - columns)
        row *= tokens.salience[:, where]
        return row

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

    def _attended(
        self, columns: np.ndarray, where: Any, whole: bool
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return (cumulative, last, window) of these tokens, float32 [units, columns]."""
        if not columns.size:
            empty = np.zeros((self._local.shape[0], 0), np.float32)
            return empty, empty.copy(), empty.copy()
        salience = self._tokens.salience[:, where]
        last = self._row(self._appended - 1, columns, where)
        return self._cumulative(salience, where, whole), last, self._window(salience, columns)

    def _cumulative(self, salience: np.ndarray, where: Any, whole: bool) -> np.ndarray:
        later = self._later()
        offset = BLOCK - np.arange(BLOCK)
        if whole:
            # The same sums in the same order as below, without a gather.
            blocks = later.shape[2]
            total = np.empty((later.shape[1], blocks, BLOCK), np.float32)
            np.multiply(later[1][..., None], self._power(1, offset), out=total)
            total += later[2][..., None] * self._power(2, offset)
            total += later[0][..., None]
            total = total.reshape(-1, blocks * BLOCK)[:, : self._appended]
        else:
            block = where // BLOCK
            distance = BLOCK - where % BLOCK
            total = later[1][:, block] * self._power(1, distance)
            total += later[2][:, block] * self._power(2, distance)
            total += later[0][:, block]
        total += self._local[:, where]
        total *= salience
        if self._query_heads != 1:
            total *= np.float32(self._query_heads)
        return total

    def _window(self, salience: np.ndarray, columns: np.ndarray) -> np.ndarray:
        """Return the mean of the last rows."""
        start = max(0, self._appended - WINDOW)
        received = self._received(start, self._appended)
        received *= self._tokens.units.amplitude[..., None] / (self._appended - start)
        inside = int(np.searchsorted(columns, start))
        window = np.empty(salience.shape, np.float32)
        window[:, :inside] = self._spread(received[:, :, 0], start - columns[:inside])
        window[:, inside:] = received.sum(axis=0)[:, columns[inside:] - start]
        window *= salience
        return window
