"""The commands: each a few lines, which import what they need when they run."""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from kvsim.errors import KvsimError, ScenarioError

app = typer.Typer(
    name="kvsim",
    help="What does evicting tokens from a paged KV cache really free, and at what price?",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Json = Annotated[bool, typer.Option("--json", help="Print JSON for a program to read.")]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override one key of the scenario."),
]
PolicyFile = Annotated[
    str | None,
    typer.Option("--policy", metavar="NAME|PATH", help="A policy's name, or your own .py file."),
]


def _command(function: Callable[..., None]) -> Callable[..., None]:
    """Turn a typed refusal into one line on stderr and exit code 2."""

    @functools.wraps(function)
    def guarded(*args: Any, **kwargs: Any) -> None:
        try:
            function(*args, **kwargs)
        except KvsimError as error:
            typer.echo(f"kvsim: {' '.join(str(error).split())}", err=True)
            raise typer.Exit(2) from None
        except BrokenPipeError:
            # The reader of a pipe left: nobody is there to be told.
            raise typer.Exit(1) from None
        except OSError as error:
            named = f"{error.filename}: " if error.filename else ""
            typer.echo(f"kvsim: {named}{error.strerror or error}", err=True)
            raise typer.Exit(2) from None
        except KeyboardInterrupt:
            typer.echo("kvsim: interrupted", err=True)
            raise typer.Exit(130) from None
        except MemoryError as error:
            typer.echo(f"kvsim: not enough memory: {error or 'no size given'}", err=True)
            raise typer.Exit(2) from None

    return guarded


def _at_least(option: str, value: int | None, least: int) -> None:
    if value is not None and value < least:
        raise ScenarioError(f"{option} must be at least {least}, not {value}")


def _print_json(value: Any) -> None:
    # In ASCII, so that no encoding of stdout and no odd file name can refuse it.
    typer.echo(json.dumps(value, allow_nan=False))


@app.command(name="run")
@_command
def run_command(
    scenario: Annotated[Path, typer.Argument(help="A scenario file, TOML.")],
    set_: Set = None,
    policy: PolicyFile = None,
    as_json: Json = False,
) -> None:
    """Run one scenario and print its row.

    Example: kvsim run scenarios/recorded.toml --set budget.fraction=0.25 --json
    """
    from kvsim.cli.render import watch
    from kvsim.lab import reading
    from kvsim.lab.run import run

    asked = reading.load(scenario, reading.overrides(set_ or [], policy))
    with watch(None, shown=not as_json):
        row = run(asked)
    # A sweep writes the page maps into its folder; a row that is only printed has no such file.
    row["page_map"] = None
    if as_json:
        _print_json(row)
    else:
        from kvsim.cli.render import print_row

        print_row(row)


@app.command()
@_command
def sweep(
    experiment: Annotated[Path, typer.Argument(help="A folder with sweep.toml, or a TOML file.")],
    out: Annotated[
        Path | None, typer.Option(help="Results folder; by default results/<folder>-<stem>.")
    ] = None,
    jobs: Annotated[
        int | None, typer.Option(help="Processes; by default the cores there are.")
    ] = None,
    limit: Annotated[int | None, typer.Option(help="Most scenarios to run now.")] = None,
    set_: Set = None,
    policy: PolicyFile = None,
    figures: Annotated[bool, typer.Option(help="Draw the figures too.")] = True,
    as_json: Json = False,
) -> None:
    """Run every scenario of an experiment that has no row yet; print a table, draw figures.

    A killed sweep goes on where it was when the command is given again.

    Example: kvsim sweep experiments/01-memory-ceilings --jobs 2
    """
    from kvsim.cli import render
    from kvsim.lab import execute, reading
    from kvsim.lab import sweep as sweeps

    _at_least("--jobs", jobs, 1)
    _at_least("--limit", limit, 0)
    plan = sweeps.read(experiment, reading.overrides(set_ or [], policy))
    out = out or Path("results") / plan.name
    render.check_figures(plan.figures)
    with render.watch("runs", shown=not as_json) as bars:
        summary, rows = execute.execute(
            plan.scenarios,
            out,
            jobs=jobs or execute.usable_jobs(),
            command=["kvsim", *sys.argv[1:]],
            limit=limit,
            progress=functools.partial(bars.tell, "runs"),
        )
    if not as_json:
        shown = render.choose(rows, plan.table)
        render.print_table(shown, total=len(rows))
        render.write_markdown(shown, out / "table.md")
    drawn = render.draw_figures(rows, out, plan.figures) if figures else []
    if as_json:
        _print_json(
            {
                "rows": summary.rows,
                "run": summary.run,
                "skipped": summary.skipped,
                "failed": summary.failed,
                "out": str(out),
            }
        )
    else:
        render.print_summary(summary, len(plan.scenarios), out, drawn)


