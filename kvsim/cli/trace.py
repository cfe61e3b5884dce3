"""`kvsim trace`: what a recorded workload holds, what is wrong with it, and what would hit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from kvsim.cli.commands import Json, Set, _at_least, _command, _print_json, app
from kvsim.errors import ScenarioError

trace = typer.Typer(
    name="trace",
    help=(
        "Read recorded workloads: their figures, their faults, and hits without an engine.\n\n"
        "Example: kvsim trace check conversation_trace.jsonl"
    ),
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.add_typer(trace)

File = Annotated[Path, typer.Argument(help="A trace of any known format, plain or gzip.")]
PageTokens = Annotated[
    int | None, typer.Option(help="Tokens of a page; by default the trace's own blocks.")
]
SkipBad = Annotated[bool, typer.Option("--skip-bad", help="Leave out what is wrong, and count it.")]
Sort = Annotated[
    bool, typer.Option("--sort", help="Sort requests by arrival, which needs all in memory.")
]


def _order(sort: bool) -> str:
    return "sort" if sort else "refuse"


def _print_fields(found: dict[str, Any]) -> None:
    """Print one field a line; what a person should know beyond the figures goes to stderr."""
    for name, value in found.items():
        if name == "caveat" or value is None:
            continue
        if isinstance(value, float):
            value = f"{value:.6g}"
        elif isinstance(value, int) and not isinstance(value, bool):
            value = f"{value:,}"
        elif isinstance(value, dict):
            value = ", ".join(f"{key}: {part:.4%}" for key, part in value.items())
        typer.echo(f"{name:<28} {value}")


def _print(found: dict[str, Any], as_json: bool) -> None:
    if as_json:
        _print_json(found)
    else:
        _print_fields(found)
    if found.get("caveat"):
        typer.echo(f"kvsim: {found['caveat']}", err=True)
    if found.get("skipped"):
        typer.echo(f"kvsim: skipped {found['skipped']:,} lines or requests", err=True)


@trace.command(name="stats")
@_command
def stats_command(
    file: File, page_tokens: PageTokens = None, skip_bad: SkipBad = False, as_json: Json = False
) -> None:
    """Print what a trace holds: lengths, times, sharing, slots wasted on last pages.

    Example: kvsim trace stats conversation_trace.jsonl --page-tokens 1024 --json
    """
    from kvsim.workload.traces.stats import stats

    _at_least("--page-tokens", page_tokens, 1)
    _print(stats(file, page_tokens, skip_bad=skip_bad), as_json)


@trace.command(name="check")
@_command
def check_command(file: File, as_json: Json = False) -> None:
    """List everything that is wrong with a trace, one line each with its place.

    Exits with 2 if there is anything.

    Example: kvsim trace check 0_trace.jsonl
    """
    from kvsim.workload.traces import check

    name, problems = check(file)
    found: list[dict[str, str]] = []
    count = 0
    for problem in problems:
        count += 1
        if as_json:
            found.append({"kind": problem.kind, "place": problem.place, "what": problem.what})
        else:
            # In ASCII and on one line, whatever a trace contains.
            typer.echo(json.dumps(" ".join(str(problem).split()))[1:-1].replace('\\"', '"'))
    if as_json:
        _print_json({"format": name, "problems": found})
    elif not count:
        typer.echo(f"{file.name}: {name}, nothing wrong")
    if count:
        raise typer.Exit(2)


@trace.command(name="convert")
@_command
def convert_command(
    file: File,
    out: Annotated[Path, typer.Argument(help="The file to write; .gz is compressed.")],
    page_tokens: PageTokens = None,
    skip_bad: SkipBad = False,
    sort: Sort = False,
    as_json: Json = False,
) -> None:
    """Write a trace as block-hash JSON lines at a page size. OUT must not exist.

    Example: kvsim trace convert conversation_trace.jsonl pages.jsonl.gz --page-tokens 1024
    """
    from kvsim.workload.traces.convert import convert

    _at_least("--page-tokens", page_tokens, 1)
    _print(convert(file, out, page_tokens, skip_bad=skip_bad, order=_order(sort)), as_json)


@trace.command(name="hits")
@_command
def hits_command(
    file: File,
    policy: Annotated[
        str,
        typer.Option(
            help="fifo, lru, lfu, sieve, s3fifo, belady, trie_fifo, trie_lru or trie_optimal."
        ),
    ],
    pages: Annotated[int, typer.Option(help="Pages that the cache holds.")],
    page_tokens: PageTokens = None,
    count_from: Annotated[
        float, typer.Option(help="Count only requests behind this share of them.")
    ] = 0.0,
    skip_bad: SkipBad = False,
    sort: Sort = False,
    as_json: Json = False,
) -> None:
    """Replay a trace's blocks through a cache of so many pages, and count the hits.

    Example: kvsim trace hits conversation_trace.jsonl --policy s3fifo --pages 8192 --json
    """
    from kvsim.workload.replay import hits

    _at_least("--pages", pages, 1)
    _at_least("--page-tokens", page_tokens, 1)
    if not 0 <= count_from < 1:
        raise ScenarioError(f"--count-from must be from 0 to below 1, not {count_from}")
    found = hits(
        file,
        policy,
        pages,
        page_tokens,
        count_from=count_from,
        skip_bad=skip_bad,
        order=_order(sort),
    )
    _print(found, as_json)


@trace.command(name="export")
@_command
def export_command(
    scenario: Annotated[Path, typer.Argument(help="A scenario of kind trace or poisson, TOML.")],
    out: Annotated[Path, typer.Option(help="The file to write; .gz is compressed.")],
    set_: Set = None,
    as_json: Json = False,
) -> None:
    """Write the requests of a serving run, so that a trace gives the same run again.

    The scenario with workload.kind=trace and workload.path=OUT has the same steps, tokens,
    allocations and times. OUT must not exist.

    Example: kvsim trace export scenarios/serving-pressure.toml --out run.jsonl.gz
    """
    from kvsim.lab import reading
    from kvsim.lab.studies.serving_export import export_requests

    read = reading.load(scenario, reading.overrides(set_ or []))
    _print(export_requests(read, out), as_json)
