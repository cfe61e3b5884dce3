"""Which format a file has, told by what is in it and never by its name."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from kvsim.errors import WorkloadError
from kvsim.workload.traces.azure import Azure
from kvsim.workload.traces.block_hash import BlockHash
from kvsim.workload.traces.burstgpt import BurstGPT
from kvsim.workload.traces.formats import Format, JsonFormat, split
from kvsim.workload.traces.kv_cache_tester import KvCacheTester
from kvsim.workload.traces.lines import read_lines
from kvsim.workload.traces.mooncake import Mooncake
from kvsim.workload.traces.qwen_bailian import QwenBailian
from kvsim.workload.traces.ragpulse import RagPulse
from kvsim.workload.traces.request import BadRecord
from kvsim.workload.traces.values import parse_object
from kvsim.workload.traces.vidur import Vidur

# The keys of one do not satisfy another, except that Mooncake's are among everybody's: it is
# asked last.
JSON_FORMATS: tuple[type[JsonFormat], ...] = (
    KvCacheTester,
    RagPulse,
    QwenBailian,
    BlockHash,
    Mooncake,
)
CSV_FORMATS = (Azure, BurstGPT, Vidur)
NAMES = (*(one.name for one in JSON_FORMATS), *(one.name for one in CSV_FORMATS))
# A trace that begins with so many lines of nonsense is none.
MOST_LINES = 64


class Sniffed(NamedTuple):
    """A reading that has begun: its format, and the line of a header (0: there is none)."""

    format: Format
    header_line: int


def _begin_json(text: str, path: Path) -> Format | None:
    try:
        record = parse_object(text)
    except BadRecord:
        return None
    for one in JSON_FORMATS:
        if one.recognises(record):
            return one(record, path)
    return None


def _begin_csv(text: str) -> Format | None:
    try:
        header = split(text)
    except BadRecord:
        return None
    for one in CSV_FORMATS:
        if one.recognises(header):
            return one(header)
    return None


def begin(path: Path) -> Sniffed:
    """Return the format of a file, ready to read it.

    Raises
    ------
    WorkloadError
        If the file is empty, or none of its first 64 lines is a record of a known format.
    """
    first = True
    for line in read_lines(path):
        if line.number > MOST_LINES:
            break
        if line.text is None or not line.text.strip():
            continue
        if first:
            found = _begin_csv(line.text)
            if found is not None:
                return Sniffed(found, line.number)
        first = False
        found = _begin_json(line.text, path)
        if found is not None:
            return Sniffed(found, 0)
    if first:
        raise WorkloadError(f"{path.name}:1: the file is empty")
    raise WorkloadError(f"{path.name}:1: not a trace of a known format ({', '.join(NAMES)})")
