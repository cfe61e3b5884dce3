"""Recorded workloads: requests out of eight trace formats, chosen by content, as a stream."""

from kvsim.workload.traces.reading import Tally, Trace, check
from kvsim.workload.traces.request import Problem, Request

__all__ = ["Problem", "Request", "Tally", "Trace", "check"]
