"""A million requests through the engine; prints its time and this process's peak memory as JSON.

`python -m kvsim.bench.engine_million [REQUESTS]`
"""

from __future__ import annotations

import json
import resource
import sys
import time

from kvsim.bench import engine_leap, engine_work
from kvsim.seeds import stream

# Outputs of 260 tokens in the mean.
MOST_OUTPUT = 520


def main() -> None:
    """Serve as many requests as the first argument says, a million without one."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    # Kernels are compiled or loaded before the clock starts.
    engine_leap.serve(
        engine_work.plain(stream(1, "workload"), 10), engine_work.plain_terms(), engine_work.COST
    )
    start = time.perf_counter()
    requests = engine_work.plain(stream(7, "workload"), count, MOST_OUTPUT)
    report = engine_leap.serve(requests, engine_work.plain_terms(), engine_work.COST)
    seconds = time.perf_counter() - start
    found = {
        "seconds": seconds,
        "steps": report.steps,
        "step_us": seconds / report.steps * 1e6,
        "generated_tokens_total": report.generated_tokens_total,
        "finished": report.finished,
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
