"""Running many scenarios: skip what is done, use several processes, write one row after another.

The parent alone writes. Rows come in the sweep's order whatever the number of jobs.
"""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import os
import signal
import threading
import time
import zipfile
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from kvsim.errors import KvsimError
from kvsim.lab.identity import run_id
from kvsim.lab.progress import unwatched
from kvsim.lab.results import ResultsFolder
from kvsim.lab.run import Maps, Measured, check, failed_row, run
from kvsim.lab.scenario import Budget, Scenario, Selection
from kvsim.lab.studies.study import find
from kvsim.lab.warm import warm
from kvsim.paging import MODEL_VERSION


@dataclass(frozen=True)
class Summary:
    """What a sweep did.

    Attributes
    ----------
    rows, run, skipped, failed : int
        Rows of this sweep now in the folder; run just now; found done; failed just now.
    """

    rows: int
    run: int
    skipped: int
    failed: int


@dataclass(frozen=True)
class _Refusal:
    """A typed error on its way from a worker to the parent, which raises it."""

    error: KvsimError


@dataclass(frozen=True)
class _Done:
    """A finished run: its row, its page maps if it recorded any, and what was measured."""

    row: dict[str, Any]
    maps: Maps
    measured: Measured


def _timed(scenario: Scenario) -> _Done | _Refusal:
    start = time.perf_counter()
    maps: Maps = {}
    measured: Measured = {}
    try:
        row = run(scenario, maps, measured)
    except KvsimError as error:
        return _Refusal(error)
    except Exception as error:
        row = failed_row(scenario, error)
    return _Done(row, maps, {"seconds": time.perf_counter() - start, **measured})


def _start_worker(parent: int) -> None:
    """Let the parent alone answer Ctrl-C, and end with it: an orphan would wait for ever."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    unwatched()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _packed(maps: Maps) -> bytes:
    """Return page maps as the bytes of a compressed .npz, the same for the same maps."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for stage, states in maps.items():
            inner = io.BytesIO()
            np.lib.format.write_array(inner, states, allow_pickle=False)
            # A fixed date: NumPy's own writer would put the clock into the file.
            archive.writestr(
                zipfile.ZipInfo(f"{stage}.npy", (1980, 1, 1, 0, 0, 0)), inner.getvalue()
            )
    return buffer.getvalue()


def _results(scenarios: Sequence[Scenario], jobs: int) -> Generator[_Done | _Refusal]:
    if jobs == 1 or len(scenarios) < 2:
        yield from map(_timed, scenarios)
        return
    context = multiprocessing.get_context("fork")
    others = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(min(jobs, len(scenarios)), context, _start_worker, (os.getpid(),))
    workers: set[Any] = set()
    try:
        results = pool.map(_timed, scenarios)
        workers = set(multiprocessing.active_children()) - others
        yield from results
    except BrokenProcessPool:
        raise KvsimError(
            "a worker process died in the middle of a run: out of memory, or ended by its policy; "
            "rows written before stay (--jobs 1 shows which run it is)"
        ) from None
    except BaseException:
        # Ctrl-C or a refusal: what the others still compute is thrown away, so end it now.
        for worker in workers:
            worker.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _check_all(scenarios: Sequence[Scenario]) -> None:
    """Refuse a sweep before its folder is touched if one of its scenarios cannot run."""
    seen = set()
    for scenario in scenarios:
        # Neither the budget nor the rest of the selection can be at fault here.
        kept = Budget(when=scenario.budget.when, chunk_tokens=scenario.budget.chunk_tokens)
        sets = Selection(sets=scenario.selection.sets)
        bare = replace(scenario, budget=kept, selection=sets)
        if bare not in seen:
            seen.add(bare)
            check(bare)


def usable_jobs() -> int:
    """Return the cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def execute(
    scenarios: Sequence[Scenario],
    out: Path,
    *,
    jobs: int,
    command: list[str],
    limit: int | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[Summary, list[dict[str, Any]]]:
    """Run the scenarios whose rows are not in the folder yet.

    Parameters
    ----------
    scenarios : sequence of Scenario
    out : Path
        The results folder; made if it is missing.
    jobs : int
        Processes.
    command : list of str
        For the manifest.
    limit : int, optional
        Most scenarios to run now.
    progress : callable
        Called with (done, total) after each run.

    Returns
    -------
    Summary, list of dict
        And the rows of these scenarios that the folder now holds, in the sweep's order.

    Raises
    ------
    KvsimError
        If a scenario, its files or its policy cannot be used. Rows written before stay.
    """
    _check_all(scenarios)
    ids = [run_id(scenario) for scenario in scenarios]
    failed = 0
    with ResultsFolder.open(out, model_version=MODEL_VERSION, command=command) as folder:
        todo = [s for s, key in zip(scenarios, ids, strict=True) if key not in folder.known]
        skipped = len(ids) - len(todo)
        todo = todo[:limit]
        studies = [find(kind) for kind in sorted({s.workload.kind for s in todo})]
        for study in studies:
            if study is not None:
                study.warm()
        if None in studies:
            warm(
                synthetic=any(scenario.workload.kind != "recorded" for scenario in todo),
                array=any(scenario.store.kind == "array" for scenario in todo),
            )
        progress(0, len(todo))
        # Closed by hand: the traceback of a refusal would keep the generator, and so its workers.
        with contextlib.closing(_results(todo, jobs)) as results:
            for done, result in enumerate(results, start=1):
                if isinstance(result, _Refusal):
                    raise result.error
                row = result.row
                failed += row["outcome"] == "failed"
                for named in ("page_map", "series"):
                    if row.get(named):
                        # Before the row that names it, so that no row names a missing file.
                        folder.write_file(row[named], _packed(result.maps))
                folder.append(row, {"run_id": row["run_id"], **result.measured})
                progress(done, len(todo))
        found = {row["run_id"]: row for row in folder.rows()}
    rows = [found[key] for key in ids if key in found]
    return Summary(rows=len(rows), run=len(todo), skipped=skipped, failed=failed), rows
