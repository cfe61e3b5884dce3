"""Every format, read from a file whose name says nothing: the requests, field by field."""

from __future__ import annotations

import json

import pytest
import trace_files as files

from kvsim.errors import WorkloadError
from kvsim.workload.traces import Request, Tally, Trace

MS, S = 1_000_000, 1_000_000_000


def read(path, **options) -> list[Request]:
    return list(Trace(path).requests(**options))


def shown(requests: list[Request]) -> list[tuple]:
    """Arrival, input, output, ids."""
    return [(r.arrival_ns, r.input_tokens, r.output_tokens, r.hash_ids.tolist()) for r in requests]


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name", files.TEXTS)
def test_a_format_is_told_by_content(tmp_path, name, packed):
    # The worst of names, and Windows' line ends too.
    for text in (files.TEXTS[name], files.TEXTS[name].replace("\n", "\r\n")):
        path = files.write(tmp_path, text, "trace.csv.zip", packed)
        trace, tally = Trace(path), Tally()
        assert trace.format == name
        count = len(list(trace.requests(tally=tally)))
        assert tally == Tally(requests=count)
        assert count == len(read(path)) > 1


def test_mooncake(tmp_path):
    trace = Trace(files.write(tmp_path, files.TEXTS["mooncake"]))
    assert (trace.clock, trace.block_tokens, trace.has_ids) == ("trace", 512, True)
    found = list(trace.requests())
    assert shown(found) == [
        (0, 1200, 3, [0, 1, 2]),
        (27 * MS, 1024, 7, [0, 1]),
        (27 * MS, 1030, 1, [0, 3, 4]),
    ]
    assert all(one.rounds_up and one.hash_ids.dtype == "int64" for one in found)


