"""The recorded traces: the figures stated beside them. Skipped where they are absent."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from kvsim.workload.traces import Trace, check
from kvsim.workload.traces.stats import stats

FILES = {
    "mooncake/conversation_trace": "mooncake/conversation_trace.jsonl",
    "azure2023/conv": "azure-llm-2023/AzureLLMInferenceTrace_conv.csv",
    "vidur/arxiv_summarization_stats_llama2_tokenizer_filtered_v2": (
        "vidur/arxiv_summarization_stats_llama2_tokenizer_filtered_v2.csv"
    ),
    "ragpulse": "ragpulse/0_trace.jsonl",
    "sharegpt300/b16": "llmservingsim-sharegpt/sharegpt300_prefixhash16.jsonl",
    "kvct_710": "kv-cache-tester/kvct_710_rle.jsonl.gz",
}
# The table of the traces' README: percent at 16, 64, 128 and 512 tokens.
TAIL_WASTE = {
    "azure2023/conv": (0.54, 2.21, 4.38, 13.4),
    "sharegpt300/b16": (0.51, 2.02, 3.94, 14.8),
    "ragpulse": (0.23, 0.96, 1.92, 7.61),
    "mooncake/conversation_trace": (0.06, 0.25, 0.51, 2.01),
    "kvct_710": (0.006, 0.026, 0.05, 0.21),
}
# Their names there, ours, and to how many digits they are rounded.
SAME = {
    "requests": ("requests", 0),
    "in_mean": ("input_tokens_mean", 1),
    "in_p50": ("input_tokens_p50", 0),
    "in_p99": ("input_tokens_p99", 0),
    "in_max": ("input_tokens_max", 0),
    "out_mean": ("output_tokens_mean", 1),
    "out_p50": ("output_tokens_p50", 0),
    "out_p99": ("output_tokens_p99", 0),
    "out_max": ("output_tokens_max", 0),
    "sum_in": ("input_tokens", 0),
    "sum_out": ("output_tokens", 0),
    "dur_s": ("duration_s", 2),
    "rps": ("requests_per_s", 3),
    "total_blocks": ("blocks", 0),
    "unique_blocks": ("distinct_blocks", 0),
    "sharing": ("sharing", 4),
    "inf_prefix_hit_blk": ("prefix_sharing", 4),
    "inf_prefix_hit_tok": ("prefix_sharing_tokens", 4),
    "convs": ("conversations", 0),
    "diverging_reqs": ("diverging_requests", 0),
    "chunks": ("blocks", 0),
    "unique": ("distinct_blocks", 0),
    "any_hit": ("block_sharing", 4),
    "any_hit_tok": ("block_sharing_tokens", 4),
    # The leading chunks that came up anywhere before; as true prefixes it is .3153.
    "prefix_hit_tok": ("leading_sharing_tokens", 4),
}


@pytest.fixture(scope="module")
def stated(shared: Path) -> dict[str, dict]:
    return {one["name"]: one for one in json.loads((shared / "traces/stats.json").read_text())}


@pytest.fixture(scope="module")
def found(shared: Path) -> dict[str, dict]:
    return {name: stats(shared / "traces" / path) for name, path in FILES.items()}


@pytest.mark.parametrize("name", FILES)
def test_the_stated_figures(stated, found, name):
    theirs, mine = stated[name], found[name]
    compared = 0
    for key, (ours, digits) in SAME.items():
        if key in theirs:
            assert round(mine[ours], digits) == theirs[key], key
            compared += 1
    assert compared >= 11
    if "sorted" in theirs:
        assert mine["sorted"] == theirs["sorted"]
    for size, waste in mine["tail_waste_by_page_tokens"].items():
        assert round(100 * waste, 3) == theirs[f"waste_b{size}"]
    if "tail_waste_in_pct" in theirs:
        assert round(100 * mine["input_tail_waste"], 3) == theirs["tail_waste_in_pct"]
    if name == "kvct_710":
        assert round(mine["conversation_duration_p50_s"] / 60, 1) == theirs["dur_min_p50"]
        assert round(mine["conversation_duration_max_s"] / 3600, 1) == theirs["dur_max_h"]


@pytest.mark.parametrize("name", TAIL_WASTE)
def test_the_table_of_tail_waste(found, name):
    waste = found[name]["tail_waste_by_page_tokens"]
    for size, percent in zip(("16", "64", "128", "512"), TAIL_WASTE[name], strict=True):
        digits = len(str(percent).partition(".")[2])
        assert round(100 * waste[size], digits) == percent


def test_blocks_of_64_re_blocked_from_16(shared, stated):
    # stats.json has the figures of ids that were made at 64 tokens.
    theirs = stated["sharegpt300/b64"]
    mine = stats(shared / "traces" / FILES["sharegpt300/b16"], 64)
    assert mine["pages"] == theirs["total_blocks"]
    assert mine["distinct_pages"] == theirs["unique_blocks"]
    assert round(100 * mine["input_tail_waste"], 3) == theirs["tail_waste_in_pct"]


@pytest.mark.parametrize("name", FILES)
def test_what_is_wrong_with_them(shared, name):
    problems = list(check(shared / "traces" / FILES[name])[1])
    kinds = Counter(one.kind for one in problems)
    # RAGPulse: a blank line ends each of its files, and time begins anew at line 3801.
    assert kinds == ({"blank": 6, "order": 3304} if name == "ragpulse" else {})
    if problems:
        first = next(one for one in problems if one.kind == "order")
        assert first.place == "0_trace.jsonl:3801"
        assert problems[-1].place == "0_trace.jsonl:7107"


def test_raw_conversations_are_the_run_length_coded_ones(shared):
    folder = shared / "traces/kv-cache-tester"
    raw = {path.stem: list(Trace(path).requests()) for path in sorted((folder / "raw").iterdir())}
    assert len(raw) == 9
    together = Trace(folder / "raw")
    assert sum(1 for _ in together.requests()) == sum(map(len, raw.values()))
    coded: dict[int, list] = {}
    for request in Trace(folder / "kvct_710_rle.jsonl.gz").requests():
        coded.setdefault(request.conversation, []).append(request)
    sizes = [(len(ids), ids[0].input_tokens, ids[-1].input_tokens) for ids in coded.values()]
    for requests in raw.values():
        key = (len(requests), requests[0].input_tokens, requests[-1].input_tokens)
        others = list(coded.values())[sizes.index(key)]
        shift = int(others[0].hash_ids[0] - requests[0].hash_ids[0])
        for one, other in zip(requests, others, strict=True):
            assert (one.hash_ids + shift == other.hash_ids).all()
            assert one[1:3] == other[1:3]
            assert one.arrival_ns == other.arrival_ns
