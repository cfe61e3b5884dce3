"""What a paged sequence must hold, told by contiguous caches that know nothing about pages.

A contiguous cache has one list of tokens, and a table numbers positions once for all the sets in
it. So sets that share tables share a contiguous cache too: it holds what any of them retains, and
a mask for each set says what is its own. Only where rows move on their own, and so have positions
of their own, has each set a cache; then they agree on the position that comes next.
"""

from __future__ import annotations

import numpy as np

from kvsim.tensors.contiguous import ContiguousCache


class Numbered(ContiguousCache):
    """A contiguous cache whose next position may lie beyond its own rows: `told` by siblings."""

    told = 0

    @property
    def own_next(self):
        """One past the last position that is retained here."""
        return super().next_position

    @property
    def next_position(self):
        return max(self.told, self.own_next)


class Numbering:
    """The sets whose positions are counted together.

    Parameters
    ----------
    sets : tuple of int
    caches : list of Numbered
        One for all of the sets, or one for each.
    """

    def __init__(self, sets, caches):
        self.sets = sets
        self.caches = caches
        self.kept = {which: np.empty(0, np.bool_) for which in sets}
        self.changed = {}

    @property
    def apart(self):
        """Whether each set has a cache of its own."""
        return len(self.caches) > 1

    def cache(self, which):
        """Return the cache in which a set's rows are."""
        return self.caches[self.sets.index(which) if self.apart else 0]

    def mask(self, which):
        """Return which rows of the set's cache it retains."""
        if self.apart:
            return np.ones(self.cache(which).length, np.bool_)
        return self.kept[which]

    def next_position(self):
        """Return the position that the next token gets."""
        return max(cache.own_next for cache in self.caches)

    def append(self, rows):
        """Append tokens to every set."""
        following = self.next_position()
        for cache in self.caches:
            cache.told = following
            cache.append(rows)
        count = len(next(iter(rows[0].values())))
        for which, kept in self.kept.items():
            self.kept[which] = np.append(kept, np.ones(count, np.bool_))

    def evict(self, victims):
        """Let each set drop positions; `victims` holds a list for every set of the cache.

        `changed` then says how many rows of each set have another position than before, and
        under None how many of all that the sets retain together.
        """
        if self.apart:
            for which in self.sets:
                cache = self.cache(which)
                before = cache.pos[~np.isin(cache.pos, victims[which])]
                cache.evict(victims[which])
                self.changed[which] = np.count_nonzero(before != cache.pos)
        else:
            (cache,) = self.caches
            kept = {w: mask & ~np.isin(cache.pos, victims[w]) for w, mask in self.kept.items()}
            stays = np.any(list(kept.values()), axis=0)
            before = cache.pos[stays]
            cache.evict(cache.pos[~stays])
            self.kept = {which: mask[stays] for which, mask in kept.items()}
            moved = before != cache.pos
            self.changed = {w: np.count_nonzero(moved & mask) for w, mask in self.kept.items()}
            self.changed[None] = np.count_nonzero(moved)
        for cache in self.caches:
            cache.told = self.next_position()

    def fork(self):
        """Return a copy."""
        child = Numbering(self.sets, [cache.fork() for cache in self.caches])
        child.kept = {which: mask.copy() for which, mask in self.kept.items()}
        return child


class Truth:
    """One sequence.

    Parameters
    ----------
    shape : CacheShape
    geometry : Geometry
    positions : {"renumber", "keep"}
    by_row : bool
        Whether rows of several sets in one table have positions of their own.
    """

    def __init__(self, shape, geometry, positions, by_row):
        self.shape = shape
        self.geometry = geometry
        self.numberings = []
        for sets in together(geometry):
            many = len(sets) if by_row else 1
            caches = [Numbered(shape, positions) for _ in range(many)]
            self.numberings.append(Numbering(sets, caches))
        self._of = {which: one for one in self.numberings for which in one.sets}

    def fork(self):
        """Return a copy."""
        child = object.__new__(Truth)
        child.shape, child.geometry = self.shape, self.geometry
        child.numberings = [one.fork() for one in self.numberings]
        child._of = {which: one for one in child.numberings for which in one.sets}
        return child

    def append(self, rows):
        """Append tokens."""
        for numbering in self.numberings:
            numbering.append(rows)

    def evict(self, victims):
        """Let every set drop positions."""
        for numbering in self.numberings:
            numbering.evict(victims)

    def length(self):
        """Return one past the last position that a span can name."""
        return max(numbering.next_position() for numbering in self.numberings)

    def next_position(self, which):
        """Return the position that the next token gets where a set is."""
        return self._of[which].next_position()

    def positions(self, which):
        """Return the positions that a set retains, ascending."""
        numbering = self._of[which]
        return numbering.cache(which).pos[numbering.mask(which)]

    def changed_rows(self, whole_slots):
        """Return the (token, unit) rows with a rotated key whose position the eviction changed.

        With `whole_slots` a row counts too that its set has dropped and that moves all the same,
        because its slot is held for another set.
        """
        geometry, total = self.geometry, 0
        turns = [row.rope_dim > 0 for family in self.shape.families for row in family.rows]
        for scope, which, turned in zip(geometry.unit_scope, geometry.unit_set, turns, strict=True):
            if not turned:
                continue
            numbering = self._of[which]
            assert which in geometry.inner_sets[scope]
            total += numbering.changed[None if whole_slots and not numbering.apart else which]
        return total

    def family_rows(self, family, which):
        """Return the rows of a family at the positions of a set, {plane: [n, elements]}."""
        numbering = self._of[which]
        mask = numbering.mask(which)
        found = numbering.cache(which).rows(family)
        return found if mask.all() else {name: array[mask] for name, array in found.items()}


def together(geometry):
    """Return the sets whose tables hold all of them alike, as tuples of sets."""
    groups = []
    for inner in geometry.inner_sets:
        if inner not in groups:
            groups.append(inner)
    assert sorted(which for group in groups for which in group) == list(range(geometry.sets))
    return groups
