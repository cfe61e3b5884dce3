"""Oracles: the dumbest programs that can be right. They import nothing from kvsim."""
