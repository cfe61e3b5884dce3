"""What is wrong with a file: named with its line, refused, or skipped and counted."""

from __future__ import annotations

import gzip
import json

import pytest
import trace_files as files

from kvsim.errors import WorkloadError
from kvsim.workload.traces import Tally, Trace, check

MOON = files.MOONCAKE[1]
QWEN = files.QWEN[3]


def line(record: dict, **changes) -> str:
    return json.dumps({**record, **changes}) + "\n"


def without(record: dict, key: str) -> str:
    return json.dumps({name: value for name, value in record.items() if name != key}) + "\n"


def swapped(record: dict, key: str, text: str) -> str:
    """A record whose value is this text, JSON or not."""
    return json.dumps({**record, key: "@"}).replace('"@"', text) + "\n"


def after(name: str, text: str) -> tuple[str, str]:
    return name, files.TEXTS[name] + text


def agents(requests: list[dict], **more) -> tuple[str, str]:
    return after("kv-cache-tester", json.dumps(files.conversation("new", requests, **more)) + "\n")


def agent(tokens: int, ids: list, **more) -> dict:
    return files.agent_request(1.0, tokens, ids, **more)


# A good file with one more line, and what its problem says.
BAD: dict[str, tuple[tuple[str, str], str]] = {
    "blank": (after("mooncake", "\n"), "a blank line"),
    "spaces": (after("mooncake", " \t \n"), "a blank line"),
    "truncated": (after("mooncake", line(MOON)[:40]), "no JSON: "),
    "garbage": (after("mooncake", "hello\n"), "no JSON: "),
    "array": (after("mooncake", "[1]\n"), "no JSON object"),
    "nan": (after("mooncake", swapped(MOON, "timestamp", "NaN")), "the number NaN is not finite"),
    "infinity": (
        after("mooncake", swapped(MOON, "timestamp", "-Infinity")),
        "the number -Infinity is not finite",
    ),
    "1e999": (after("mooncake", swapped(MOON, "timestamp", "1e999")), "centuries away"),
    "endless integer": (after("mooncake", swapped(MOON, "timestamp", "1" * 5000)), "no JSON: "),
    "deep": (after("mooncake", swapped(MOON, "more", "[" * 100_000)), "no JSON: "),
    "key twice": (
        after("mooncake", '{"timestamp": 1, ' + line(MOON)[1:]),
        "the key 'timestamp' stands twice",
    ),
    "no time": (after("mooncake", without(MOON, "timestamp")), "it has no 'timestamp'"),
    "no length": (after("mooncake", without(MOON, "input_length")), "it has no 'input_length'"),
    "no ids": (after("mooncake", without(MOON, "hash_ids")), "it has no 'hash_ids'"),
    "negative time": (after("mooncake", line(MOON, timestamp=-1)), "timestamp -1 is negative"),
    "time is text": (after("mooncake", line(MOON, timestamp="27")), "timestamp must be a number"),
    "time is true": (after("mooncake", line(MOON, timestamp=True)), "timestamp must be a number"),
    "unsorted": (
        after("mooncake", line(MOON, timestamp=26)),
        "arrives at 0.026 s, before the request of trace.txt:3 at 0.027 s",
    ),
    "negative length": (
        after("mooncake", line(MOON, input_length=-5)),
        "input_length must be from 1 to 10000000, not -5",
    ),
    "no input": (after("mooncake", line(MOON, input_length=0)), "input_length must be from 1"),
    "half a token": (
        after("mooncake", line(MOON, output_length=1.5)),
        "output_length must be a whole number, not 1.5",
    ),
    "3.0 tokens": (after("mooncake", line(MOON, output_length=3.0)), "must be a whole number"),
    "true tokens": (after("mooncake", line(MOON, output_length=True)), "not True"),
    "10^7 tokens": (
        after("mooncake", line(MOON, input_length=10**7)),
        "input_length 10000000: no request has 10,000,000 tokens or more",
    ),
    "10^7 together": (
        after("vidur", "9999999,1,10000000,1.0\n"),
        "9,999,999 input and 1 output tokens: no request has 10,000,000",
    ),
    "too few ids": (
        after("mooncake", line(MOON, input_length=1025)),
        "2 hash ids for 1025 input tokens in blocks of 512: 3 needed",
    ),
    "too many ids": (after("mooncake", line(MOON, input_length=512)), "1 needed"),
    "ids are text": (after("mooncake", line(MOON, hash_ids="01")), "hash_ids must be a list"),
    "id is text": (after("mooncake", line(MOON, hash_ids=[0, "1"])), "whole numbers, not '1'"),
    "id is a float": (after("mooncake", line(MOON, hash_ids=[0, 1.0])), "whole numbers, not 1.0"),
    "id is true": (after("mooncake", line(MOON, hash_ids=[0, True])), "whole numbers, not True"),
    "65 bits": (after("mooncake", line(MOON, hash_ids=[0, 1 << 63])), "an id outside 64 bits"),
    "id twice": (after("mooncake", line(MOON, hash_ids=[6, 6])), "the id 6 twice in one request"),
    "not UTF-8": (after("mooncake", "\udcff\n"), "not text in UTF-8"),
    "chat twice": (after("qwen-bailian", line(QWEN)), "chat_id 15 stands twice in the file"),
    "no parent": (
        after("qwen-bailian", without({**QWEN, "chat_id": 99}, "parent_chat_id")),
        "it has no 'parent_chat_id'",
    ),
    "qwen lengths": (
        after("qwen-bailian", line(QWEN, chat_id=99, input_length=48)),
        "2 hash ids for 48 input tokens in blocks of 16: 3 needed",
    ),
    "mixed sizes": (
        after("block-hash", line(files.BLOCK_HASH[1], block_size=48, hash_ids=[5, 6])),
        "block_size 48 after 32: sizes are mixed",
    ),
    "time comes and goes": (
        after("block-hash", without(files.BLOCK_HASH[1], "timestamp")),
        "it has no 'timestamp', unlike the first record",
    ),
    "one id too many": (
        after("block-hash", line(files.BLOCK_HASH[1], input_length=64)),
        "3 hash ids for 64 input tokens in blocks of 32: 2 needed",
    ),
    "rounding": (
        after("block-hash", line(files.BLOCK_HASH[0], timestamp=3, hash_rounding="up")),
        "2 hash ids for 70 input tokens in blocks of 32: 3 needed",
    ),
    "conversation twice": (
        after("kv-cache-tester", json.dumps(files.AGENTS[1]) + "\n"),
        "the conversation 'two' stands twice",
    ),
    "agent lengths": (
        agents([agent(128, [1])]),
        "entry 1: 1 hash ids for 128 input tokens in blocks of 64: 2 needed",
    ),
    "agent sizes": (agents([], block_size=32), "block_size must be 64, not 32"),
    "agent scope": (agents([], hash_id_scope="global"), "hash_id_scope must be local"),
    "agent runs": (agents([agent(128, [[1, 1], [1, 1]])]), "entry 1: hash_runs has the id 1 twice"),
    "agent huge run": (
        agents([agent(128, [[1, 9_999_999]])]),
        "entry 1: 9999999 hash ids for 128 input tokens",
    ),
    "agent odd run": (agents([agent(128, [[1, 2, 3]])]), "pairs of whole numbers, not [1, 2, 3]"),
    "agent empty run": (agents([agent(128, [[1, 0]])]), "hash_runs has the run [1, 0]"),
    "agent negative id": (agents([agent(64, [-1])]), "hash_ids must be from 0"),
    "agent time": (agents([agent(64, [1]) | {"t": -2}]), "entry 1: t -2 is negative"),
    "agent order": (
        agents([agent(64, [1]), agent(64, [1]) | {"t": 0.5}]),
        "arrives at 0.5 s, before the request of trace.txt:3 at 1 s",
    ),
    "sub-agent too long": (
        agents([{"t": 2.0, "duration_ms": 2001, "requests": []}]),
        "entry 1: duration_ms 2001 begins before the conversation",
    ),
    "azure fields": (after("azure", "2023-11-17 00:00:01,5\r\n"), "3 fields needed, not 2"),
    "azure time": (after("azure", "yesterday,5,6\r\n"), "TIMESTAMP 'yesterday' is no time"),
    "azure number": (after("azure", "2023-11-17 00:00:01,1_0,6\r\n"), "not '1_0'"),
    "azure other digits": (after("azure", "2023-11-17 00:00:01,\u0663,6\r\n"), "whole number"),
    "azure quote": (after("azure", '"2023-11-17 00:00:01,5,6\r\n'), "no CSV: "),
    "burst total": (
        after("burstgpt", "50,GPT-4,3,4,8,API log\n"),
        "Total tokens is 8, not 3 + 4",
    ),
    "burst time": (after("burstgpt", "nan,GPT-4,3,4,7,API log\n"), "Timestamp must be a number"),
    "burst negative": (after("burstgpt", "-1,GPT-4,3,4,7,API log\n"), "Timestamp -1 is negative"),
    "vidur total": (after("vidur", "3,4,8,1.0\n"), "num_total_tokens is 8, not 3 + 4"),
    "rag order": (
        after(
            "ragpulse",
            line(
                files.RAGPULSE[0],
                hash_ids=dict(reversed(files.RAGPULSE[0]["hash_ids"].items())),
            ),
        ),
        "hash_ids must have the categories sys_prompt, passages_ids, history, web_search",
    ),
    "rag unknown": (
        after(
            "ragpulse",
            line(files.RAGPULSE[0], hash_ids={**files.RAGPULSE[0]["hash_ids"], "history": [3]}),
        ),
        "the chunk 3 has no length in 3_history.jsonl",
    ),
    "rag lengths": (
        after("ragpulse", line(files.RAGPULSE[0], input_length=102)),
        "input_length 102 contradicts chunks of 103 tokens",
    ),
    "rag far too long": (after("ragpulse", line(files.RAGPULSE[0], input_length=616)), "of 103"),
    "rag time": (after("ragpulse", line(files.RAGPULSE[0], timestamp="2 7")), "must be a number"),
    "rag unsorted": (after("ragpulse", line(files.RAGPULSE[0], timestamp="26")), "arrives at 26 s"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_line_is_named_refused_or_skipped(tmp_path, case):
    (name, text), says = BAD[case]
    good = files.TEXTS[name]
    count = len(list(Trace(files.write(tmp_path, good)).requests()))
    number = len(good.splitlines()) + 1
    # A good line behind the bad one, so that what is skipped is one line and not the rest.
    last = {
        "mooncake": line(MOON, timestamp=99),
        "qwen-bailian": line(QWEN, timestamp=99, chat_id=98),
        "block-hash": line(files.BLOCK_HASH[1], timestamp=99),
        "kv-cache-tester": json.dumps(files.conversation("last", [agent(64, [1])])) + "\n",
        "azure": "2023-11-18 00:00:00,5,6\r\n",
        "burstgpt": "99,GPT-4,3,4,7,API log\n",
        "vidur": "3,4,7,1.0\n",
        "ragpulse": line(files.RAGPULSE[0], timestamp="99"),
    }[name]
    gap = "" if text.endswith("\n") else "\n"
    data = (text + gap + last).encode("utf-8", errors="surrogateescape")
    path = files.write(tmp_path, data)
    (problem,) = check(path)[1]
    assert problem.place.startswith(f"trace.txt:{number}")
    assert says in str(problem)
    assert "\n" not in str(problem)
    with pytest.raises(WorkloadError) as refused:
        list(Trace(path).requests())
    assert str(refused.value) == str(problem)
    tally = Tally()
    kept = list(Trace(path).requests(skip_bad=True, tally=tally))
    assert (tally.skipped, tally.requests) == (1, len(kept))
    # Of a conversation only the request is left out.
    assert len(kept) == count + 1 + (case == "agent order")


def test_all_problems_are_listed_in_order(tmp_path):
    text = "oops\n" + files.TEXTS["mooncake"] + "\n" + line(MOON, timestamp=1) + line(MOON)[:9]
    name, problems = check(files.write(tmp_path, text))
    found = list(problems)
    assert name == "mooncake"
    assert [(one.kind, one.place) for one in found] == [
        ("record", "trace.txt:1"),
        ("blank", "trace.txt:5"),
        ("order", "trace.txt:6"),
        ("record", "trace.txt:7"),
    ]


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "trace.txt:1: the file is empty"),
        (b"\n\n", "trace.txt:1: the file is empty"),
        (
            b"hello\nworld\n",
            "trace.txt:1: not a trace of a known format (kv-cache-tester, ragpulse",
        ),
        (b"TIMESTAMP,ContextTokens\n", "not a trace of a known format"),
        (files.AZURE.splitlines()[0].encode(), "trace.txt: there is no request in it"),
        (b"\x1f\x8b", "trace.txt:1: the gzip stream ends too early"),
        (b"\x1f\x8b\x08" + bytes(6) + b"\xff" * 30, "trace.txt:1: damaged gzip"),
        (files.AZURE.encode("utf-16"), "not a trace of a known format"),
        (gzip.compress(b"", mtime=0), "trace.txt:1: the file is empty"),
    ],
)
def test_a_file_that_is_no_trace(tmp_path, data, says):
    path = files.write(tmp_path, data)
    with pytest.raises(WorkloadError) as refused:
        list(Trace(path).requests())
    assert says in str(refused.value)
    found = [str(one) for one in check(path)[1]]
    assert len(found) == 1
    assert says in found[0]


