"""How a ledger moves rows and numbers positions, for its whole life."""

from __future__ import annotations

from dataclasses import dataclass

from kvsim.errors import LedgerError
from kvsim.paging import fields as f

ALGORITHMS = {"rebuild": f.REBUILD, "forward": f.FORWARD, "hole_fill": f.HOLE_FILL}


@dataclass(frozen=True)
class Order:
    """What moves as one, where new tokens go, and what becomes of positions.

    Attributes
    ----------
    append : {"tail", "reuse_holes"}
        Whether a new token may take a dead slot.
    compaction : {"none", "rebuild", "forward", "hole_fill"}
    unit : {"slot", "row"}
        What a compaction moves as one.
    positions : {"keep", "renumber"}
        Whether survivors keep their positions after an eviction or get their ranks.
    scattered : bool
        Whether tokens may be appended at positions of their own, which differ between sets.
    renumber_writes : bool
        Whether a changed position rewrites a stored key: so under planes `kv_raw`, not under
        `raw_only`, where keys are rotated when they are read.
    """

    append: str = "tail"
    compaction: str = "none"
    unit: str = "slot"
    positions: str = "keep"
    scattered: bool = False
    renumber_writes: bool = True

    def __post_init__(self) -> None:
        for name, known in (
            ("append", ("tail", "reuse_holes")),
            ("compaction", ("none", *ALGORITHMS)),
            ("unit", ("slot", "row")),
            ("positions", ("keep", "renumber")),
        ):
            if getattr(self, name) not in known:
                raise LedgerError(
                    f"{name} must be one of {', '.join(known)}, not {getattr(self, name)!r}"
                )
        if self.scattered and (self.compaction != "none" or self.positions != "keep"):
            # Both would give the positions of one set to the others.
            raise LedgerError("scattered tokens keep their positions and are not compacted")

    @property
    def renumbers_alone(self) -> bool:
        """Whether evict renumbers by itself, with no compaction to do it."""
        return self.positions == "renumber" and self.compaction == "none"

    @property
    def stored(self) -> bool:
        """Whether positions need a table, because a slot's place does not tell them."""
        moves = self.compaction != "none"
        scrambles = self.positions == "keep" or self.compaction == "hole_fill"
        return self.scattered or self.append == "reuse_holes" or (moves and scrambles)
