"""The planted bugs of the ledger: pool, append, fork, evict, census.

The text to replace must occur exactly once in its file, so that a mutant which the code has left
behind fails loudly instead of testing nothing.
"""

from __future__ import annotations

from mutants.mutant import Mutant

KILLS = "tests/unit/test_ledger_kills.py::"
KILLS_MOVES = "tests/unit/test_ledger_kills_moves.py::"
LEDGER = "tests/unit/test_ledger.py::"
POOL = "tests/unit/test_ledger_pool.py::"

PAGING = [
    Mutant(
        "a lost refcount",
        "paging/lifecycle.py",
        "pages[f.REFCOUNT, entries[f.PAGE, entry]] += 1",
        "pages[f.REFCOUNT, entries[f.PAGE, entry]] += 0",
        LEDGER + "test_page_of_two_sequences_is_freed_once",
    ),
    Mutant(
        "a skipped copy on write",
        "paging/append.py",
        "if offset and pages[f.REFCOUNT, entries[f.PAGE, start + used - 1]] > 1:",
        "if offset and pages[f.REFCOUNT, entries[f.PAGE, start + used - 1]] > 99:",
        LEDGER + "test_child_that_appends_copies_the_partial_page_only",
    ),
    Mutant(
        "an append's copy reads its source from the new page",
        "paging/moves.py",
        "scalars, plan, shared * page_tokens + slot, own * page_tokens",
        "scalars, plan, own * page_tokens + slot, own * page_tokens",
        LEDGER + "test_copy_on_write_carries_dead_slots_and_the_right_rows",
    ),
    Mutant(
        "a copy on write of too few rows",
        "paging/moves.py",
        "for slot in range(rows):",
        "for slot in range(rows - 1):",
        LEDGER + "test_copy_on_write_carries_dead_slots_and_the_right_rows",
    ),
    Mutant(
        "a page freed that is still shared",
        "paging/pool.py",
        "if left == 0:",
        "if left <= 1:",
        LEDGER + "test_page_of_two_sequences_is_freed_once",
    ),
    Mutant(
        "a queue whose order is turned",
        "paging/pool.py",
        "enqueue(scalars, pages, page, scalars[f.ORDER] == f.LIFO)",
        "enqueue(scalars, pages, page, scalars[f.ORDER] == f.FIFO)",
        POOL + "test_order_of_reuse",
    ),
    Mutant(
        "a page let go of once for each victim",
        "paging/eviction.py",
        "            entries[f.PAGE, start + inner] = -1\n",
        "",
        KILLS + "test_a_page_that_is_left_by_several_victims_is_let_go_once",
    ),
    Mutant(
        "a double free",
        "paging/lives.py",
        'self._check_open(sequence)\n        self._call("free"',
        'self._call("free"',
        LEDGER + "test_sequence_that_is_not_open_is_refused_by_every_verb",
    ),
    Mutant(
        "a ceiling off by one",
        "paging/moves.py",
        "if scalars[f.HELD] + pages > scalars[f.CEILING]:",
        "if scalars[f.HELD] + pages > scalars[f.CEILING] + 1:",
        POOL + "test_append_at_the_ceiling[below the first pool]",
    ),
    Mutant(
        "an off-by-one in the cursor",
        "paging/steps.py",
        "used = step - since[member]",
        "used = step - since[member] + 1",
        KILLS + "test_advancing_through_pages_fills_each_of_them",
    ),
    Mutant(
        "an append's cursor one too far",
        "paging/append.py",
        "tables[table, f.CURSOR] = cursor + tokens - reused",
        "tables[table, f.CURSOR] = cursor + tokens",
        KILLS + "test_a_new_token_takes_the_lowest_hole_and_the_next_position",
    ),
    Mutant(
        "a null entry that shifts what is appended behind it",
        "paging/append.py",
        "for entry in range(used, wanted):",
        "for entry in range(tables[table, f.NAMED], tables[table, f.NAMED] + wanted - used):",
        KILLS + "test_a_page_appended_behind_a_null_entry_gets_the_entry_of_its_slots",
    ),
    Mutant(
        "a null entry that shifts physical slots",
        "paging/readings.py",
        "pages = self.pages_of(sequence, scope)[slots // self.page_tokens]",
        "named = self.pages_of(sequence, scope)\n"
        "        pages = np.take(named[named >= 0], slots // self.page_tokens, mode='clip')",
        KILLS + "test_a_page_appended_behind_a_null_entry_gets_the_entry_of_its_slots",
    ),
    Mutant(
        "room that outlives a fork",
        "paging/lifecycle.py",
        "        tables[old, f.ROOM] = 0\n",
        "",
        KILLS + "test_a_parent_that_advances_after_a_fork_copies_the_page_that_it_shares",
    ),
    Mutant(
        "a fork without its parent's holders",
        "paging/segments.py",
        "holders[row, new + slot] = holders[row, old + slot]",
        "holders[row, new + slot] = 1",
        KILLS + "test_a_fork_retains_what_each_set_of_its_parent_retains",
    ),
    Mutant(
        "a segment in the free list of another size",
        "paging/segments.py",
        "k = size_class(tables[table, f.CAPACITY])",
        "k = size_class(tables[table, f.CAPACITY] + 1)",
        KILLS + "test_a_freed_segment_serves_a_table_that_fits_it",
    ),
    Mutant(
        "a segment with the flags of its last user",
        "paging/segments.py",
        "(start + (np.int64(1) << k)) * page_tokens):\n        dead[slot] = 0",
        "(start + (np.int64(1) << k)) * page_tokens):\n        dead[slot] *= 1",
        KILLS + "test_a_segment_used_again_has_no_flag_of_its_last_user",
    ),
    Mutant(
        "a rewind that stops one early",
        "paging/eviction.py",
        "while cursor > 0 and dead[base + cursor - 1]:",
        "while cursor > 1 and dead[base + cursor - 1]:",
        KILLS + "test_an_emptied_table_starts_again_at_slot_0",
    ),
    Mutant(
        "stale dead flags behind a rewound cursor",
        "paging/eviction.py",
        "        dead[base + cursor] = 0\n",
        "",
        LEDGER + "test_rewind_forgets_dead_slots_behind_the_cursor",
    ),
    Mutant(
        "a take-back that forgets holders",
        "paging/eviction.py",
        "holders[member, place] = 1",
        "holders[member, place] *= 1",
        KILLS + "test_a_refused_victim_gives_back_what_its_set_had_dropped",
    ),
    Mutant(
        "a take-back that forgets the last list",
        "paging/eviction.py",
        "for back in range(step, -1, -1):",
        "for back in range(step - 1, -1, -1):",
        KILLS + "test_a_refused_victim_gives_back_what_its_set_had_dropped",
    ),
    Mutant(
        "a slot that dies with the first of its sets",
        "paging/eviction.py",
        "            if still_held(holders, place):\n                continue\n",
        "",
        LEDGER + "test_slot_dies_when_every_set_has_dropped_it",
    ),
    Mutant(
        "evicted rows counted per slot and not per set",
        "paging/eviction.py",
        "scalars[f.EVICTED_ROWS_TOTAL] += (last - first) * scopes[scope, column + f.ROWS]",
        "scalars[f.EVICTED_ROWS_TOTAL] += last - first",
        LEDGER + "test_slot_dies_when_every_set_has_dropped_it",
    ),
    Mutant(
        "evicted bytes of the first set for every set",
        "paging/eviction.py",
        "scalars[f.EVICTED_BYTES_TOTAL] += (last - first) * scopes[scope, column + f.BYTES]",
        "scalars[f.EVICTED_BYTES_TOTAL] += (last - first) * scopes[scope, 1 + f.BYTES]",
        KILLS + "test_bytes_and_rows_of_each_set_are_its_own",
    ),
    Mutant(
        "a census that counts shared slots twice",
        "paging/samples.py",
        "return _count(slot_states(arrays))",
        "counted = _count(slot_states(arrays))\n"
        "    used = arrays.tables[arrays.tables[:, f.SEQUENCE] >= 0]\n"
        "    live = int((used[:, f.CURSOR] - used[:, f.DEAD]).sum())\n"
        "    return Slots(live=live, dead=counted.dead, tail=counted.tail)",
        LEDGER + "test_census_counts_a_shared_slot_once_and_as_live_if_any_table_says_so",
    ),
    Mutant(
        "a census in which the last table has its way",
        "paging/census.py",
        "if marks[slot] < kind:",
        "if marks[slot] != kind:",
        KILLS + "test_a_slot_that_one_fork_has_dropped_is_live_while_another_retains_it",
    ),
    Mutant(
        "floors that count forks as tables of their own",
        "paging/samples.py",
        "label = tables[members, f.ROOT]",
        "label = tables[members, f.SEQUENCE]",
        LEDGER + "test_floors_count_distinct_slots_of_forks_once",
    ),
    Mutant(
        "a prompt's dropped tokens that nobody counts",
        "paging/ledger.py",
        "gone = appended - count",
        "gone = 0",
        KILLS + "test_tokens_that_never_had_a_slot_count_as_evicted",
    ),
]