def test_a_gzip_that_ends_too_early_gives_what_it_has(tmp_path):
    text = "".join(line(MOON, timestamp=n, hash_ids=[n * n, n * n + 1]) for n in range(2000))
    whole = gzip.compress(text.encode())
    path = files.write(tmp_path, whole[: len(whole) // 2])
    kept: list = []
    with pytest.raises(WorkloadError, match=r"trace\.txt:(\d+): the gzip stream ends too early"):
        kept.extend(Trace(path).requests(skip_bad=True))
    count = len(kept)
    assert 100 < count < 2000
    (problem,) = check(path)[1]
    assert (problem.kind, problem.place) == ("file", f"trace.txt:{count + 1}")
    path.write_bytes(whole[:-6] + b"\0\0\0\0\0\0")
    assert "damaged gzip" in next(str(one) for one in check(path)[1])


def test_an_endless_line(tmp_path, monkeypatch):
    monkeypatch.setattr("kvsim.workload.traces.lines.MOST_LINE_BYTES", 1 << 20)
    path = files.write(tmp_path, files.TEXTS["mooncake"] + "x" * (1 << 20) + "y")
    (problem,) = check(path)[1]
    assert str(problem) == "trace.txt:4: longer than 1 MiB"


def test_missing_files(tmp_path):
    assert [str(one) for one in check(tmp_path / "none")[1]] == [
        f"none: there is no file {tmp_path / 'none'}"
    ]
    path = files.write(tmp_path, files.TEXTS["ragpulse"])
    (tmp_path / "3_history.jsonl").unlink()
    with pytest.raises(WorkloadError, match=r"^3_history\.jsonl: RAGPulse's chunk lengths"):
        Trace(path)


def test_ragpulses_side_files_are_part_of_it(tmp_path):
    path = files.write(tmp_path, files.TEXTS["ragpulse"])
    side = tmp_path / "2_passages.jsonl"
    side.write_text(
        side.read_text()
        + '\n{"passage_id": 3, "token_length": 9}\n{"passage_id": 7, "token_length": 513}\n'
        + '{"passage_id": 10, "token_length": 5}\n'
    )
    assert [str(one) for one in check(path)[1]] == [
        "2_passages.jsonl:3: a blank line",
        "2_passages.jsonl:4: the chunk 3 stands twice",
        "2_passages.jsonl:5: token_length must be from 1 to 512, not 513",
        "2_passages.jsonl:6: the chunk 10 stands twice",
    ]
    tally = Tally()
    assert len(list(Trace(path).requests(skip_bad=True, tally=tally))) == 2
    assert (tally.skipped, tally.blank_lines) == (4, 1)


def test_a_mark_of_byte_order_is_no_fault(tmp_path):
    for name in ("mooncake", "azure"):
        path = files.write(tmp_path, b"\xef\xbb\xbf" + files.TEXTS[name].encode())
        assert Trace(path).format == name
        assert list(check(path)[1]) == []
