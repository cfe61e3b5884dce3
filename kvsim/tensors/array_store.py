"""A store of float32 rows that carries out the ledger's plan, move by move, in plan order.

It decides nothing and counts nothing. Planes are K and V; the pre-RoPE plane and rotation are
not here yet, so a plan that rotates is refused before the run that would make one begins.
"""

from __future__ import annotations

import numpy as np

from kvsim.errors import LedgerError
from kvsim.jit import kernel
from kvsim.paging import Geometry
from kvsim.paging import fields as f

PLANES = ("k", "v")


@kernel
def move_rows(plane, plan, moves, scope, members, starts):
    """Carry out the moves of one scope unit on one plane [slot, unit, element]."""
    for move in range(moves):
        if plan[f.SCOPE_OF, move] != scope:
            continue
        which = plan[f.SET_OF, move]
        first, last = starts[0], starts[starts.shape[0] - 1]
        if which >= 0:
            first, last = starts[which], starts[which + 1]
        source = plan[f.SOURCE, move]
        target = plan[f.TARGET, move]
        for index in range(first, last):
            unit = members[index]
            for element in range(plane.shape[2]):
                plane[target, unit, element] = plane[source, unit, element]


class ArrayStore:
    """Rows of every unit, page-major: each plane is float32 [slot, unit of the scope, element].

    Parameters
    ----------
    geometry : Geometry
    page_tokens : int
    elements : int
        Elements of one row in each plane.
    """

    def __init__(self, geometry: Geometry, page_tokens: int, elements: int) -> None:
        self.page_tokens = page_tokens
        self._members: list[np.ndarray] = []
        self._starts: list[np.ndarray] = []
        widest = 0
        for scope, inner in enumerate(geometry.inner_sets):
            # Units of the scope, those of one set next to each other, and where each set starts.
            units = [u for u, s in enumerate(geometry.unit_scope) if s == scope]
            local = [
                [at for at, unit in enumerate(units) if geometry.unit_set[unit] == which]
                for which in inner
            ]
            self._members.append(np.array([at for group in local for at in group], np.int64))
            self._starts.append(np.cumsum([0, *map(len, local)]).astype(np.int64))
            widest = max(widest, len(units))
        shape = (0, widest, elements)
        self._planes = {name: np.zeros(shape, np.float32) for name in PLANES}

    def resize(self, pages: int) -> None:
        """Make room for this many pages, keeping all rows."""
        slots = pages * self.page_tokens
        for name, plane in self._planes.items():
            grown = np.zeros((slots, *plane.shape[1:]), np.float32)
            grown[: plane.shape[0]] = plane
            self._planes[name] = grown

    def write(self, scope: int, slots: np.ndarray, rows: object) -> None:
        """Put rows {plane: float32 [n, unit, element]} into slots."""
        assert isinstance(rows, dict)
        for name, block in rows.items():
            self._planes[name][slots, : block.shape[1]] = block

    def apply(self, plan: np.ndarray) -> None:
        """Carry out moves in plan order.

        Raises
        ------
        LedgerError
            If a move rotates: this store keeps no pre-RoPE plane.
        """
        if (plan[f.POSITION] >= 0).any():
            raise LedgerError("this store has no pre-RoPE keys to rotate")
        plan = np.ascontiguousarray(plan)
        for scope in np.unique(plan[f.SCOPE_OF]).tolist():
            for plane in self._planes.values():
                move_rows(
                    plane, plan, plan.shape[1], scope, self._members[scope], self._starts[scope]
                )

    def gather(self, slots: np.ndarray, unit: int) -> dict[str, np.ndarray]:
        """Return the rows of one unit of a scope at these physical slots, {plane: [n, element]}."""
        return {name: plane[slots, unit] for name, plane in self._planes.items()}
