"""The tables in docs/quantized.md: bytes from geometries, drift from the figure's CSV.

python tests/quantized_tables.py            # writes the tables anew
"""

from __future__ import annotations

import csv
import re
from pathlib import Path
from statistics import fmean

from kvsim.layout import PLANES
from kvsim.layout.families import dense
from kvsim.tensors.quantized import KINDS
from kvsim.tensors.rope import Rope
from kvsim.tensors.shape import CacheShape

ROOT = Path(__file__).parents[1]
DOC = ROOT / "docs/quantized.md"
CSV = ROOT / "figures/03-quantized/quantized_drift.csv"
BLOCK = re.compile(r"<!-- table (\w+) -->\n(.*?)<!-- end of table -->", re.DOTALL)
TEXTS = {"spans", "keys"}
WHOLE = ("seed", "evictions", "evicted_tokens")


def rows() -> list[dict]:
    """Return the committed rows."""
    with CSV.open(newline="") as file:
        return [
            {name: _read(name, value) for name, value in row.items()}
            for row in csv.DictReader(file)
        ]


def _read(name: str, value: str) -> object:
    if name in TEXTS:
        return value
    return int(value) if name in WHOLE else float(value)


def price() -> str:
    """Return the table of bytes: Llama-3.2-1B's rows, 16 layers of 8 heads of 64."""
    rows = dense([8] * 16, 64, 64)
    lines = [
        "| keys | planes | a key's codes and scale | a token | of float32 `kv` |",
        "|---|---|--:|--:|--:|",
    ]
    whole = None
    for kind in KINDS:
        for planes in ("kv", "kv_raw", "raw_only") if kind == "float32" else ("kv", "kv_raw"):
            geometry = CacheShape(rows, (Rope(64, 5e5),), planes).geometry(keys=kind)
            token = int(geometry.page_row_bytes().sum())
            whole = whole or token
            others = 4 * 64 * (len(PLANES[planes]) - 1)
            key = geometry.unit_row_bytes[0] - others
            lines.append(
                f"| {kind} | {planes} | {'none' if planes == 'raw_only' else key} | {token:,} |"
                f" {token / whole:.3f} |"
            )
    return "\n".join(lines) + "\n"


def drift() -> str:
    """Return the table of drift: means over seeds after 1, 10 and 20 evictions."""
    lines = [
        "| spans | keys | evictions | key codes changed | largest key error | quantizing alone |"
        " logit words changed | largest logit difference | quantizing alone |"
        " next tokens changed |",
        "|---|---|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    every = rows()
    for spans in ("equal", "random"):
        for kind in KINDS:
            for evictions in (1, 10, 20):
                wanted = (spans, kind, evictions)
                found = [r for r in every if (r["spans"], r["keys"], r["evictions"]) == wanted]
                mean = {name: fmean(r[name] for r in found) for name in found[0].keys() - TEXTS}
                lines.append(
                    f"| {spans} | {kind} | {evictions} | {mean['keys_codes_changed']:.1%} |"
                    f" {mean['keys_error_max']:.2g} | {mean['keys_exact_loss_max']:.2g} |"
                    f" {mean['logits_words_changed']:.1%} | {mean['logits_error_max']:.2g} |"
                    f" {mean['logits_exact_loss_max']:.2g} |"
                    f" {mean['logits_argmax_changed']:.1%} |"
                )
    return "\n".join(lines) + "\n"


TABLES = {"price": price, "drift": drift}


def blocks() -> dict[str, str]:
    """Return the text of each table in the document."""
    return {m[1]: m[2] for m in BLOCK.finditer(DOC.read_text(encoding="utf-8"))}


if __name__ == "__main__":
    text = BLOCK.sub(
        lambda m: f"<!-- table {m[1]} -->\n{TABLES[m[1]]()}<!-- end of table -->",
        DOC.read_text(encoding="utf-8"),
    )
    DOC.write_text(text, encoding="utf-8")
