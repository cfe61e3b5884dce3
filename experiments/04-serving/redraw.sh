#!/bin/sh
# Runs experiment 04 again, and rewrites its figures and the tables of its README.
# Usage, from the repository: experiments/04-serving/redraw.sh TRACES, the folder of recordings.
set -e
traces=$1
: "${traces:?the folder of recordings is missing}"
figures=figures/04-serving
uv run kvsim sweep experiments/04-serving --jobs 2
uv run kvsim sweep experiments/04-serving/mooncake.toml --jobs 2 \
    --set workload.path="$traces/mooncake/conversation_trace.jsonl"
uv run kvsim sweep experiments/04-serving/agent.toml --jobs 2 \
    --set workload.path="$traces/kv-cache-tester/kvct_710_rle.jsonl.gz"
mkdir -p $figures/mooncake $figures/agent
cp results/04-serving-sweep/figures/* $figures
cp results/04-serving-mooncake/figures/* $figures/mooncake
cp results/04-serving-agent/figures/* $figures/agent
uv run python -m kvsim.cli.vllm "$traces" $figures
uv run python tests/serving_tables.py