@app.command()
@_command
def policies(as_json: Json = False) -> None:
    """List the eviction policies: what they read, where they come from.

    Example: kvsim policies --json
    """
    from kvsim.policies import describe

    found = describe()
    if as_json:
        _print_json(found)
    else:
        from kvsim.cli.render import print_policies

        print_policies(found)


@app.command()
@_command
def layouts(
    name: Annotated[str | None, typer.Argument(help="A layout's name, or a file.")] = None,
    tokens: Annotated[int, typer.Option(help="Cached tokens, at least 1.")] = 131072,
    dtype: Annotated[str, typer.Option(help="Type of the stored elements.")] = "bfloat16",
    as_json: Json = False,
) -> None:
    """List the layouts, or show what one caches at a number of tokens.

    Example: kvsim layouts Gemma-3-27B --tokens 131072 --json
    """
    from kvsim.cli import render
    from kvsim.errors import LayoutError
    from kvsim.layout import ELEMENT_BYTES, describe, describe_all

    _at_least("--tokens", tokens, 1)
    if dtype not in ELEMENT_BYTES:
        raise LayoutError(f"--dtype must be one of {', '.join(ELEMENT_BYTES)}, not {dtype!r}")
    if name is None:
        entries = describe_all()
        if as_json:
            _print_json(entries)
        else:
            render.print_layouts(entries)
        return
    entry = describe(name, tokens, ELEMENT_BYTES[dtype])
    if as_json:
        _print_json(entry)
    else:
        render.print_layout(entry)


@app.command()
@_command
def bench(
    name: Annotated[str, typer.Argument(help="What to measure: evict, ledger or replay.")],
    as_json: Json = False,
) -> None:
    """Measure speed ratios inside one run, against baselines kept in kvsim/bench.

    `replay` measures against other simulators, which `uv sync --group peers` installs; without
    them its rows say so.

    Example: kvsim bench ledger
    """
    from kvsim.bench import measure
    from kvsim.cli.render import print_bench, progress

    with progress(f"bench {name}") as step:
        results = measure(name, step)
    if as_json:
        _print_json(results)
    else:
        print_bench(results)


@app.command()
@_command
def prove(
    seconds: Annotated[
        float | None, typer.Option(help="Go on through the whole matrix for so long.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Draws rows, victims and the matrix's order.")] = 7,
    case: Annotated[
        int | None, typer.Option(help="Run one case of the matrix again, by its number.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Prove on this machine that paged rows equal contiguous ones, bit for bit.

    Exits with 1 if a word differs, or if a control that must be noticed is not.

    Example: kvsim prove --seconds 120 --json
    """
    from kvsim.cli.proof import print_proof
    from kvsim.cli.render import progress
    from kvsim.tensors import proof

    _at_least("--seed", seed, 0)
    if seconds is not None and not 1 <= seconds < float("inf"):
        raise ScenarioError(f"--seconds must be at least 1, not {seconds}")
    if case is not None and seconds is not None:
        raise ScenarioError("--case runs one case alone, so --seconds has no meaning beside it")
    if case is not None:
        report = proof.prove_case(case, seed)
    else:
        with progress("proof") as step:
            report = proof.prove(seed, seconds, step)
    if as_json:
        _print_json(report.as_dict())
    else:
        print_proof(report.as_dict())
    if not report.holds:
        raise typer.Exit(1)
