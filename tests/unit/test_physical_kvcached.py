"""kvcached's model against a dumb one that keeps sets and recounts everything."""

from __future__ import annotations

import numpy as np
import pytest

from kvsim.errors import CeilingExceeded, LedgerError
from kvsim.paging.physical.kvcached import Kvcached, KvcachedParameters

MIB = 2**20


def model(**values) -> Kvcached:
    defaults = {"pages": 64, "page_bytes": MIB // 4, "layers": 3, "reserve_max": 2}
    return Kvcached(KvcachedParameters(**({"reserve_min": 0} | defaults | values)))


class Dumb:
    """The same rules over lists, with every question answered by a search."""

    def __init__(self, p: KvcachedParameters) -> None:
        self.p = p
        size, width = p.extent_bytes, p.page_bytes
        self.pages = {
            extent: [
                page
                for page in range(p.pages)
                if page * width >= extent * size and (page + 1) * width <= (extent + 1) * size
            ]
            for extent in range(p.pages * width // size)
        }
        self.free: dict[int, list[int]] = {}
        self.order: list[int] = []
        self.reserve: list[int] = []
        self.unmapped = list(self.pages)
        self.peak = 0
        self.taken: list[int] = []
        for null in range(p.null_pages):
            self.bring(next(e for e, pages in self.pages.items() if null in pages))
            self.remove(null)

    def bring(self, extent: int) -> None:
        if extent not in self.free:
            (self.reserve if extent in self.reserve else self.unmapped).remove(extent)
            self.free[extent] = list(self.pages[extent])

    def remove(self, page: int) -> None:
        extent = next(e for e, pages in self.free.items() if page in pages)
        self.free[extent].remove(page)
        self.last(extent)

    def last(self, extent: int) -> None:
        self.order = [e for e in self.order if e != extent] + [extent]
        self.peak = max(self.peak, len(self.free) + len(self.reserve))

    def allocate(self, count: int) -> list[int]:
        found: list[int] = []
        while len(found) < count:
            want = count - len(found)
            open_extents = [e for e in self.order if self.free.get(e)]
            if not open_extents:
                extent = (self.reserve + self.unmapped)[0]
                self.bring(extent)
                self.last(extent)
            elif self.p.allocation == "newest":
                extent = open_extents[-1]
            else:
                extent = open_extents[0]
                for other in open_extents[1:]:
                    mine, his = len(self.free[extent]), len(self.free[other])
                    better = his >= want and (mine < want or his < mine)
                    if better or (mine < want and his > mine):
                        extent = other
            some, self.free[extent] = self.free[extent][:want], self.free[extent][want:]
            found += some
            self.last(extent)
        self.taken += found
        return found

    def let_go(self, pages: list[int]) -> None:
        touched = list(dict.fromkeys(e for p in pages for e in self.pages if p in self.pages[e]))
        for page in pages:
            self.taken.remove(page)
        for extent in touched:
            self.free[extent] += [page for page in pages if page in self.pages[extent]]
            self.last(extent)
        for extent in touched:
            if len(self.free[extent]) == len(self.pages[extent]):
                del self.free[extent]
                kept = len(self.reserve) < self.p.reserve_max
                (self.reserve if kept else self.unmapped).append(extent)


# Dividing an extent, straddling, and so large that some extents hold no page.
WIDTHS = [MIB // 4, 300_000, 3 * MIB // 2]


@pytest.mark.parametrize("allocation", ["best_fit", "newest"])
@pytest.mark.parametrize("width", WIDTHS)
def test_random_pages_against_the_dumb_model(width, allocation):
    rng = np.random.default_rng([width, allocation == "newest"])
    p = KvcachedParameters(
        pages=90, page_bytes=width, layers=2, reserve_min=1, reserve_max=2, allocation=allocation
    )
    mine, dumb = Kvcached(p), Dumb(p)
    for _ in range(400):
        room = sum(map(len, dumb.free.values()))
        room += sum(len(dumb.pages[e]) for e in dumb.reserve + dumb.unmapped)
        verb = rng.integers(0, 6)
        if verb < 2:
            count = int(rng.integers(0, 12))
            if count > room:
                with pytest.raises(CeilingExceeded) as caught:
                    mine.allocate(count)
                assert caught.value.free_pages == room
            else:
                assert mine.allocate(count) == dumb.allocate(count)
        elif verb == 2:
            never = [q for e in dumb.pages for q in dumb.pages[e] if q and q not in dumb.taken]
            for page in rng.permutation(never)[:3].tolist():
                mine.take([page])
                dumb.bring(next(e for e, pages in dumb.pages.items() if page in pages))
                dumb.remove(page)
                dumb.taken.append(page)
        elif verb < 5:
            some = rng.permutation(dumb.taken)[: rng.integers(0, 15)].tolist()
            mine.let_go(some)
            dumb.let_go(some)
        elif rng.random() < 0.5:
            mine.trim()
            dumb.unmapped += dumb.reserve
            dumb.reserve = []
        else:
            mine.refill()
            while len(dumb.reserve) < p.reserve_min and dumb.unmapped:
                dumb.reserve.append(dumb.unmapped.pop(0))
            dumb.peak = max(dumb.peak, len(dumb.free) + len(dumb.reserve))
        mine.check()
        figures = mine.figures()
        unit = p.extent_bytes * p.layers * p.buffers
        held = len(dumb.taken) * width * p.layers * p.buffers
        mapped = len(dumb.free) * unit
        assert figures == (
            held,
            mapped - held,
            len(dumb.reserve) * unit,
            (dumb.peak - len(dumb.free) - len(dumb.reserve)) * unit,
        )
    counters = mine.counters()
    assert counters["reused_extents_total"] > 0
    assert counters["returned_extents_total"] > 0


def by_hand(mine: Kvcached, cached: list[int], count: int) -> list[int]:
    """The five rules of the reference, one after the other."""
    groups: dict[int, list[int]] = {}
    for page in cached:
        groups.setdefault(mine.extent_of(page), []).append(page)
    keep = [ids for extent, ids in groups.items() if len(ids) >= mine.occupied(extent)]
    keep.sort(key=lambda ids: (len(ids), max(cached.index(page) for page in ids)))
    found: list[int] = []
    for ids in keep:
        if len(found) + len(ids) > count:
            break
        found += ids
    rest = [page for page in cached if page not in found]
    return found + rest[: max(0, count - len(found))]


def test_victims_against_the_rules():
    rng = np.random.default_rng(5)
    more = fewer = 0
    for _ in range(200):
        mine = model(pages=80)
        pages = mine.allocate(int(rng.integers(1, 70)))
        mine.let_go(rng.permutation(pages)[: len(pages) // 2].tolist())
        left = [page for page in pages if page in mine._taken]
        cached = rng.permutation(left)[: rng.integers(0, len(left) + 1)].tolist()
        count = int(rng.integers(0, len(cached) + 3))
        victims = mine.victims(cached, count)
        assert victims == by_hand(mine, cached, count)
        assert len(victims) == min(count, len(cached))
        oldest = mine.victims(cached, count, page_aligned=False)
        assert oldest == cached[:count]
        # The control: it matters, and it never empties fewer extents.
        emptied = []
        for chosen in (victims, oldest):
            other = model(pages=80)
            other.take(left)
            before = other.used_extents
            other.let_go(chosen)
            emptied.append(before - other.used_extents)
        more += emptied[0] > emptied[1]
        fewer += emptied[0] < emptied[1]
    assert more > 20
    assert fewer == 0


def test_page_zero_is_null_and_its_extent_never_goes_back():
    mine = model(reserve_max=0)
    assert mine.figures().empty_bytes == mine.whole_bytes
    pages = mine.allocate(20)
    assert 0 not in pages
    mine.let_go(pages)
    assert (mine.used_extents, mine.figures().held_bytes) == (1, 0)
    assert mine.figures().returned_bytes == 2 * mine.whole_bytes


def test_an_extent_costs_the_same_in_both_layouts_and_other_calls():
    """36 layers, K and V, 2 MiB: 144 MiB for an extent, in 72 calls or one."""
    found = {}
    for compound in (False, True):
        mine = model(layers=36, compound=compound)
        assert mine.whole_bytes == 144 * MIB
        found[compound] = (mine.figures(), mine.counters()["mapping_calls_total"])
    assert found[False][0] == found[True][0]
    assert (found[False][1], found[True][1]) == (72, 1)


def test_straddling_pages_belong_to_no_extent():
    mine = model(page_bytes=3 * MIB // 2, pages=16)
    assert [mine.extent_of(page) for page in range(6)] == [0, None, None, 2, 3, None]
    assert [list(mine.pages_of(extent)) for extent in range(4)] == [[0], [], [3], [4]]
    with pytest.raises(LedgerError, match="page 1 lies in no extent"):
        mine.take([1])
    assert mine.allocate(2) == [3, 4]
    # Extent 1 holds no page. It was mapped on the way, and stays, as kvcached's does.
    assert mine.used_extents == 4
    mine.check()


def test_shrinking_is_lazy():
    mine = model(reserve_max=0)
    pages = mine.allocate(20)
    assert mine.used_extents == 3
    mine.resize(2)
    assert mine.used_extents == 3
    assert mine.allocate(3) == [21, 22, 23]
    with pytest.raises(CeilingExceeded):
        mine.allocate(1)
    with pytest.raises(CeilingExceeded):
        mine.take([40])
    mine.let_go(pages[7:])
    assert mine.used_extents == 2
    mine.check()
    with pytest.raises(LedgerError):
        mine.resize(mine.extents + 1)


BAD = [
    {"page_bytes": 3 * MIB},
    {"page_bytes": 0},
    {"pages": 1.5},
    {"pages": True},
    {"extent_bytes": MIB},
    {"reserve_min": 3},
    {"allocation": "worst_fit"},
    {"compound": 1},
    {"layers": "8"},
    {"null_pages": 64},
    {"pages": 4},
]


@pytest.mark.parametrize("bad", BAD, ids=str)
def test_bad_parameters(bad):
    with pytest.raises(LedgerError):
        model(**bad)


def state(mine: Kvcached):
    stores = (mine._free, mine._partial, mine._reserve, mine._unmapped)
    lists = [[(k, list(v) if isinstance(v, dict) else v) for k, v in s.items()] for s in stores]
    return lists, mine._taken.ids(), mine.figures(), mine.counters()


def test_refused_verbs_change_nothing():
    mine = model()
    mine.allocate(10)
    before = state(mine)
    for verb, pages in (
        (mine.take, [20, 3]),
        (mine.take, [20, 20]),
        (mine.take, [0]),
        (mine.take, [64]),
        (mine.take, [-1]),
        (mine.take, [2.0]),
        (mine.let_go, [3, 30]),
        (mine.let_go, [3, 3]),
        (mine.let_go, [0]),
        (lambda pages: mine.victims(pages, 1), [3, 30]),
        (mine.allocate, 1000),
        (mine.allocate, -1),
    ):
        with pytest.raises(LedgerError):
            verb(pages)
        assert state(mine) == before


def spoil_partial(mine):
    mine._partial.clear()


TAMPERED = {
    "a page lost": lambda m: m._free[1].popitem(),
    "an extent lost": lambda m: m._unmapped.popitem(),
    "an extent in two states": lambda m: m._reserve.update({1: None}),
    "withheld": spoil_partial,
    "a count of free pages": lambda m: setattr(m, "_free_pages", 0),
    "a mark": lambda m: m._taken._taken.__setitem__(30, 1),
    "a flow": lambda m: setattr(m._meter, "returned_bytes_total", 1),
    "a peak": lambda m: setattr(m._meter, "mapped_bytes_peak", 1),
    "mapped": lambda m: m._meter.map(1),
}


@pytest.mark.parametrize("spoil", TAMPERED.values(), ids=TAMPERED.keys())
def test_check_notices(spoil):
    mine = model()
    mine.allocate(10)
    mine.check()
    spoil(mine)
    with pytest.raises(LedgerError):
        mine.check()
