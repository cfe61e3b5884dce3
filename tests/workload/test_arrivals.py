"""Arrivals: the reader of Azure's CSV, line by line, and the Poisson process by hand."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from kvsim.errors import WorkloadError
from kvsim.seeds import stream
from kvsim.workload.arrivals import Arrival, Lengths, poisson, read_lengths

HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
GOOD = "2023-11-16 18:15:46.6805900,374,44\r\n"
LENGTHS = Lengths((10, 20, 30), (1, 0, 3))


class Drawn:
    """A generator that returns what a test wrote down."""

    def __init__(self, *pairs: tuple[float, float]) -> None:
        self.pairs = np.array(pairs)

    def random(self, shape):
        assert shape == self.pairs.shape
        return self.pairs


def written(folder: Path, text: str | bytes) -> Path:
    path = folder / "trace.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_lengths_are_read_in_order(tmp_path):
    text = HEADER + GOOD + "2023-11-16 18:15:50,1,0\r\n" + '"2023-11-16 18:15:51","7","8"'
    for encoded in (text.encode(), text.replace("\r\n", "\n").encode(), text.encode("utf-8-sig")):
        got = read_lengths(written(tmp_path, encoded))
        assert got == Lengths((374, 1, 7), (44, 0, 8))


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("", 1, "no requests"),
        (HEADER, 2, "no requests"),
        (GOOD, 1, "the header must be TIMESTAMP,ContextTokens,GeneratedTokens"),
        (HEADER.replace("Context", "Prompt") + GOOD, 1, "the header must be"),
        (HEADER + GOOD + "2023-11-16 18:15:46,5\r\n", 3, "3 fields needed, not 2"),
        (HEADER + GOOD + "2023-11-16 18:15:46,5,6,7\r\n", 3, "3 fields needed, not 4"),
        (HEADER + GOOD + "\r\n" + GOOD, 3, "3 fields needed, not 0"),
        (HEADER + "yesterday,5,6\r\n", 2, "TIMESTAMP 'yesterday' is no time"),
        (HEADER + "2023-11-16 18:15:46,0,6\r\n", 2, "ContextTokens must be from 1"),
        (HEADER + "2023-11-16 18:15:46,-5,6\r\n", 2, "ContextTokens must be a whole number"),
        (HEADER + "2023-11-16 18:15:46,5,1.5\r\n", 2, "GeneratedTokens must be a whole number"),
        (HEADER + "2023-11-16 18:15:46,5, 6\r\n", 2, "GeneratedTokens must be a whole number"),
        (HEADER + "2023-11-16 18:15:46,1_0,6\r\n", 2, "ContextTokens must be a whole number"),
        (HEADER + "2023-11-16 18:15:46,٣,6\r\n", 2, "ContextTokens must be a whole number"),
        (HEADER + "2023-11-16 18:15:46,9999999999,6\r\n", 2, "ContextTokens must be from 1 to"),
        (HEADER + "2023-11-16 18:15:46," + "9" * 5000 + ",6\r\n", 2, "must be a whole number"),
        (HEADER + GOOD + '"2023', 3, "unexpected end"),
        (HEADER.encode() + GOOD.encode() + b"2023-11-16,\xff,6\r\n", 1, "not text in UTF-8"),
    ],
)
def test_a_bad_line_is_named(tmp_path, text, line, says):
    with pytest.raises(WorkloadError) as refusal:
        read_lengths(written(tmp_path, text))
    message = str(refusal.value)
    assert message.startswith(f"trace.csv:{line}: ")
    assert says in message
    assert "\n" not in message
    assert len(message) < 200


def test_a_missing_file_or_a_folder_is_refused(tmp_path):
    for path in (tmp_path, tmp_path / "absent.csv"):
        with pytest.raises(WorkloadError, match="there is no file"):
            read_lengths(path)


def test_arrivals_by_hand():
    # At 2 a second, a draw of 1 - 1/e is a gap of half a second: -log(1 - u) / rate.
    gap = 1 - math.exp(-1)
    drawn = Drawn((gap, 0.0), (0.0, 0.34), (gap, 0.999))
    got = poisson(2.0, LENGTHS, 3, drawn)
    times = [arrival.arrival_ns for arrival in got]
    assert times == pytest.approx([500_000_000, 500_000_000, 1_000_000_000], abs=2)
    assert times[0] == times[1]
    assert [(a.prompt, a.decode) for a in got] == [(10, 1), (20, 0), (30, 3)]
    assert all(type(number) is int for arrival in got for number in arrival)
    assert got[0] == Arrival(times[0], 10, 1)


def test_in_order_goes_round_and_leaves_the_arrivals_alone():
    sampled = poisson(5.0, LENGTHS, 7, stream(1, "arrivals"))
    recorded = poisson(5.0, LENGTHS, 7, stream(1, "arrivals"), order="recorded")
    assert [a.prompt for a in recorded] == [10, 20, 30, 10, 20, 30, 10]
    assert [a.decode for a in recorded] == [1, 0, 3, 1, 0, 3, 1]
    assert [a.arrival_ns for a in sampled] == [a.arrival_ns for a in recorded]


def test_a_longer_list_begins_with_the_shorter_and_seeds_differ():
    short, long = (poisson(5.0, LENGTHS, n, stream(1, "arrivals")) for n in (20, 200))
    assert long[:20] == short
    assert poisson(5.0, LENGTHS, 20, stream(2, "arrivals")) != short
    assert poisson(5.0, LENGTHS, 0, stream(1, "arrivals")) == []


def test_gaps_are_exponential_and_lengths_uniform():
    got = poisson(4.0, LENGTHS, 20_000, stream(1, "arrivals"))
    gaps = np.diff([0, *(a.arrival_ns for a in got)]) / 1e9
    assert (gaps >= 0).all()
    assert gaps.mean() == pytest.approx(0.25, rel=0.03)
    assert gaps.std() == pytest.approx(0.25, rel=0.03)
    assert (gaps > 0.25).mean() == pytest.approx(math.exp(-1), abs=0.01)
    counts = np.unique([a.prompt for a in got], return_counts=True)[1] / 20_000
    assert counts == pytest.approx(1 / 3, abs=0.02)


@pytest.mark.parametrize(
    ("rate", "requests", "order", "says"),
    [
        (0.0, 1, "sampled", "a rate above 0"),
        (-1.0, 1, "sampled", "a rate above 0"),
        (math.inf, 1, "sampled", "a rate above 0"),
        (math.nan, 1, "sampled", "a rate above 0"),
        (1.0, -1, "sampled", "-1 requests"),
        (1.0, 1, "shuffled", "sampled or recorded"),
        (1e-12, 100, "sampled", "centuries"),
        (1e-320, 100, "sampled", "centuries"),
    ],
)
def test_arguments_that_cannot_be_are_refused(rate, requests, order, says):
    with pytest.raises(WorkloadError, match=says):
        poisson(rate, LENGTHS, requests, stream(1, "arrivals"), order)


def test_lengths_must_pair_up():
    for prompt, decode in (((), ()), ((1,), ()), ((1, 2), (3,))):
        with pytest.raises(WorkloadError, match="lengths"):
            Lengths(prompt, decode)


def test_azures_own_file(shared):
    path = shared / "traces" / "azure-llm-2023" / "AzureLLMInferenceTrace_conv.csv"
    if not path.is_file():
        pytest.skip(f"{path} is absent: it lies beside the repository, not in it")
    lengths = read_lengths(path)
    # The totals of ../shared/traces/stats.json.
    assert len(lengths.prompt) == 19_366
    assert sum(lengths.prompt) == 22_361_870
    assert sum(lengths.decode) == 4_088_665
    assert (lengths.prompt[0], lengths.decode[0]) == (374, 44)
    assert max(lengths.prompt) == 14_050
    assert max(lengths.decode) == 1000
