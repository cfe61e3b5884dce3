"""The table [quarantine] of a scenario: a poisoned span in a shared context, and its removal."""

from __future__ import annotations

from dataclasses import dataclass

from kvsim.lab.keys import choice, count


@dataclass(frozen=True)
class Quarantine:
    """A context of prefix, poisoned span and suffix that several sequences share.

    Attributes
    ----------
    method : str
        How the span is removed. `renumber`: its rows are evicted and the keys behind it are rotated
        anew where they lie. `compact`: so, and the rows behind it move up. `keep`: its rows are
        evicted and all others keep their positions. `keep_aligned`: only the pages that lie in
        the span as a whole are. `reprefill_suffix`: everything from the span on is dropped and the
        rest computed again. `reset`: the whole cache is dropped and every sequence computed again.
    sharing : str
        Who rewrites what is shared, under `renumber` and `compact`. `each`: every sequence for
        itself, with copies on write. `once`: one fork for all, from which they are forked again.
    prefix_tokens, span_tokens, suffix_tokens : int
        Lengths of the three parts.
    fan_out : int
        Sequences that share the context.
    tail_tokens : int
        Tokens behind the context that each sequence has of its own.
    step_tokens : int
        Most tokens that one step of a prefill computes.
    """

    method: str = choice("renumber", "compact", "keep", "keep_aligned", "reprefill_suffix", "reset")
    sharing: str = choice("each", "once")
    prefix_tokens: int = count(2048, 1)
    span_tokens: int = count(512, 1)
    suffix_tokens: int = count(1024, 1)
    fan_out: int = count(1, 1)
    tail_tokens: int = count(0)
    step_tokens: int = count(8192, 1)


# Methods that change positions, and so write keys; only they read `sharing`.
REWRITES = ("renumber", "compact")
# Methods that compute rows again.
RECOMPUTES = ("reprefill_suffix", "reset")
