"""`kvsim devices`: the catalogue behind the cost of a step, each entry with its source."""

from __future__ import annotations

from typing import Any

import typer

from kvsim.cli.commands import Json, _command, _print_json, app


def _print(entries: list[dict[str, Any]]) -> None:
    """Print each device with one figure a line."""
    for number, entry in enumerate(entries):
        if number:
            typer.echo()
        verified = "" if entry["verified"] else " (not all of it stands in the source)"
        typer.echo(f"{entry['name']}{verified}")
        typer.echo(f"    {'memory':<11} {entry['memory_bytes'] / 2**30:,.0f} GiB")
        typer.echo(f"    {'bandwidth':<11} {entry['bandwidth_bytes_per_s'] / 1e9:,.0f} GB/s")
        for dtype, rate in entry["flops_per_s"].items():
            typer.echo(f"    {dtype:<11} {rate / 1e12:,.1f} TFLOPS")
        typer.echo(f"    {'host link':<11} {entry['host_bytes_per_s'] / 1e9:,.0f} GB/s one way")
        typer.echo(f"    {entry['source']}")


@app.command(name="devices")
@_command
def devices_command(as_json: Json = False) -> None:
    """List the devices of [cost]: memory, bandwidth, FLOP rates, link, and the source of each.

    Example: kvsim devices --json
    """
    from kvsim.engine.costs.devices import describe

    found = describe()
    if as_json:
        _print_json(found)
    else:
        _print(found)
