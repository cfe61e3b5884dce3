"""The table [quarantine] of a scenario: a poisoned span, and how it is removed."""

from __future__ import annotations

from dataclasses import dataclass

from kvsim.lab.keys import choice, count


@dataclass(frozen=True)
class QuarantineStudy:
    """A span in the middle of a prompt that has to go.

    Attributes
    ----------
    remedy : str
        How it is removed.
    """

    remedy: str = choice("renumber", "keep_positions", "reset")
    span_tokens: int = count(64, 1)
