"""Geometries and victims that the differential tests draw from."""

from __future__ import annotations

from kvsim.layout import KVLayout, LayerGroup
from kvsim.paging.geometry import geometry

# Two layers of two heads, of unequal widths and kinds, so that no two ways to cut them agree.
TINY = KVLayout(
    name="tiny",
    groups=(
        LayerGroup(1, "full", None, 2, 1, 2),
        LayerGroup(1, "sliding", 64, 2, 3, 4, index_elements=1),
    ),
)
# Worked by hand: (1 + 2) * 2 bytes; (3 + 4) * 2 bytes, and head 0 carries the index element.
UNIT_BYTES = (6, 6, 16, 14)
CUTS = {
    "sequence": (0, 0, 0, 0),
    "shared": (0, 0, 0, 0),
    "group": (0, 0, 1, 1),
    "layer": (0, 0, 1, 1),
    "head": (0, 1, 2, 3),
}
# (scope, sets): sets equal to the scope, finer than it, coarser than it.
CASES = (
    ("sequence", "shared"),
    ("layer", "layer"),
    ("head", "head"),
    ("sequence", "layer"),
    ("sequence", "head"),
    ("group", "head"),
    ("layer", "head"),
    ("layer", "shared"),
    ("head", "shared"),
    ("head", "layer"),
)
PAGE_TOKENS = (1, 2, 3, 4, 16)
SHAPES = ("head", "tail", "span", "random", "aligned", "all")


def geometry_of(case):
    """Return the ledger's geometry of a case."""
    return geometry(TINY, *case)


def victims_of(retained, shape, a, b, page_tokens):
    """Choose victims among the retained slots of one set.

    Parameters
    ----------
    retained : list of int
        Ascending.
    shape : str
        One of SHAPES.
    a, b : int
        0 to 255: where the victims begin and how many they are; for `random`, which ones.
    page_tokens : int
        Pages are what `aligned` aligns to.
    """
    count = len(retained)
    some = (b * count + 255) // 256
    if shape == "head":
        return retained[:some]
    if shape == "tail":
        return retained[count - some :]
    if shape == "span":
        first = a * count // 256
        return retained[first : first + some]
    if shape == "random":
        state, chosen = a * 256 + b, []
        for slot in retained:
            state = (state * 1103515245 + 12345) % 2**31
            if state >> 16 & 255 <= b:
                chosen.append(slot)
        return chosen
    if shape == "aligned":
        pages = sorted({slot // page_tokens for slot in retained})
        first = a * len(pages) // 256
        wanted = set(pages[first : first + (b * len(pages) + 255) // 256])
        return [slot for slot in retained if slot // page_tokens in wanted]
    return list(retained)
