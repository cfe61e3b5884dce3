"""Views and places that tests make up: what the eviction loop would hand to a policy."""

from __future__ import annotations

from typing import Any

import numpy as np

from kvsim.policies import Attention, View
from kvsim.policies.selection import Places


def make(
    tokens: int,
    *,
    set_shape: tuple[int, int] = (1, 1),
    unit_shape: tuple[int, int] = (1, 1),
    retained: Any = None,
    positions: Any = None,
    appended: int | None = None,
    seed: int = 0,
    **signals: Any,
) -> View:
    """Return a view of `tokens` columns, all of them retained unless `retained` says otherwise."""
    where = np.arange(tokens) if positions is None else np.asarray(positions, np.int64)
    appended = int(where.max(initial=-1)) + 1 if appended is None else appended
    shape = (*set_shape, tokens)
    kept = np.ones(shape, bool) if retained is None else np.array(retained, bool).reshape(shape)
    view = View(
        positions=where,
        ages=appended - where,
        retained=kept,
        set_shape=set_shape,
        unit_shape=unit_shape,
        rng=np.random.default_rng(seed),
        **signals,
    )
    for array in arrays_of(view).values():
        array.setflags(write=False)
    return view


def signals(names: tuple[str, ...], unit_shape: tuple[int, int], tokens: int, seed: int = 0) -> Any:
    """Return random arrays for the named signals and for no others."""
    rng = np.random.default_rng(seed)
    shape = (*unit_shape, tokens)

    def draw() -> np.ndarray:
        return rng.random(shape).astype(np.float32) + np.float32(0.01)

    made: dict[str, Any] = {}
    for name in names:
        if name == "attention":
            made[name] = Attention(cumulative=draw(), last=draw(), window=draw())
        elif name in ("key_norms", "value_norms"):
            made[name] = draw()
        elif name == "keys":
            made[name] = rng.standard_normal((*shape, 8)).astype(np.float32)
        else:
            raise NotImplementedError(f"tests/views.py has no array for the signal {name!r} yet")
    return made


def arrays_of(view: View) -> dict[str, np.ndarray]:
    """Return every array that a view holds, by name."""
    found: dict[str, np.ndarray] = {}
    for name, value in vars(view).items():
        inner = vars(value) if isinstance(value, Attention) else {"": value}
        for part, array in inner.items():
            if isinstance(array, np.ndarray):
                found[f"{name}.{part}"] = array
    return found


def places(
    view: View,
    page_tokens: int,
    *,
    table: Any = 0,
    cursor: Any = None,
    dense: Any = None,
) -> Places:
    """Return places where every column lies at the slot of its position.

    `table`, `cursor` and `dense` are numbers or one number a set; by default all sets share one
    table, which was appended to the view's last column and never rewound.
    """
    shape = view.set_shape
    appended = int((view.positions + view.ages).max(initial=0))
    slot = np.broadcast_to(view.positions, (*shape, view.tokens))
    next_slot = np.full(shape, appended if cursor is None else cursor, np.int64)
    return Places(
        position=slot,
        next_position=next_slot,
        entry=slot // page_tokens,
        complete=next_slot // page_tokens,
        table=np.broadcast_to(np.asarray(table, np.int64), shape),
        dense=np.full(shape, -(-appended // page_tokens) if dense is None else dense, np.int64),
        page_tokens=page_tokens,
    )
