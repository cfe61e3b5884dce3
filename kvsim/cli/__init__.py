"""The command line. Nothing heavy is imported here: `kvsim --help` must answer at once."""

from kvsim.cli import allocators, devices, trace
from kvsim.cli.commands import app

__all__ = ["allocators", "app", "devices", "trace"]
