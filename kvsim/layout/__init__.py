"""What a model caches: layer kinds, rows and bytes, and the catalogue of models."""

from kvsim.layout.catalogue import catalogue_names, describe, describe_all, load_layout
from kvsim.layout.kinds import COUNTED, ELEMENT_BYTES, PLANES, LayerGroup, LayerSpec
from kvsim.layout.layout import KVLayout

__all__ = [
    "COUNTED",
    "ELEMENT_BYTES",
    "PLANES",
    "KVLayout",
    "LayerGroup",
    "LayerSpec",
    "catalogue_names",
    "describe",
    "describe_all",
    "load_layout",
]
