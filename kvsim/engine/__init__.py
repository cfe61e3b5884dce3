"""The event-driven engine on the ledger; with bench, the only room that imports SimPy."""

from kvsim.engine.driver import Clock, Engine, Request, When

__all__ = ["Clock", "Engine", "Request", "When"]
