"""The columns of the table that a sweep prints: one form for a token loop, one for an engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Row = Mapping[str, Any]

# (heading, what it shows). The table of a sweep, in this order.
COLUMNS: tuple[tuple[str, Callable[[Row], str]], ...] = (
    ("policy", lambda r: r["policy"]),
    ("granularity", lambda r: r["granularity"]),
    ("sets / scope", lambda r: f"{r['sets']} / {r['scope']}"),
    ("compaction", lambda r: _compaction(r)),
    ("positions", lambda r: r["positions"]),
    ("planes", lambda r: r["planes"]),
    ("plane layout", lambda r: r["plane_layout"] or "-"),
    ("extent", lambda r: f"{r['extent_bytes'] / 1024:g} KiB" if r["extent_bytes"] else "-"),
    ("append", lambda r: r["append"]),
    ("when", lambda r: r["when"]),
    ("forks", lambda r: f"{r['forks']}{'' if r['forks_evict'] else ' (do not evict)'}"),
    ("ceiling", lambda r: str(r["ceiling_pages"] or "none")),
    ("seed", lambda r: str(r["seed"])),
    ("page", lambda r: str(r["page_tokens"])),
    ("budget", lambda r: _budget(r)),
    ("tokens evicted", lambda r: _share(r["evicted_tokens_total"], r["tokens"])),
    ("pages freed", lambda r: f"{r['freed_pages_total']} of {r['dense_pages']}"),
    ("held", lambda r: f"{r['held_fraction']:.3f}"),
    ("mapped", lambda r: _mapped(r)),
    ("packed floor", lambda r: str(r["packed_floor_pages"])),
    ("mass kept", lambda r: "-" if r["retained_mass"] is None else f"{r['retained_mass']:.3f}"),
    ("budget met", lambda r: "yes" if r["budget_met"] else "no"),
)
# The same for runs of a serving engine.
SERVING: tuple[tuple[str, Callable[[Row], str]], ...] = (
    ("policy", lambda r: "none" if _keeps_all(r) else r["policy"]),
    ("granularity", lambda r: r["granularity"]),
    ("pressure", lambda r: r["pressure"]),
    ("compaction", lambda r: _compaction(r)),
    ("positions", lambda r: r["positions"]),
    ("preemption", lambda r: r["preemption"]),
    ("admission", lambda r: r["admission"]),
    ("prefix cache", lambda r: r["prefix_cache"]),
    ("memory", lambda r: r["memory_model"]),
    ("device", lambda r: r["device"]),
    ("when", lambda r: r["when"]),
    ("rate", lambda r: f"{r['rate_per_s']:g}/s"),
    ("seed", lambda r: str(r["seed"])),
    ("page", lambda r: str(r["page_tokens"])),
    ("ceiling", lambda r: str(r["ceiling_pages"] or "none")),
    ("budget", lambda r: _budget(r)),
    ("finished", lambda r: f"{r['finished_requests']} of {r['requests']}"),
    ("preempted", lambda r: str(r["preemptions_total"])),
    ("tokens evicted", lambda r: f"{r['evicted_tokens_total']:.0f}"),
    ("pages freed", lambda r: str(r["freed_pages_total"])),
    ("hits", lambda r: _number(r["hit_fraction"], "{:.1%}")),
    ("TTFT p99 ms", lambda r: _number(r["ttft_p99_ms"], "{:,.0f}")),
    ("TPOT p50 ms", lambda r: _number(r["tpot_p50_ms"], "{:.1f}")),
    ("goodput /s", lambda r: _number(r["goodput_requests_per_s"], "{:.2f}")),
)
# The same for removals of a span.
QUARANTINE: tuple[tuple[str, Callable[[Row], str]], ...] = (
    ("method", lambda r: r["method"]),
    ("sharing", lambda r: r["sharing"] or "-"),
    ("planes", lambda r: r["planes"]),
    ("device", lambda r: r["device"]),
    ("page", lambda r: str(r["page_tokens"])),
    ("prefix", lambda r: str(r["prefix_tokens"])),
    ("span", lambda r: str(r["span_tokens"])),
    ("suffix", lambda r: str(r["suffix_tokens"])),
    ("fan-out", lambda r: str(r["fan_out"])),
    ("tail", lambda r: str(r["tail_tokens"])),
    ("span readable", lambda r: str(r["readable_span_tokens"])),
    ("rows conditioned", lambda r: str(r["conditioned_tokens"])),
    ("pages held", lambda r: f"{r['held_pages']} of {r['dense_pages']}"),
    ("extra at most", lambda r: str(r["extra_pages_peak"])),
    ("copied pages", lambda r: str(r["cow_pages_total"])),
    ("moved MiB", lambda r: f"{r['moved_bytes_total'] / 2**20:,.1f}"),
    ("computed", lambda r: str(r["prefilled_tokens_total"])),
    ("ms", lambda r: f"{r['time_ns'] / 1e6:,.3f}"),
)


@dataclass(frozen=True)
class Form:
    """The columns of a table.

    Attributes
    ----------
    columns : tuple of (heading, what it shows)
    settings : int
        The leading columns that name the run; the others need a completed one.
    said : tuple of str
        Settings that are said above the table where all rows agree and none is printed.
    """

    columns: tuple[tuple[str, Callable[[Row], str]], ...]
    settings: int
    said: tuple[str, ...]


TOKEN_LOOP = Form(COLUMNS, 15, ("compaction", "page", "budget"))
REMOVAL = Form(QUARANTINE, 10, ("device", "page"))
ENGINE = Form(SERVING, 16, ("compaction", "page", "ceiling", "budget", "device"))


def form_of(rows: Sequence[Row]) -> Form:
    """Return the columns that fit these rows: others than a token loop's where all have them."""
    if rows and all("conditioned_tokens" in row for row in rows):
        return REMOVAL
    return ENGINE if rows and all("prefix_cache" in row for row in rows) else TOKEN_LOOP


def _number(value: float | None, shown: str) -> str:
    return "-" if value is None else shown.format(value)


def _keeps_all(row: Row) -> bool:
    return row["budget_fraction"] == 1.0 and not row["budget_tokens"]


def _compaction(row: Row) -> str:
    return row["compaction"] + (
        f" {row['compaction_unit']}s" if row["compaction"] != "none" else ""
    )


def _budget(row: Row) -> str:
    return str(row["budget_tokens"]) if row["budget_tokens"] else f"{row['budget_fraction']:.2f}"


def _mapped(row: Row) -> str:
    mapped = row["mapped_bytes"]
    return "-" if mapped is None else f"{mapped / row['dense_bytes']:.3f}"


def _share(part: float, whole: float) -> str:
    return f"{part:.0f} ({100 * part / whole:.0f}%)"
