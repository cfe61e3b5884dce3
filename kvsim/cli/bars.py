"""Progress on a terminal's stderr. Elsewhere, and for a program that reads, there is none."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

# What is over sooner needs no bar.
PATIENCE_S = 1.0


class Bars:
    """One bar for each thing that is under way.

    Parameters
    ----------
    console : Console
    shown : bool
        False draws nothing, and neither does a console that is no terminal.
    transient : bool
        Whether nothing stays on the terminal in the end.
    """

    def __init__(self, console: Console, shown: bool = True, transient: bool = False) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=console,
            transient=transient,
            # In a file or pipe a bar is noise, and a refusal must be the only line there.
            disable=not (shown and console.is_terminal),
        )
        self.shown = not self._progress.disable
        self._tasks: dict[str, TaskID] = {}
        self._begun_s: dict[str, float] = {}
        self._started = False

    def begin(self, what: str) -> None:
        """Show a bar at once, before anything of it is done."""
        self._tasks[what] = self._progress.add_task(what, total=None)
        self._start()

    def _start(self) -> None:
        if not self._started:
            self._started = True
            self._progress.start()

    def tell(self, what: str, done: int, total: int | None) -> None:
        """Move a bar; one that was not begun appears when it has taken longer than a second.

        A bar of that kind goes when it is full, and begins anew when it is told of again.
        """
        if what not in self._tasks:
            begun_s = self._begun_s.setdefault(what, time.monotonic())
            if done == total:
                del self._begun_s[what]
            if done == total or time.monotonic() - begun_s < PATIENCE_S:
                return
            self._tasks[what] = self._progress.add_task(what, total=total)
            self._start()
        self._progress.update(self._tasks[what], completed=done, total=total)
        if done == total and self._begun_s.pop(what, None) is not None:
            self._progress.remove_task(self._tasks.pop(what))

    def end(self) -> None:
        """Leave what was begun as it is, and take away the rest."""
        for what in self._begun_s:
            if what in self._tasks:
                self._progress.remove_task(self._tasks[what])
        if self._started:
            self._progress.stop()


@contextmanager
def bars(console: Console, shown: bool = True, transient: bool = False) -> Iterator[Bars]:
    """Yield bars, and end them however it goes on."""
    made = Bars(console, shown, transient)
    try:
        yield made
    finally:
        made.end()
