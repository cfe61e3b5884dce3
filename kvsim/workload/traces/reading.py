"""A trace read as a stream of requests: what is wrong is refused, or skipped and counted.

The reader checks what concerns a line's neighbours (blank lines, the order of times, an empty
file); a format checks its lines. Nothing is repaired: requests are sorted only when asked.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kvsim.errors import WorkloadError
from kvsim.workload.traces.block_hash import BlockHash
from kvsim.workload.traces.formats import Fault, Format
from kvsim.workload.traces.lines import read_lines
from kvsim.workload.traces.request import BadRecord, Problem, Request
from kvsim.workload.traces.sniff import begin

ORDERS = ("refuse", "file", "sort")
Event = tuple[Problem | None, Request | None]


@dataclass
class Tally:
    """What a reading met, so that a run can report it.

    Attributes
    ----------
    requests : int
        Requests that were handed on.
    skipped : int
        Lines, or requests inside lines, that were left out because of a problem.
    blank_lines, unsorted : int
        Blank lines, and requests that arrive before an earlier one of the file.
    """

    requests: int = 0
    skipped: int = 0
    blank_lines: int = 0
    unsorted: int = 0


def _files(path: Path) -> list[Path]:
    """The file; or a folder's conversations, sorted by name."""
    if not path.is_dir():
        return [path]
    files = sorted(path.glob("*.json"))
    if not files:
        raise WorkloadError(f"{path.name}: a folder without .json files")
    return files


class Trace:
    """A trace file, or a folder of kv-cache-tester's raw conversations.

    Parameters
    ----------
    path : str or Path

    Attributes
    ----------
    format : str
        The format's name.
    clock : {"trace", "conversation", "none"}
        What arrival times count from.
    block_tokens : int
        Tokens behind a block id; 0 where there are none, or their sizes differ.
    has_ids : bool
    time_scale : float
        What its times were multiplied with when they were written.

    Raises
    ------
    WorkloadError
        If the file is missing, empty, or of no known format.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._paths = _files(self.path)
        found = begin(self._paths[0]).format
        self.format = found.name
        self.clock = found.clock
        self.block_tokens = found.block_tokens
        self.has_ids = found.has_ids
        self.time_scale = found.time_scale if isinstance(found, BlockHash) else 1.0
        if len(self._paths) > 1 and self.format != "kv-cache-tester":
            raise WorkloadError(
                f"{self.path.name}: a folder can only hold kv-cache-tester's conversations; "
                f"{self._paths[0].name} is {self.format}"
            )

    def _lines(
        self, path: Path, reading: Format, header_line: int
    ) -> Iterator[tuple[str, Problem | Request]]:
        for line in read_lines(path):
            place = f"{path.name}:{line.number}"
            if line.text is None:
                yield place, Problem("record", place, "not text in UTF-8")
            elif not line.text.strip():
                yield place, Problem("blank", place, "a blank line")
            elif line.number != header_line:
                try:
                    for found in reading.read(line.text):
                        if isinstance(found, Fault):
                            where = f"{place}: {found.where}"
                            yield where, Problem("record", where, found.what)
                        else:
                            yield place, found
                except BadRecord as bad:
                    yield place, Problem("record", place, str(bad))

    def events(self) -> Iterator[Event]:
        """Yield (problem, None), (None, request), or both where a request is out of order.

        Raises
        ------
        WorkloadError
            Where nothing further can be read: a gzip that ends too early, a trace without any
            request.
        """
        reading, header_line = begin(self._paths[0])
        for problem in reading.found_at_once:
            yield problem, None
        latest: dict[tuple[int, int], tuple[int, str]] = {}
        requests = 0
        for path in self._paths:
            for place, found in self._lines(path, reading, header_line):
                if isinstance(found, Problem):
                    yield found, None
                    continue
                requests += 1
                request = found
                key = (0, 0)
                if self.clock == "conversation":
                    key = (request.conversation, request.agent)
                before_ns, where = latest.get(key, (0, ""))
                if request.arrival_ns < before_ns:
                    what = (
                        f"arrives at {request.arrival_ns / 1e9:.9g} s, before the request of "
                        f"{where} at {before_ns / 1e9:.9g} s"
                    )
                    yield Problem("order", place, what), request
                    continue
                latest[key] = (request.arrival_ns, place)
                yield None, request
        if not requests:
            raise WorkloadError(f"{self.path.name}: there is no request in it")

    def requests(
        self,
        *,
        skip_bad: bool = False,
        order: str = "refuse",
        blank: str = "refuse",
        tally: Tally | None = None,
    ) -> Iterator[Request]:
        """Yield the requests, in the order of the file unless they are to be sorted.

        Parameters
        ----------
        skip_bad : bool
            Leave out what is wrong, and count it; otherwise the first problem is raised.
        order : {"refuse", "file", "sort"}
            A request that arrives before an earlier one is a problem; or is handed on where it
            stands; or all requests are read first, and sorted by arrival (ties as in the file;
            conversations with clocks of their own then all begin at once).
        blank : {"refuse", "count"}
            A blank line is a problem, or is only counted.
        tally : Tally, optional
            Counts what is met.

        Raises
        ------
        WorkloadError
            Naming file and line.
        """
        if order not in ORDERS:
            raise WorkloadError(f"the order of requests is {', '.join(ORDERS)}, not {order!r}")
        allowed = {"blank"} if blank == "count" else set()
        allowed |= {"order"} if order != "refuse" else set()
        stream = self._accepted(skip_bad, allowed, Tally() if tally is None else tally)
        if order == "sort":
            return iter(sorted(stream, key=lambda request: request.arrival_ns))
        return stream

    def _accepted(self, skip_bad: bool, allowed: set[str], tally: Tally) -> Iterator[Request]:
        for problem, request in self.events():
            if problem is not None:
                tally.blank_lines += problem.kind == "blank"
                tally.unsorted += problem.kind == "order"
                if problem.kind not in allowed:
                    if not skip_bad:
                        raise WorkloadError(str(problem))
                    tally.skipped += 1
                    continue
            if request is not None:
                tally.requests += 1
                yield request


def check(path: str | Path) -> tuple[str | None, Iterator[Problem]]:
    """Return a file's format, None if it has none, and everything that is wrong, in its order."""
    try:
        trace = Trace(path)
    except WorkloadError as error:
        return None, iter([_whole(error, Path(path))])
    return trace.format, _problems(trace)


def _problems(trace: Trace) -> Iterator[Problem]:
    try:
        for problem, _ in trace.events():
            if problem is not None:
                yield problem
    except WorkloadError as error:
        yield _whole(error, trace.path)


def _whole(error: WorkloadError, path: Path) -> Problem:
    """A problem that ends the reading; its message may begin with its place."""
    place, colon, what = str(error).partition(": ")
    return Problem("file", place, what) if colon else Problem("file", path.name, place)