def test_qwen_bailian(tmp_path):
    found = read(files.write(tmp_path, files.TEXTS["qwen-bailian"]))
    assert shown(found) == [
        (S // 4, 33, 5, [7, 8, 9]),
        (3 * S // 2, 16, 2, [5]),
        (2 * S, 48, 2, [7, 8, 10]),
        (2 * S + 1, 17, 0, [7, 11]),
    ]
    # A parent that is not in the file is kept; a conversation is its first turn in the file.
    assert [(one.request_id, one.parent, one.conversation) for one in found] == [
        (9, -1, 9),
        (12, 4, 12),
        (14, 9, 9),
        (15, 14, 9),
    ]


def test_block_hash(tmp_path):
    trace = Trace(files.write(tmp_path, files.TEXTS["block-hash"]))
    assert (trace.clock, trace.block_tokens) == ("trace", 32)
    found = list(trace.requests())
    assert shown(found) == [(1_500_000, 70, 4, [5, 6]), (2_000_000, 96, 0, [5, 6, 7])]
    assert not any(one.rounds_up for one in found)
    bare = '{"input_length": 70, "block_size": 32, "hash_ids": [5, 6, 8]}\n'
    trace = Trace(files.write(tmp_path, bare))
    assert trace.clock == "none"
    (only,) = trace.requests()
    assert only.rounds_up
    assert (only.arrival_ns, only.output_tokens) == (0, 0)


@pytest.mark.parametrize("records", [files.AGENTS, files.AGENT_RUNS])
def test_kv_cache_tester(tmp_path, records):
    trace = Trace(files.write(tmp_path, files.json_lines(records)))
    assert (trace.format, trace.clock) == ("kv-cache-tester", "conversation")
    found = list(trace.requests())
    # The second conversation's id 1 is another than the first's, whose largest is 8.
    assert shown(found) == [
        (0, 130, 9, [1, 2]),
        (1 * S, 64, 9, [7]),
        (4 * S + S // 4, 140, 9, [7, 8]),
        (12 * S, 200, 9, [1, 2, 3]),
        (13 * S, 128, 9, [1, 4]),
        (0, 64, 9, [9 + 1]),
        (S // 2, 63, 9, []),
    ]
    assert [(one.conversation, one.agent, one.request_id, one.parent) for one in found] == [
        (0, 0, 0, -1),
        (0, 1, 1, -1),
        (0, 1, 2, 1),
        (0, 0, 3, 0),
        (0, 0, 4, 3),
        (1, 0, 5, -1),
        (1, 0, 6, 5),
    ]


def test_a_folder_of_raw_conversations(tmp_path):
    folder = tmp_path / "raw"
    folder.mkdir()
    for name, record in zip(("b.json", "a.json"), files.AGENTS, strict=True):
        (folder / name).write_text(json.dumps(record))
    found = read(folder)
    assert [one.conversation for one in found] == [0, 0, 1, 1, 1, 1, 1]
    assert found[0].hash_ids.tolist() == [1]
    assert found[2].hash_ids.tolist() == [2 + 1, 2 + 2]
    (folder / "b.json").write_text(json.dumps(files.AGENTS[1]))
    with pytest.raises(WorkloadError, match=r"^b.json:1: the conversation 'two' stands twice"):
        read(folder)
    (tmp_path / "empty").mkdir()
    with pytest.raises(WorkloadError, match=r"without \.json"):
        Trace(tmp_path / "empty")
    (folder / "a.json").write_text(files.TEXTS["mooncake"])
    with pytest.raises(WorkloadError, match=r"a\.json is mooncake"):
        Trace(folder)


def test_a_sub_agent_without_duration_was_launched_then(tmp_path):
    inner = {"t": 5.0, "type": "subagent", "duration_ms": None}
    inner["requests"] = [files.agent_request(0.5, 64, [2])]
    record = files.conversation("one", [files.agent_request(0.0, 64, [1]), inner])
    found = read(files.write(tmp_path, files.json_lines([record])))
    assert [one.arrival_ns for one in found] == [0, 5 * S + S // 2]


def test_ragpulse(tmp_path):
    trace = Trace(files.write(tmp_path, files.TEXTS["ragpulse"]))
    assert (trace.clock, trace.block_tokens, trace.has_ids) == ("trace", 0, True)
    first, second = trace.requests()
    assert shown([first, second]) == [
        (27 * S, 111, 5, [10, 11, 3, 40, 50]),
        (27 * S, 85, 1, [10, 11, 4, 20, 50]),
    ]
    assert first.chunk_tokens.tolist() == [40, 8, 20, 23, 12]
    assert (first.conversation, second.conversation) == (0, 1)


def test_azure_keeps_the_seventh_digit(tmp_path):
    trace = Trace(files.write(tmp_path, files.AZURE))
    assert (trace.clock, trace.has_ids) == ("trace", False)
    assert shown(list(trace.requests())) == [
        (0, 374, 44, []),
        (800, 396, 0, []),
        (S - 680_590_100, 1, 7, []),
    ]
    zoned = files.AZURE.replace("01,374", "01+00:00,374").replace("09,396", "09+01:00,396")
    with pytest.raises(WorkloadError, match=r"trace\.txt:3: arrives at -3600 s"):
        read(files.write(tmp_path, zoned))
    with pytest.raises(WorkloadError, match=r":4: TIMESTAMP has a time zone, or the first"):
        read(files.write(tmp_path, zoned.replace("+01:00", "+00:00")))


def test_burstgpt(tmp_path):
    found = read(files.write(tmp_path, files.BURSTGPT))
    assert shown(found) == [(5 * S, 472, 18, []), (45 * S + S // 8, 1087, 0, [])]
    later = (
        "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,"
        "Log Type\n1,x,2.5,GPT-4,3,4,7,API log\n2,y,2.5,GPT-4,3,4,7,API log\n"
        "2,x,2.5,GPT-4,3,4,7,API log\n3,,2.5,GPT-4,3,4,7,API log\n"
    )
    found = read(files.write(tmp_path, later))
    assert [one.conversation for one in found] == [0, 1, 0, -1]


def test_vidur(tmp_path):
    trace = Trace(files.write(tmp_path, files.VIDUR))
    assert (trace.clock, trace.has_ids) == ("none", False)
    assert shown(list(trace.requests())) == [(0, 3772, 54, []), (0, 20, 1, [])]
    found = read(files.write(tmp_path, "num_decode_tokens,num_prefill_tokens\n1,2\n"))
    assert shown(found) == [(0, 2, 1, [])]


def test_times_are_the_nanoseconds_that_the_digits_say(tmp_path):
    # As doubles these would be off: 1787267980.0827403 s has 19 significant digits in ns.
    line = '{{"timestamp": {}, "input_length": 1, "output_length": 0, "hash_ids": [1]}}\n'
    texts = ("0.0000005", "0.0000015", "1.0000014", "1787267980082.7403", "1787267980082.740301")
    path = files.write(tmp_path, "".join(line.format(text) for text in texts))
    assert [one.arrival_ns for one in read(path)] == [
        0,
        2,
        1_000_001,
        1_787_267_980_082_740_300,
        1_787_267_980_082_740_301,
    ]


def test_sorting_is_asked_for_and_stable(tmp_path):
    records = [files.MOONCAKE[1], files.MOONCAKE[2], files.MOONCAKE[0]]
    path = files.write(tmp_path, files.json_lines(records))
    assert [one.input_tokens for one in read(path, order="file")] == [1024, 1030, 1200]
    assert [one.input_tokens for one in read(path, order="sort")] == [1200, 1024, 1030]
    with pytest.raises(WorkloadError, match="not 'up'"):
        read(path, order="up")


def test_a_stream_is_read_as_it_is_used(tmp_path):
    # The fault behind the first request is met only when the second is asked for.
    path = files.write(tmp_path, files.TEXTS["mooncake"].replace("1024", "-1"))
    stream = Trace(path).requests()
    assert next(stream).input_tokens == 1200
    with pytest.raises(WorkloadError, match=":2: input_length"):
        next(stream)
