"""Recorded runs of vLLM beside the serving engine: what was seen each second, and what comes out.

A recorded run is two files of LLMServingSim's repository: the requests with their times, and a
series that vLLM logged once a second. The engine gets the recorded arrivals and lengths, and a
device's constants. Both are compared at equal generated tokens, which asks only what is in memory
after so many tokens, and over time, which asks for the speed of the machine too.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kvsim.engine.costs.settings import Cost, cost_model
from kvsim.engine.serving import fields as s
from kvsim.engine.serving.drive import Drive
from kvsim.engine.serving.engine import ServingEngine
from kvsim.engine.serving.settings import Settings
from kvsim.errors import WorkloadError
from kvsim.layout import load_layout
from kvsim.paging import geometry
from kvsim.workload.requests import Requests
from kvsim.workload.traces.chains import Chains

PAGE_TOKENS = 16
FITTED_S = 60.0
"""Requests that end in this time decide the fitted efficiency, in seconds."""
GRID = tuple(round(0.6 + 0.0125 * step, 4) for step in range(33))
SERIES = ("t", "gen_throughput", "running", "kv_cache_pct")
REQUEST = ("input_toks", "output_toks", "queued_ts", "last_token_ts")


@dataclass(frozen=True)
class Machine:
    """What a recorded run ran on.

    Attributes
    ----------
    run : str
        Its files are `<run>.requests.jsonl` and `<run>.timeseries.csv`.
    layout : str
        Catalogue name, or a path.
    cost : Cost
    pool_pages : int
        0 where the record does not say; the pool is unlimited then.
    max_running : int
    """

    run: str
    layout: str
    cost: Cost
    pool_pages: int
    max_running: int


@dataclass(frozen=True)
class Recorded:
    """A recorded run: its requests, when each had its last token, and the series by column."""

    requests: Requests
    last_s: np.ndarray
    series: dict[str, np.ndarray]


def load(folder: Path, run: str, prompts: Path | None) -> Recorded:
    """Return a recorded run.

    Parameters
    ----------
    folder : Path
    run : str
        Name of the run's files, without ending.
    prompts : Path, optional
        Block hashes of the prompts, in the order of the requests; without them no prefix is
        shared.

    Raises
    ------
    WorkloadError
        Naming the file and line at fault, or the two files that do not belong together.
    """
    source = folder / f"{run}.requests.jsonl"
    records = _lines(source, REQUEST)
    hashes: list[Any] = [[] for _ in records]
    if prompts is not None:
        found = _lines(prompts, ("hash_ids", "input_length"))
        lengths = [record["input_toks"] for record in records]
        if lengths != [each["input_length"] for each in found]:
            raise WorkloadError(f"{prompts}: its prompts are not those of {source}")
        hashes = [each["hash_ids"] for each in found]
    order = sorted(range(len(records)), key=lambda at: records[at]["queued_ts"])
    records, hashes = [records[at] for at in order], [hashes[at] for at in order]
    begin = records[0]["queued_ts"]
    chains = Chains()
    keys = [np.zeros(0, np.int32)]
    start = [0]
    for record, ids in zip(records, hashes, strict=True):
        full = chains(np.array(ids[: record["input_toks"] // PAGE_TOKENS], np.int64))
        keys.append(full.astype(np.int32))
        start.append(start[-1] + full.size)
    count = len(records)
    requests = Requests(
        page_tokens=PAGE_TOKENS,
        arrival_ns=np.array([int((record["queued_ts"] - begin) * 1e9) for record in records]),
        input_tokens=np.array([record["input_toks"] for record in records]),
        output_tokens=np.array([record["output_toks"] for record in records]),
        priority=np.zeros(count, np.int64),
        samples=np.ones(count, np.int64),
        keys=np.concatenate(keys),
        key_start=np.array(start),
        given_keys=chains.count,
    )
    last_s = np.array([record["last_token_ts"] - begin for record in records])
    return Recorded(requests, last_s, _series(folder / f"{run}.timeseries.csv"))


def _lines(path: Path, needed: tuple[str, ...]) -> list[dict[str, Any]]:
    found = []
    try:
        with path.open(encoding="utf-8") as file:
            for number, text in enumerate(file, 1):
                record = json.loads(text)
                if not isinstance(record, dict) or any(key not in record for key in needed):
                    raise WorkloadError(f"{path}:{number}: needs {', '.join(needed)}")
                found.append(record)
    except OSError as error:
        raise WorkloadError(f"{path}: cannot be read: {error.strerror}") from None
    except ValueError:
        raise WorkloadError(f"{path}:{len(found) + 1}: the line is not valid JSON") from None
    if not found:
        raise WorkloadError(f"{path}: there is no record in it")
    return found


def _series(path: Path) -> dict[str, np.ndarray]:
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        return {name: np.array([float(row[name]) for row in rows]) for name in SERIES}
    except OSError as error:
        raise WorkloadError(f"{path}: cannot be read: {error.strerror}") from None
    except (KeyError, ValueError, TypeError):
        raise WorkloadError(f"{path}: needs numbers in {', '.join(SERIES)}") from None


def simulate(
    machine: Machine, requests: Requests, pool_pages: int, efficiency: float
) -> tuple[np.ndarray, np.ndarray]:
    """Run the requests.

    Returns
    -------
    steps : float64 [step, 4]
        Time in seconds, tokens generated, pages held, and requests that run.
    last_s : float64 [request]
        When each had its last token.
    """
    layout = load_layout(machine.layout)
    values = {**machine.cost.__dict__}
    values |= {"memory_efficiency": efficiency, "compute_efficiency": efficiency}
    engine = ServingEngine(
        requests,
        # 2,048 tokens a step: the record shows a prompt cut where its step reached them.
        Settings(
            ceiling_pages=pool_pages,
            prefix="blocks",
            step_tokens=2048,
            max_running=machine.max_running,
        ),
        cost_model(layout, Cost(**values))[0].coefficients(),
        geometry(layout, "sequence", "shared"),
    )
    seen = []

    def watch(engine: ServingEngine) -> None:
        state = engine.state
        held = engine.ledger.held_pages
        seen.append((state[s.NOW] / 1e9, state[s.GENERATED_TOTAL], held, state[s.RUNNING]))

    Drive(engine, every_steps=1, watch=watch).run()
    return np.array(seen, np.float64), engine.rows[:, s.LAST_NS] / 1e9


def fit(machine: Machine, recorded: Recorded, progress: Callable[[int, int], None]) -> float:
    """Return the one efficiency that fits the ends of requests that end in the first minute."""
    early = recorded.last_s < FITTED_S
    misfits = []
    for done, efficiency in enumerate(GRID, 1):
        _, last = simulate(machine, recorded.requests, machine.pool_pages, efficiency)
        misfits.append(float(np.abs(last - recorded.last_s)[early].mean()))
        progress(done, len(GRID))
    return GRID[misfits.index(min(misfits))]


def compare(
    machine: Machine, recorded: Recorded, *, pool_share: float = 1.0, efficiency: float = 1.0
) -> list[dict[str, Any]]:
    """Return a row per recorded second: what was seen, and the engine at equal tokens and time.

    Where the record does not say how large the pool is, occupied shares are null.
    """
    pages = int(machine.pool_pages * pool_share)
    seen, _ = simulate(machine, recorded.requests, pages, efficiency)
    series = recorded.series
    tokens = np.cumsum(series["gen_throughput"])

    def at(where: np.ndarray, by: int, column: int) -> list[float]:
        return [float(value) for value in np.interp(where, seen[:, by], seen[:, column])]

    rows = []
    for second, total, percent, running, *ours in zip(
        series["t"].tolist(),
        tokens.tolist(),
        series["kv_cache_pct"].tolist(),
        series["running"].tolist(),
        at(tokens, 1, 2),
        at(tokens, 1, 3),
        at(series["t"], 0, 2),
        at(series["t"], 0, 3),
        strict=True,
    ):
        rows.append(
            {
                "run": machine.run,
                "layout": machine.layout
                if "/" not in machine.layout
                else Path(machine.layout).stem,
                "device": machine.cost.device,
                "pool_pages": pages,
                "pool_share": pool_share,
                "efficiency": efficiency,
                "time_s": second,
                "generated_tokens": total,
                "recorded_held_percent": percent if pages else None,
                "recorded_running": running,
                "held_percent_at_tokens": 100 * ours[0] / pages if pages else None,
                "running_at_tokens": ours[1],
                "held_percent_at_time": 100 * ours[2] / pages if pages else None,
                "running_at_time": ours[3],
            }
        )
    return rows
