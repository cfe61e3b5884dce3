"""The planted bugs of real rows: kernels, stores, rotations, the cache and swap files.

Nothing is compiled where mutants run, so what only non-temporal stores could get wrong is not
here: tests/unit/test_moving.py compares both kernels where there are both.
"""

from __future__ import annotations

from mutants.mutant import Mutant

CACHE = "tests/unit/test_paged_cache.py::"
FAMILIES = "tests/unit/test_families.py::"
MEMORY = "tests/unit/test_memory.py::"
MOVING = "tests/unit/test_moving.py::"
SWAP = "tests/unit/test_swap.py::"

IN_ORDER = MOVING + "test_moves_in_order[{}-plain]"

TENSORS = [
    # Kernels
    Mutant(
        "a rotation from the rotated key",
        "tensors/moving.py",
        "a = np.float32(raw[source, read + near])",
        "a = np.float32(key[source, write + near])",
        IN_ORDER.format("half split"),
    ),
    Mutant(
        "a pre-RoPE row left behind",
        "tensors/moving.py",
        "copy_part(raw, source, target, lane[n.RAW_AT], lane[n.RAW])",
        "copy_part(raw, source, target, lane[n.RAW_AT], lane[n.RAW] - 1)",
        IN_ORDER.format("half split"),
    ),
    Mutant(
        "a value left behind where its key is rotated",
        "tensors/moving.py",
        "            if source != target:\n",
        "            if source != target and where < 0:\n",
        IN_ORDER.format("half split"),
    ),
    Mutant(
        "sines where cosines should be",
        "tensors/moving.py",
        "c = cosines[first + pair]",
        "c = sines[first + pair]",
        IN_ORDER.format("half split"),
    ),
    Mutant(
        "a sum where a difference should be",
        "tensors/moving.py",
        "x = a * c - b * s",
        "x = a * c + b * s",
        IN_ORDER.format("half split"),
    ),
    Mutant(
        "the machine's own NaN",
        "tensors/moving.py",
        "x if x == x else CANONICAL_NAN",
        "x",
        MOVING + "test_infinities_that_cancel_are_a_canonical_nan",
    ),
    Mutant(
        "interleaved pairs read as halves",
        "tensors/moving.py",
        "near, far = 2 * pair, 2 * pair + 1",
        "near, far = pair, pair + half",
        IN_ORDER.format("interleaved"),
    ),
    Mutant(
        "interleaved pairs written as halves",
        "tensors/moving.py",
        "if pairing == 1:",
        "if pairing == 3:",
        IN_ORDER.format("interleaved"),
    ),
    Mutant(
        "a latent lost when its rope part turns",
        "tensors/moving.py",
        "copy_part(key, source, target, lane[n.KEY_AT], lane[n.CARRIED])",
        "copy_part(key, source, target, lane[n.KEY_AT], 0)",
        IN_ORDER.format("latent"),
    ),
    Mutant(
        "a rotation that begins at the carried part",
        "tensors/moving.py",
        "write = lane[n.KEY_AT] + lane[n.CARRIED] + lane[n.ROPE_FROM]",
        "write = lane[n.KEY_AT] + lane[n.ROPE_FROM]",
        IN_ORDER.format("latent"),
    ),
    Mutant(
        "elements that do not turn left at the old row's",
        "tensors/moving.py",
        "if element < lane[n.ROPE_FROM] or element >= rotated:",
        "if element < lane[n.ROPE_FROM]:",
        IN_ORDER.format("partial"),
    ),
    Mutant(
        "a move of one set that takes all along",
        "tensors/moving.py",
        "def move_plainly(key, raw, value, plan, moves, lanes, starts, sets, cosines, sines, at, "
        "halves):\n",
        "def move_plainly(key, raw, value, plan, moves, lanes, starts, sets, cosines, sines, at, "
        "halves):\n    plan = plan.copy()\n    plan[f.SET_OF] = -1\n",
        MOVING + "test_a_move_of_one_set_leaves_the_rows_of_others[plain]",
    ),
    Mutant(
        "a position read from the row before",
        "tensors/moving.py",
        "rotate_part(key, raw, source, target, lane, cosines, sines, begin)",
        "rotate_part(key, raw, source, target, lane, cosines, sines, begin - halves[table])",
        IN_ORDER.format("half split"),
    ),
    # Lanes and stores
    Mutant(
        "the first layer's table for every layer",
        "tensors/lanes.py",
        "lane[TABLE] = tables[shape.rope_of(row)]",
        "lane[TABLE] = tables[shape.ropes[0]]",
        CACHE + "test_each_layer_turns_by_its_own_table",
    ),
    Mutant(
        "lanes of a set that are another's",
        "tensors/lanes.py",
        "if geometry.unit_set[unit] == which",
        "if geometry.unit_set[unit] != which",
        MOVING + "test_a_move_of_one_set_leaves_the_rows_of_others[plain]",
    ),
    Mutant(
        "a table's end that is off by one",
        "tensors/array_store.py",
        "if highest >= self.shape.max_positions:",
        "if highest >= self.shape.max_positions - 1:",
        MOVING + "test_the_last_position_of_the_tables_is_one",
    ),
    Mutant(
        "a rotation made of nothing",
        "tensors/array_store.py",
        'if self.shape.planes != "kv_raw":',
        'if self.shape.planes == "raw":',
        MOVING + "test_planes_without_both_keys_move_and_never_rotate[raw_only]",
    ),
    Mutant(
        "every layer's buffer written from the first layer's rows",
        "tensors/array_store.py",
        "before = self._before(block, scope, width)",
        "before = 0",
        MOVING + "test_layers_with_buffers_of_their_own_get_the_same_bytes",
    ),
    Mutant(
        "rows of no token that cannot be shaped",
        "tensors/array_store.py",
        "        if not slots.size:\n            return\n",
        "        assert slots.size\n",
        SWAP + "test_an_empty_sequence_swaps_too",
    ),
    Mutant(
        "planes that are asked for one by one",
        "tensors/array_store.py",
        "self._memory.check(sum(slots * plane.shape[1] * plane.itemsize for plane in every))",
        "self._memory.check(max(slots * plane.shape[1] * plane.itemsize for plane in every))",
        MEMORY + "test_a_cache_larger_than_memory_is_refused_as_a_whole",
    ),
    Mutant(
        "rows that a growing plane forgets",
        "tensors/memory.py",
        "new[: old.shape[0]] = old",
        "new[1 : old.shape[0]] = old[1:]",
        MEMORY + "test_a_plane_that_grows_keeps_its_rows",
    ),
    # Rotating outside the store
    Mutant(
        "new keys all turned by the first table",
        "tensors/rotator.py",
        "[numbers[shape.rope_of(row)] for row in family.rows]",
        "[0 for row in family.rows]",
        CACHE + "test_each_layer_turns_by_its_own_table",
    ),
    Mutant(
        "a carried part that turns",
        "tensors/rotator.py",
        "lane[n.ROPE_FROM] = row.carried + row.rope_from",
        "lane[n.ROPE_FROM] = row.rope_from",
        FAMILIES + "test_a_latent_is_carried_and_only_its_rope_part_is_kept_raw",
    ),
    Mutant(
        "columns of another scope unit",
        "tensors/columns.py",
        "rows = np.array(units) - int(firsts[family])",
        "rows = np.arange(len(units))",
        FAMILIES + "test_units_are_cut_by_scope[layer-interleaved]",
    ),
    Mutant(
        "a raw plane of a latent that begins with what is carried",
        "tensors/columns.py",
        'end = value + width if plane == "V" else key + row.carried + row.raw',
        'end = value + width if plane == "V" else key + width',
        FAMILIES + "test_a_latent_is_carried_and_only_its_rope_part_is_kept_raw",
    ),
    # The cache
    Mutant(
        "a raw key that is kept rotated, and turned twice",
        "tensors/paged_cache.py",
        "            cuts = {plane: made[plane][:, cut] for plane, cut in held.into.items()}\n",
        "            made |= {'k_raw': made['K']} if self.shape.planes == 'kv_raw' else {}\n"
        "            cuts = {plane: made[plane][:, cut] for plane, cut in held.into.items()}\n",
        CACHE + "test_evictions_one_after_another[kv_raw-renumber]",
    ),
    Mutant(
        "an append's last position off by one",
        "tensors/paged_cache.py",
        "if first + count > self.shape.max_positions:",
        "if first + count >= self.shape.max_positions:",
        CACHE + "test_positions_end_with_the_tables[keep]",
    ),
    Mutant(
        "a regime of the first set alone",
        "tensors/paged_cache.py",
        "self._check_regime(first + count)",
        "self._check_regime(self.length(sequence) + count)",
        CACHE + "test_longrope_is_not_renumbered_past_its_original_context",
    ),
    Mutant(
        "a regime that nobody checks",
        "tensors/paged_cache.py",
        'if rope.regime(tokens) != "short":',
        'if rope.regime(tokens) == "none":',
        CACHE + "test_longrope_is_not_renumbered_past_its_original_context",
    ),
    Mutant(
        "rows of every set at the slots of one",
        "tensors/paged_cache.py",
        "if read is None or not np.array_equal(slots, read):",
        "if read is None:",
        CACHE + "test_sets_that_have_one_position_in_different_slots",
    ),
    Mutant(
        "raw keys read at their ranks",
        "tensors/paged_cache.py",
        'found["K"] = self._rotator.keys(family, found["k_raw"], positions)',
        'found["K"] = self._rotator.keys(family, found["k_raw"], np.arange(positions.size))',
        CACHE + "test_evictions_one_after_another[raw_only-keep]",
    ),
    Mutant(
        "a span of planes kv that is renumbered all the same",
        "tensors/paged_cache.py",
        "shifts = self._renumbers and last < length(self.ledger, sequence)",
        "shifts = self._renumbers and last < self.length(sequence) - 2",
        CACHE + "test_planes_without_a_raw_key_cannot_be_renumbered[none]",
    ),
    Mutant(
        "a refusal without a receipt",
        "tensors/paged_cache.py",
        "refusal.receipt = Receipt(begin, end, exact=False, refused=str(refusal))",
        "refusal.receipt = Receipt(begin, end)",
        CACHE + "test_a_refusal_by_the_ceiling_says_why_in_its_receipt",
    ),
    # Swap files
    Mutant(
        "a checksum that is not looked at",
        "tensors/swap.py",
        "if hashlib.sha256(body).digest() != digest:",
        "if len(digest) != 32:",
        SWAP + "test_every_flipped_byte_is_refused",
    ),
    Mutant(
        "a geometry that is not looked at",
        "tensors/swap.py",
        "if geometry.get(key) != ours[key]:",
        "if key not in geometry:",
        SWAP + "test_a_file_of_another_cache_is_refused[ropes]",
    ),
    Mutant(
        "bytes behind the arrays that are let pass",
        "tensors/swap.py",
        "    if at != len(body):\n",
        "    if at > len(body):\n",
        SWAP + "test_forged_files_with_a_valid_checksum_are_refused[bytes behind the arrays]",
    ),
    Mutant(
        "a swap file for longer tables",
        "tensors/swap.py",
        "if ends.size and ends.max() > store.shape.max_positions:",
        "if ends.size and ends.max() > 10**9:",
        SWAP + "test_positions_past_this_cache_s_tables_are_refused[raw_only-keep]",
    ),
    Mutant(
        "dead slots in a file",
        "tensors/swap.py",
        "plane[image.dead[here] == 1] = 0",
        "plane[image.dead[here] == 2] = 0",
        SWAP + "test_nothing_of_another_sequence_is_in_the_file[dead slots]",
    ),
    Mutant(
        "rows in a file that their set has dropped",
        "tensors/swap.py",
        "dropped = image.holders[member, here] == 0",
        "dropped = image.holders[member, here] == 2",
        SWAP + "test_nothing_of_another_sequence_is_in_the_file[rows of their own]",
    ),
    Mutant(
        "planes that come back as one another",
        "tensors/swap.py",
        "{plane: next(left) for plane in planes}",
        "{plane: next(left) for plane in planes[::-1]}",
        SWAP + "test_a_sequence_comes_back_with_its_holes_and_positions[holes-kv_raw]",
    ),
]
