"""The planted bugs of what moves rows and positions: reuse of holes, compaction, renumbering."""

from __future__ import annotations

from mutants.catalogue import KILLS, KILLS_MOVES
from mutants.mutant import Mutant

REFUSED = "    answer = refuse_or_grow(scalars, entries, plan, need, 0, moves)\n"

MOVES = [
    Mutant(
        "a hole taken in a shared page",
        "paging/append.py",
        "if page >= 0 and left and pages[f.REFCOUNT, page] == 1:",
        "if page >= 0 and left and pages[f.REFCOUNT, page] >= 1:",
        KILLS + "test_a_hole_in_a_shared_page_is_skipped",
    ),
    Mutant(
        "a new token that takes a used position",
        "paging/append.py",
        "position[row, at] = tables[table, f.NEXT_POSITION + row] + ahead",
        "position[row, at] = tables[table, f.NEXT_POSITION + row]",
        KILLS + "test_a_new_token_takes_the_lowest_hole_and_the_next_position",
    ),
    Mutant(
        "a hint above the lowest hole",
        "paging/eviction.py",
        "tables[table, f.HOLE] = min(tables[table, f.HOLE], lowest)",
        "tables[table, f.HOLE] = max(tables[table, f.HOLE], lowest)",
        KILLS + "test_a_hole_below_those_filled_before_is_found",
    ),
    Mutant(
        "a next position that does not rewind",
        "paging/eviction.py",
        "        if newest:\n",
        "        if newest and full < 0:\n",
        KILLS + "test_the_next_position_rewinds_with_the_cursor",
    ),
    Mutant(
        "tables compacted before the ceiling is asked",
        "paging/compaction.py",
        REFUSED,
        "    for scope in range(units):\n"
        "        arrays.tables[sequence * units + scope, f.CURSOR] = lengths[scope]\n" + REFUSED,
        KILLS_MOVES + "test_rebuild_counts_its_targets_before_its_sources_are_let_go[3]",
    ),
    Mutant(
        "a leak when a compaction is refused",
        "paging/compaction.py",
        "fresh[scope, entry] = -1 if copies else names[scope, entry]",
        "fresh[scope, entry] = -1 if copies else names[scope, entry]\n"
        "            if copies and scalars[f.HELD] < scalars[f.CEILING]:\n"
        "                fresh[scope, entry] = allocate(scalars, pages, scopes, scope)",
        KILLS_MOVES + "test_a_refused_compaction_of_a_fork_changes_nothing",
    ),
    Mutant(
        "a rebuild that lets go before it takes",
        "paging/compaction.py",
        "need += copies\n",
        "need += copies and algorithm != f.REBUILD\n",
        KILLS_MOVES + "test_rebuild_counts_its_targets_before_its_sources_are_let_go[2]",
    ),
    Mutant(
        "a rebuild whose extra pages are not seen",
        "paging/compaction.py",
        "scalars[f.EXTRA_PEAK] = max(scalars[f.EXTRA_PEAK], scalars[f.HELD] - before)",
        "scalars[f.EXTRA_PEAK] = max(scalars[f.EXTRA_PEAK], before - scalars[f.HELD])",
        KILLS_MOVES + "test_rebuild_holds_both_for_a_moment_and_frees_its_sources",
    ),
    Mutant(
        "a compaction's sources resolved after its copies",
        "paging/compaction.py",
        "page = np.int64(entries[f.PAGE, start + old // page_tokens])",
        "page = np.int64(fresh[scope, old // page_tokens])",
        KILLS_MOVES + "test_forward_reads_a_shared_page_where_it_was_and_not_its_copy",
    ),
    Mutant(
        "a forward that writes from the top",
        "paging/compaction.py",
        "for slot in range(counts[scope, member]):",
        "for slot in range(counts[scope, member] - 1, -1, -1):",
        KILLS_MOVES + "test_forward_moves_survivors_down_in_ascending_order",
    ),
    Mutant(
        "a forward that copies shared pages it does not write",
        "paging/compaction.py",
        "if page != names[scope, entry] or source % page_tokens != slot % page_tokens:",
        "if page >= 0:",
        KILLS_MOVES + "test_forward_copies_no_page_that_it_does_not_write",
    ),
    Mutant(
        "a forward that writes shared pages in place",
        "paging/compaction.py",
        "if not copies and pages[f.REFCOUNT, names[scope, entry]] > 1:",
        "if not copies and pages[f.REFCOUNT, names[scope, entry]] > 9:",
        KILLS_MOVES + "test_forward_reads_a_shared_page_where_it_was_and_not_its_copy",
    ),
    Mutant(
        "a hole_fill that takes the first survivors",
        "paging/compaction.py",
        "slot = cursor - 1 - back",
        "slot = back",
        KILLS_MOVES + "test_hole_fill_moves_the_last_survivors_into_the_first_holes",
    ),
    Mutant(
        "stale dead flags behind a shortened table",
        "paging/compaction.py",
        "for slot in range(tables[table, f.CURSOR]):\n        dead[base + slot] = 0",
        "for slot in range(length):\n        dead[base + slot] = 0",
        KILLS_MOVES + "test_a_compacted_table_has_no_dead_flag_behind_its_cursor",
    ),
    Mutant(
        "a compaction by rows that forgets a set",
        "paging/compaction.py",
        "    for member in range(movers):\n        row = member if position.shape[0] > 1 else 0\n"
        "        which",
        "    for member in range(max(1, movers - 1)):\n"
        "        row = member if position.shape[0] > 1 else 0\n        which",
        KILLS_MOVES + "test_rows_of_the_last_set_move_too",
    ),
    Mutant(
        "a compaction that keeps pages it has emptied",
        "paging/compaction.py",
        "if rebuild or entry >= wanted or fresh[scope, entry] != names[scope, entry]:",
        "if rebuild or (entry < wanted and fresh[scope, entry] != names[scope, entry]):",
        KILLS_MOVES + "test_hole_fill_moves_the_last_survivors_into_the_first_holes",
    ),
    Mutant(
        "renumbering that rotates the wrong rows",
        "paging/renumbering.py",
        "rotates = position_of(position, base, slot) > death",
        "rotates = position_of(position, base, slot) < death",
        KILLS_MOVES + "test_renumbering_rotates_the_survivors_behind_the_first_death",
    ),
    Mutant(
        "renumbering that reads from its copy",
        "paging/renumbering.py",
        "                    page * page_tokens + slot - first,\n                    target",
        "                    target * page_tokens + slot - first,\n                    target",
        KILLS_MOVES + "test_renumbering_copies_from_the_shared_page_into_a_page_of_its_own",
    ),
    Mutant(
        "renumbering that does not count its copies",
        "paging/renumbering.py",
        "copies += 1",
        "copies += 0",
        KILLS_MOVES + "test_renumbering_that_needs_a_page_beyond_the_ceiling_is_refused",
    ),
    Mutant(
        "a shared page counted as freed",
        "paging/eviction.py",
        "count += pages[f.REFCOUNT, page] == 1",
        "count += pages[f.REFCOUNT, page] >= 1",
        KILLS_MOVES + "test_a_shared_page_that_an_eviction_leaves_makes_no_room_for_its_copies",
    ),
]
