"""Run the serving engine on recorded runs of vLLM, and draw both: a figure of experiment 04.

    python -m kvsim.cli.vllm TRACES FOLDER

reads llmservingsim-vllm-timeseries and llmservingsim-sharegpt in TRACES and writes
serving_vllm.pdf, .png and .csv into FOLDER.
"""

from __future__ import annotations

import sys
from pathlib import Path

LAYOUT = Path("experiments") / "04-serving" / "qwen3-32b.json"


def main(traces: Path, folder: Path) -> list[Path]:
    """Run all variants of both recorded runs; return the files written."""
    from kvsim.cli.render import progress
    from kvsim.engine.costs.settings import Cost
    from kvsim.figures import draw
    from kvsim.lab import vllm_runs

    # 2,588 blocks, the first of which is vLLM's null block.
    small = vllm_runs.Machine(
        "RTX4090_Llama-3.1-8B", "Llama-3.1-8B", Cost(device="RTX-4090"), 2588 - 1, 256
    )
    # The record has no size of its pool, and never runs more than 128.
    large = vllm_runs.Machine(
        "RTXPRO6000_Qwen3-32B",
        str(LAYOUT),
        Cost(device="RTX-PRO-6000", parameters=32_762_123_264, query_heads=64),
        0,
        128,
    )
    series = traces / "llmservingsim-vllm-timeseries"
    prompts = traces / "llmservingsim-sharegpt" / "sharegpt300_prefixhash16.jsonl"
    recorded = vllm_runs.load(series, small.run, prompts)
    rows = []
    with progress("efficiencies") as step:
        fitted = vllm_runs.fit(small, recorded, step)
    for share in (1.0, 0.9, 1.1):
        rows += vllm_runs.compare(small, recorded, pool_share=share)
    rows += vllm_runs.compare(small, recorded, efficiency=fitted)
    # Its prompts were cut into other tokens, so the recorded hashes do not hold for them.
    rows += vllm_runs.compare(large, vllm_runs.load(series, large.run, None))
    return draw("serving_vllm", rows, folder)


if __name__ == "__main__":
    from kvsim.errors import KvsimError

    if len(sys.argv) != 3 or sys.argv[1].startswith("-"):
        print(__doc__, file=sys.stderr)
        sys.exit(0 if sys.argv[1:] in (["--help"], ["-h"]) else 2)
    try:
        for path in main(Path(sys.argv[1]), Path(sys.argv[2])):
            print(path)
    except KvsimError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
