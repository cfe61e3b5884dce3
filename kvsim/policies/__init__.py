"""Eviction policies, one file each; what they see, and how scores become victims."""

from kvsim.policies.base import Policy
from kvsim.policies.registry import build, describe, names, policy_class, short_name
from kvsim.policies.view import Attention, View

__all__ = [
    "Attention",
    "Policy",
    "View",
    "build",
    "describe",
    "names",
    "policy_class",
    "short_name",
]
