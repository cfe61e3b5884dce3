"""What is left to do where a span cannot be evicted exactly: the words, and flushing the prefix.

Knows tables and plane sets; knows nothing about rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kvsim.paging import Ledger, Receipt, evict_as_one


@dataclass(frozen=True)
class Flushed(Receipt):
    """The receipt of a flush.

    Attributes
    ----------
    prefill_tokens : int
        Tokens that the sequence held and that must be prefilled again to have them back, those
        included that the caller wanted to be rid of. Where sets retained different tokens, the
        most that any of them did.
    """

    prefill_tokens: int = 0


def why_refused(keys: str) -> str:
    """Return why planes kv cannot be renumbered, and what would help."""
    if keys == "float32":
        return (
            "planes kv keep no pre-RoPE key to renumber by: use planes kv_raw or raw_only, or"
            " positions keep"
        )
    return (
        f"{keys} keys without a pre-RoPE row cannot be renumbered exactly: keep a float32 k_raw"
        " shadow (planes kv_raw), flush the prefix, or use positions keep"
    )


def flush(ledger: Ledger, sequence: int) -> Flushed:
    """Drop every token of a sequence and let go of its pages; it stays open.

    No survivor is left that could be moved or turned, so this is exact under every plane set.
    Pages that the sequence has reserved stay its own, for the prefill to come.

    Raises
    ------
    LedgerError
        If the sequence is not open.
    """
    ledger.sequence_is_open(sequence)
    victims = [np.sort(ledger.rows(sequence, which)[0]) for which in range(ledger.geometry.sets)]
    last = max(
        ledger.next_position(sequence, scope) for scope in range(ledger.geometry.scope_units)
    )
    done = evict_as_one(ledger, sequence, victims, 0, last)
    return Flushed(**vars(done), prefill_tokens=max(map(len, victims)))
