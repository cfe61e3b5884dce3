"""The ledger: pages, tables, holders and the verbs, in integers."""

from kvsim.paging.geometry import Geometry, geometry, single
from kvsim.paging.ledger import Ledger
from kvsim.paging.ordering import Order
from kvsim.paging.spans import Receipt, evict_as_one, evict_span
from kvsim.paging.store import CountingStore, Store
from kvsim.paging.version import MODEL_VERSION

__all__ = [
    "MODEL_VERSION",
    "CountingStore",
    "Geometry",
    "Ledger",
    "Order",
    "Receipt",
    "Store",
    "evict_as_one",
    "evict_span",
    "geometry",
    "single",
]
