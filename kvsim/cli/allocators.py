"""`kvsim allocators`: the models of physical memory, with their parameters and sources."""

from __future__ import annotations

from typing import Any

import typer

from kvsim.cli.commands import Json, _command, _print_json, app


def _print(entries: list[dict[str, Any]]) -> None:
    """Print each model with one parameter a line."""
    for number, entry in enumerate(entries):
        if number:
            typer.echo()
        typer.echo(f"{entry['name']}: {entry['summary']}")
        typer.echo(f"  told of {entry['events']}; {entry['source']}")
        for each in entry["parameters"]:
            value = "(required)" if each["required"] else str(each["default"])
            source = f" [{each['source']}]" if each["source"] else ""
            typer.echo(f"    {each['name']:<24} {value:<11} {each['doc']}{source}")


@app.command(name="allocators")
@_command
def allocators_command(as_json: Json = False) -> None:
    """List the models of physical memory: parameters, defaults, sources.

    Example: kvsim allocators --json
    """
    from kvsim.paging.physical.models import describe

    found = describe()
    if as_json:
        _print_json(found)
    else:
        _print(found)
