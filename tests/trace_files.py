"""One small file of every trace format, written by hand, and what is in it."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

MOONCAKE = [
    {"timestamp": 0, "input_length": 1200, "output_length": 3, "hash_ids": [0, 1, 2]},
    {"timestamp": 27, "input_length": 1024, "output_length": 7, "hash_ids": [0, 1]},
    {"timestamp": 27, "input_length": 1030, "output_length": 1, "hash_ids": [0, 3, 4]},
]
QWEN = [
    {
        "chat_id": 9,
        "parent_chat_id": -1,
        "timestamp": 0.25,
        "input_length": 33,
        "output_length": 5,
        "type": "text",
        "turn": 1,
        "hash_ids": [7, 8, 9],
    },
    {
        "chat_id": 12,
        "parent_chat_id": 4,
        "timestamp": 1.5,
        "input_length": 16,
        "output_length": 2,
        "type": "search",
        "turn": 3,
        "hash_ids": [5],
    },
    {
        "chat_id": 14,
        "parent_chat_id": 9,
        "timestamp": 2,
        "input_length": 48,
        "output_length": 2,
        "type": "text",
        "turn": 2,
        "hash_ids": [7, 8, 10],
    },
    {
        "chat_id": 15,
        "parent_chat_id": 14,
        "timestamp": 2.000000001,
        "input_length": 17,
        "output_length": 0,
        "type": "text",
        "turn": 3,
        "hash_ids": [7, 11],
    },
]
BLOCK_HASH = [
    {
        "timestamp": 1.5,
        "input_length": 70,
        "output_length": 4,
        "block_size": 32,
        "hash_ids": [5, 6],
    },
    {
        "timestamp": 2,
        "input_length": 96,
        "output_length": 0,
        "block_size": 32,
        "hash_ids": [5, 6, 7],
    },
]
AZURE = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
    "2023-11-16 23:59:59.6805901,374,44\r\n"
    "2023-11-16 23:59:59.6805909,396,0\r\n"
    "2023-11-17 00:00:00,1,7\r\n"
)
BURSTGPT = (
    "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    "5,ChatGPT,472,18,490,Conversation log\n"
    "45.125,GPT-4,1087,0,1087,API log\n"
)
VIDUR = (
    "num_prefill_tokens,num_decode_tokens,num_total_tokens,pd_ratio\n"
    "3772,54,3826,69.85\n"
    "20,1,21,20.0\n"
)


def agent_request(t: float, tokens: int, ids: list[int] | list[list[int]], **more: Any) -> dict:
    key = "hash_runs" if ids and isinstance(ids[0], list) else "hash_ids"
    return {"t": t, "type": "n", "in": tokens, "out": 9, key: ids, **more}


def conversation(name: str, requests: list[dict], **more: Any) -> dict:
    head = {"id": name, "block_size": 64, "hash_id_scope": "local", "tool_tokens": 10}
    return {**head, "requests": requests, **more}


# Two conversations whose local ids are the same; the first has a sub-agent that ends at 9.5 s.
AGENTS = [
    conversation(
        "one",
        [
            agent_request(0.0, 130, [1, 2]),
            {
                "t": 9.5,
                "type": "subagent",
                "duration_ms": 8500,
                "requests": [agent_request(0.0, 64, [7]), agent_request(3.25, 140, [7, 8])],
            },
            agent_request(12.0, 200, [1, 2, 3]),
            agent_request(13.0, 128, [1, 4]),
        ],
    ),
    conversation("two", [agent_request(0.0, 64, [1]), agent_request(0.5, 63, [])]),
]
AGENT_RUNS = [
    conversation(
        "one",
        [
            agent_request(0.0, 130, [[1, 2]]),
            {
                "t": 9.5,
                "type": "subagent",
                "duration_ms": 8500,
                "requests": [agent_request(0.0, 64, [[7, 1]]), agent_request(3.25, 140, [[7, 2]])],
            },
            agent_request(12.0, 200, [[1, 3]]),
            agent_request(13.0, 128, [[1, 1], [4, 1]]),
        ],
    ),
    conversation(
        "two", [agent_request(0.0, 64, [[1, 1]]), {"t": 0.5, "in": 63, "out": 9, "hash_runs": []}]
    ),
]
RAGPULSE = [
    {
        "timestamp": "27",
        "input_length": 111,
        "output_length": 5,
        "hash_ids": {
            "sys_prompt": [10, 11],
            "passages_ids": [3],
            "history": [],
            "web_search": [40],
            "user_input": [50],
        },
        "session_id": "b-7",
    },
    {
        "timestamp": "27",
        "input_length": 85,
        "output_length": 1,
        "hash_ids": {
            "sys_prompt": [10, 11],
            "passages_ids": [4],
            "history": [20],
            "web_search": [],
            "user_input": [50],
        },
        "session_id": "a-1",
    },
]
RAG_LENGTHS = {
    "1_sys_prompt": ("sys_prompt_id", {10: 40, 11: 8}),
    "2_passages": ("passage_id", {3: 20, 4: 16}),
    "3_history": ("history_id", {20: 1}),
    "4_user_input": ("user_input_id", {50: 12}),
    "5_web_search": ("web_search_id", {40: 23}),
}


def json_lines(records: list[dict]) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


TEXTS = {
    "mooncake": json_lines(MOONCAKE),
    "qwen-bailian": json_lines(QWEN),
    "block-hash": json_lines(BLOCK_HASH),
    "kv-cache-tester": json_lines(AGENTS),
    "azure": AZURE,
    "burstgpt": BURSTGPT,
    "vidur": VIDUR,
    "ragpulse": json_lines(RAGPULSE),
}


def write(folder: Path, text: str | bytes, name: str = "trace.txt", packed: bool = False) -> Path:
    """Write a file, and RAGPulse's lengths beside it, which every format may have."""
    data = text.encode() if isinstance(text, str) else text
    path = folder / name
    path.write_bytes(gzip.compress(data) if packed else data)
    for file, (key, lengths) in RAG_LENGTHS.items():
        records = [{key: chunk, "token_length": tokens} for chunk, tokens in lengths.items()]
        (folder / f"{file}.jsonl").write_text(json_lines(records))
    return path
