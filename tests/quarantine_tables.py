"""The tables of experiments/06-quarantine: from the CSVs of its figures, and from quick runs.

python tests/quarantine_tables.py   # writes the tables anew
"""

from __future__ import annotations

import csv
import functools
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from kvsim.lab import sweep
from kvsim.lab.run import run

ROOT = Path(__file__).parents[1]
EXPERIMENT = ROOT / "experiments" / "06-quarantine"
README = EXPERIMENT / "README.md"
CSVS = ("quarantine_time", "quarantine_bytes", "quarantine_pages")
BLOCK = re.compile(r"<!-- quarantine (\S+) -->\n(.*?)<!-- end of quarantine -->", re.DOTALL)
FAN_OUTS = (1, 4, 64)
SUFFIXES = (256, 1024, 4096, 16384, 65536)


@functools.cache
def read(name: str) -> tuple[dict[str, str], ...]:
    """Return the lines of one figure's CSV."""
    path = ROOT / "figures" / "06-quarantine" / f"{name}.csv"
    with path.open(newline="") as file:
        return tuple(csv.DictReader(file))


def rows() -> list[dict[str, str]]:
    """Return the lines of all CSVs."""
    return [line for name in CSVS for line in read(name)]


def pick(lines: Sequence[dict[str, str]], **values: Any) -> list[dict[str, str]]:
    """Return the lines that show these values."""
    return [line for line in lines if all(line[k] == str(v) for k, v in values.items())]


@functools.cache
def tails() -> tuple[dict[str, str], ...]:
    """Run those of the sweep whose sequences have tails."""
    found = [run(s) for s in sweep.read(EXPERIMENT).scenarios if s.quarantine.tail_tokens]
    return tuple({k: "" if v is None else str(v) for k, v in row.items()} for row in found)


def ways(lines: Sequence[dict[str, str]]) -> list[tuple[str, str, str]]:
    """Return (method, sharing, planes) as they occur, each once."""
    return list(dict.fromkeys((r["method"], r["sharing"], r["planes"]) for r in lines))


def one(
    lines: Sequence[dict[str, str]], way: tuple[str, str, str], **values: Any
) -> dict[str, str]:
    """Return the one line of a way with these values."""
    method, sharing, planes = way
    (line,) = pick(lines, method=method, sharing=sharing, planes=planes, **values)
    return line


def markdown(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Return a table whose first three columns are words."""
    head = ["method", "sharing", "planes", *head]
    rule = ["---"] * 3 + ["--:"] * (len(head) - 3)
    return "".join(f"| {' | '.join(line)} |\n" for line in (head, rule, *lines))


def table(
    lines: Sequence[dict[str, str]],
    head: Sequence[str],
    cells: Callable[[tuple[str, str, str]], Sequence[str]],
) -> str:
    """Return a table with a line for each way."""
    return markdown(head, [[m, s or "-", p, *cells((m, s, p))] for m, s, p in ways(lines)])


def _ms(line: dict[str, str]) -> str:
    ns = int(line["time_ns"])
    return f"{ns / 1e6:.3g}" if ns < 1e9 else f"{ns / 1e6:,.0f}"


def time() -> str:
    """Return milliseconds at each length of suffix, by fan-out."""
    lines = read(CSVS[0])

    def cells(way: tuple[str, str, str]) -> list[str]:
        return [
            ", ".join(_ms(one(lines, way, suffix_tokens=s, fan_out=n)) for n in FAN_OUTS)
            for s in SUFFIXES
        ]

    return table(lines, [f"{s:,}" for s in SUFFIXES], cells)


def pages() -> str:
    """Return pages freed, most extra pages and the peak in bytes, by fan-out."""
    lines = read(CSVS[1])

    def cells(way: tuple[str, str, str]) -> list[str]:
        found = []
        for fan_out in FAN_OUTS:
            line = one(lines, way, suffix_tokens=4096, fan_out=fan_out)
            peak = float(line["peak_over_kv"])
            found.append(f"{line['net_freed_pages']}, {line['extra_pages_peak']}, {peak:.2f}")
        return found

    return table(lines, [f"{n} sequence{'s' if n > 1 else ''}" for n in FAN_OUTS], cells)


def work() -> str:
    """Return bytes copied, rotated and read, and tokens computed, for four sequences."""
    lines = read(CSVS[1])

    def cells(way: tuple[str, str, str]) -> list[str]:
        line = one(lines, way, suffix_tokens=4096, fan_out=4)
        mib = [
            int(line[name]) / 2**20
            for name in (
                "copied_bytes_total",
                "rotated_bytes_total",
                "moved_bytes_total",
                "prefill_bytes_total",
            )
        ]
        return [
            *(f"{value:,.0f}" for value in mib),
            line["prefilled_tokens_total"],
            f"{int(line['prefill_flops_total']) / 1e12:,.1f}",
        ]

    head = ["copied", "rotated", "read and written", "by prefill", "tokens computed", "TFLOP"]
    return table(lines, head, cells)


def left() -> str:
    """Return what of the span stays, for four sequences and 4,096 tokens behind it."""
    lines = read(CSVS[1])

    def cells(way: tuple[str, str, str]) -> list[str]:
        line = one(lines, way, suffix_tokens=4096, fan_out=4)
        share = int(line["decode_read_bytes"]) / int(line["decode_read_bytes_before"])
        return [
            line["readable_span_tokens"],
            f"{int(line['residual_bytes']) / 2**20:.2f}",
            line["conditioned_tokens"],
            f"{share:.4f}",
        ]

    return table(lines, ["readable", "MiB in held pages", "conditioned", "read by decoding"], cells)


def edges() -> str:
    """Return pages freed and tokens still readable by size of a page, one sequence."""
    lines = read(CSVS[2])
    cases = [(2048, 512), (2053, 512), (2048, 64), (2053, 64)]

    def cells(way: tuple[str, str, str]) -> list[str]:
        found = []
        for prefix, span in cases:
            here = [
                one(lines, way, prefix_tokens=prefix, span_tokens=span, page_tokens=size)
                for size in (8, 16, 64, 256)
            ]
            freed = " ".join(line["net_freed_pages"] for line in here)
            readable = [line["readable_span_tokens"] for line in here]
            found.append(freed + (f"; {' '.join(readable)}" if any(map(int, readable)) else ""))
        return found

    return table(lines, [f"{span} from {prefix:,}" for prefix, span in cases], cells)


def own() -> str:
    """Return milliseconds, most extra pages and conditioned tokens with tails."""
    lines = tails()

    def cells(way: tuple[str, str, str]) -> list[str]:
        return [
            f"{_ms(line)}, {line['extra_pages_peak']}, {line['conditioned_tokens']}"
            for line in (one(lines, way, fan_out=n) for n in FAN_OUTS)
        ]

    return table(lines, [f"{n} sequence{'s' if n > 1 else ''}" for n in FAN_OUTS], cells)


TABLES: dict[str, Callable[[], str]] = {
    "time": time,
    "pages": pages,
    "work": work,
    "left": left,
    "edges": edges,
    "tails": own,
}


def blocks() -> list[tuple[str, str]]:
    """Return (name, text) of each table in the README."""
    return [(m[1], m[2]) for m in BLOCK.finditer(README.read_text(encoding="utf-8"))]


if __name__ == "__main__":
    README.write_text(
        BLOCK.sub(
            lambda m: f"<!-- quarantine {m[1]} -->\n{TABLES[m[1]]()}<!-- end of quarantine -->",
            README.read_text(encoding="utf-8"),
        ),
        encoding="utf-8",
    )
