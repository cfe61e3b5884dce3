"""libCacheSim's binary trace `oracleGeneral`: block ids and nothing of a request.

A record has 24 bytes, little endian: time (u32), id (u64), size (u32), and when the id comes next
(i64). Only the ids are used; blocks are of one size here.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from kvsim.errors import WorkloadError

RECORD = np.dtype([("time", "<u4"), ("id", "<i8"), ("size", "<u4"), ("next", "<i8")])
PIECE = 1 << 15


def read_pieces(path: str | Path) -> Iterator[np.ndarray]:
    """Yield the ids of a file in pieces, int64 [records], bit for bit.

    An id of 2^63 or more comes out negative. Each piece lies in one buffer, which the next
    overwrites: fresh memory for every piece would cost more than reading it.

    Raises
    ------
    WorkloadError
        If the file is missing, empty, or not a whole number of records.
    """
    file = Path(path)
    if not file.is_file():
        raise WorkloadError(f"there is no file {path}")
    size = file.stat().st_size
    if not size or size % RECORD.itemsize:
        raise WorkloadError(f"{file.name}: {size} bytes are not records of {RECORD.itemsize}")
    records = np.empty(PIECE, dtype=RECORD)
    buffer = records.view(np.uint8).data
    ids = np.empty(PIECE, dtype=np.int64)
    with file.open("rb") as stream:
        while got := stream.readinto(buffer):
            count = got // RECORD.itemsize
            ids[:count] = records["id"][:count]
            yield ids[:count]
