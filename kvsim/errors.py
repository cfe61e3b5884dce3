"""Typed errors: everything that kvsim refuses, it refuses with one of these.

The command line turns any :class:`KvsimError` into one line on stderr and exit code 2.
"""

from __future__ import annotations


class KvsimError(Exception):
    """Base of all refusals. Its text is one line that names the file, key or line at fault."""


class ScenarioError(KvsimError):
    """A scenario or sweep file, or a ``--set`` override, cannot be understood."""


class LayoutError(KvsimError):
    """A layout is unknown, incomplete, or has a layer kind that is not supported."""


class PolicyError(KvsimError):
    """A policy is unknown, cannot be built, or returned scores that cannot be used."""


class WorkloadError(KvsimError):
    """A recording or trace is malformed or does not fit the layout."""


class ResultsError(KvsimError):
    """A results folder cannot be used: locked, incompatible, damaged or unwritable."""


class FigureError(KvsimError):
    """A figure was asked for rows that are not there."""


class LedgerError(KvsimError):
    """A verb of the ledger was refused. The ledger is as it was before the call.

    Attributes
    ----------
    receipt : object or None
        Where an eviction was refused, the receipt that says so.
    """

    receipt: object | None = None


class VictimError(LedgerError):
    """A victim list names a dead, foreign or duplicate position."""


class CeilingExceeded(LedgerError):
    """A verb needs more pages than the pool's ceiling leaves.

    Attributes
    ----------
    needed_pages : int
        Pages that the verb needs beyond those held.
    free_pages : int
        Pages that the ceiling leaves.
    """

    def __init__(self, verb: str, needed_pages: int, free_pages: int) -> None:
        self.needed_pages = needed_pages
        self.free_pages = free_pages
        super().__init__(f"{verb} needs {needed_pages} pages and the ceiling leaves {free_pages}")


class ExactnessRefused(LedgerError):
    """What was asked cannot be done exactly with these planes or layers. Says what would."""


class RotationError(LedgerError):
    """A rotation cannot be built, or a position lies past its table."""


class SwapError(LedgerError):
    """A swap file is truncated, altered, or from a cache of another shape."""


class MemoryRefused(LedgerError):
    """Planes are larger than the memory that there is. Nothing was allocated."""


class Infeasible(KvsimError):
    """A run cannot meet its own terms. It becomes a row with outcome ``infeasible``."""


class NotApplicable(KvsimError):
    """A policy cannot run on this workload. It becomes a row with outcome ``not_applicable``."""
