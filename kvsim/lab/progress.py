"""Where a run says how far it is, to whoever watches. No result depends on it.

A context variable and no parameter: what runs a scenario, in this process or in another, need
not know that somebody watches.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

# Wall time between two reports of one part.
REPORT_S = 0.1

# Called with what is done, how much of it, and of how much; None where nobody can know.
Listener = Callable[[str, int, int | None], None]

_listener: ContextVar[Listener | None] = ContextVar("listener", default=None)


@contextmanager
def watched_by(listener: Listener | None) -> Iterator[None]:
    """Let a listener hear of what happens inside; None for nobody."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def unwatched() -> None:
    """Forget the listener: in a forked worker, whose terminal is the parent's."""
    _listener.set(None)


def watcher() -> Listener | None:
    """Return who listens now."""
    return _listener.get()


@contextmanager
def part(what: str, total: int | None) -> Iterator[Callable[[Callable[[], int]], None] | None]:
    """Tell the listener of a part of a run, ten times a second at most, and that it is over.

    Yields a function of what counts how much is done, which is asked only when it is told; or
    None if nobody listens.
    """
    listener = watcher()
    if listener is None:
        yield None
        return
    told_s = 0.0

    def tell(count: Callable[[], int]) -> None:
        nonlocal told_s
        now_s = time.monotonic()
        if now_s - told_s >= REPORT_S:
            told_s = now_s
            listener(what, count(), total)

    try:
        yield tell
    finally:
        end = total or 0
        listener(what, end, end)
