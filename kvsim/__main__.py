"""`python -m kvsim` is the command `kvsim`."""

from kvsim.cli import app

app()
