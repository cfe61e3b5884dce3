"""The planted bugs above the ledger: the eviction loop and the engine."""

from mutants.mutant import Mutant

LOOP: list[Mutant] = []
