"""Runs that are not a token loop: each workload kind here has a module of its own."""
